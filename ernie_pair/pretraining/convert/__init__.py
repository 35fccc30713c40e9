"""From static weights to a dynamic model folder, and back to a warm start."""
