"""The update of pretraining in the dynamic graph: sums over the ranks, loss scale, clipping, ZeRO stage 1.

Every rank has the whole gradient and all weights. With --sharding_degree it has the optimizer state of its
part alone, moves the weights of that part, and receives the others.
"""

import math
from dataclasses import replace
from typing import Optional

import numpy as np
import paddle

from ernie_pair.kernels.adamw import FusedAdamW
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.pretraining.graph.program_state import BAD_STEPS, GOOD_STEPS, LOSS_SCALE, POWERS, slots_of
from ernie_pair.pretraining.graph.step_monitors import GRADIENT_NORM, SKIPPED_UPDATES
from ernie_pair.pretraining.graph.strategy import AmpPlan, build_optimizer, owners_of, precision_of
from ernie_pair.runtime.cpu_env import cpu_threads
from ernie_pair.runtime.paddle_patches.optimizer_state import adam_slots
from ernie_pair.training.data_parallel import squares_of
from ernie_pair.training.process_group import ProcessGroup
from ernie_pair.weights.weight_files import Arrays


class StepGuard:
    """Skips steps whose gradient is not finite, and scales the loss as static programs do.

    ``plan``: of bfloat16, which needs no scale, or with one; a scale of 1 that never grows only skips.
    """

    def __init__(self, plan: AmpPlan):
        self.plan, self.has_scale = plan, plan.dtype != "bfloat16"
        self.scale = plan.init_loss_scaling if self.has_scale else 1.0
        self.finite, self.infinite, self.skipped = 0, 0, 0  # steps in a row, and in all

    def judge(self, is_finite: bool) -> None:
        """Count a step, and let the scale grow or shrink after it."""
        plan = self.plan
        self.skipped += not is_finite
        self.finite, self.infinite = (self.finite + 1, 0) if is_finite else (0, self.infinite + 1)
        if self.finite == plan.incr_every_n_steps:
            larger = float(np.float32(self.scale) * np.float32(plan.incr_ratio))
            self.scale, self.finite = larger if math.isfinite(larger) else self.scale, 0
        if self.infinite == plan.decr_every_n_nan_or_inf:
            smaller = float(np.float32(self.scale) * np.float32(plan.decr_ratio))
            self.scale, self.infinite = max(smaller, 1.0), 0

    def arrays(self) -> Arrays:
        """Return the state under the static programs' names, [1] each."""
        skipped = {SKIPPED_UPDATES: np.array([self.skipped], np.float32)}
        if not self.has_scale:
            return skipped
        counts = {GOOD_STEPS: self.finite, BAD_STEPS: self.infinite}
        scale = {LOSS_SCALE: np.array([self.scale], np.float32)}
        return {**skipped, **scale, **{name: np.array([n], np.int32) for name, n in counts.items()}}

    def set(self, arrays: Arrays) -> None:
        """Take those of `arrays` that there are."""
        values = {name: arrays[name].item() for name in self.arrays() if name in arrays}
        self.skipped = int(values.get(SKIPPED_UPDATES, self.skipped))
        if self.has_scale:
            self.scale = values.get(LOSS_SCALE, self.scale)
            self.finite = values.get(GOOD_STEPS, self.finite)
            self.infinite = values.get(BAD_STEPS, self.infinite)

    def monitored(self) -> dict[str, float]:
        """Return what the last step recorded for the log."""
        scale = {"loss_scale": float(self.scale)} if self.has_scale else {}
        return {SKIPPED_UPDATES: float(self.skipped), **scale}


class DynamicUpdate:
    """The optimizer of ``parameters`` of ``model``, those that receive a gradient, in this rank of ``group``.

    ``slots``: {parameter: {variable of its optimizer state: shape}}, of all ``parameters``, under the names
    of the static programs. ``state``: those variables that this rank has. ``norm``: float32 [], of the
    gradient of the last step, if it is clipped.
    """

    def __init__(
        self, config: PretrainConfig, model, parameters: list, group: ProcessGroup, *, is_fused: bool = False
    ):
        self.model, self.trained, self.group = model, parameters, group
        plan, self._largest = precision_of(config), config.grad_clip
        skips = plan is not None and (plan.dtype != "bfloat16" or config.on_nan == "skip")
        self.guard = StepGuard(plan) if skips and plan is not None else None  # what skips steps, if asked for
        self.norm: Optional[paddle.Tensor] = paddle.zeros([]) if config.grad_clip > 0 else None
        degree = config.sharding_degree
        sizes = {parameter.name: int(parameter.size) for parameter in parameters}
        self._owners = owners_of(sizes, degree) if degree > 1 else {}
        part = group.rank % degree
        self._own = [p for p in parameters if self._owners.get(p.name, part) == part]
        # The norm is that of all gradients, so what clips is not the optimizer, which sees its own alone.
        unclipped = replace(config, grad_clip=0.0)
        is_fused = is_fused and config.optimizer == "adamw"
        kind = FusedAdamW if is_fused else paddle.optimizer.AdamW
        self.optimizer = build_optimizer(unclipped, model, 0.0, self._own, adamw=kind)
        if is_fused:
            self.optimizer.threads = cpu_threads()
        self.slots = slots_of(parameters)
        self.state: dict[str, paddle.Tensor] = {}
        for parameter, slots in zip(self._own, adam_slots(self.optimizer, self._own)):
            self.state.update(zip(self.slots[parameter.name], slots))

    def update(self) -> None:
        """Move the weights by the gradients that the passes have left, and clear them; all ranks call it."""
        if self.group.size > 1:
            self.group.average_gradients(self.model, of_forward=False)
        with paddle.no_grad():
            if self._prepare_gradients():
                self.optimizer.step()
                for parameter in self.trained:
                    if self._owners:
                        self.group.broadcast(parameter, self._owners[parameter.name])
        for parameter in self.trained:
            parameter.clear_gradient(set_to_zero=False)

    def _prepare_gradients(self) -> bool:
        """Unscale the gradients and clip those of this rank; return whether the step is to be made."""
        guard = self.guard
        gradients = [p.grad for p in self.trained if p.grad is not None]
        if guard is not None and guard.scale != 1.0:
            for gradient in gradients:
                gradient.scale_(1.0 / guard.scale)
        norm = paddle.zeros([])
        if self.norm is not None or guard is not None:
            norm = paddle.sqrt(squares_of(gradients)).reshape([])
        if self.norm is not None:
            self.norm = norm
        if guard is not None:
            is_finite = math.isfinite(norm.item())
            guard.judge(is_finite)
            if not is_finite:
                return False
        if self.norm is not None:
            factor = self._largest / paddle.clip(norm, min=self._largest)
            for parameter in self._own:
                if parameter.grad is not None:
                    parameter.grad.multiply_(factor)
        return True

    def monitored(self) -> dict[str, float]:
        """Return what the last step recorded for the log."""
        norm = {} if self.norm is None else {GRADIENT_NORM: float(self.norm)}
        return {**norm, **({} if self.guard is None else self.guard.monitored())}

    def view_variables(self, names) -> Arrays:
        """Return {variable of the state: array}, copies."""
        shared = {} if self.guard is None else self.guard.arrays()
        return {name: shared[name] if name in shared else self.state[name].numpy() for name in names}

    def set(self, arrays: Arrays) -> None:
        """Copy arrays into the state; each stays on its device, as in `PretrainProgram.set`."""
        if self.guard is not None:
            self.guard.set(arrays)
        for name, array in arrays.items():
            if name.endswith(POWERS):
                self.state[name].get_tensor().set(array, paddle.CPUPlace())
            elif name in self.state:
                self.state[name].set_value(array)
