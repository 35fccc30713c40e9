"""The corpus of token ids on disk: its format, who writes it, who checks it, how several are mixed."""
