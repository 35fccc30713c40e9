"""An encoder layer as one op of the program that is being built."""

import ctypes
import logging
from pathlib import Path
from typing import Dict, NamedTuple

import paddle
from paddle import nn

from ernie_pair.device.paddle_patches.core_settings import register_operators
from ernie_pair.device.paddle_patches.layer_settings import activation_of, epsilon_of
from ernie_pair.kernels.c_interface import ACTIVATIONS, PRECISIONS
from ernie_pair.kernels.layer_checks import parameters_of
from ernie_pair.kernels.library import Kernels
from ernie_pair.kernels.operator.compile_operator import OperatorError, find_operator, forget_operator

OPERATOR = "ernie_pair_encoder_layer"
PARAMETERS = "WQ BQ WK BK WV BV WO BO W1 B1 W2 B2 G1 E1 G2 E2".split()  # in the order of fused.h
# The functions that the operator calls, in the order of its `Library`.
FUNCTIONS = (
    *("fused_version", "fused_level", "fused_packed_bytes", "fused_saved_bytes", "fused_work_bytes"),
    *("fused_layer_pack", "fused_layer_forward", "fused_layer_backward", "fused_adamw_step"),
)
logger = logging.getLogger(__name__)
_registered: Dict[str, ctypes.CDLL] = {}  # one for the life of the process: Paddle registers an operator once


def load_operator(kernels: Kernels, threads: int, cache: Path) -> None:
    """Make the operator over the open ``kernels`` available to static programs; it is compiled at first use.

    Raises OperatorError.
    """
    if OPERATOR not in _registered:
        path = find_operator(cache)
        inode = path.stat().st_ino
        try:
            _registered[OPERATOR] = _load(path)
        except OperatorError as error:
            # Machines may share a home, and the one that compiled it may have a later C++ library.
            logger.info("compiling the fused operator again: %s", error)
            forget_operator(path, inode)
            _registered[OPERATOR] = _load(find_operator(cache))
    start = _registered[OPERATOR].fused_operator_open
    start.restype = ctypes.c_char_p
    functions = [ctypes.cast(getattr(kernels.functions, name), ctypes.c_void_p) for name in FUNCTIONS]
    fault = start((ctypes.c_void_p * len(functions))(*functions), threads)
    if fault:
        raise OperatorError(fault.decode())


def _load(path: Path) -> ctypes.CDLL:
    try:
        register_operators(path)
        return ctypes.CDLL(str(path))
    except (OSError, RuntimeError) as error:
        raise OperatorError(f"Paddle cannot load it ({' '.join(str(error).split())[:200]})") from None


class LayerSettings(NamedTuple):
    """The settings of a layer's op.

    ``number``: of the layer in its model, so that no two drop the same. ``precision``: fp32 or bf16.
    ``is_last``: only the first token of each sequence and the chosen ones are read; the others come out as 0.
    """

    number: int
    precision: str
    is_last: bool


class GraphInputs(NamedTuple):
    """The inputs that all layers of a program share.

    ``seed``: int32 [1], of dropout. ``positions``: int64 [P], the tokens among the B x S that are read after
    the last layer, besides the first of each sequence.
    """

    seed: paddle.static.Variable
    positions: paddle.static.Variable


def add_encoder_layer(
    layer: nn.TransformerEncoderLayer,
    settings: LayerSettings,
    x: paddle.Tensor,
    mask: paddle.Tensor,
    inputs: GraphInputs,
) -> paddle.Tensor:
    """Add ``layer`` to the program as one op and return its output, float32 [B, S, D].

    ``x`` float32 [B, S, D]; ``mask`` float32 [B, 1, 1, S], added to the scores. Evaluation programs,
    which are clones for tests, have no dropout.
    """
    block = paddle.static.default_main_program().current_block()
    names = [paddle.utils.unique_name.generate(f"{OPERATOR}.{name}") for name in ("y", "saved")]
    y = block.create_var(name=names[0], dtype=x.dtype)
    saved = block.create_var(name=names[1], dtype="uint8", stop_gradient=True)
    parameters = dict(zip(PARAMETERS, ([parameter] for parameter in parameters_of(layer))))
    of_graph = {"Seed": [inputs.seed], "Positions": [inputs.positions]}
    block.append_op(
        type=OPERATOR,
        inputs={"X": [x], "Mask": [mask], **of_graph, **parameters},
        outputs={"Y": [y], "Saved": [saved]},
        attrs={
            "heads": layer.self_attn.num_heads,
            "layer": settings.number,
            "activation": ACTIVATIONS[activation_of(layer)],
            "precision": PRECISIONS[settings.precision],
            "hidden_dropout": float(layer.dropout1.p),
            "attention_dropout": float(layer.self_attn.dropout),
            "epsilon": epsilon_of(layer.norm1),
            "read_rows_alone": settings.is_last,
            "is_test": False,
        },
    )
    return y
