"""Embedding models in use: vectors of files, evaluation by retrieval, export."""
