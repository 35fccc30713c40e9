"""Pretraining in the dynamic graph, with the interface of the static programs: same job and checkpoints.

The state has the names of the static programs' variables, so a checkpoint of one graph can be resumed in the
other. A step computes the same sums in the same order, as far as Paddle's ops agree; dropout draws other
random numbers.
"""

from collections import deque
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, ContextManager, Deque, Iterable, Optional

import numpy as np
import paddle

from ernie_pair.kernels.choice import KernelChoice
from ernie_pair.kernels.encoder_layer import ModelState
from ernie_pair.models.networks.kernel_path import choose_path
from ernie_pair.pretraining.config.pretrain_config import HALF_OPS, PretrainConfig
from ernie_pair.pretraining.graph.dynamic_update import DynamicUpdate
from ernie_pair.pretraining.graph.model import build_padded, encoder_of, run_ernie, sum_losses
from ernie_pair.pretraining.graph.program_state import LOSS_WEIGHTS, feeds_of
from ernie_pair.pretraining.graph.step_monitors import LABELLED, PASS_SEED, RECORDED_PASSES
from ernie_pair.pretraining.graph.strategy import precision_of
from ernie_pair.pretraining.graph.vocab_padding import cut_vocabulary, pad_vocabulary
from ernie_pair.runtime.paddle_patches.initializers import drawing_as_static
from ernie_pair.runtime.paddle_patches.layers import own_forward
from ernie_pair.training.process_group import ProcessGroup
from ernie_pair.training.recompute import recompute_layers
from ernie_pair.weights.weight_files import Arrays

ORDER_ALONE = ("cls.seq_relationship.", ".pooler.")  # in names that only the sentence-order head trains
Feeds = dict[str, paddle.Tensor]


