"""GPUs: which there are, what this build of Paddle has for them, where it finds CUDA, whether it computes."""
