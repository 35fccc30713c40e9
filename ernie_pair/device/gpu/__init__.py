"""GPUs: the visible ones, Paddle's support for them, where it finds CUDA, and whether they compute."""
