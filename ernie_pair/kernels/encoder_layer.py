"""An encoder layer of Paddle, post-norm with gelu or relu, in one call forward and one backward.

`FusedLayer` replaces the forward pass of a TransformerEncoderLayer, whose parameters stay where they
are. B batch, S sequence, D hidden, Q S or 1.
"""

import copy
import logging
from contextlib import contextmanager
from ctypes import byref
from dataclasses import dataclass, field
from functools import partial
from operator import is_
from typing import Any, Iterator, List, Optional, Sequence, Set, Tuple

import paddle
from paddle import nn
from paddle.autograd import PyLayer

from data_tools.files.errors import MachineError
from ernie_pair.kernels.library import (
    ACTIVATIONS,
    POOL,
    PRECISIONS,
    DropoutSeed,
    LayerCall,
    Workspace,
    open_kernels,
    pointers_of,
)
from ernie_pair.runtime.paddle_patches.layers import (
    Forward,
    activation_of,
    epsilon_of,
    parameter_of,
    runs_its_class,
    sublayer_of,
)

# The parts that have parameters, in the order of fused.h; those of the attention are inside `self_attn`.
OF_ATTENTION = ("q_proj", "k_proj", "v_proj", "out_proj")
BESIDE_IT = {"linear1": nn.Linear, "linear2": nn.Linear, "norm1": nn.LayerNorm, "norm2": nn.LayerNorm}
DROPOUTS = ("dropout", "dropout1", "dropout2")
FLOAT_BYTES = 4
REFUSED = "oneDNN refused a product of the fused kernels; pass --kernels plain"

logger = logging.getLogger(__name__)


def why_unfit(layer) -> str:
    """Return why the kernels cannot compute ``layer``, in words, or ''."""
    reason = why_parts_unfit(layer)
    if not reason and any(p is None or p.dtype != paddle.float32 for p in parameters_of(layer)):
        reason = "the fused kernels need every weight and bias in float32"
    return reason


def why_parts_unfit(layer) -> str:
    """Return why the kernels cannot compute ``layer``, whatever its weights are, in words, or ''."""
    attention = sublayer_of(layer, "self_attn")
    if type(layer) is not nn.TransformerEncoderLayer or type(attention) is not nn.MultiHeadAttention:
        return f"the fused kernels do not support {type(layer).__name__} layers"
    if layer.normalize_before:
        return "the fused kernels do not support pre-norm layers"
    if not activation_of(layer):
        name = getattr(layer.activation, "__name__", "this activation")
        return f"the fused kernels support gelu and relu, not {name}"
    parts = [("self_attn", attention, nn.MultiHeadAttention)]
    parts += [(name, sublayer_of(attention, name), nn.Linear) for name in OF_ATTENTION]
    parts += [(name, sublayer_of(layer, name), kind) for name, kind in BESIDE_IT.items()]
    parts += [(name, sublayer_of(layer, name), nn.Dropout) for name in DROPOUTS]
    for name, part, kind in parts:
        if part is None or not runs_its_class(part, kind):
            return f"{name} of a layer was replaced or has a hook, which the fused kernels would ignore"
    inner, first, second = (sublayer_of(layer, name) for name in DROPOUTS)
    if inner.p or first.p != second.p or first.training != second.training:
        return "the fused kernels support no dropout within the feed-forward, and one rate outside of it"
    if epsilon_of(sublayer_of(layer, "norm1")) != epsilon_of(sublayer_of(layer, "norm2")):
        return "the fused kernels support one epsilon for both norms of a layer"
    return ""


def parameters_of(layer) -> List[Any]:
    """Return the parameters in the order of fused.h; None for a missing one."""
    attention = sublayer_of(layer, "self_attn")
    parts = [sublayer_of(attention, name) for name in OF_ATTENTION]
    parts += [sublayer_of(layer, name) for name in BESIDE_IT]
    return [parameter_of(part, name) for part in parts for name in ("weight", "bias")]


