"""Update the weights only if the step is finite; otherwise the step may be skipped."""

import math
from typing import Dict


def move_if_sound(job, rate: float, loss: float, norm: float) -> Dict[str, float]:
    """Update the weights of ``job`` or skip the step, and return a message about it, if any.

    ``rate``: the learning rate. ``loss`` and ``norm``, of the gradient, are the same on all ranks, and so is
    what is done: with --on_nan skip both have to be finite, with a loss scale the norm.
    """
    is_sound = math.isfinite(norm) and (job.config.on_nan == "stop" or math.isfinite(loss))
    if is_sound:
        job.on_event("on_pre_optimizer_step")
        job.parallel.step(rate, norm)
        job.on_event("on_optimizer_step")
    else:
        job.skipped_updates += 1
    job.parallel.clear()
    told: Dict[str, float] = {}
    if job.loss_scale is not None:
        job.loss_scale.judge(is_sound)
        told["loss_scale"] = job.loss_scale.value
    return {**told, "skipped_updates": job.skipped_updates}
