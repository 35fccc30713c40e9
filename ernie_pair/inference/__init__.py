"""Ask an exported model: token rows, backends, probabilities. Imports no framework of training."""
