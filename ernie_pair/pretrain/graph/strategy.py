"""The optimizer of the static graph, and the run's settings as fleet's DistributedStrategy."""

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Iterator, Optional

import numpy as np
import paddle
import paddle.distributed.fleet as fleet
from paddle import nn

from ernie_pair.pretrain.config.pretrain_config import HALF_OPS, PretrainConfig
from ernie_pair.pretrain.graph.fusion import FLASH_ATTENTION, FUSED_SOFTMAX, NOTHING_FUSED, FusedOps
from ernie_pair.pretrain.graph.step_monitors import needs_gloo, start_gloo
from ernie_pair.runtime.paddle_patches.pir_programs import builds_pir
from ernie_pair.runtime.paddle_patches.process_groups import join_processes
from ernie_pair.runtime.paddle_patches.static_programs import (
    amp_by,
    describe_broadcast,
    insert_described,
    remove_ops,
    remove_variables,
    sums_in_float32,
    sync,
)


def build_optimizer(
    config: PretrainConfig,
    model: nn.Layer,
    schedule,
    parameters: Optional[list] = None,
    adamw: type = paddle.optimizer.AdamW,
) -> paddle.optimizer.Optimizer:
    """Return the optimizer of ``config``; ``schedule`` gives the learning rate.

    ``parameters``: those to update, in the dynamic graph; a static program has its own. ``adamw``: the class
    of the optimizer if it is AdamW.

    LAMB (https://arxiv.org/abs/1904.00962) scales the step of a parameter to the length rate x |w|, by
    |w| / |r + decay x w| with Adam's step r; biases and norms take Adam's step, without decay. Paddle
    couples the two: what does not decay is not adapted.
    """
    decayed = decayed_names(model)
    settings: dict[str, Any] = {
        "learning_rate": schedule,
        "parameters": parameters,
        "beta1": config.adam_beta1,
        "beta2": config.adam_beta2,
        "epsilon": config.adam_epsilon,
        "grad_clip": paddle.nn.ClipGradByGlobalNorm(config.grad_clip) if config.grad_clip > 0 else None,
        "multi_precision": config.narrows_weights,  # fleet does not set it if recompute is on
    }
    if config.optimizer == "lamb":
        return paddle.optimizer.Lamb(
            lamb_weight_decay=config.weight_decay,
            exclude_from_weight_decay_fn=lambda parameter: parameter.name not in decayed,
            **settings,
        )
    return adamw(weight_decay=config.weight_decay, apply_decay_param_fun=decayed.__contains__, **settings)


def decayed_names(model: nn.Layer) -> set[str]:
    """Return the names of the parameters that decay: all but biases and norms."""
    return {
        p.name for name, p in model.named_parameters() if not name.endswith("bias") and "norm" not in name
    }


UPDATES = ("adamw", "lamb")  # both keep their state under the same names
STATE_INPUTS = ("Moment1", "Moment2", "Beta1Pow", "Beta2Pow", "MasterParam")


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


def shard_optimizer(main: paddle.static.Program, startup: paddle.static.Program, part: int, degree: int):
    """Keep only the updates of ``part`` of ``degree`` in the two programs, and receive the other parameters.

    Part p is broadcast by rank p, in the first group of ranks that holds all parts.
    """
    block, updates = updates_of(main)
    parameters = {update.input("Param")[0]: update for update in updates}
    sizes = {name: int(np.prod(main.global_block().var(name).shape)) for name in parameters}
    owners = owners_of(sizes, degree)
    role = updates[0].all_attrs()["op_role"]  # an op that was removed has none
    foreign = [name for name in parameters if owners[name] != part]
    gone = {variable for name in foreign for variable in state_of(parameters[name])}
    remove_ops(block, lambda op: op.type in UPDATES and op.input("Param")[0] in foreign)
    remove_ops(startup.global_block(), lambda op: not gone.isdisjoint(op.output_arg_names))
    for program in (main, startup):
        remove_variables(program.global_block(), gone)
    for name, owner in owners.items():
        parameter = main.global_block().var(name)
        block.append_op(**describe_broadcast(parameter, owner, op_role=role))
    sync(main)
    sync(startup)


def updates_of(main: paddle.static.Program):
    """Return the block that updates parameters, and its ops. Raises ValueError if nothing is trained."""
    for block in main.blocks:
        updates = [op for op in block.ops if op.type in UPDATES]
        if updates:
            return block, updates
    raise ValueError(f"the program has no op of {UPDATES}")


