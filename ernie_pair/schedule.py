"""Update number -> learning rate, as a pure function."""

import math

STYLES = ("linear", "cosine")


def learning_rate(
    step: int,
    *,
    max_lr: float,
    min_lr: float,
    warmup_steps: int,
    decay_steps: int,
    style: str = "linear",
) -> float:
    """The rate of update ``step`` (1 is the first): up to ``max_lr``, down to ``min_lr``, then flat.

    It reaches ``max_lr`` at ``warmup_steps`` and ``min_lr`` at ``decay_steps``; between them it falls
    along a line, or along half a wave of the cosine.
    """
    if step <= warmup_steps:
        return max_lr * step / warmup_steps
    if step >= decay_steps:
        return min_lr
    left = (decay_steps - step) / (decay_steps - warmup_steps)
    if style == "cosine":
        left = (1 - math.cos(math.pi * left)) / 2
    return min_lr + (max_lr - min_lr) * left
