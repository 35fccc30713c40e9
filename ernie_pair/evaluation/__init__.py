"""Evaluation and prediction of trained pair models, with reports."""
