"""The compiled programs of pretraining: start-up, training, evaluation, and the sums over all ranks."""

import contextlib
import io
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Callable, Dict, Iterable, List, Optional

import numpy as np
import paddle
import paddle.distributed.fleet as fleet

from ernie_pair.device.paddle_patches.static_fleet import without_nccl
from ernie_pair.device.paddle_patches.static_programs import is_tensor
from ernie_pair.device.paddle_patches.static_variables import dtype_of, view_array
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig
from ernie_pair.pretrain.graph.amp import MASTER_MARK, fleet_decorates, precision_of
from ernie_pair.pretrain.graph.dropout_seed import PASS_SEED, replace_seed_ops
from ernie_pair.pretrain.graph.gloo import drop_stream_syncs, needs_gloo
from ernie_pair.pretrain.graph.model import LossSums, Outputs, build_padded, run_ernie, sum_losses
from ernie_pair.pretrain.graph.step_monitors import Monitors, add_monitors
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
LOSS_WEIGHTS = "loss_weights"  # float32 [2]: what a summed lm and a summed sop loss count for


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
    narrow: Optional[Callable] = None  # O2: (place, scope) -> the weights in the narrow type
    scope: paddle.static.Scope = field(default_factory=paddle.static.Scope)

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

    def run(self, program: paddle.static.Program, feed: Arrays) -> np.ndarray:
        """Run ``program`` on one micro-batch and return the sums of the losses and hits, float64 [4]."""
        with paddle.static.scope_guard(self.scope):
            fetched = self.executor.run(program, feed=feed, fetch_list=list(self.sums))
        return np.array([float(value) for value in fetched])

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
        """Put arrays into variables of the same name; names and shapes have been checked."""
        for name, array in arrays.items():
            self._tensor(name).set(array, self.executor.place)

    def _dtype(self, name: str):
        return dtype_of(self._tensor(name))

    def monitored(self) -> Dict[str, float]:
        """Return what the last step left for the log."""
        names = {key: name for key, name in self.monitors._asdict().items() if name}
        return {key: float(view_array(self._tensor(name)).item()) for key, name in names.items()}

    def _tensor(self, name: str):
        return self.scope.find_var(name).get_tensor()


def build_program(config: PretrainConfig, model_config, rank: int = 0) -> PretrainProgram:
    """Build everything for one rank, after ``start_fleet``. Nothing is run yet.

    The loss is sum(lm) * w[0] + sum(sop) * w[1] with the fed ``loss_weights`` w: fleet averages over
    ranks and micro-batches, so the caller chooses w to make it the mean over the whole global batch.
    """
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
        feeds = {name: paddle.static.data(name, shape, kind) for name, (shape, kind) in FEEDS.items()}
        weights = paddle.static.data(LOSS_WEIGHTS, [2], "float32")
        pass_seed = paddle.static.data(PASS_SEED, [1], "int32")
        model = build_padded(model_config)
        outputs = run_ernie(model, feeds)
        sums = sum_losses(outputs, feeds)
        test = main.clone(for_test=True)
        loss = sums.lm_loss * weights[0]
        if config.binary_head:  # without it the head and the pooler have no gradient, and stay as they are
            loss = loss + sums.sop_loss * weights[1]
        rate = _minimize(config, model, outputs, loss)
    replace_seed_ops(main, pass_seed)
    block, updates = updates_of(main)
    slots = {
        update.input("Param")[0]: {name: main.global_block().var(name).shape for name in state_of(update)}
        for update in updates
    }
    monitors = add_monitors(main, startup, block, updates[0])
    if config.sharding_degree > 1:
        shard_optimizer(main, startup, rank % config.sharding_degree, config.sharding_degree)
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
        narrow=_narrowing(config, test),
    )


def _minimize(config: PretrainConfig, model, outputs: Outputs, loss) -> Callable[[float], None]:
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
    )
    strategy = distributed_strategy(config, outputs.layers)
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


class RankSums:
    """The sum of small float vectors over all ranks; with one rank it only hands them back."""

    def __init__(self, num_ranks: int, executor: paddle.static.Executor, *, cpu: bool):
        self.executor, self.program = executor, None
        if num_ranks > 1:
            self.program = paddle.static.Program()
            with paddle.static.program_guard(self.program), paddle.utils.unique_name.guard():
                values = paddle.static.data("values", [None], "float64")
                self.total = values * 1.0
                paddle.distributed.all_reduce(self.total)
            if cpu:
                drop_stream_syncs(self.program)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of ``values`` over the ranks, float64 [n]."""
        values = np.asarray(values, np.float64)
        if self.program is None:
            return values
        (total,) = self.executor.run(self.program, feed={"values": values}, fetch_list=[self.total])
        return total

    def barrier(self) -> None:
        """Wait for all ranks."""
        self(np.zeros(1))