def state_of(update) -> list[str]:
    """Return the variables of the optimizer state of ``update``, one of `updates_of`."""
    return [name for slot in STATE_INPUTS if slot in update.input_names for name in update.input(slot)]


UPDATE, OPERATOR = "adamw", "ernie_pair_adamw"
# {name in our op: name in Paddle's op}; all but the gradients are also outputs.
SLOTS = {
    "Parameters": "Param",
    "Gradients": "Grad",
    "Moments1": "Moment1",
    "Moments2": "Moment2",
    "Powers1": "Beta1Pow",
    "Powers2": "Beta2Pow",
}
SETTINGS = ("beta1", "beta2", "epsilon")
GRADIENTS, SCALING = "Gradients", "elementwise_mul"


def fuse_updates(main: paddle.static.Program) -> None:
    """Replace the updates of ``main``, those of this process, by one op. The operator must have been loaded.

    Does nothing if they are not AdamW's, or differ in more than the decay.
    """
    block, updates = updates_of(main)
    if any(update.type != UPDATE for update in updates):
        return
    clipping = {op.output("Out")[0]: op for op in block.ops if op.type == SCALING and _is_of_clipping(op)}
    if len(set(map(_settings_of, updates))) > 1 or any(update.attr("lr_ratio") != 1.0 for update in updates):
        return
    scaled: list[Any] = [clipping.get(update.input("Grad")[0]) for update in updates]  # None: not clipped
    if len({op.input("Y")[0] if op is not None else "" for op in scaled}) > 1:
        return
    inputs = {f"{name}@VECTOR": [update.input(slot)[0] for update in updates] for name, slot in SLOTS.items()}
    outputs = {f"{name}Out@VECTOR": inputs[f"{name}@VECTOR"] for name in SLOTS if name != GRADIENTS}
    inputs["Rate"] = updates[0].input("LearningRate")
    skip = updates[0].input("SkipUpdate") if "SkipUpdate" in updates[0].input_names else []
    if skip:
        inputs["Skip@OPTIONAL"] = skip
    if clipping:
        inputs[f"{GRADIENTS}@VECTOR"] = [op.input("X")[0] for op in scaled]
        inputs["Factor@OPTIONAL"] = scaled[0].input("Y")  # the same for all: it is the global norm's
    known = updates[0].all_attrs()
    attrs = {name: known[name] for name in (*SETTINGS, "op_role")}
    attrs["decays"] = [update.attr("coeff") * update.attr("with_decay") for update in updates]
    place = [op.type for op in block.ops].index(UPDATE)
    removed = {SCALING, UPDATE}
    remove_ops(block, lambda op: op.type in removed and (op.type == UPDATE or _is_of_clipping(op)))
    place -= len(clipping)  # they came before it
    insert_described(block, place, OPERATOR, inputs, outputs, attrs)
    sync(main)


def _settings_of(update) -> tuple:
    """Return the settings of which the one op has a single value for all parameters."""
    skip = update.input("SkipUpdate") if "SkipUpdate" in update.input_names else []
    return (*update.input("LearningRate"), *skip, *(update.attr(name) for name in SETTINGS))


def _is_of_clipping(op) -> bool:
    return "gradient_clip" in op.all_attrs().get("op_namescope", "")


# Kept in float32: a sum over many terms loses the small ones in half precision.
FLOAT32_OPS = frozenset({"softmax_with_cross_entropy", "c_softmax_with_cross_entropy", "reduce_sum"})
# Of `--fused_ops`, FLASH_ATTENTION is in half precision only, FUSED_SOFTMAX in that of the op it replaces.
SOFTMAX = "softmax"
NEVER = 2**31 - 1
# How the loss scale changes, by the names of the flags, of Paddle, and of AmpPlan.
SCALE_CHANGES = ("incr_every_n_steps", "incr_ratio", "decr_every_n_nan_or_inf", "decr_ratio")


@dataclass(frozen=True)
class AmpPlan:
    """The settings of mixed precision.

    With ``dtype`` float32 nothing is cast, and the loss scaler only skips steps that are not finite.
    ``float32_ops`` compute in float32 always; with ``sums_float32`` processes sum gradients in it.
    """

    dtype: str
    level: str
    init_loss_scaling: float
    incr_every_n_steps: int
    incr_ratio: float
    decr_every_n_nan_or_inf: int
    decr_ratio: float
    float32_ops: frozenset[str] = FLOAT32_OPS
    sums_float32: bool = True

    @property
    def is_dynamic(self) -> bool:
        """Return whether the loss scale changes: bfloat16 has the range of float32."""
        return self.dtype != "bfloat16"

    @property
    def skips(self) -> bool:
        """Return whether steps that are not finite are skipped."""
        return self.is_dynamic or self.init_loss_scaling != 1.0


