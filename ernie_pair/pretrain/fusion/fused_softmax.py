"""The mask of the attention scores and their softmax as one op, where there is no flash attention."""

from typing import Dict

import paddle

from ernie_pair.device.paddle_patches.static_programs import insert_op, remove_ops, sync
from ernie_pair.pretrain.fusion.fused_attention import Attention, find_attentions

FUSED_SOFTMAX = "fused_softmax_mask"


def fuse_softmax(main: paddle.static.Program) -> int:
    """Fuse mask and softmax in each attention of ``main``, which has no backward pass yet; return how many.

    The op reads a float16 or float32 mask [B, 1, S, S], shared by all layers.
    """
    block = main.global_block()
    wide_masks: Dict = {}
    found = find_attentions(block)
    for attention in found:
        _replace(block, attention, wide_masks)
    sync(main)
    return len(found)


def _replace(block, attention: Attention, wide_masks: Dict) -> None:
    add, softmax = (
        next(op for op in attention.ops if op.type == kind) for kind in ("elementwise_add", "softmax")
    )
    if attention.mask not in wide_masks:
        wide_masks[attention.mask] = _widen(block, attention.mask, _place_of(block, add))
    insert_op(
        block,
        _place_of(block, softmax),
        type=FUSED_SOFTMAX,
        inputs={"X": [add.input("X")[0]], "Mask": [wide_masks[attention.mask]]},
        outputs={"Out": [block.var(softmax.output("Out")[0])]},
    )
    remove_ops(block, lambda op: op is add or op is softmax)


def _widen(block, mask: str, place: int):
    """Add ops before ``place`` that expand [B, 1, 1, S] to [B, 1, S, S], by adding zeros [B, 1, S, 1]."""

    def new(name: str):
        return block.create_var(name=f"{mask}.{name}", dtype=block.var(mask).dtype, stop_gradient=True)

    turned, shape, zeros, wide = map(new, ("turned", "turned.shape", "zeros", "wide"))
    ops = [
        ("transpose2", {"X": [mask]}, {"Out": [turned], "XShape": [shape]}, {"axis": [0, 1, 3, 2]}),
        ("scale", {"X": [turned]}, {"Out": [zeros]}, {"scale": 0.0}),
        ("elementwise_add", {"X": [mask], "Y": [zeros]}, {"Out": [wide]}, {"axis": -1}),
    ]
    for offset, (kind, inputs, outputs, attrs) in enumerate(ops):
        insert_op(block, place + offset, type=kind, inputs=inputs, outputs=outputs, attrs=attrs)
    return wide


def _place_of(block, wanted) -> int:
    return next(index for index, op in enumerate(block.ops) if op is wanted)
