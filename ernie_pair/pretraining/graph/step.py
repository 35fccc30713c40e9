"""What a step of pretraining does, written once: a static program is built of it, the dynamic graph runs it.

The gradients are summed over the processes, unscaled and clipped; each process moves its own parameters
(ZeRO stage 1) and receives the others. A step that is not finite moves nothing if the flags ask for that.
"""

from typing import Any, NamedTuple, Optional, Protocol, Sequence

import numpy as np
import paddle

from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.pretraining.graph.model import LossSums
from ernie_pair.pretraining.graph.program_state import (
    BAD_STEPS,
    GOOD_STEPS,
    GRADIENT_NORM,
    LOSS_SCALE,
    RECORDS,
    SKIPPED_UPDATES,
    Monitors,
    slots_of,
    start_gloo,
)
from ernie_pair.runtime.paddle_patches import static_programs as ops
from ernie_pair.runtime.paddle_patches.process_groups import join_processes
from ernie_pair.training.optimizer import decays

OPERATOR = "ernie_pair_adamw"

# Kept in float32: a sum over many terms loses the small ones in half precision.
FLOAT32_OPS = frozenset({"softmax_with_cross_entropy", "c_softmax_with_cross_entropy", "reduce_sum"})
NEVER = 2**31 - 1


class AmpPlan(NamedTuple):
    """The settings of mixed precision.

    With ``dtype`` float32 nothing is cast, and the loss scaler only skips steps that are not finite.
    ``changes``: of the loss scale, see `update_scale`; ``float32_ops`` compute in float32 always.
    """

    dtype: str
    init_loss_scaling: float
    changes: tuple[int, int, float, float]
    float32_ops: frozenset[str] = FLOAT32_OPS

    @property
    def is_dynamic(self) -> bool:
        """Return whether the loss scale changes: bfloat16 has the range of float32."""
        return self.dtype != "bfloat16"

    @property
    def skips(self) -> bool:
        """Return whether steps that are not finite are skipped."""
        return self.is_dynamic or self.init_loss_scaling != 1.0


def precision_of(config: PretrainConfig) -> Optional[AmpPlan]:
    """Return what the flags ask for; None is float32 without a loss scaler."""
    if not config.use_amp:  # with a scale that is always 1 all that a loss scaler does is skip
        return AmpPlan("float32", 1.0, (NEVER, 1, 2.0, 0.5)) if config.on_nan == "skip" else None
    scale = config.init_loss_scaling
    if config.amp_dtype == "bfloat16":
        # It needs none, but Paddle checks for infinities only if the scale is not 1.
        scale = 2.0 if config.on_nan == "skip" else 1.0
    counts = config.incr_every_n_steps, config.decr_every_n_nan_or_inf
    changes = (*counts, config.incr_ratio, config.decr_ratio)
    return AmpPlan(config.amp_dtype, scale, changes)


class Graph(Protocol):
    """What differs between the graphs; tensors are values of the program, or hold numbers."""

    def variable(self, name: str, shape: Sequence[int], value: float = 0.0, dtype: str = "float32") -> Any:
        """Return the variable of that name, which keeps its value between runs; at first it is ``value``."""

    def sums_over_ranks(self, tensors: Sequence) -> list:
        """Return the sums of all ``tensors`` over the processes, in one collective."""

    def move_fused(self, pairs: list, slots: list, numbers: list, decays: list[float]) -> None:
        """Make a step of AdamW in one call.

        ``pairs``: (parameter, gradient); ``slots``: the moments and powers of each; ``numbers``: the rate and
        the factor of the gradients, float32 [1], whether to skip, bool [1] or None, betas and epsilon.
        """


def weigh_losses(graph: Graph, weights, labelled):
    """Return the weights of the two summed losses, float32 [2], over the labels of all processes.

    ``labelled``: float64 [2], the labels of this process.
    """
    labelled = paddle.clip(graph.sums_over_ranks([labelled])[0], 1.0, 3e38)
    return paddle.cast(paddle.cast(weights, "float64") / labelled, "float32")


def loss_of(config: PretrainConfig, graph: Graph, sums: LossSums, weights):
    """Return the loss whose gradients add up over processes and micro-batches, times the loss scale."""
    loss = sums.weighted(weights, config.has_order) * (1.0 / (config.processes * config.accumulation_steps))
    plan = precision_of(config)
    if plan is not None and plan.skips:
        loss = loss * graph.variable(LOSS_SCALE, [1], plan.init_loss_scaling)
    return loss


