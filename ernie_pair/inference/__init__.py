"""Predict with an exported model: token rows, backends, probabilities. Imports no training framework."""
