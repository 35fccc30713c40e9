"""Texts as vectors: the encoder, its files and its use; `train` trains it."""
