"""New training pairs from labelled or unlabelled ones."""
