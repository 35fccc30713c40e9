"""The output folder of a run: checkpoints, their manifest and fingerprint, the lock. Imports no framework."""
