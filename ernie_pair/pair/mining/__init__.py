"""More training pairs from few labels: implied by them, near but different, or labelled by a model."""
