"""Check whether the kernels support a layer; cheap enough to be repeated at every call.

The kernels read addresses, and trust what was checked about them. Parts of a model can be replaced, hooked,
cast and moved at any time: from then on Paddle must compute them.
"""

from operator import is_
from typing import Any, List, Sequence

import paddle
from paddle import nn

from ernie_pair.device.paddle_patches.layer_forward import parameter_of, runs_its_class, sublayer_of
from ernie_pair.device.paddle_patches.layer_settings import activation_of, epsilon_of

# The parts that have parameters, in the order of fused.h; those of the attention are inside `self_attn`.
OF_ATTENTION = ("q_proj", "k_proj", "v_proj", "out_proj")
BESIDE_IT = {"linear1": nn.Linear, "linear2": nn.Linear, "norm1": nn.LayerNorm, "norm2": nn.LayerNorm}
DROPOUTS = ("dropout", "dropout1", "dropout2")
FLOAT_BYTES = 4


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
    changed = _changed_part(layer, attention)
    if changed:
        return f"{changed} of a layer was replaced or has a hook, which the fused kernels would ignore"
    inner, first, second = (sublayer_of(layer, name) for name in DROPOUTS)
    if inner.p or first.p != second.p or first.training != second.training:
        return "the fused kernels support no dropout within the feed-forward, and one rate outside of it"
    if epsilon_of(sublayer_of(layer, "norm1")) != epsilon_of(sublayer_of(layer, "norm2")):
        return "the fused kernels support one epsilon for both norms of a layer"
    return ""


def _changed_part(layer, attention) -> str:
    """Return the name of the first part whose call differs from that of its class, or ''."""
    if not runs_its_class(attention, nn.MultiHeadAttention):
        return "self_attn"
    parts = [(name, sublayer_of(attention, name), nn.Linear) for name in OF_ATTENTION]
    parts += [(name, sublayer_of(layer, name), kind) for name, kind in BESIDE_IT.items()]
    parts += [(name, sublayer_of(layer, name), nn.Dropout) for name in DROPOUTS]
    return next((name for name, part, kind in parts if part is None or not runs_its_class(part, kind)), "")


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
        is_known = (
            addresses == self._addresses
            and all(map(is_, tensors, self._seen))
            and all(tensor.element_size() == FLOAT_BYTES for tensor in tensors)
        )
        if not is_known:
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
