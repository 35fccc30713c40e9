"""What both graphs of pretraining have: variables by name, records of passes, steps, sums over the ranks.

On a CPU the processes of static programs, which upstream connects only by NCCL, meet over gloo, in one world.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Iterable, NamedTuple, Optional

import numpy as np
import paddle

from ernie_pair.kernels.choice import KernelChoice
from ernie_pair.runtime.paddle_patches.process_groups import connect_static_programs
from ernie_pair.runtime.paddle_patches.static_programs import place_of, sum_over_ranks, view_array
from ernie_pair.runtime.processes.sockets import shorten_socket_names
from ernie_pair.runtime.processes.stop_signals import skip_destructors
from ernie_pair.training.process_group import StoreBarrier
from ernie_pair.weights.weight_files import Arrays

if TYPE_CHECKING:
    from ernie_pair.pretraining.graph.step import Update


@dataclass
class ProgramState:
    """A run in either graph: its variables by name, what its passes recorded, and its steps.

    When the optimizer state is sharded, this process holds only a part of it; every process holds all
    parameters. ``main`` and ``test`` name what `run` runs.
    """

    parameters: dict[str, paddle.Tensor]  # structured name -> parameter, tied names included
    update: "Update"
    num_recorded: int  # numbers in a row of the records
    device: str
    recorded_passes: int  # that the records keep
    kernels: KernelChoice  # of the encoder layers
    merged: int  # micro-batches of a step
    main: Any
    test: Any
    _passes: int = field(default=0, init=False)  # of the step that has begun

    def run(self, program: Any, feed: dict[str, Any]) -> None:
        """Run ``main`` or ``test`` on one micro-batch; the last one of a step moves the weights."""
        self._run_pass(program, feed)
        if program is self.main:
            self._passes += 1
            if self._passes == self.merged:
                self._move()
                self._passes = 0

    def _run_pass(self, program: Any, feed: dict[str, Any]) -> None:
        raise NotImplementedError

    def _move(self) -> None:
        raise NotImplementedError

    def _tensor(self, name: str) -> Any:
        """Return the memory of a variable."""
        raise NotImplementedError

    def merge(self, passes: int) -> None:
        """Set the micro-batches per step from now on, at most as many as the run was built for."""
        self.merged = passes

    def records(self, passes: int) -> np.ndarray:
        """Return the records of the last ``passes`` runs, at most ``recorded_passes``.

        float32 [passes, 4 to 7]: the sums of the losses and hits, those of n-grams if there is a lexicon, and
        the gradient norm of the step if it is clipped. Nothing else waits for the device.
        """
        if self.device == "gpu":
            paddle.device.cuda.synchronize()
        rows = view_array(self._tensor(RECORDS)).reshape(-1, self.num_recorded)
        return np.array(rows[len(rows) - passes :])

    def owned_variables(self, names: Iterable[str]) -> list[str]:
        """Return those of ``names`` that this process has."""
        return [name for name in names if name in self.update.owned or name in self.update.shared]

    def get(self, names: Iterable[str]) -> Arrays:
        """Return {variable: array}, copies."""
        return {name: np.array(array) for name, array in self.view_variables(names).items()}

    def view_variables(self, names: Iterable[str]) -> Arrays:
        """Return {variable: array}, without a copy where possible; valid until the next pass."""
        return {name: view_array(self._tensor(name)) for name in names}

    def weights(self) -> Arrays:
        """Return {parameter: float32 array}, without a copy where ``view_variables`` makes none."""
        return self.view_variables(parameter.name for parameter in self.parameters.values())

    def set(self, arrays: Arrays) -> None:
        """Copy arrays into the variables of the same names; names and shapes have been checked.

        Each stays on its device: the beta powers in CPU memory, or AdamW uses another kernel.
        """
        for name, array in arrays.items():
            tensor = self._tensor(name)
            tensor.set(array, place_of(tensor, self.device))

    @property
    def skips(self) -> bool:
        """Return whether steps that are not finite are skipped."""
        return self.update.monitors.skipped_updates is not None

    def monitored(self) -> dict[str, float]:
        """Return what the last step recorded for the log."""
        names = {key: name for key, name in self.update.monitors._asdict().items() if name}
        return {key: float(view_array(self._tensor(name)).item()) for key, name in names.items()}


# The state of AdamW or LAMB and of the loss scale, in every graph by the same names: a checkpoint of
# one is resumed by another. The powers are in CPU memory: AdamW uses another kernel otherwise.
MOMENTS, POWERS = ("moment1_0", "moment2_0"), ("beta1_pow_acc_0", "beta2_pow_acc_0")
LOSS_SCALE, GOOD_STEPS, BAD_STEPS = "loss_scaling_0", "num_good_steps_0", "num_bad_steps_0"


def slots_of(parameters: Iterable) -> dict[str, dict[str, tuple]]:
    """Return {parameter: {variable of its optimizer state: shape}}."""
    slots = {}
    for parameter in parameters:
        shapes = {**dict.fromkeys(MOMENTS, tuple(parameter.shape)), **dict.fromkeys(POWERS, (1,))}
        slots[parameter.name] = {f"{parameter.name}_{slot}": shape for slot, shape in shapes.items()}
    return slots


FEEDS = {
    "input_ids": ([None, None], "int64"),
    "token_type_ids": ([None, None], "int64"),
    "masked_positions": ([None], "int64"),
    "masked_lm_labels": ([None], "int64"),
    "next_sentence_labels": ([None], "int64"),
}
NGRAM_FEEDS = {"ngram_labels": ([None], "int64")}  # also fed if there is an n-gram lexicon
DECODER_FEEDS = {  # also fed if there is a decoder
    "decoder_labels": ([None, None], "int64"),
    "decoder_mask": ([None, None, None], "bool"),
}
# float32 [2]: the weights of the summed lm and sop losses, or of the lm and decoder losses; with several
# processes, before they are divided by the number of labels of all processes.
LOSS_WEIGHTS = "loss_weights"


def feeds_of(model_config) -> dict[str, tuple]:
    """Return {name: (shape, dtype)} of what a batch feeds to the model of ``model_config``."""
    ngrams = NGRAM_FEEDS if model_config.num_ngrams else {}
    return {**FEEDS, **ngrams, **(DECODER_FEEDS if model_config.has_decoder else {})}


_place: Optional[StoreBarrier] = None  # one for the life of the process, as its gloo world is


def start_gloo(num_processes: int) -> None:
    """Initialise, in static mode, the gloo world of the launcher."""
    global _place
    shorten_socket_names()  # Paddle starts a manager process
    store = connect_static_programs()
    skip_destructors()
    _place = StoreBarrier(store, num_processes, "pretrain")


def wait_for_all() -> None:
    """Wait for the other processes; gloo itself would soon time out."""
    if _place is not None:
        _place.wait_for_all()


# float64 [2], fed with several processes: the number of masked tokens and of samples of this rank's step.
LABELLED = "labelled"


class RankSums:
    """The sum of small float vectors over all ranks; with one rank it returns them unchanged."""

    def __init__(self, num_ranks: int, executor: paddle.static.Executor):
        self.executor, self.program = executor, None
        if num_ranks > 1:
            self.program = paddle.static.Program()
            with paddle.static.program_guard(self.program), paddle.utils.unique_name.guard():
                values = paddle.static.data("values", [None], "float64")
                self.total = sum_over_ranks(values * 1.0)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of ``values`` over the ranks, float64 [n]."""
        values = np.asarray(values, np.float64)
        if self.program is None:
            return values
        wait_for_all()
        (total,) = self.executor.run(self.program, feed={"values": values}, fetch_list=[self.total])
        return total

    def meet(self) -> None:
        """Wait for the other ranks where the collectives of the next step would soon time out."""
        wait_for_all()


GRADIENT_NORM, SKIPPED_UPDATES, RECORDS = "gradient_norm", "skipped_updates", "pass_records"
RECORDED_PASSES = 128  # rows of 20 to 28 bytes; more if a step has more passes


class Monitors(NamedTuple):
    """The names of persistable float32 [1] variables; None if the program has none."""

    gradient_norm: Optional[str]
    skipped_updates: Optional[str]
    loss_scale: Optional[str]


PASS_SEED = "pass_seed"  # int32 [1], fed to every pass
NO_DROPOUT = {PASS_SEED: np.zeros(1, np.int32)}  # for evaluation: the variable must be fed


def seed_feed(seed: int) -> dict:
    """Derive all randomness of the next micro-batch from ``seed``; return its feed {PASS_SEED: int32 [1]}."""
    paddle.seed(seed)
    return {PASS_SEED: np.array([seed & 0x3FFFFFFF], np.int32)}  # leaves room for the positions
