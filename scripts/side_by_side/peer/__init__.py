"""The peer, transformers on torch: its Python, and what that runs; it imports the standard library and its own."""
