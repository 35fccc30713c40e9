"""Step number -> learning rate, as a pure function."""

import logging
import math

STYLES = ("linear", "cosine", "constant")  # what follows the warm-up

logger = logging.getLogger(__name__)


def learning_rate(
    step: int,
    *,
    max_lr: float,
    min_lr: float,
    warmup_steps: int,
    decay_steps: int,
    style: str = "linear",
) -> float:
    """Return the learning rate of step ``step`` (1 is the first).

    It rises to ``max_lr`` at ``warmup_steps``, falls to ``min_lr`` at ``decay_steps`` and stays there;
    between them it falls along a line, or along half a wave of the cosine (Loshchilov and Hutter, "SGDR",
    2017, without restarts). ``style`` constant: it stays at ``max_lr``.
    """
    if step <= warmup_steps:
        return max_lr * step / warmup_steps
    if style == "constant":
        return max_lr
    if step >= decay_steps:
        return min_lr
    left = (decay_steps - step) / (decay_steps - warmup_steps)
    if style == "cosine":
        left = (1 - math.cos(math.pi * left)) / 2
    return min_lr + (max_lr - min_lr) * left


def tell_schedule(rates: dict, max_steps: int, done: int = 0) -> None:
    """Log the landmarks of a run's learning rate, and warn of a warm-up longer than half of the run.

    ``rates``: keyword arguments of ``learning_rate``; ``done``: the steps that were made before this start.
    """
    logger.info("%s", describe_schedule(rates, max_steps, done))
    if 2 * rates["warmup_steps"] > max_steps:
        logger.warning(
            "warm-up takes %d of the %d steps, more than half of the run; is that meant so?",
            rates["warmup_steps"],
            max_steps,
        )


def describe_schedule(rates: dict, max_steps: int, done: int = 0) -> str:
    """Return "learning rate: peak 1e-4 at step 2,000, 1e-5 at 1,980,000, 9.1e-5 at the end, step 200,000"."""
    peak = max(1, rates["warmup_steps"])
    landmarks = [f"peak {_short(learning_rate(peak, **rates))} at step {peak:,}"]
    if rates["decay_steps"] != max_steps and rates.get("style") != "constant":
        landmarks.append(f"{_short(rates['min_lr'])} at {rates['decay_steps']:,}")
    landmarks.append(f"{_short(learning_rate(max_steps, **rates))} at the end, step {max_steps:,}")
    if 0 < done < max_steps:
        landmarks.append(f"{_short(learning_rate(done + 1, **rates))} at the next step")
    return "learning rate: " + ", ".join(landmarks)


def _short(rate: float) -> str:
    """Write a rate with three digits, 9.1e-5 for 0.000090990: enough to see what is meant."""
    digits, power = f"{rate:.2e}".split("e")
    return f"{float(digits):g}e{int(power)}" if rate else "0"
