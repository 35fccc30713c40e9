"""GPUs and CUDA libraries, as far as they can be told without loading Paddle."""