# A loss scaler whose scale is always 1: all that it still does is skip.
SKIP_ALONE = AmpPlan("float32", "O1", 1.0, NEVER, 2.0, 1, 0.5)


def precision_of(config: PretrainConfig) -> Optional[AmpPlan]:
    """Return what the flags ask for; None is float32 without a loss scaler."""
    if config.use_amp:
        scale = config.first_loss_scale
        if config.amp_dtype == "bfloat16":
            # It needs none, but Paddle checks for infinities only if the scale is not 1.
            scale = 2.0 if config.on_nan == "skip" else 1.0
        changes = {name: getattr(config, name) for name in SCALE_CHANGES}
        return AmpPlan(
            config.amp_dtype,
            config.amp_level,
            scale,
            **changes,
            float32_ops=FLOAT32_OPS | config.float32_ops,
            sums_float32=config.reduce_dtype == "float32",
        )
    return SKIP_ALONE if config.on_nan == "skip" else None


@contextmanager
def fleet_decorates(precision: Optional[AmpPlan], *, for_gpu: bool) -> Iterator[None]:
    """Make fleet's AMP, which knows only float16 at two levels, follow ``precision`` within the context."""
    wide = precision is not None and precision.sums_float32
    amp = amp_by(lambda optimizer: _decorated(optimizer, precision, for_gpu))
    with amp, sums_in_float32() if wide else nullcontext():
        yield


class _EveryOp(frozenset):
    def __contains__(self, op: object) -> bool:
        return True


def _decorated(optimizer, precision: Optional[AmpPlan], for_gpu: bool):
    assert precision is not None  # otherwise fleet does not ask
    casts = precision.dtype != "float32"
    dtype = precision.dtype if casts else "float16"
    float32 = precision.float32_ops | ({FUSED_SOFTMAX} if SOFTMAX in precision.float32_ops else set())
    half = {*HALF_OPS, FLASH_ATTENTION, FUSED_SOFTMAX} - float32
    lists = paddle.static.amp.CustomOpLists(half, float32, dtype=dtype)
    if not casts:
        lists.unsupported_list = _EveryOp()
    elif for_gpu and not paddle.is_compiled_with_cuda():
        # A CPU build lists no op as supported; the program for a GPU is built here only to be inspected.
        lists.unsupported_list = set(float32)
    return paddle.static.amp.decorate(
        optimizer,
        lists,
        level=precision.level,
        dtype=dtype,
        init_loss_scaling=precision.init_loss_scaling,
        **{name: getattr(precision, name) for name in SCALE_CHANGES},
        use_dynamic_loss_scaling=precision.is_dynamic,
    )


def start_fleet(device: str, num_processes: int) -> None:
    """Turn on static mode, for good, and connect the processes of the run."""
    if builds_pir() and device == "gpu" and num_processes > 1:
        join_processes()  # in dynamic mode: it makes the ring that the programs' collectives use
    paddle.enable_static()
    fleet.init(is_collective=True, log_level="ERROR")
    if needs_gloo(device, num_processes):
        start_gloo(num_processes)


def distributed_strategy(
    config: PretrainConfig, layers: list[str], fused: FusedOps = NOTHING_FUSED
) -> fleet.DistributedStrategy:
    """Return fleet's strategy: data parallel over all processes, and what the flags add to it.

    ``layers``: the variable names of the encoder layers' outputs, the checkpoints of recompute. Sharding and
    AMP do not use fleet's settings: see `shard_optimizer` and `fleet_decorates`.
    """
    strategy = fleet.DistributedStrategy()
    strategy.without_graph_optimization = True
    strategy.amp = precision_of(config) is not None
    if config.accumulation_steps > 1:
        strategy.gradient_merge = True
        strategy.gradient_merge_configs = {"k_steps": config.accumulation_steps, "avg": True}
    if fused.gemm_epilogue:
        build = strategy.build_strategy  # a copy
        build.fuse_gemm_epilogue = True
        strategy.build_strategy = build
    if config.use_recompute:
        strategy.recompute = True
        strategy.recompute_configs = {"checkpoints": layers}
    return strategy
