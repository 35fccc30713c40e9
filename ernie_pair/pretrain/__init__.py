"""ERNIE 1.0 pretraining in static graph, and the way to a dynamic model."""
