"""Sentence-pair classification in the dynamic graph."""
