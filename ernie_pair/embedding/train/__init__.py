"""Teach an encoder to make vectors: contrastive learning on pairs, or on texts alone."""
