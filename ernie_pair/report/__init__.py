"""Charts, pages, and the curves of runs: a picture, a page that compares them, and a VisualDL board."""
