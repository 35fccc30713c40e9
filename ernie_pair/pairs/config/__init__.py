"""The flags of sentence-pair training, evaluation and prediction."""
