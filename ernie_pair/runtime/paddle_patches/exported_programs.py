"""Which exported programs the installed Paddle runs.

Paddle 3.3 runs those of 2.6 too. 2.6.2 opens a program of 3.3 (PIR) without an error, and then ends the
process with a segmentation fault.
"""


def can_run_pir() -> bool:
    """Return whether this Paddle runs programs of Paddle 3.3."""
    import paddle

    return not paddle.__version__.startswith("2.")
