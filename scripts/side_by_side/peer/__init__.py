"""The peer, transformers on torch: its Python, and the programs that it runs."""
