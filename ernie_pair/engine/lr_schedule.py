"""Step number -> learning rate, as a pure function."""

import logging
import math
from typing import Optional

STYLES = ("linear", "cosine", "constant")  # the decay after the warm-up

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
    """Return the learning rate of step ``step``; 1 is the first, 0 stands for what comes before it.

    It rises from 0 to ``max_lr`` at ``warmup_steps``, falls to ``min_lr`` at ``decay_steps`` and stays there;
    between them it falls linearly, or along half a cosine wave (Loshchilov and Hutter, "SGDR",
    2017, without restarts). ``style`` constant: it stays at ``max_lr``.
    """
    if step < warmup_steps or step == warmup_steps > 0:
        return max_lr * step / warmup_steps
    if style == "constant":
        return max_lr
    if step >= decay_steps:
        return min_lr
    left = (decay_steps - step) / (decay_steps - warmup_steps)
    if style == "cosine":
        left = (1 - math.cos(math.pi * left)) / 2
    return min_lr + (max_lr - min_lr) * left


def tell_schedule(rates: Optional[dict], max_steps: int, done: int = 0) -> None:
    """Log the key points of a run's learning rate, and warn of a warm-up longer than half of the run.

    ``rates``: keyword arguments of ``learning_rate``, None: of a schedule that nothing is known of;
    ``done``: the steps taken before this start.
    """
    if rates is None:
        logger.info("learning rate: of the scheduler that was given")
        return
    logger.info("%s", describe_schedule(rates, max_steps, done))
    if 2 * rates["warmup_steps"] > max_steps:
        logger.warning(
            "warm-up takes %d of the %d steps, more than half of the run; is this intended?",
            rates["warmup_steps"],
            max_steps,
        )


def describe_schedule(rates: dict, max_steps: int, done: int = 0) -> str:
    """Return "learning rate: rises to 1e-4 at step 2,000, is 1e-5 at the last step, 200,000"."""
    peak, decay_steps = max(1, rates["warmup_steps"]), rates["decay_steps"]
    rises = f"rises to {_short(rates['max_lr'])} at step {peak:,}"
    landmarks = [rises if peak > 1 else f"starts at {_short(learning_rate(1, **rates))}"]
    lowest = f"{_short(rates['min_lr'])} at step {decay_steps:,}"
    if decay_steps < max_steps and rates.get("style") != "constant":
        landmarks.append(f"falls to {lowest}")
    landmarks.append(f"is {_short(learning_rate(max_steps, **rates))} at the last step, {max_steps:,}")
    if decay_steps > max_steps + 1 and rates.get("style") != "constant":
        landmarks[-1] += f" (it would be {lowest})"
    if 0 < done < max_steps:
        landmarks.append(f"is {_short(learning_rate(done + 1, **rates))} at the next step")
    return "learning rate: " + ", ".join(landmarks)


def _short(rate: float) -> str:
    """Format a rate with three digits, 9.1e-5 for 0.000090990: enough to identify it."""
    digits, power = f"{rate:.2e}".split("e")
    return f"{float(digits):g}e{int(power)}" if rate else "0"
