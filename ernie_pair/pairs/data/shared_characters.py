"""How many characters two texts share, which tells matches from others better than nothing."""

import re

# A word of Latin letters or digits is one unit, any other letter (a Chinese character) is one by itself.
UNIT = re.compile(r"[a-z0-9]+|\w")


def overlap(a: str, b: str) -> float:
    """Return the Jaccard index of the units (UNIT) of two texts, in [0, 1]; of two without units 1.0."""
    units = [set(UNIT.findall(text)) for text in (a, b)]
    either = units[0] | units[1]
    return len(units[0] & units[1]) / len(either) if either else 1.0
