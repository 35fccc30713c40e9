"""The programs of pretraining, with their inputs and state: start-up, training, and evaluation."""

import contextlib
import io
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Callable, Iterable, NamedTuple, Optional, Union

import numpy as np
import paddle
import paddle.distributed.fleet as fleet

from data_tools.files.errors import InputError, MachineError
from ernie_pair.kernels.choice import KernelChoice
from ernie_pair.kernels.operator import GraphInputs
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig
from ernie_pair.pretrain.graph.fusion import (
    FLASH,
    NOTHING_FUSED,
    PLAIN,
    FusedOps,
    fuse_attention,
    fuse_collectives,
    fuse_layers,
    fuse_softmax,
)
from ernie_pair.pretrain.graph.model import LossSums, Outputs, build_padded, encoder_of, run_ernie, sum_losses
from ernie_pair.pretrain.graph.pir_program import PirProgram, build_pir_program
from ernie_pair.pretrain.graph.program_state import LOSS_WEIGHTS, MASTER_MARK, ProgramState, feeds_of
from ernie_pair.pretrain.graph.step_monitors import (
    PASS_SEED,
    RECORDED_PASSES,
    add_monitors,
    add_records,
    divide_by_labelled,
    drop_stream_syncs,
    needs_gloo,
    replace_seed_ops,
)
from ernie_pair.pretrain.graph.strategy import (
    build_optimizer,
    distributed_strategy,
    fleet_decorates,
    fuse_updates,
    precision_of,
    shard_optimizer,
    state_of,
    updates_of,
)
from ernie_pair.pretrain.graph.vocab_padding import EMBEDDING
from ernie_pair.runtime.paddle_patches.pir_programs import builds_pir, without_advice
from ernie_pair.runtime.paddle_patches.static_programs import HeldProgram, is_tensor, without_nccl

MERGED = "gradient_merge_k"  # what fleet's GradientMergeOptimizer calls it, in Paddle 2.6.2


@dataclass
class PretrainProgram(ProgramState):
    """The programs of Paddle 2.6, on the scope that they share."""

    main: paddle.static.Program
    startup: paddle.static.Program
    test: paddle.static.Program
    sums: LossSums
    rate: Callable[[float], None]  # sets the learning rate of the next pass
    narrow: Optional[Callable] = None  # O2: (place, scope=scope) -> casts the weights to half precision
    file_rows: Optional[int] = None  # of the embedding: the rows after them start at 0; None: random
    _runners: dict[int, HeldProgram] = field(default_factory=dict)
    _merged: int = 0  # micro-batches per step; 0: as many as it was built for

    def start(self, seed: int) -> None:
        """Draw fresh weights and optimizer state, the same on every rank."""
        paddle.seed(seed)
        with paddle.static.scope_guard(self.scope):
            self.executor.run(self.startup)
        if self.narrow:
            self.narrow(self.executor.place, scope=self.scope)
        if self.file_rows is not None:
            names = {p.name for name, p in self.parameters.items() if name.endswith(EMBEDDING)}
            states = (self.owned_variables(self.slots.get(name, [])) for name in names)
            copies = [name for name in chain.from_iterable(states) if MASTER_MARK in name]
            for name, array in self.get([*names, *copies]).items():
                if len(array) > self.file_rows:
                    array[self.file_rows :] = 0
                    self.set({name: array})
        # After the casts of O2, which do not know them.
        add_records(self.test, self.sums.recorded, self.monitors.gradient_norm, self.recorded_passes)

    def run(self, program: paddle.static.Program, feed: dict[str, Any]) -> None:
        """Run ``program``, ``main`` or ``test``, on one micro-batch; on a GPU asynchronously."""
        runner = self._runners.get(id(program))
        if runner is None:
            runner = self._runners[id(program)] = HeldProgram(self.executor, program, self.scope)
        runner.run(feed)

    def merge(self, passes: int) -> None:
        """Set the micro-batches per step from now on, at most as many as it was built for.

        fleet keeps this number in a variable, but divides by the initial one: `PretrainJob` corrects that.
        """
        has_number = bool(self.owned_variables([MERGED]))
        if passes > 1 and not has_number:
            raise MachineError(f"this Paddle keeps the number of micro-batches elsewhere than in {MERGED}")
        if passes != self._merged and has_number:
            self.set({MERGED: np.array([passes], dtype=np.int32)})
        self._merged = passes

    def owned_variables(self, names: Iterable[str]) -> list[str]:
        """Return those of ``names`` that this process has."""
        return [name for name in names if self.main.global_block().has_var(name)]

    def shared_state(self) -> list[str]:
        """Return the state that outlives a pass and is of no parameter, but for the learning rate."""
        owned = {*chain.from_iterable(self.slots.values()), *(p.name for p in self.main.all_parameters())}
        names = []
        for variable in self.main.list_vars():
            is_state = variable.persistable and is_tensor(variable)
            computed = variable.name.startswith("learning_rate") or variable.name in owned
            if is_state and not computed:
                names.append(variable.name)
        return sorted(names)


StaticProgram = Union[PretrainProgram, PirProgram]
DIVIDED_WEIGHTS = "loss_weights.divided"  # of several processes


class _Forward(NamedTuple):
    model: paddle.nn.Layer
    inputs: GraphInputs
    weights: paddle.static.Variable  # of the two losses, float32 [2]
    outputs: Outputs
    sums: LossSums
    kernels: KernelChoice