def layer_shapes(parameters: Sequence) -> List[List[int]]:
    """Return the shapes that the ``parameters`` of a layer have if they fit together."""
    hidden, inner = parameters[0].shape[0], parameters[8].shape[-1]
    square, row = [hidden, hidden], [hidden]
    return [*[square, row] * 4, [hidden, inner], [inner], [inner, hidden], *[row] * 5]


class CheckedTensors:
    """Tensors that were checked to be contiguous float32 arrays of the right shapes on the CPU.

    Checking them all takes some 50 us. So it is repeated only if one of them is another tensor than the last
    time, or at another address: whatever casts, moves or reshapes a parameter gives it other memory.
    """

    def __init__(self) -> None:
        self._seen: List[Any] = []
        self._addresses: List[int] = []

    def __deepcopy__(self, memo) -> "CheckedTensors":
        return CheckedTensors()  # the copy has other tensors

    def are_fit(self, tensors: Sequence, shapes_of) -> bool:
        """Return whether ``tensors`` are such arrays; ``shapes_of(tensors)`` returns the right shapes."""
        if any(tensor is None for tensor in tensors):
            return False
        addresses = [tensor.data_ptr() for tensor in tensors]
        if (
            addresses == self._addresses
            and all(map(is_, tensors, self._seen))
            and all(tensor.element_size() == FLOAT_BYTES for tensor in tensors)
        ):
            return True
        self._seen, self._addresses = [], []
        if not all(map(is_plain_array, tensors)) or [t.shape for t in tensors] != shapes_of(tensors):
            return False
        self._seen, self._addresses = list(tensors), addresses
        return True

    def refuse_changed(self, tensors: Sequence, shapes_of) -> None:
        """Raise RuntimeError when ``tensors``, which a forward pass has used, are no longer such arrays."""
        if not self.are_fit(tensors, shapes_of):
            raise RuntimeError("weights were cast or moved before their backward pass; use --kernels plain")


def is_plain_array(tensor) -> bool:
    """Return whether ``tensor`` is a contiguous float32 array in CPU memory."""
    return is_float32_on_cpu(tensor) and tensor.is_contiguous()


def is_float32_on_cpu(tensor) -> bool:
    """Return whether ``tensor`` is a float32 array, contiguous or not, in CPU memory."""
    return tensor.dtype == paddle.float32 and tensor.is_dense() and tensor.place.is_cpu_place()


@dataclass
class ModelState:
    """How a model is computed, and which forward pass it is in.

    ``weights_epoch`` increases whenever the weights may have changed; then packed copies of them are made
    again. Paddle cannot tell: its optimizers and ``set_value`` do not change ``inplace_version``.
    """

    precision: str
    threads: int
    seed: DropoutSeed = field(default_factory=DropoutSeed)
    weights_epoch: int = 0
    _is_constant: bool = False
    _told: Set[str] = field(default_factory=set)

    def begin_pass(self) -> None:
        """Begin a forward pass of the model."""
        self.seed.begin_pass()
        if not self._is_constant:
            self.weights_epoch += 1

    def tell_once(self, reason: str) -> None:
        """Log that Paddle computes a part of the model from now on, and why; each reason once."""
        if reason not in self._told:
            self._told.add(reason)
            logger.warning("a part of the model is left to the plain kernels of Paddle: %s", reason)

    @contextmanager
    def constant_weights(self) -> Iterator[None]:
        """Promise that the weights of the layers stay as they are within this context."""
        self.weights_epoch += 1
        before, self._is_constant = self._is_constant, True
        try:
            yield
        finally:
            self._is_constant = before


