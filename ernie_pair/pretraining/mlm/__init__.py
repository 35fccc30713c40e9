"""Predict the words behind [MASK] with a pretrained model."""
