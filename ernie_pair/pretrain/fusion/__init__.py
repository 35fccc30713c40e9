"""The fused ops of the static program on GPUs: choosing them, and rewriting the program."""
