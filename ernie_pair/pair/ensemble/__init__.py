"""Several pair classifiers as one exported model: the mean of their logits."""
