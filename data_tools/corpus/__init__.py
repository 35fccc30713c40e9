"""The corpus of token ids on disk: its format, writer, checks, and how several corpora are mixed."""
