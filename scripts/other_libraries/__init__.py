"""Other libraries beside this package: processes that answer requests, and tiny models and texts for them."""
