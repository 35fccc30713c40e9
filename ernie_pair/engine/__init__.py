"""The training loop, its schedule and its log. Imports no framework."""
