"""Model folders of every origin, read once into a checked description."""
