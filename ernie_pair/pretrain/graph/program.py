"""The compiled programs of pretraining: start-up, training, evaluation, and the sums over all ranks."""

import contextlib
import io
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, Callable, Dict, Iterable, List, Optional

import numpy as np
import paddle
import paddle.distributed.fleet as fleet

from data_tools.base.errors import InputError
from ernie_pair.device.paddle_patches.static_fleet import without_nccl
from ernie_pair.device.paddle_patches.static_programs import HeldProgram, cut_normals, is_tensor
from ernie_pair.device.paddle_patches.static_variables import dtype_of, place_of, view_array
from ernie_pair.kernels.choice import KernelChoice
from ernie_pair.kernels.operator.encoder_operator import GraphInputs
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig
from ernie_pair.pretrain.fusion.fused_attention import fuse_attention
from ernie_pair.pretrain.fusion.fused_collectives import fuse_collectives
from ernie_pair.pretrain.fusion.fused_ops import FLASH, NOTHING_FUSED, FusedOps
from ernie_pair.pretrain.fusion.fused_softmax import fuse_softmax
from ernie_pair.pretrain.graph.amp import MASTER_MARK, fleet_decorates, precision_of
from ernie_pair.pretrain.graph.dropout_seed import PASS_SEED, replace_seed_ops
from ernie_pair.pretrain.graph.fused_layers import PLAIN, fuse_layers
from ernie_pair.pretrain.graph.fused_updates import fuse_updates
from ernie_pair.pretrain.graph.gloo import drop_stream_syncs, needs_gloo
from ernie_pair.pretrain.graph.model import (
    LossSums,
    Outputs,
    build_padded,
    encoder_of,
    run_ernie,
    sum_losses,
)
from ernie_pair.pretrain.graph.rank_sums import divide_by_labelled
from ernie_pair.pretrain.graph.step_monitors import (
    RECORDED_PASSES,
    RECORDS,
    Monitors,
    add_monitors,
    add_records,
    record_width,
)
from ernie_pair.pretrain.graph.strategy import distributed_strategy
from ernie_pair.pretrain.graph.zero1 import shard_optimizer, state_of, updates_of
from ernie_pair.weights.half_tensors import narrow_array, widen_array
from ernie_pair.weights.weight_files import Arrays

FEEDS = {
    "input_ids": ([None, None], "int64"),
    "token_type_ids": ([None, None], "int64"),
    "masked_positions": ([None], "int64"),
    "masked_lm_labels": ([None], "int64"),
    "next_sentence_labels": ([None], "int64"),
}
# float32 [2]: what a summed lm and a summed sop loss count for, in several processes before it is divided by
# what all of them have labelled.
LOSS_WEIGHTS, DIVIDED_WEIGHTS = "loss_weights", "loss_weights.divided"


