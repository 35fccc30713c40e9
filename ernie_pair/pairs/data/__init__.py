"""Files and sets of sentence pairs: from rows of text to batches of ids. Imports no framework."""
