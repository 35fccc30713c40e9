"""An encoder layer of Paddle, post-norm with gelu or relu, in one call forward and one backward.

`FusedLayer` replaces the forward pass of a TransformerEncoderLayer, whose parameters stay where they
are. B batch, S sequence, D hidden, Q S or 1.
"""

import copy
from ctypes import byref
from functools import partial
from typing import Any, List, Optional, Tuple

import paddle
from paddle.autograd import PyLayer

from data_tools.base.errors import MachineError
from ernie_pair.device.paddle_patches.layer_forward import Forward, sublayer_of
from ernie_pair.device.paddle_patches.layer_settings import activation_of, epsilon_of
from ernie_pair.kernels.c_interface import ACTIVATIONS, PRECISIONS, LayerCall, pointers_of
from ernie_pair.kernels.layer_checks import (
    CheckedTensors,
    is_float32_on_cpu,
    layer_shapes,
    parameters_of,
    why_parts_unfit,
)
from ernie_pair.kernels.library import open_kernels
from ernie_pair.kernels.model_state import ModelState
from ernie_pair.kernels.workspaces import POOL, Workspace


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
        """Return the parameters; [] if the kernels cannot compute the layer at the moment."""
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
        layer, attention = self.layer, sublayer_of(self.layer, "self_attn")
        dropout = sublayer_of(layer, "dropout1")
        batch, length, hidden = src.shape
        return LayerCall(
            batch=batch,
            length=length,
            hidden=hidden,
            heads=attention.num_heads,
            inner=parameters[8].shape[1],
            precision=self.state.precision_code,
            first_token_only=self.first_token_only,
            threads=self.state.threads,
            hidden_dropout=dropout.p if dropout.training else 0.0,
            attention_dropout=attention.dropout if attention.training else 0.0,
            epsilon=epsilon_of(sublayer_of(layer, "norm1")),
            seed=self.state.seed.value,
            layer=self.number,
            activation=ACTIVATIONS[activation_of(layer)],
        )


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

    @property
    def _packed_address(self) -> int:
        return 0 if self.packed is None else self.packed.address

    def forward(self, x_BSD, mask, parameters) -> Tuple[paddle.Tensor, Workspace]:
        """Return the states [B, Q, D] and what the backward pass needs."""
        call, functions = self.call, open_kernels().functions
        saved = POOL.take(functions.fused_saved_bytes(byref(call)))
        work = POOL.take(functions.fused_work_bytes(byref(call)))
        y_BQD = paddle.empty([call.batch, 1 if call.first_token_only else call.length, call.hidden])
        refused = functions.fused_layer_forward(
            byref(call),
            x_BSD.data_ptr(),
            0 if mask is None else mask.data_ptr(),
            pointers_of(parameters),
            self._packed_address,
            saved.address,
            work.address,
            y_BQD.data_ptr(),
        )
        work.release()
        _refuse(refused)
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
        refused = functions.fused_layer_backward(
            byref(call),
            x_BSD.data_ptr(),
            pointers_of(parameters),
            self._packed_address,
            saved.address,
            dy_BQD.data_ptr(),
            work.address,
            dx_BSD.data_ptr(),
            pointers_of(gradients),
        )
        work.release()
        saved.release()
        _refuse(refused)
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
    if src_mask is None:
        return True
    is_of_keys = src_mask.shape == [shape[0], 1, 1, shape[1]]
    return is_of_keys and src_mask.stop_gradient and is_float32_on_cpu(src_mask)


def _refuse(status: int) -> None:
    if status:
        raise MachineError("oneDNN refused a product of the fused kernels; pass --kernels plain")
