"""The fused ops of the static program on GPUs: which there are, and the rewriting of the program."""
