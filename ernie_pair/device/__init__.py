"""The device and its settings: CPU, GPU, mixed precision, the check of an environment."""
