"""What touches private names of Paddle or repairs a fault of it, each with the versions that need it."""
