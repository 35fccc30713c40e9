"""Attention as one op: scores, mask, softmax and dropout never leave the GPU's cores (flash attention).

The program is changed before its backward pass is added; the evaluation program, cloned before, keeps the
plain ops and still computes in float32.
"""

from typing import List, NamedTuple, Optional

import paddle

from ernie_pair.device.paddle_patches.static_programs import insert_op, remove_ops, sync
from ernie_pair.pretrain.fusion.op_chains import OpChains

FLASH_ATTENTION = "flash_attn"
ON_CPU = {"op_device": "cpu"}  # the kernel reads its seed there


class Attention(NamedTuple):
    """The plain ops of one attention, from the product of queries and keys to that with the values."""

    ops: List  # all of them, in order
    q: str  # the variables of queries, keys, values and mask; [B, S, H, D], the mask [B, 1, 1, S]
    k: str
    v: str
    mask: str
    dropout: float
    out: str  # [B, S, H, D]


def fuse_attention(main: paddle.static.Program, pass_seed: paddle.static.Variable) -> int:
    """Compute each attention of ``main``, a program without a backward pass, by flash attention.

    Dropout depends only on ``pass_seed``, int32 [1], and the position of the attention. Returns how many were
    replaced.
    """
    block = main.global_block()
    found = find_attentions(block)
    if found:
        _add_base_seed(block, pass_seed)
    for number, attention in enumerate(found):
        _replace(block, attention, number)
    sync(main)
    return len(found)


def find_attentions(block) -> List[Attention]:
    """Return the attentions of a block, in order."""
    chains = OpChains(block)
    read = (_read_attention(chains, op) for op in block.ops if op.type == "softmax")
    return [attention for attention in read if attention is not None]


def _read_attention(chains: OpChains, softmax) -> Optional[Attention]:
    add = chains.maker(softmax, "X", "elementwise_add")
    product = chains.maker(add, "X", "matmul_v2")
    scale = chains.maker(product, "X", "scale")
    moved_q, moved_k = chains.maker(scale, "X", "transpose2"), chains.maker(product, "Y", "transpose2")
    after = chains.only_reader(softmax)
    dropout = after if after is not None and after.type == "dropout" else None
    values = chains.only_reader(dropout) if dropout is not None else after
    moved_v, moved_out = chains.maker(values, "Y", "transpose2"), chains.only_reader(values)
    ops = [moved_q, moved_k, moved_v, scale, product, add, softmax, dropout, values, moved_out]
    known = [op for op in ops if op is not None]
    if len(known) < len(ops) - (dropout is None) or moved_out.type != "transpose2":
        return None
    return Attention(
        known,
        q=moved_q.input("X")[0],
        k=moved_k.input("X")[0],
        v=moved_v.input("X")[0],
        mask=add.input("Y")[0],
        dropout=dropout.attr("dropout_prob") if dropout is not None else 0.0,
        out=moved_out.output("Out")[0],
    )


def _add_base_seed(block, pass_seed) -> None:
    """Prepend the seed and offset of the first attention to the program, int64 [2]."""
    seed, zero = (
        block.create_var(name=f"{FLASH_ATTENTION}.{name}", dtype="int64", shape=[1], stop_gradient=True)
        for name in ("seed", "zero")
    )
    base = block.create_var(name=f"{FLASH_ATTENTION}.base", dtype="int64", shape=[2], stop_gradient=True)
    ops = [
        ("cast", {"X": [pass_seed]}, seed, {"in_dtype": pass_seed.dtype, "out_dtype": seed.dtype}),
        ("scale", {"X": [seed]}, zero, {"scale": 0.0}),
        ("concat", {"X": [seed, zero]}, base, {"axis": 0}),
    ]
    for index, (kind, inputs, out, attrs) in enumerate(ops):
        insert_op(block, index, type=kind, inputs=inputs, outputs={"Out": [out]}, attrs={**attrs, **ON_CPU})


def _replace(block, attention: Attention, number: int) -> None:
    """Replace the plain ops by flash attention."""
    place = max(index for index, op in enumerate(block.ops) if op in attention.ops)
    out = block.var(attention.out)

    def new(name: str, dtype):
        return block.create_var(name=f"{attention.out}.{name}", dtype=dtype, stop_gradient=True)

    seed = new("seed", "int64")
    insert_op(
        block,
        place,
        type=FLASH_ATTENTION,
        inputs={
            "q": [attention.q],
            "k": [attention.k],
            "v": [attention.v],
            "attn_mask": [attention.mask],
            "fixed_seed_offset": [seed],
        },
        outputs={
            "out": [out],
            "softmax": [new("softmax", out.dtype)],
            "softmax_lse": [new("softmax_lse", "float32")],
            "seed_offset": [new("seed_offset", "int64")],
        },
        attrs={
            "dropout": attention.dropout,
            "causal": False,
            "return_softmax": False,
            "is_test": False,
            "rng_name": "",
        },
    )
    insert_op(
        block,
        place,
        type="scale",
        inputs={"X": [f"{FLASH_ATTENTION}.base"]},
        outputs={"Out": [seed]},
        attrs={"scale": 1.0, "bias": float(number), "bias_after_scale": True, **ON_CPU},
    )
    remove_ops(block, lambda op: op in attention.ops)
