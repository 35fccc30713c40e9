"""Sentence-pair classification in dynamic graph."""
