"""What a model without classes is worth: the measurements of its scores, and their report."""
