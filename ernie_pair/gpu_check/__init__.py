"""The check of a GPU, from the libraries to the speed of a base model: runs of the package, and a report."""
