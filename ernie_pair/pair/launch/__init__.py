"""Start the processes of a run from a file of answers."""
