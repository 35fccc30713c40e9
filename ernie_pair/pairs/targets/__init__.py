"""What a model is for: the measures of each target, the metric that chooses the best, weights of classes."""