@dataclass
class PretrainProgram:
    """The programs and the one scope they work on.

    ``slots``: {parameter: {variable of its optimizer state: shape}}, of all parameters. When the state
    is sharded this process holds those of a part of them; every parameter itself is everywhere.
    """

    main: paddle.static.Program
    startup: paddle.static.Program
    test: paddle.static.Program
    parameters: Dict[str, paddle.Tensor]  # structured name -> parameter, tied names included
    slots: Dict[str, Dict[str, tuple]]
    sums: LossSums
    monitors: Monitors
    rate: Callable[[float], None]  # sets the learning rate of the next pass
    device: str
    recorded_passes: int  # whose records are kept
    kernels: KernelChoice = PLAIN  # of the encoder layers
    narrow: Optional[Callable] = None  # O2: (place, scope) -> the weights in the narrow type
    scope: paddle.static.Scope = field(default_factory=paddle.static.Scope)
    _held: Dict[int, HeldProgram] = field(default_factory=dict)

    @cached_property
    def executor(self) -> paddle.static.Executor:
        """Return the executor.

        Asked for, it takes the device: a program for a GPU can be built and read without one.
        """
        gpu = int(paddle.device.get_device().partition(":")[2] or 0)
        return paddle.static.Executor(paddle.CPUPlace() if self.device == "cpu" else paddle.CUDAPlace(gpu))

    def start(self, seed: int) -> None:
        """Draw fresh weights and optimizer state, the same on every rank."""
        paddle.seed(seed)
        with paddle.static.scope_guard(self.scope):
            self.executor.run(self.startup)
        if self.narrow:
            self.narrow(self.executor.place, self.scope)
        add_records(
            self.test, self.sums, self.monitors.gradient_norm, self.recorded_passes
        )  # what narrows it does not know them

    def run(self, program: paddle.static.Program, feed: Dict[str, Any]) -> None:
        """Run ``program``, ``main`` or ``test``, on one micro-batch; on a GPU it may still run afterwards."""
        held = self._held.get(id(program))
        if held is None:
            held = self._held[id(program)] = HeldProgram(self.executor, program, self.scope)
        held.run(feed)

    def records(self, passes: int) -> np.ndarray:
        """Return what the last ``passes`` runs have left, at most ``recorded_passes``.

        float32 [passes, 4 or 5]: the sums of the losses and hits, and the norm of the gradient of the step
        where it is clipped. The one wait for the device.
        """
        if self.device == "gpu":
            paddle.device.cuda.synchronize()
        rows = view_array(self._tensor(RECORDS)).reshape(-1, record_width(self.monitors.gradient_norm))
        return np.array(rows[len(rows) - passes :])

    def owned_variables(self, names: Iterable[str]) -> List[str]:
        """Return those of ``names`` that this process has."""
        return [name for name in names if self.main.global_block().has_var(name)]

    def shared_state(self) -> List[str]:
        """Return the names of what outlives a pass and belongs to no parameter.

        The learning rate is not among them: it is computed.
        """
        owned = {*chain.from_iterable(self.slots.values()), *(p.name for p in self.main.all_parameters())}
        names = []
        for variable in self.main.list_vars():
            is_state = variable.persistable and is_tensor(variable)
            computed = variable.name.startswith("learning_rate") or variable.name in owned
            if is_state and not computed:
                names.append(variable.name)
        return sorted(names)

    def get(self, names: Iterable[str]) -> Arrays:
        """Return {variable: array}, copies."""
        return {name: np.array(array) for name, array in self.view_variables(names).items()}

    def view_variables(self, names: Iterable[str]) -> Arrays:
        """Return {variable: array} without a copy where there need not be one.

        The arrays are good until the program runs again.
        """
        return {name: view_array(self._tensor(name)) for name in names}

    def weights(self) -> Arrays:
        """Return {parameter: float32 array}, without a copy where ``view_variables`` makes none."""
        names = (parameter.name for parameter in self.parameters.values())
        return {
            name: widen_array(array, self._dtype(name)) for name, array in self.view_variables(names).items()
        }

    def set_weights(self, weights: Arrays) -> None:
        """Set the parameters to {parameter: float32 array}.

        The float32 copies that O2 keeps beside half-precision weights are set too.
        """
        for name, array in weights.items():
            self.set({name: narrow_array(array, self._dtype(name))})
            self.set(
                {
                    copy: array
                    for copy in self.owned_variables(self.slots.get(name, []))
                    if MASTER_MARK in copy
                }
            )

    def set(self, arrays: Arrays) -> None:
        """Put arrays into variables of the same name; names and shapes have been checked.

        Each stays where it lies: on a GPU the powers of the betas lie in the CPU's memory, and AdamW takes
        another kernel where they do not.
        """
        for name, array in arrays.items():
            tensor = self._tensor(name)
            tensor.set(array, place_of(tensor, self.executor.place))

    def _dtype(self, name: str):
        return dtype_of(self._tensor(name))

    @property
    def skips(self) -> bool:
        """Return whether the program leaves a step out by itself, where its numbers are not finite."""
        return self.monitors.skipped_updates is not None

    def monitored(self) -> Dict[str, float]:
        """Return what the last step left for the log."""
        names = {key: name for key, name in self.monitors._asdict().items() if name}
        return {key: float(view_array(self._tensor(name)).item()) for key, name in names.items()}

    def _tensor(self, name: str):
        return self.scope.find_var(name).get_tensor()


