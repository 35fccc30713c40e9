"""Train an encoder for vectors: contrastive learning on pairs, or on texts alone."""
