"""Distil a small pair classifier from a large one, and compare the two."""