def build_program(
    config: PretrainConfig,
    model_config,
    rank: int = 0,
    kernels: KernelChoice = PLAIN,
    fused: FusedOps = NOTHING_FUSED,
) -> PretrainProgram:
    """Build everything for one rank, after ``start_fleet``. Nothing is run yet.

    ``kernels``: the path of the run, by `choose_path`; a model that it does not fit takes the plain one.
    ``fused``: what is fused beside it, by `choose_fused`.

    The loss is sum(lm) * w[0] + sum(sop) * w[1] with the fed ``loss_weights`` w: fleet averages over
    ranks and micro-batches, so the caller chooses w to make it the mean over the whole global batch.
    """
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
        feeds = {name: paddle.static.data(name, shape, kind) for name, (shape, kind) in FEEDS.items()}
        weights = paddle.static.data(LOSS_WEIGHTS, [2], "float32")
        if config.processes > 1:
            weights = paddle.static.data(DIVIDED_WEIGHTS, [2], "float32")  # written by ops that come last
        pass_seed = paddle.static.data(PASS_SEED, [1], "int32")
        model = build_padded(model_config)
        inputs = GraphInputs(pass_seed, feeds["masked_positions"])
        kernels = fuse_layers(encoder_of(model).encoder.layers, kernels, config, inputs)
        outputs = run_ernie(model, feeds)
        sums = sum_losses(outputs, feeds)
        test = main.clone(for_test=True)
        if fused.attention:
            _fuse_attention(fused.attention, main, pass_seed, len(outputs.layers))
        loss = sums.lm_loss * weights[0]
        if config.binary_head:  # without it the head and the pooler have no gradient, and stay as they are
            loss = loss + sums.sop_loss * weights[1]
        rate = _minimize(config, model, outputs, loss, fused)
    cut_normals(startup)
    replace_seed_ops(main, pass_seed)
    block, updates = updates_of(main)
    slots = {
        update.input("Param")[0]: {name: main.global_block().var(name).shape for name in state_of(update)}
        for update in updates
    }
    monitors = add_monitors(main, startup, block, updates[0])
    if config.sharding_degree > 1:
        shard_optimizer(main, startup, rank % config.sharding_degree, config.sharding_degree)
    if fused.collectives:
        fuse_collectives(main, block, rank % config.sharding_degree)
    if kernels.is_fused:
        fuse_updates(main)
    recorded_passes = max(RECORDED_PASSES, config.accumulation_steps)
    add_records(main, sums, monitors.gradient_norm, recorded_passes, startup)
    if config.processes > 1:
        divide_by_labelled(main, LOSS_WEIGHTS, DIVIDED_WEIGHTS)
    if needs_gloo(config.device, config.processes):
        drop_stream_syncs(main, startup)
    return PretrainProgram(
        main,
        startup,
        test,
        model.state_dict(),
        slots,
        sums,
        monitors,
        rate,
        config.device,
        recorded_passes,
        kernels,
        narrow=_narrowing(config, test),
    )


def _fuse_attention(kind: str, main: paddle.static.Program, pass_seed, num_layers: int) -> None:
    found = fuse_attention(main, pass_seed) if kind == FLASH else fuse_softmax(main)
    if found != num_layers:
        raise InputError(
            f"--fused_ops attention knows {found} of the {num_layers} attentions of this model, in this "
            "Paddle; leave it out, or pass --fused_ops none"
        )


def _minimize(
    config: PretrainConfig, model, outputs: Outputs, loss, fused: FusedOps
) -> Callable[[float], None]:
    """Add backward and AdamW; returns what sets the learning rate."""
    decayed = {
        p.name for name, p in model.named_parameters() if not name.endswith("bias") and "norm" not in name
    }
    schedule = _GivenRate()
    optimizer = paddle.optimizer.AdamW(
        learning_rate=schedule,
        beta1=config.adam_beta1,
        beta2=config.adam_beta2,
        epsilon=config.adam_epsilon,
        weight_decay=config.weight_decay,
        apply_decay_param_fun=decayed.__contains__,
        grad_clip=paddle.nn.ClipGradByGlobalNorm(config.grad_clip) if config.grad_clip > 0 else None,
        multi_precision=config.narrows_weights,  # fleet does not say it where recompute stands between
    )
    strategy = distributed_strategy(config, outputs.layers, fused)
    decorates = fleet_decorates(precision_of(config), for_gpu=config.device == "gpu")
    by_gloo = needs_gloo(config.device, config.processes)
    meets = without_nccl() if by_gloo else contextlib.nullcontext()
    quiet = contextlib.redirect_stdout(io.StringIO())  # fleet prints which optimizers it takes
    with decorates, meets, quiet:
        fleet.distributed_optimizer(optimizer, strategy).minimize(loss)
    return schedule.set


def _narrowing(config: PretrainConfig, test: paddle.static.Program) -> Optional[Callable]:
    """Return what casts the weights once they are in the scope, and the evaluation program with them.

    None below O2; fleet does it.
    """
    if not config.narrows_weights:
        return None
    optimizer = fleet.fleet  # the one that ``minimize`` went through
    return lambda place, scope: optimizer.amp_init(place, scope=scope, test_program=test)


class _GivenRate(paddle.optimizer.lr.LRScheduler):
    """A learning rate that is told, not stepped: it is a pure function of the step elsewhere."""

    def __init__(self):
        self.given = 0.0
        super().__init__(learning_rate=0.0)

    def set(self, rate: float) -> None:
        self.given = rate
        self.step()

    def get_lr(self) -> float:
        return self.given
