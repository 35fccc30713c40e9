"""Raw text to token ids to masked samples: files and arrays, no deep-learning framework."""
