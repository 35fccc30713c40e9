"""The C interface of the compiled kernels, cpp/fused.h, declared with ctypes."""

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from typing import Any, List, Sequence, Tuple

VERSION = 5  # FUSED_VERSION
PRECISIONS = {"fp32": 0, "bf16": 1}
ACTIVATIONS = {"gelu": 0, "relu": 1}
Pointers = Any  # an array of pointers


class LayerCall(ctypes.Structure):
    """fused_layer: one call of an encoder layer."""

    _fields_ = [
        *((name, c_int32) for name in ("batch", "length", "hidden", "heads", "inner")),
        *((name, c_int32) for name in ("precision", "first_token_only", "threads")),
        *((name, c_float) for name in ("hidden_dropout", "attention_dropout", "epsilon")),
        *((name, c_uint32) for name in ("seed", "layer")),
        *((name, c_int32) for name in ("activation", "out_rows")),
        ("rows", c_void_p),
    ]


class EmbeddingCall(ctypes.Structure):
    """fused_embedding: one call of the embeddings."""

    _fields_ = [
        *((name, c_int32) for name in ("batch", "length", "hidden", "vocab_size", "num_positions")),
        *((name, c_int32) for name in ("num_types", "threads")),
        *((name, c_float) for name in ("dropout", "epsilon")),
        ("seed", c_uint32),
        ("padding_id", c_int64),
    ]


class AdamwCall(ctypes.Structure):
    """fused_adamw: one step over many tensors."""

    _fields_ = [
        *((name, c_float) for name in ("beta1", "beta2", "epsilon", "power1", "power2", "gradient_factor")),
        ("threads", c_int32),
    ]


_LAYER, _EMBEDDING = POINTER(LayerCall), POINTER(EmbeddingCall)
FUNCTIONS: List[Tuple[str, Any, Sequence[Any]]] = [
    ("fused_version", c_int, []),
    ("fused_processor_level", c_int, []),
    ("fused_open", c_int, [c_char_p, c_int]),
    ("fused_packed_bytes", c_size_t, [_LAYER]),
    ("fused_saved_bytes", c_size_t, [_LAYER]),
    ("fused_work_bytes", c_size_t, [_LAYER]),
    ("fused_layer_pack", None, [_LAYER, c_void_p, c_void_p]),
    ("fused_layer_forward", c_int, [_LAYER, *[c_void_p] * 7]),
    ("fused_layer_backward", c_int, [_LAYER, *[c_void_p] * 8]),
    ("fused_embedding_saved_bytes", c_size_t, [_EMBEDDING]),
    ("fused_embedding_work_bytes", c_size_t, [_EMBEDDING]),
    ("fused_embedding_forward", None, [_EMBEDDING, *[c_void_p] * 11]),
    ("fused_embedding_backward", None, [_EMBEDDING, *[c_void_p] * 13]),
    (
        "fused_adamw_step",
        None,
        [POINTER(AdamwCall), c_int64, *[c_void_p] * 7],
    ),
    ("fused_product_work_bytes", c_size_t, [*[c_int64] * 3, c_int]),
    ("fused_product", c_int, [*[c_int64] * 3, c_void_p, c_void_p, c_int, c_int, c_void_p, c_void_p]),
    ("fused_sum_of_squares", c_double, [c_int64, c_void_p, c_void_p, c_int]),
]


def declare_functions(library: ctypes.CDLL) -> None:
    """Declare the types of every function. Raises AttributeError when one is missing."""
    for name, result, arguments in FUNCTIONS:
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


def pointers_of(tensors: Sequence[Any]) -> Pointers:
    """Return a C array of the data addresses of ``tensors``."""
    return (c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])
