"""config.yaml in an output folder: every flag of the command that made it, and its environment."""
