"""The compiled programs of pretraining: start-up, training, evaluation, and the sums over all ranks."""

import contextlib
import io
from dataclasses import dataclass, field
from typing import Callable, Dict, List

import numpy as np
import paddle
import paddle.distributed.fleet as fleet

from ernie_pair.pretrain.config import PretrainConfig
from ernie_pair.pretrain.cpu_collectives import drop_stream_syncs, needs_gloo
from ernie_pair.pretrain.model import Outputs, Sums, build_ernie, run_ernie, sum_losses
from ernie_pair.pretrain.strategy import distributed_strategy
from ernie_pair.weights import Arrays

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
    """The programs and the one scope they work on."""

    main: paddle.static.Program
    startup: paddle.static.Program
    test: paddle.static.Program
    parameters: Dict[str, paddle.Tensor]  # structured name -> parameter, tied names included
    sums: Sums
    rate: Callable[[float], None]  # sets the learning rate of the next pass
    executor: paddle.static.Executor
    scope: paddle.static.Scope = field(default_factory=paddle.static.Scope)

    def start(self, seed: int) -> None:
        """Fresh weights and optimizer state, the same on every rank."""
        paddle.seed(seed)
        with paddle.static.scope_guard(self.scope):
            self.executor.run(self.startup)

    def run(self, program: paddle.static.Program, feed: Arrays) -> np.ndarray:
        """One pass; the sums of the losses, float64 [4]."""
        with paddle.static.scope_guard(self.scope):
            fetched = self.executor.run(program, feed=feed, fetch_list=list(self.sums))
        return np.array([float(value) for value in fetched])

    def persistables(self) -> List[str]:
        """The state that outlives a pass, without the parameters and the learning rate, which is computed."""
        wanted, parameters = [], {parameter.name for parameter in self.main.all_parameters()}
        for variable in self.main.list_vars():
            kind = variable.type if variable.persistable else None
            computed = variable.name in parameters or variable.name.startswith("learning_rate")
            if kind == paddle.base.core.VarDesc.VarType.LOD_TENSOR and not computed:
                wanted.append(variable.name)
        return sorted(wanted)

    def get(self, names: List[str]) -> Arrays:
        return {name: np.array(self._tensor(name)) for name in names}

    def set(self, arrays: Arrays) -> None:
        """Put arrays into variables of the same name; names and shapes have been checked."""
        for name, array in arrays.items():
            self._tensor(name).set(array, self.executor.place)

    def _tensor(self, name: str):
        return self.scope.find_var(name).get_tensor()


def build_program(config: PretrainConfig, model_config) -> PretrainProgram:
    """Build everything for one rank, after ``start_fleet``. Nothing is run yet.

    The loss is sum(lm) * w[0] + sum(sop) * w[1] with the fed ``loss_weights`` w: fleet averages over
    ranks and passes, so the caller chooses w to make it the mean over the whole global batch.
    """
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
        feeds = {name: paddle.static.data(name, shape, kind) for name, (shape, kind) in FEEDS.items()}
        weights = paddle.static.data(LOSS_WEIGHTS, [2], "float32")
        model = build_ernie(model_config)
        outputs = run_ernie(model, feeds)
        sums = sum_losses(outputs, feeds)
        test = main.clone(for_test=True)
        loss = sums.lm_loss * weights[0] + sums.sop_loss * weights[1]
        rate = _minimize(config, model, outputs, loss)
    if needs_gloo(config.device, config.dp_degree):
        drop_stream_syncs(main, startup)
    place = paddle.CPUPlace() if config.device == "cpu" else paddle.CUDAPlace(_gpu_id())
    return PretrainProgram(
        main, startup, test, model.state_dict(), sums, rate, executor=paddle.static.Executor(place)
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
    with contextlib.redirect_stdout(io.StringIO()):  # fleet prints which of its optimizers it takes
        fleet.distributed_optimizer(optimizer, strategy).minimize(loss)
    return schedule.set


class _GivenRate(paddle.optimizer.lr.LRScheduler):
    """A rate that is told, not stepped: it is a pure function of the update number elsewhere."""

    def __init__(self):
        self.given = 0.0
        super().__init__(learning_rate=0.0)

    def set(self, rate: float) -> None:
        self.given = rate
        self.step()

    def get_lr(self) -> float:
        return self.given


class RankSums:
    """Adds small float vectors over all ranks; with one rank it only hands them back."""

    LENGTH = 8

    def __init__(self, num_ranks: int, executor: paddle.static.Executor, *, cpu: bool):
        self.executor, self.program = executor, None
        if num_ranks > 1:
            self.program = paddle.static.Program()
            with paddle.static.program_guard(self.program), paddle.utils.unique_name.guard():
                values = paddle.static.data("values", [self.LENGTH], "float64")
                self.total = values * 1.0
                paddle.distributed.all_reduce(self.total)
            if cpu:
                drop_stream_syncs(self.program)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """float64 [n], n up to 8, the sum over the ranks."""
        if self.program is None:
            return np.asarray(values, np.float64)
        padded = np.zeros(self.LENGTH)
        padded[: len(values)] = values
        (total,) = self.executor.run(self.program, feed={"values": padded}, fetch_list=[self.total])
        return total[: len(values)]

    def barrier(self) -> None:
        self(np.zeros(1))


def _gpu_id() -> int:
    return int(paddle.device.get_device().partition(":")[2] or 0)
