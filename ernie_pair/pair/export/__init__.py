"""Export a folder that predicts without the training code, and check its predictions."""
