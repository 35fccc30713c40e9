"""The move of a step that is judged first: one that is not finite may be left out."""

import math
from typing import Dict


def move_if_sound(job, rate: float, loss: float, norm: float) -> Dict[str, float]:
    """Move the weights of ``job``, or skip its step, and return what there is to say of it.

    ``rate``: the learning rate. ``loss`` and ``norm``, of the gradient, are the same on all ranks, and so is
    what is done: with --on_nan skip both have to be finite, with a loss scale the norm.
    """
    is_sound = math.isfinite(norm) and (job.config.on_nan == "stop" or math.isfinite(loss))
    if is_sound:
        job.parallel.step(rate, norm)
    else:
        job.skipped_updates += 1
    job.parallel.clear()
    told: Dict[str, float] = {}
    if job.loss_scale is not None:
        job.loss_scale.judge(is_sound)
        told["loss_scale"] = job.loss_scale.value
    return {**told, "skipped_updates": job.skipped_updates}
