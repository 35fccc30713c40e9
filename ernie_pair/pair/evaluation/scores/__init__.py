"""The evaluation of a model without classes: metrics of its scores, and their report."""
