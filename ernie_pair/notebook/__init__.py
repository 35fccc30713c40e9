"""Start several processes from a notebook."""
