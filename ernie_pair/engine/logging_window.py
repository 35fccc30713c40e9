"""The means of a training line over the steps since the previous line, bit-identical after a resume."""

import math
from typing import Dict

from ernie_pair.checkpoint.train_state import Window

# Values without a mean: a training line shows them as of its own step.
AS_OF_NOW = ("learning_rate", "loss_scale", "skipped_updates", "gpu_memory_gb")
LARGEST_EXPONENT = 700


def add_step(window: Window, metrics: Dict[str, float]) -> Window:
    """Return ``window`` with the metrics of one more step; ``window`` itself stays as it is.

    Values that are not finite, those of a skipped step, are left out.
    """
    grown = dict(window)
    for name, value in metrics.items():
        if name not in AS_OF_NOW and math.isfinite(value):
            total, count = grown.get(name, (0.0, 0))
            grown[name] = (total + float(value), count + 1)
    return grown


def window_means(window: Window, latest: Dict[str, float]) -> Dict[str, float]:
    """Return the metrics of a training line, under the names of ``latest``, the metrics of its step.

    Those AS_OF_NOW, and those that had no finite value in the whole window, are as in ``latest``.
    The perplexity is that of the mean lm_loss.
    """
    means = {name: total / count for name, (total, count) in window.items() if name in latest}
    line = {**latest, **means}
    if "perplexity" in line:
        line["perplexity"] = perplexity_of(line["lm_loss"])
    return line


def perplexity_of(lm_loss: float) -> float:
    """Return exp(lm_loss); the loss, in nats per token, is capped at LARGEST_EXPONENT."""
    return math.exp(min(lm_loss, LARGEST_EXPONENT))
