"""Pretraining in the dynamic graph: the step of `step.py`, run at once instead of built into a program.

The state has the names of the static programs' variables, so a checkpoint of one graph can be resumed in the
other. Dropout draws other random numbers.
"""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, ContextManager, Optional, Sequence

import numpy as np
import paddle

from ernie_pair.kernels.adamw import update_together
from ernie_pair.kernels.choice import KernelChoice
from ernie_pair.kernels.encoder_layer import ModelState
from ernie_pair.models.networks.kernel_path import choose_path
from ernie_pair.pretraining.config.pretrain_config import HALF_OPS, PretrainConfig
from ernie_pair.pretraining.graph.model import (
    build_padded,
    draw_static_init,
    encoder_of,
    run_ernie,
    sum_losses,
)
from ernie_pair.pretraining.graph.program_state import (
    LABELLED,
    LOSS_WEIGHTS,
    PASS_SEED,
    POWERS,
    RECORDED_PASSES,
    ProgramState,
    feeds_of,
)
from ernie_pair.pretraining.graph.step import (
    Update,
    loss_of,
    precision_of,
    record_losses,
    record_norm,
    weigh_losses,
)
from ernie_pair.runtime.cpu import cpu_threads
from ernie_pair.runtime.paddle_patches.layers import own_forward
from ernie_pair.runtime.paddle_patches.optimizer_state import AdamSlots
from ernie_pair.training.process_group import ProcessGroup
from ernie_pair.training.recompute import recompute_layers

ORDER_ALONE = ("cls.seq_relationship.", ".pooler.")  # in names that only the sentence-order head trains


class DynamicGraph:
    """Tensors by name, and sums over the ranks of a group."""

    def __init__(self, group: ProcessGroup):
        self.group, self.variables = group, dict[str, paddle.Tensor]()

    def variable(self, name: str, shape: Sequence[int], value: float = 0.0, dtype: str = "float32") -> Any:
        """See `Graph`."""
        if name not in self.variables:
            place = paddle.CPUPlace() if name.endswith(POWERS) else None
            self.variables[name] = paddle.to_tensor(np.full(list(shape), value, dtype), place=place)
        return self.variables[name]

    def sums_over_ranks(self, tensors: Sequence) -> list:
        """See `Graph`."""
        if self.group.size == 1:
            return list(tensors)
        flat = paddle.concat([tensor.reshape([-1]) for tensor in tensors])
        self.group.add_up(flat)
        parts = paddle.split(flat, [int(tensor.size) for tensor in tensors])
        return [part.reshape(tensor.shape) for part, tensor in zip(parts, tensors)]

    def move_fused(self, pairs: list, slots: list, numbers: list, decays: list[float]) -> None:
        """See `Graph`."""
        rate, factor, skip, *betas = numbers
        if skip is None or not skip.item():
            rates = [rate.item()] * len(pairs)
            state = [AdamSlots(*of_one.values()) for of_one in slots]
            scale = 1.0 if factor is None else factor.item()
            update_together(pairs, state, rates, decays, betas, scale, cpu_threads())


class DynamicProgram(ProgramState):
    """The model and its update; the constructor and a step are called by all ranks of ``group``.

    Raises InputError without the kernels.
    """

    def __init__(self, config: PretrainConfig, model_config, group: ProcessGroup):
        self.config, self.graph = config, DynamicGraph(group)
        drawn = draw_static_init(model_config, config.seed)
        paddle.seed(config.seed)
        self.model = build_padded(model_config)
        self._fed = feeds_of(model_config)
        inner = encoder_of(self.model)  # within the model with heads; here as others know a model
        encoder: Any = SimpleNamespace(fused_state=None)
        encoder.layers, encoder.embeddings = lambda: list(inner.encoder.layers), lambda: [inner.embeddings]
        kernels: KernelChoice = choose_path(encoder, config, config.device, group.size, group.all_reduce)
        recompute_layers(encoder, config.use_recompute)
        self._fused_state: Optional[ModelState] = encoder.fused_state
        self._trained = [
            parameter  # those that receive a gradient
            for name, parameter in self.model.named_parameters()
            if config.has_order or not any(part in name for part in ORDER_ALONE)
        ]
        has_third = model_config.num_ngrams or model_config.has_decoder  # kind of labels
        super().__init__(
            parameters=self.model.state_dict(),
            update=Update(config, self.graph, self.model, self._trained, group.rank, kernels.is_fused),
            num_recorded=(6 if has_third else 4) + (config.grad_clip > 0),
            device=config.device,
            recorded_passes=max(RECORDED_PASSES, config.accumulation_steps),
            kernels=kernels,
            merged=config.accumulation_steps,
            main="main",
            test="test",
        )
        self.graph.variables.update((p.name, p) for p in self.parameters.values())
        self.set({self.parameters[name].name: array for name, array in drawn.items()})
        self._rate = paddle.zeros([1])
        self._weights: Optional[paddle.Tensor] = None  # of the losses, in the step that has begun

    def rate(self, rate: float) -> None:
        """Set the learning rate of the next step."""
        self._rate = paddle.full([1], rate)

    def _run_pass(self, program: str, feed: dict[str, Any]) -> None:
        feeds = {name: paddle.to_tensor(np.asarray(feed[name])) for name in self._fed}
        if self._fused_state is not None:
            self._seed_kernels(self._fused_state, feed)
        if program == self.test:
            self.model.eval()
            with paddle.no_grad():
                self._record(sum_losses(run_ernie(self.model, feeds), feeds))
            return
        self.model.train()
        if self._passes == 0:
            self._weights = paddle.to_tensor(np.asarray(feed[LOSS_WEIGHTS]))
            if self.graph.group.size > 1:
                labelled = paddle.to_tensor(np.asarray(feed[LABELLED]))
                self._weights = weigh_losses(self.graph, self._weights, labelled)
        with self._casting():
            sums = sum_losses(run_ernie(self.model, feeds), feeds)
        loss_of(self.config, self.graph, sums, self._weights).backward()
        with paddle.no_grad():
            self._record(sums)

    def _seed_kernels(self, state: ModelState, feed: dict[str, Any]) -> None:
        """Tell the fused layers the seed of a pass, and the rows that heads read of the last layer.

        These are the first of a sequence, and the masked ones.
        """
        state.seed.set(int(np.asarray(feed[PASS_SEED])[0]))
        last: Any = own_forward(encoder_of(self.model).encoder.layers[-1])
        count, length = np.asarray(feed["input_ids"]).shape
        read = np.union1d(np.arange(count) * length, np.asarray(feed["masked_positions"]))
        last.rows = read.astype(np.int32)

    @paddle.no_grad()
    def _move(self) -> None:
        norms = self.update.apply([parameter.grad for parameter in self._trained], self._rate)
        record_norm(self.graph, norms, self.recorded_passes * self.num_recorded)
        for parameter in self._trained:
            parameter.clear_gradient(set_to_zero=False)

    def _casting(self) -> ContextManager:
        """Return the context in which a GPU computes a pass in half precision, if the flags ask for it."""
        plan = precision_of(self.config)
        if plan is None or plan.dtype == "float32":
            return nullcontext()
        half, float32 = set(HALF_OPS - plan.float32_ops), set(plan.float32_ops)
        return paddle.amp.auto_cast(dtype=plan.dtype, custom_white_list=half, custom_black_list=float32)

    def _record(self, sums) -> None:
        record_losses(self.config, self.graph, sums, self.recorded_passes)

    def _tensor(self, name: str) -> Any:
        return self.graph.variables[name].get_tensor()


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
