"""The sentence-pair classifier on an encoder."""
