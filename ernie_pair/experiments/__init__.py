"""Many runs as one: cross-validation, search of flags, comparisons."""
