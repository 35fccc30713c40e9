"""What a pretrained model puts in the place of [MASK]."""
