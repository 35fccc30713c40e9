"""A file of answers starts the processes of a run."""
