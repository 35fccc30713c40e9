"""What is done with trained models: evaluation, prediction, export, vectors."""