class FusedLayer:
    """The forward pass of ``layer``, the ``number``-th of a model.

    ``is_recomputed``: keep only the input for the backward pass, and compute the rest again there.
    """

    def __init__(self, layer, number: int, state: ModelState):
        self.layer, self.number, self.state = layer, number, state
        self.is_recomputed, self.first_token_only, self.begins_pass = False, False, False
        self.packed, self.checked = PackedWeights(), CheckedTensors()
        self.plain: Forward = partial(type(layer).forward, layer)

    def for_first_token(self, plain: Forward) -> "FusedLayer":
        """Return a layer that computes only [B, 1, D], the first token of each sequence, like ``plain``."""
        alone = copy.copy(self)  # the packed weights are shared
        alone.first_token_only, alone.plain = True, plain
        return alone

    def __call__(self, src, src_mask=None, cache=None, output_attentions=False):
        """Return the states [B, Q, D] after the layer from those before it [B, S, D].

        ``src_mask``: float32 [B, 1, 1, S], added to the scores. Whatever else TransformerEncoder may ask for
        is computed by Paddle, and so is a layer that the kernels no longer support.
        """
        if self.begins_pass:
            self.state.begin_pass()
        is_asked = cache is not None or output_attentions or not paddle.in_dynamic_mode()
        parameters = [] if is_asked or not _are_known(src, src_mask) else self._fit_parameters(src.shape[2])
        if not parameters:
            return self.plain(src, src_mask, cache, output_attentions)
        mask = None if src_mask is None else dense(src_mask)
        sizes = self._call(src, parameters)
        packed = self.packed.of(sizes, self.state.weights_epoch, parameters)
        call = OneCall(sizes, packed, self.is_recomputed, self.checked)
        if paddle.is_grad_enabled() and not all(t.stop_gradient for t in (src, *parameters)):
            return _Function.apply(dense(src), mask, call, *parameters)
        states, saved = call.forward(dense(src), mask, parameters)
        saved.release()
        return states

    def _fit_parameters(self, width: int) -> List[paddle.Tensor]:
        reason = why_parts_unfit(self.layer)
        parameters = [] if reason else parameters_of(self.layer)
        if not reason and not self.checked.are_fit(parameters, layer_shapes):
            reason = "its weights are no longer float32 on the CPU"
        if reason:
            self.state.tell_once(reason)
            return []
        attention = sublayer_of(self.layer, "self_attn")
        is_wide = width == attention.num_heads * attention.head_dim == parameters[0].shape[0]
        return parameters if is_wide else []  # Paddle raises the error if the widths differ

    def _call(self, src, parameters) -> LayerCall:
        layer, state, attention = self.layer, self.state, sublayer_of(self.layer, "self_attn")
        dropout = sublayer_of(layer, "dropout1")
        batch, length, hidden = src.shape
        return LayerCall(
            batch=batch, length=length, hidden=hidden, heads=attention.num_heads,
            inner=parameters[8].shape[1], precision=PRECISIONS[state.precision], threads=state.threads,
            first_token_only=self.first_token_only, layer=self.number, seed=state.seed.value,
            hidden_dropout=dropout.p if dropout.training else 0.0,
            attention_dropout=attention.dropout if attention.training else 0.0,
            epsilon=epsilon_of(sublayer_of(layer, "norm1")), activation=ACTIVATIONS[activation_of(layer)],
        )  # fmt: skip


class PackedWeights:
    """The weights of a layer as its products read them: copies in bfloat16; nothing in float32."""

    def __init__(self) -> None:
        self.epoch = -1
        self.space: Optional[Workspace] = None

    def __deepcopy__(self, memo) -> "PackedWeights":
        return PackedWeights()  # the copy has other weights

    def of(self, call: LayerCall, epoch: int, parameters) -> Optional[Workspace]:
        """Return the copies of the weights of this ``epoch``."""
        if call.precision == PRECISIONS["fp32"]:
            return None
        if self.epoch != epoch or self.space is None:
            functions = open_kernels().functions
            size = functions.fused_packed_bytes(byref(call))
            if self.space is None or self.space.size < size:  # a layer may have been given other weights
                self.space = POOL.take(size)
            functions.fused_layer_pack(byref(call), pointers_of(parameters), self.space.address)
            self.epoch = epoch
        return self.space


