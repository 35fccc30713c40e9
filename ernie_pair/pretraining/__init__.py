"""ERNIE 1.0 pretraining in the static graph, and conversion to a dynamic model."""
