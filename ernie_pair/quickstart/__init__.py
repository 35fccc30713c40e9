"""The whole pipeline on the built-in sample: as a quickstart with figures, and as a self-test of a minute."""
