"""A folder that answers without the training code, with a proof that it does."""
