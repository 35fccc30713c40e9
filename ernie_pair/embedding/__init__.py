"""Texts as vectors: the encoder, its files, and what is asked of it; `train` teaches it."""
