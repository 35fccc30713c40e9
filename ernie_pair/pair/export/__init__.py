"""Make a folder that predicts without the training code, with a proof that it does."""
