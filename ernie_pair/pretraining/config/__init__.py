"""The flags of pretraining."""
