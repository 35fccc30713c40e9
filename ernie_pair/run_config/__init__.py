"""config.yaml in an output folder: every flag of what made it, and what it ran on."""
