"""The built programs of pretraining: their inputs and their state."""

from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, Callable, Dict, Iterable, List, Optional

import numpy as np
import paddle

from data_tools.files.errors import MachineError
from ernie_pair.kernels.choice import KernelChoice
from ernie_pair.pretrain.graph.fused_layers import PLAIN
from ernie_pair.pretrain.graph.model import LossSums
from ernie_pair.pretrain.graph.step_monitors import RECORDS, Monitors, add_records, record_width
from ernie_pair.pretrain.graph.strategy import MASTER_MARK
from ernie_pair.pretrain.graph.vocab_padding import EMBEDDING
from ernie_pair.runtime.paddle_patches.static_programs import (
    HeldProgram,
    dtype_of,
    is_tensor,
    place_of,
    view_array,
)
from ernie_pair.weights.half_tensors import narrow_array, widen_array
from ernie_pair.weights.weight_files import Arrays

MERGED = "gradient_merge_k"  # what fleet's GradientMergeOptimizer calls it, in Paddle 2.6.2 and 3


@dataclass
class PretrainProgram:
    """The programs and the scope that they share.

    ``slots``: {parameter: {variable of its optimizer state: shape}}, of all parameters. When the state
    is sharded, this process holds only a part of it; every process holds all parameters.
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
    recorded_passes: int  # that the records keep
    kernels: KernelChoice = PLAIN  # of the encoder layers
    narrow: Optional[Callable] = None  # O2: (place, scope) -> casts the weights to half precision
    file_rows: Optional[int] = None  # of the embedding: the rows after them start at 0; None: random
    scope: paddle.static.Scope = field(default_factory=paddle.static.Scope)
    _held: Dict[int, HeldProgram] = field(default_factory=dict)
    _merged: int = 0  # micro-batches per step; 0: as many as it was built for

    @cached_property
    def executor(self) -> paddle.static.Executor:
        """Return the executor; the device is opened when it is first requested.

        So a program for a GPU can be built and inspected without one.
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
        if self.file_rows is not None:
            self._clear_rows_from(self.file_rows)
        add_records(
            self.test, self.sums.recorded, self.monitors.gradient_norm, self.recorded_passes
        )  # after the casts of O2, which do not know them

    def _clear_rows_from(self, first: int) -> None:
        """Set the rows of the embedding from ``first`` on to 0, as in a resumed run."""
        names = {p.name for name, p in self.parameters.items() if name.endswith(EMBEDDING)}
        copies = [
            c for name in names for c in self.owned_variables(self.slots.get(name, [])) if MASTER_MARK in c
        ]
        for name, array in self.get([*names, *copies]).items():
            if len(array) > first:
                array[first:] = 0
                self.set({name: array})

    def run(self, program: paddle.static.Program, feed: Dict[str, Any]) -> None:
        """Run ``program``, ``main`` or ``test``, on one micro-batch; on a GPU asynchronously."""
        held = self._held.get(id(program))
        if held is None:
            held = self._held[id(program)] = HeldProgram(self.executor, program, self.scope)
        held.run(feed)

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

    def records(self, passes: int) -> np.ndarray:
        """Return the records of the last ``passes`` runs, at most ``recorded_passes``.

        float32 [passes, 4 to 7]: the sums of the losses and hits, those of n-grams if there is a lexicon, and
        the gradient norm of the step if it is clipped. Nothing else waits for the device.
        """
        if self.device == "gpu":
            paddle.device.cuda.synchronize()
        width = record_width(self.sums.recorded, self.monitors.gradient_norm)
        rows = view_array(self._tensor(RECORDS)).reshape(-1, width)
        return np.array(rows[len(rows) - passes :])

    def owned_variables(self, names: Iterable[str]) -> List[str]:
        """Return those of ``names`` that this process has."""
        return [name for name in names if self.main.global_block().has_var(name)]

    def shared_state(self) -> List[str]:
        """Return the names of the state that outlives a pass and belongs to no parameter.

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
        """Return {variable: array}, without a copy where possible.

        The arrays are valid until the program runs again.
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
        """Copy arrays into the variables of the same names; names and shapes have been checked.

        Each stays on its device: on a GPU the beta powers are in CPU memory, otherwise AdamW uses another
        kernel.
        """
        for name, array in arrays.items():
            tensor = self._tensor(name)
            tensor.set(array, place_of(tensor, self.executor.place))

    def _dtype(self, name: str):
        return dtype_of(self._tensor(name))

    @property
    def skips(self) -> bool:
        """Return whether the program itself skips steps that are not finite."""
        return self.monitors.skipped_updates is not None

    def monitored(self) -> Dict[str, float]:
        """Return what the last step recorded for the log."""
        names = {key: name for key, name in self.monitors._asdict().items() if name}
        return {key: float(view_array(self._tensor(name)).item()) for key, name in names.items()}

    def _tensor(self, name: str):
        return self.scope.find_var(name).get_tensor()
