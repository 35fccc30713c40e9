"""The files of a model folder: config.json, tokenizer_config.json, the vocabulary, calibration.json."""
