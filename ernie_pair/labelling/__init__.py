"""Which pairs are labelled next, and the labels that come back."""
