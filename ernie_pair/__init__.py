"""ERNIE pretraining in static graph and sentence-pair classification in dynamic graph, on Paddle."""
