"""Derive more training pairs from few labels: implied, similar but different, or labelled by a model."""
