"""The peer, transformers on torch: its Python, and what that runs."""
