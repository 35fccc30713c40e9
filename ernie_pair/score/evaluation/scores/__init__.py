"""Evaluation of models without classes: rankings and scores."""