class Update:
    """How a step moves ``parameters``, those of ``model`` that have a gradient, in one process.

    ``slots``: {parameter: {variable of its optimizer state: shape}}, of all; ``owned``: those variables that
    this process has; ``shared``: the variables that belong to no parameter.
    """

    def __init__(self, config: PretrainConfig, graph: Graph, model, parameters: list, rank: int, fused: bool):
        self.config, self.graph, self.parameters, self.rank = config, graph, parameters, rank
        self._fused = fused and config.optimizer == "adamw"
        plan, decayed = precision_of(config), {p.name for name, p in model.named_parameters() if decays(name)}
        self._plan = plan if plan is not None and plan.skips else None
        sizes = {parameter.name: int(np.prod(parameter.shape)) for parameter in parameters}
        owners, part = owners_of(sizes, config.sharding_degree), rank % config.sharding_degree
        self._owned_names = {p.name for p in parameters if owners[p.name] == part}
        self._decays = {name: config.weight_decay if name in decayed else 0.0 for name in self._owned_names}
        self.slots = slots_of(parameters)
        starts = (0.0, 0.0, config.adam_beta1, config.adam_beta2)
        self._state = {
            parameter.name: {
                name: graph.variable(name, shape, start)
                for (name, shape), start in zip(self.slots[parameter.name].items(), starts)
            }
            for parameter in parameters
            if parameter.name in self._owned_names
        }
        self.owned = {name for slots in self._state.values() for name in slots}
        self._shared: dict[str, Any] = {}
        self._scale = None  # of bfloat16 it is constant, and no part of the state
        if self._plan is not None:
            self._shared[SKIPPED_UPDATES] = graph.variable(SKIPPED_UPDATES, [1])
            self._scale = graph.variable(LOSS_SCALE, [1], self._plan.init_loss_scaling)
        if self._plan is not None and self._plan.is_dynamic:
            self._shared[LOSS_SCALE] = self._scale
            for name in (GOOD_STEPS, BAD_STEPS):
                self._shared[name] = graph.variable(name, [1], dtype="int32")
        self.shared = list(self._shared)
        self._norm = graph.variable(GRADIENT_NORM, [1]) if config.grad_clip > 0 else None
        self.monitors = Monitors(
            GRADIENT_NORM if config.grad_clip > 0 else None,
            SKIPPED_UPDATES if self._plan is not None else None,
            LOSS_SCALE if plan is not None and plan.is_dynamic else None,
        )

    def apply(self, gradients: list, rate) -> list:
        """Move the weights at ``rate``, float32 [1]; return [norm of the gradients, [1]], or [] unclipped."""
        gradients, skip = self._unscale(self.graph.sums_over_ranks(gradients))
        norm = factor = None
        if self._norm is not None:
            norm = paddle.sqrt(paddle.add_n(list(map(ops.squared_norm, gradients)))).reshape([1])
            limit = paddle.full([1], self.config.grad_clip)
            factor = limit / paddle.maximum(norm, limit)
            paddle.assign(norm, self._norm)
        pairs = [pair for pair in zip(self.parameters, gradients) if pair[0].name in self._owned_names]
        betas = self.config.adam_beta1, self.config.adam_beta2, self.config.adam_epsilon
        decays = [self._decays[parameter.name] for parameter, _ in pairs]
        slots = [self._state[parameter.name] for parameter, _ in pairs]
        if self._fused:
            self.graph.move_fused(pairs, slots, [rate, factor, skip, *betas], decays)
        else:
            for (parameter, gradient), slot, decay in zip(pairs, slots, decays):
                gradient = gradient if factor is None else gradient * factor
                ops.move(self.config.optimizer, (parameter, gradient), slot, rate, skip, betas, decay)
        if self.config.sharding_degree > 1:
            self._share_updated_parameters()
        return [] if norm is None else [norm]

    def _unscale(self, gradients: list) -> tuple[list, Any]:
        """Return the gradients without their scale, and whether the step is skipped, which is counted."""
        plan = self._plan
        if plan is None:
            return gradients, None
        count, scale = self._shared[SKIPPED_UPDATES], self._scale
        gradients, is_infinite = ops.unscale(gradients, scale)
        paddle.assign(count + paddle.cast(is_infinite, "float32"), count)
        if plan.is_dynamic:
            good, bad = self._shared[GOOD_STEPS], self._shared[BAD_STEPS]
            ops.update_scale(gradients, is_infinite, scale, good, bad, plan.changes)
        return gradients, is_infinite

    def _share_updated_parameters(self) -> None:
        """Give the parameters that this process has moved to the others, and take theirs.

        The first group of ranks that holds all parts gives them.
        """
        gives = self.rank < self.config.sharding_degree
        given = [
            p if gives and p.name in self._owned_names else paddle.zeros_like(p) for p in self.parameters
        ]
        for parameter, moved in zip(self.parameters, self.graph.sums_over_ranks(given)):
            paddle.assign(moved, parameter)


def record_losses(
    config: PretrainConfig, graph: Graph, sums: LossSums, num_rows: int, norms: Optional[list] = None
) -> None:
    """Append a row to the records: the ``sums``, each [], and the gradient norm [1] if it clips.

    ``norms``: of `Update.apply`; None: of a pass that moves nothing, whose norm is 0.
    """
    if norms is None:
        norms = [paddle.zeros([1])] if config.grad_clip > 0 else []
    width = len(sums.recorded) + len(norms)
    records = graph.variable(RECORDS, [num_rows * width])
    row = paddle.stack([paddle.cast(each, "float32") for each in sums.recorded])
    paddle.assign(paddle.concat([records[width:], row, *norms]), records)


def record_norm(graph: Graph, norms: list, size: int) -> None:
    """Write the gradient norm of the step, if there is one, into the last row of ``size`` records."""
    if norms:
        records = graph.variable(RECORDS, [size])
        paddle.assign(paddle.concat([records[:-1], *norms]), records)


def owners_of(sizes: dict[str, int], degree: int) -> dict[str, int]:
    """Distribute the parameters over ``degree`` parts of nearly equal size: {parameter: its part}.

    The largest goes first, to the smallest part. A parameter is never split: LAMB takes norms of whole ones.
    """
    filled = [0] * degree
    owners = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        owners[name] = filled.index(min(filled))
        filled[owners[name]] += sizes[name]
    return owners


def start_static(device: str, num_processes: int) -> None:
    """Turn on static mode, for good, and connect the processes of the run."""
    if device == "gpu" and num_processes > 1:
        join_processes()  # in dynamic mode: it makes the ring that the programs' collectives use
    paddle.enable_static()
    if device == "cpu" and num_processes > 1:
        start_gloo(num_processes)
