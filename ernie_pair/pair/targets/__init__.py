"""What a model is for: how the answers of each target are measured, and which metric chooses the best."""
