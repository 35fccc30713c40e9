"""Check labelled pairs before anything is trained on them."""
