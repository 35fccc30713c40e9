"""Pretraining in the dynamic graph, with the interface of the static programs: same job and checkpoints.

The state has the names of the static programs' variables, so a checkpoint of one graph can be resumed in the
other. A step computes the same sums in the same order, as far as Paddle's ops agree; dropout draws other
random numbers.
"""

from collections import deque
from typing import Any, Deque, Iterable, Optional

import numpy as np
import paddle

from ernie_pair.kernels.choice import KernelChoice, choose_plain
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig
from ernie_pair.pretrain.graph.model import build_padded, run_ernie, sum_losses
from ernie_pair.pretrain.graph.program_state import LOSS_WEIGHTS, feeds_of
from ernie_pair.pretrain.graph.step_monitors import GRADIENT_NORM, RECORDED_PASSES
from ernie_pair.pretrain.graph.strategy import build_optimizer
from ernie_pair.pretrain.graph.vocab_padding import cut_vocabulary, pad_vocabulary
from ernie_pair.runtime.paddle_patches.initializers import drawing_as_static
from ernie_pair.runtime.paddle_patches.optimizer_state import adam_slots
from ernie_pair.weights.weight_files import Arrays

WHY_PLAIN = "the fused layers of pretraining are ops of the static graph"
ORDER_ALONE = ("cls.seq_relationship.", ".pooler.")  # in names that only the sentence-order head trains
POWERS = ("beta1_pow_acc_0", "beta2_pow_acc_0")  # in CPU memory: AdamW uses another kernel otherwise
Feeds = dict[str, paddle.Tensor]


class DynamicProgram:
    """The model and its optimizer, with what `PretrainJob` needs of a `PretrainProgram`, without a program.

    ``slots``: {parameter: {variable of its optimizer state: shape}}, of those that train.
    """

    main, test = "main", "test"
    executor = None
    skips = False

    def __init__(self, config: PretrainConfig, model_config):
        self.kernels: KernelChoice = choose_plain(config, WHY_PLAIN, config.device)
        drawn = draw_as_static(model_config, config.seed)
        paddle.seed(config.seed)
        self.config, self.model = config, build_padded(model_config)
        self._fed = feeds_of(model_config)
        self._width = (6 if model_config.num_ngrams else 4) + (config.grad_clip > 0)  # of a record
        self.parameters: dict[str, paddle.Tensor] = self.model.state_dict()
        self._by_name = {p.name: p for p in self.parameters.values()}
        self.set_weights({self.parameters[name].name: array for name, array in drawn.items()})
        self._trained = [
            parameter  # those that receive a gradient
            for name, parameter in self.model.named_parameters()
            if config.has_order or not any(part in name for part in ORDER_ALONE)
        ]
        self.optimizer = build_optimizer(config, self.model, 0.0, self._trained)
        self.slots: dict[str, dict[str, tuple]] = {}
        self._state: dict[str, paddle.Tensor] = {}
        for parameter, slots in zip(self._trained, adam_slots(self.optimizer, self._trained)):
            # The static graph's names for the state of AdamW or LAMB, in the order of `AdamSlots`.
            names = [f"{parameter.name}_{slot}" for slot in ("moment1_0", "moment2_0", *POWERS)]
            named = dict(zip(names, slots))
            self.slots[parameter.name] = {name: tuple(slot.shape) for name, slot in named.items()}
            self._state.update(named)
        self.recorded_passes = max(RECORDED_PASSES, config.accumulation_steps)
        self._records: Deque[paddle.Tensor] = deque(maxlen=self.recorded_passes)
        self._norm: Optional[paddle.Tensor] = paddle.zeros([]) if config.grad_clip > 0 else None
        self._passes = 0  # of the step that has begun
        self._merged = config.accumulation_steps  # passes per step

    def rate(self, rate: float) -> None:
        """Set the learning rate of the next step."""
        self.optimizer.set_lr(rate)

    def merge(self, passes: int) -> None:
        """Set the micro-batches per step from now on, at most ``accumulation_steps``."""
        self._merged = passes

    def run(self, program: str, feed: dict[str, Any]) -> None:
        """Run ``main`` or ``test`` on one micro-batch; the last of a step of ``main`` updates the weights."""
        feeds = {name: paddle.to_tensor(np.asarray(feed[name])) for name in self._fed}
        if program == self.test:
            self.model.eval()
            with paddle.no_grad():
                self._record(sum_losses(run_ernie(self.model, feeds), feeds))
        else:
            self._train(feeds, np.asarray(feed[LOSS_WEIGHTS]))

    def _train(self, feeds: Feeds, weights: np.ndarray) -> None:
        self.model.train()
        sums = sum_losses(run_ernie(self.model, feeds), feeds)
        loss = sums.masked_loss * float(weights[0])
        if self.config.has_order:
            loss = loss + sums.sop_loss * float(weights[1])
        (loss / self.config.accumulation_steps).backward()
        self._passes += 1
        if self._passes == self._merged:
            if self._norm is not None:
                gradients = [p.grad for p in self._trained if p.grad is not None]
                self._norm = paddle.sqrt(paddle.add_n([paddle.sum(paddle.square(g)) for g in gradients]))
            self.optimizer.step()
            self.optimizer.clear_grad(set_to_zero=False)
            self._passes = 0
        self._record(sums)

    def _record(self, sums) -> None:
        row = [*sums.recorded, self._norm] if self._norm is not None else sums.recorded
        self._records.append(paddle.stack([each.detach() for each in row]))

    def records(self, passes: int) -> np.ndarray:
        """Return the records of the last ``passes`` runs, like `PretrainProgram.records`."""
        kept = list(self._records)[len(self._records) - passes :]
        return np.stack([row.numpy() for row in kept]) if kept else np.zeros((0, self._width), np.float32)

    def monitored(self) -> dict[str, float]:
        """Return what the last step recorded for the log."""
        return {} if self._norm is None else {GRADIENT_NORM: float(self._norm)}

    def owned_variables(self, names: Iterable[str]) -> list[str]:
        """Return those of ``names`` that exist."""
        return [name for name in names if name in self._state]

    def shared_state(self) -> list[str]:
        """Return the names of the state that belongs to no parameter: there is none."""
        return []

    def view_variables(self, names: Iterable[str]) -> Arrays:
        """Return {variable of the optimizer's state: array}, copies."""
        return {name: self._state[name].numpy() for name in names}

    def weights(self) -> Arrays:
        """Return {parameter: float32 array}, copies."""
        return {name: parameter.numpy() for name, parameter in self._by_name.items()}

    def set_weights(self, weights: Arrays) -> None:
        """Set the parameters to {parameter: float32 array}."""
        for name, array in weights.items():
            self._by_name[name].set_value(array)

    def set(self, arrays: Arrays) -> None:
        """Copy arrays into the optimizer's state; each stays on its device, as in `PretrainProgram.set`."""
        for name, array in arrays.items():
            if name.endswith(POWERS):
                self._state[name].get_tensor().set(array, paddle.CPUPlace())
            else:
                self._state[name].set_value(array)


def draw_as_static(model_config, seed: int) -> Arrays:
    """Return {structured name: float32 array} of what the start-up program of the static graph draws.

    The rows that pad the vocabulary are 0, with a bias that rules them out.
    """
    paddle.seed(seed)
    with paddle.utils.unique_name.guard(), drawing_as_static() as drawn:
        parameters = build_padded(model_config).state_dict()
    arrays = {name: drawn.get(one.name, one.numpy()) for name, one in parameters.items()}
    return pad_vocabulary(cut_vocabulary(arrays, model_config.vocab_size), model_config.vocab_size)
