"""Folders of transformers: their settings, names of parameters and tokenizers."""
