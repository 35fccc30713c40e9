"""Models of Hugging Face's transformers: their names, their config.json and their files, in numpy alone."""
