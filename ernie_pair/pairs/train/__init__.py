"""Train a sentence-pair classifier: the job, its data, its run, the Python trainer."""
