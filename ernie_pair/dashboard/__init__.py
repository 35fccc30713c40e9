"""What the runs of several output folders show together: a page, pictures, and a board of VisualDL."""
