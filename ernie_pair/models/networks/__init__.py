"""The networks of the dynamic graph: encoders, classifiers, vectors of texts, and their weights."""
