"""The state of a pretraining program: the variables of a scope, by name, and what its runs recorded."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Iterable

import numpy as np
import paddle

from ernie_pair.kernels.choice import KernelChoice
from ernie_pair.pretraining.graph.step_monitors import RECORDS, Monitors
from ernie_pair.runtime.paddle_patches.static_programs import place_of, view_array
from ernie_pair.weights.weight_files import Arrays


@dataclass
class ProgramState:
    """The scope that the programs of a run share, and its device.

    ``slots``: {parameter: {variable of its optimizer state: shape}}, of all parameters. When the state
    is sharded, this process holds only a part of it; every process holds all parameters.
    """

    parameters: dict[str, paddle.Tensor]  # structured name -> parameter, tied names included
    slots: dict[str, dict[str, tuple]]
    num_recorded: int  # numbers in a row of the records
    monitors: Monitors
    device: str
    recorded_passes: int  # that the records keep
    kernels: KernelChoice  # of the encoder layers
    scope: paddle.static.Scope = field(default_factory=paddle.static.Scope, kw_only=True)

    @cached_property
    def executor(self) -> paddle.static.Executor:
        """Return the executor. The device is opened here: a program can be built without its GPU."""
        gpu = int(paddle.device.get_device().partition(":")[2] or 0)
        return paddle.static.Executor(paddle.CPUPlace() if self.device == "cpu" else paddle.CUDAPlace(gpu))

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
        raise NotImplementedError

    def get(self, names: Iterable[str]) -> Arrays:
        """Return {variable: array}, copies."""
        return {name: np.array(array) for name, array in self.view_variables(names).items()}

    def view_variables(self, names: Iterable[str]) -> Arrays:
        """Return {variable: array}, without a copy where possible; valid until the program runs again."""
        return {name: view_array(self._tensor(name)) for name in names}

    def weights(self) -> Arrays:
        """Return {parameter: float32 array}, without a copy where ``view_variables`` makes none."""
        return self.view_variables(parameter.name for parameter in self.parameters.values())

    def set_weights(self, weights: Arrays) -> None:
        """Set the parameters to {parameter: float32 array}."""
        self.set(weights)

    def set(self, arrays: Arrays) -> None:
        """Copy arrays into the variables of the same names; names and shapes have been checked.

        Each stays on its device: the beta powers in CPU memory, or AdamW uses another kernel.
        """
        for name, array in arrays.items():
            tensor = self._tensor(name)
            tensor.set(array, place_of(tensor, self.executor.place))

    @property
    def skips(self) -> bool:
        """Return whether the program itself skips steps that are not finite."""
        return self.monitors.skipped_updates is not None

    def monitored(self) -> dict[str, float]:
        """Return what the last step recorded for the log."""
        names = {key: name for key, name in self.monitors._asdict().items() if name}
        return {key: float(view_array(self._tensor(name)).item()) for key, name in names.items()}

    def _tensor(self, name: str):
        return self.scope.find_var(name).get_tensor()


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