class DynamicProgram(DynamicUpdate):
    """The model and its optimizer, with what `PretrainJob` needs of a `PretrainProgram`, without a program.

    The constructor and a step are called by all ranks of ``group``. Raises InputError without the kernels.
    """

    main, test = "main", "test"

    def __init__(self, config: PretrainConfig, model_config, group: ProcessGroup):
        self.config, self.group = config, group
        drawn = draw_as_static(model_config, config.seed)
        paddle.seed(config.seed)
        self.model = build_padded(model_config)
        self._fed = feeds_of(model_config)
        has_third = model_config.num_ngrams or model_config.has_decoder  # kind of labels
        self._width = (6 if has_third else 4) + (config.grad_clip > 0)  # of a record
        self.parameters: dict[str, paddle.Tensor] = self.model.state_dict()
        self._by_name = {p.name: p for p in self.parameters.values()}
        self.set_weights({self.parameters[name].name: array for name, array in drawn.items()})
        inner = encoder_of(self.model)  # within the model with heads; here as others know a model
        encoder: Any = SimpleNamespace(fused_state=None)
        encoder.layers, encoder.embeddings = lambda: list(inner.encoder.layers), lambda: [inner.embeddings]
        self.kernels: KernelChoice = choose_path(encoder, config, config.device, group.size, group.all_reduce)
        recompute_layers(encoder, config.use_recompute)
        self._fused_state: Optional[ModelState] = encoder.fused_state
        trained = [
            parameter  # those that receive a gradient
            for name, parameter in self.model.named_parameters()
            if config.has_order or not any(part in name for part in ORDER_ALONE)
        ]
        super().__init__(config, self.model, trained, group, is_fused=self.kernels.is_fused)
        self.recorded_passes = max(RECORDED_PASSES, config.accumulation_steps)
        self._records: Deque[paddle.Tensor] = deque(maxlen=self.recorded_passes)
        self._weights: Optional[paddle.Tensor] = None  # of the losses, in the step that has begun
        self._passes = 0  # of that step
        self._merged = config.accumulation_steps  # passes per step

    @property
    def skips(self) -> bool:
        """Return whether steps that are not finite are skipped."""
        return self.guard is not None

    def rate(self, rate: float) -> None:
        """Set the learning rate of the next step."""
        self.optimizer.set_lr(rate)

    def merge(self, passes: int) -> None:
        """Set the micro-batches per step from now on, at most ``accumulation_steps``."""
        self._merged = passes

    def run(self, program: str, feed: dict[str, Any]) -> None:
        """Run ``main`` or ``test`` on one micro-batch; the last of a step of ``main`` updates the weights."""
        feeds = {name: paddle.to_tensor(np.asarray(feed[name])) for name in self._fed}
        if self._fused_state is not None:
            self._fused_state.seed.set(int(np.asarray(feed[PASS_SEED])[0]))
            # The last layer computes the rows that heads read: the first of a sequence, the masked ones.
            last: Any = own_forward(encoder_of(self.model).encoder.layers[-1])
            count, length = np.asarray(feed["input_ids"]).shape
            read = np.union1d(np.arange(count) * length, np.asarray(feed["masked_positions"]))
            last.rows = read.astype(np.int32)
        if program == self.test:
            self.model.eval()
            with paddle.no_grad():
                self._record(sum_losses(run_ernie(self.model, feeds), feeds))
        else:
            self._train(feeds, feed)

    def _train(self, feeds: Feeds, feed: dict[str, Any]) -> None:
        self.model.train()
        if self._passes == 0:
            self._weights = self._loss_weights(feed)
        assert self._weights is not None
        with self._casting():
            sums = sum_losses(run_ernie(self.model, feeds), feeds)
        loss = sums.weighted(self._weights, self.config.has_order)
        guard = self.guard
        scale = 1.0 if guard is None else guard.scale
        (loss * (scale / self.config.accumulation_steps)).backward()
        self._passes += 1
        if self._passes == self._merged:
            self.update()
            self._passes = 0
        self._record(sums)

    def _loss_weights(self, feed: dict[str, Any]) -> paddle.Tensor:
        """Return the weights of the two summed losses, float32 [2], over the labels of all ranks."""
        weights = paddle.to_tensor(np.asarray(feed[LOSS_WEIGHTS]))
        if self.group.size == 1:  # they are divided already
            return weights
        labelled = paddle.to_tensor(np.asarray(feed[LABELLED]))
        self.group.average(labelled)
        ranks = self.group.size
        return (weights.astype("float64") / paddle.clip(labelled * ranks, min=1.0)).astype("float32")

    def _casting(self) -> ContextManager:
        """Return the context in which a GPU computes a pass in half precision, if the flags ask for it."""
        plan = precision_of(self.config)
        if plan is None or plan.dtype == "float32":
            return nullcontext()
        half, float32 = set(HALF_OPS - plan.float32_ops), set(plan.float32_ops)
        return paddle.amp.auto_cast(dtype=plan.dtype, custom_white_list=half, custom_black_list=float32)

    def _record(self, sums) -> None:
        norm = self.norm
        row = [*sums.recorded, norm] if norm is not None else sums.recorded
        self._records.append(paddle.stack([each.detach() for each in row]))

    def records(self, passes: int) -> np.ndarray:
        """Return the records of the last ``passes`` runs, like `PretrainProgram.records`."""
        kept = list(self._records)[len(self._records) - passes :]
        return np.stack([row.numpy() for row in kept]) if kept else np.zeros((0, self._width), np.float32)

    def owned_variables(self, names: Iterable[str]) -> list[str]:
        """Return those of ``names`` that this rank has."""
        return [name for name in names if name in self.state or name in self.shared_state()]

    def shared_state(self) -> list[str]:
        """Return the names of the state that belongs to no parameter: of the loss scale and skipped steps."""
        return [] if self.guard is None else sorted(self.guard.arrays())

    def weights(self) -> Arrays:
        """Return {parameter: float32 array}, copies."""
        return {name: parameter.numpy() for name, parameter in self._by_name.items()}

    def set_weights(self, weights: Arrays) -> None:
        """Set the parameters to {parameter: float32 array}."""
        for name, array in weights.items():
            self._by_name[name].set_value(array)


class GroupSums:
    """`RankSums` of the dynamic graph: sums over the ranks of a group, which may come at different times."""

    def __init__(self, group: ProcessGroup):
        self.group = group

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of ``values`` over the ranks, float64 [n]."""
        return self.group.all_reduce(np.asarray(values, np.float64))

    def meet(self) -> None:
        """Wait for the other ranks where the collectives of the next step would soon time out."""
        self.group.meet()


def draw_as_static(model_config, seed: int) -> Arrays:
    """Return {structured name: float32 array} of what the start-up program of the static graph draws.

    The rows that pad the vocabulary are 0, with a bias that rules them out.
    """
    paddle.seed(seed)
    with paddle.utils.unique_name.guard(), drawing_as_static() as drawn:
        parameters = build_padded(model_config, as_static=True).state_dict()
    arrays = {name: drawn.get(one.name, one.numpy()) for name, one in parameters.items()}
    return pad_vocabulary(cut_vocabulary(arrays, model_config.vocab_size), model_config.vocab_size)
