"""Several processes started from a notebook."""