class OneCall:
    """One pass through a layer, forward and, if requested, backward."""

    def __init__(
        self, call: LayerCall, packed: Optional[Workspace], is_recomputed: bool, checked: CheckedTensors
    ):
        self.call, self.packed, self.is_recomputed, self.checked = call, packed, is_recomputed, checked
        self.kept: Optional[Tuple[Any, Any, Any, Optional[Workspace]]] = None
        self._packed_address = 0 if packed is None else packed.address

    def forward(self, x_BSD, mask, parameters) -> Tuple[paddle.Tensor, Workspace]:
        """Return the states [B, Q, D] and what the backward pass needs."""
        call, functions = self.call, open_kernels().functions
        saved = POOL.take(functions.fused_saved_bytes(byref(call)))
        work = POOL.take(functions.fused_work_bytes(byref(call)))
        y_BQD = paddle.empty([call.batch, 1 if call.first_token_only else call.length, call.hidden])
        inputs = (x_BSD.data_ptr(), 0 if mask is None else mask.data_ptr(), pointers_of(parameters))
        outputs = (self._packed_address, saved.address, work.address, y_BQD.data_ptr())
        refused = functions.fused_layer_forward(byref(call), *inputs, *outputs)
        work.release()
        if refused:
            raise MachineError(REFUSED)
        return y_BQD, saved

    def backward(self, dy_BQD) -> Tuple[paddle.Tensor, List[paddle.Tensor]]:
        """Return the gradients of the input [B, S, D] and of the parameters."""
        if self.kept is None:
            raise RuntimeError("the gradients of a fused layer are computed once; use --kernels plain")
        (x_BSD, mask, parameters, saved), self.kept = self.kept, None
        self.checked.refuse_changed(parameters, layer_shapes)
        if saved is None:  # dropout by Philox repeats itself
            saved = self.forward(x_BSD, mask, parameters)[1]
        call, functions = self.call, open_kernels().functions
        work = POOL.take(functions.fused_work_bytes(byref(call)))
        dx_BSD, gradients = paddle.empty_like(x_BSD), [paddle.empty_like(p) for p in parameters]
        inputs = (x_BSD.data_ptr(), pointers_of(parameters), self._packed_address, saved.address)
        outputs = (dy_BQD.data_ptr(), work.address, dx_BSD.data_ptr(), pointers_of(gradients))
        refused = functions.fused_layer_backward(byref(call), *inputs, *outputs)
        work.release()
        saved.release()
        if refused:
            raise MachineError(REFUSED)
        return dx_BSD, gradients


class _Function(PyLayer):
    """`OneCall` as a function of Paddle's autograd."""

    @staticmethod
    def forward(ctx, x_BSD, mask, call: OneCall, *parameters):
        y_BQD, saved = call.forward(x_BSD, mask, parameters)
        ctx.call, ctx.has_mask, ctx.wants_input = call, mask is not None, not x_BSD.stop_gradient
        if call.is_recomputed:
            saved.release()
        call.kept = (x_BSD, mask, parameters, None if call.is_recomputed else saved)
        ctx.frozen = [parameter.stop_gradient for parameter in parameters]
        return y_BQD

    @staticmethod
    def backward(ctx, dy_BQD):
        refuse_second_derivatives()
        dx_BSD, gradients = ctx.call.backward(dense(dy_BQD))
        wanted = [None if frozen else gradient for frozen, gradient in zip(ctx.frozen, gradients)]
        dx = dx_BSD if ctx.wants_input else None
        return (dx, None, *wanted) if ctx.has_mask else (dx, *wanted)


def dense(tensor) -> paddle.Tensor:
    """Return ``tensor``, contiguous in memory."""
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def refuse_second_derivatives() -> None:
    """Raise RuntimeError in a backward pass that needs a gradient itself (``create_graph``)."""
    if paddle.is_grad_enabled():
        raise RuntimeError("the fused kernels have no second derivatives; pass --kernels plain")


def _are_known(src, src_mask) -> bool:
    """Return whether the kernels support these states and this mask: float32, a mask without gradient."""
    shape = src.shape
    if len(shape) != 3 or 0 in shape or not is_float32_on_cpu(src):
        return False
    return src_mask is None or (
        src_mask.shape == [shape[0], 1, 1, shape[1]]
        and src_mask.stop_gradient
        and is_float32_on_cpu(src_mask)
    )
