"""Compare the runs of several output folders: a page, pictures, and a VisualDL board."""
