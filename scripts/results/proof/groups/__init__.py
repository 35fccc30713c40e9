"""The experiments, a file for each group; a group is a function of a Scale that returns its runs."""