def build_program(
    config: PretrainConfig,
    model_config,
    rank: int = 0,
    kernels: KernelChoice = PLAIN,
    fused: FusedOps = NOTHING_FUSED,
) -> StaticProgram:
    """Build everything for one rank, after ``start_fleet``. Nothing is run yet.

    ``kernels``: the path of the run, by `choose_path`; a model that it does not support takes the plain one.
    ``fused``: the other fused ops, by `choose_fused`. The loss is sum(masked) * w[0] + sum(sop) * w[1] with
    the fed ``loss_weights`` w; masked means tokens and n-grams alike. fleet averages over ranks and
    micro-batches, so the caller chooses w to make it the mean over the whole global batch. For Paddle 3.3
    `build_pir_program` builds the same.
    """
    if builds_pir():
        with without_advice():
            return build_pir_program(config, model_config, rank, kernels)
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
        forward = _add_forward(config, model_config, kernels)
        test = main.clone(for_test=True)
        if fused.attention:
            _fuse_attentions(main, forward, fused)
        rate = _minimize(config, forward, fused)
    replace_seed_ops(main, forward.inputs.seed)
    block, updates = updates_of(main)
    variable = main.global_block().var
    slots = {
        update.input("Param")[0]: {name: variable(name).shape for name in state_of(update)}
        for update in updates
    }
    monitors = add_monitors(main, startup, block, updates[0])
    recorded_passes = max(RECORDED_PASSES, config.accumulation_steps)
    if config.sharding_degree > 1:
        shard_optimizer(main, startup, rank % config.sharding_degree, config.sharding_degree)
    if fused.collectives:
        fuse_collectives(main, block, rank % config.sharding_degree)
    if forward.kernels.is_fused:
        fuse_updates(main)
    add_records(main, forward.sums.recorded, monitors.gradient_norm, recorded_passes, startup)
    if config.processes > 1:
        divide_by_labelled(main, LOSS_WEIGHTS, DIVIDED_WEIGHTS)
    if needs_gloo(config.device, config.processes):
        drop_stream_syncs(main, startup)
    fleets = fleet.fleet  # the one that ``minimize`` went through
    return PretrainProgram(
        parameters=forward.model.state_dict(),
        slots=slots,
        num_recorded=len(forward.sums.recorded) + bool(monitors.gradient_norm),
        monitors=monitors,
        device=config.device,
        recorded_passes=recorded_passes,
        kernels=forward.kernels,
        main=main,
        startup=startup,
        test=test,
        sums=forward.sums,
        rate=rate,
        narrow=partial(fleets.amp_init, test_program=test) if config.narrows_weights else None,
        file_rows=model_config.vocab_size if config.optimizer == "lamb" else None,  # they enter its norms
    )


def _fuse_attentions(main: paddle.static.Program, forward: _Forward, fused: FusedOps) -> None:
    num_layers, is_flash = len(forward.outputs.layers), fused.attention == FLASH
    num_fused = fuse_attention(main, forward.inputs.seed) if is_flash else fuse_softmax(main)
    if num_fused != num_layers:
        raise InputError(
            f"--fused_ops attention recognizes {num_fused} of the {num_layers} attentions of this model, "
            "in this Paddle; leave it out, or pass --fused_ops none"
        )


def _add_forward(config: PretrainConfig, model_config, kernels: KernelChoice) -> _Forward:
    fed = feeds_of(model_config)
    feeds = {name: paddle.static.data(name, shape, kind) for name, (shape, kind) in fed.items()}
    weights = paddle.static.data(LOSS_WEIGHTS, [2], "float32")
    if config.processes > 1:
        weights = paddle.static.data(DIVIDED_WEIGHTS, [2], "float32")  # computed by ops that are added last
    inputs = GraphInputs(paddle.static.data(PASS_SEED, [1], "int32"), feeds["masked_positions"])
    model = build_padded(model_config)
    kernels = fuse_layers(encoder_of(model).encoder.layers, kernels, config, inputs)
    outputs = run_ernie(model, feeds)
    return _Forward(model, inputs, weights, outputs, sum_losses(outputs, feeds), kernels)


def _minimize(config: PretrainConfig, forward: _Forward, fused: FusedOps) -> Callable[[float], None]:
    loss = forward.sums.weighted(forward.weights, config.has_order)
    schedule = _SetRate()
    optimizer = build_optimizer(config, forward.model, schedule)
    strategy = distributed_strategy(config, [layer.name for layer in forward.outputs.layers], fused)
    decorates = fleet_decorates(precision_of(config), for_gpu=config.device == "gpu")
    by_gloo = needs_gloo(config.device, config.processes)
    meets = without_nccl() if by_gloo else contextlib.nullcontext()
    quiet = contextlib.redirect_stdout(io.StringIO())  # fleet prints which optimizers it uses
    with decorates, meets, quiet:
        fleet.distributed_optimizer(optimizer, strategy).minimize(loss)
    return schedule.set


class _SetRate(paddle.optimizer.lr.LRScheduler):
    """A learning rate that is set from outside: elsewhere it is a pure function of the step."""

    def __init__(self):
        self.rate = 0.0
        super().__init__(learning_rate=0.0)

    def set(self, rate: float) -> None:
        self.rate = rate
        self.step()

    def get_lr(self) -> float:
        return self.rate
