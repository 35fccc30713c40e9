"""Find the texts that match a query: an index of embeddings, and candidates scored by a classifier."""
