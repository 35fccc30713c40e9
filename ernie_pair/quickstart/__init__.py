"""The whole line on the embedded sample: as a quickstart with figures, and as a check that takes a minute."""
