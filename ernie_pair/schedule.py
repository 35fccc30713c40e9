"""Update number -> learning rate, as a pure function."""


def linear_with_warmup(
    step: int, *, max_lr: float, min_lr: float, warmup_steps: int, decay_steps: int
) -> float:
    """The rate of update ``step`` (1 is the first): up to ``max_lr``, down to ``min_lr``, then flat.

    It reaches ``max_lr`` at ``warmup_steps`` and ``min_lr`` at ``decay_steps``.
    """
    if step <= warmup_steps:
        return max_lr * step / warmup_steps
    if step >= decay_steps:
        return min_lr
    return min_lr + (max_lr - min_lr) * (decay_steps - step) / (decay_steps - warmup_steps)
