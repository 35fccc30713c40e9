"""Export of trained pair models, and commands that run an exported one."""
