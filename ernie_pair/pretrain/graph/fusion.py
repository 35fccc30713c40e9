"""Fused ops in the static program: encoder layers on a CPU; attention, products and collectives on GPUs.

Attention as one op keeps scores, mask, softmax and dropout in the GPU's cores (flash attention). The program
is changed before its backward pass is added; the evaluation program, cloned before, keeps the plain ops and
still computes in float32.
"""

from collections import defaultdict
from functools import partial
from typing import Any, DefaultDict, Iterator, NamedTuple, Optional, Sequence

import numpy as np
import paddle
from paddle import nn

from data_tools.files.errors import InputError, MachineError, message_of
from data_tools.files.keyed_cache import user_cache
from ernie_pair.kernels.choice import KernelChoice, KernelFlags, agree_on_path, choose_kernels, choose_plain
from ernie_pair.kernels.encoder_layer import why_layers_unfit
from ernie_pair.kernels.library import open_kernels
from ernie_pair.kernels.operator import GraphInputs, OperatorError, add_encoder_layer, load_operator
from ernie_pair.pretrain.config.pretrain_config import (
    ATTENTION,
    AUTO,
    COLLECTIVES,
    FUSED_OPS,
    GEMM_EPILOGUE,
    LEAST_LENGTH,
    LENGTH_MULTIPLE,
    PretrainConfig,
)
from ernie_pair.pretrain.graph.step_monitors import RankSums
from ernie_pair.runtime.cpu_env import cpu_threads
from ernie_pair.runtime.gpu.builds import Capability, words_of
from ernie_pair.runtime.paddle_patches.layers import set_forward
from ernie_pair.runtime.paddle_patches.pir_programs import builds_pir
from ernie_pair.runtime.paddle_patches.static_programs import (
    find_variable,
    insert_described,
    insert_op,
    is_broadcast,
    is_sum,
    remove_ops,
    sync,
)

PLAIN = KernelChoice("plain", reason="nothing else was requested")


def choose_path(flags: KernelFlags, device: str, num_processes: int) -> KernelChoice:
    """Return the path of a run on ``device``, the same in all its processes; call it after ``start_fleet``.

    The operator is compiled at first use. Raises InputError if the flags require what is unavailable.
    """

    def choose() -> KernelChoice:
        choice = choose_kernels(flags, device)
        if not choice.is_fused:
            return choice
        try:
            load_operator(open_kernels(), cpu_threads(), user_cache())
        except (OperatorError, MachineError) as error:
            reason = f"the operator for the static graph is not available: {message_of(error)}"
            return choose_plain(flags, reason, device)
        return choice.with_note("embeddings by Paddle")

    def all_reduce(values: np.ndarray) -> np.ndarray:
        return RankSums(num_processes, paddle.static.Executor(paddle.CPUPlace()), cpu=True)(values)

    return agree_on_path(choose, flags, device, num_processes, all_reduce)


def fuse_layers(
    layers: Sequence[nn.Layer], choice: KernelChoice, flags: KernelFlags, inputs: GraphInputs
) -> KernelChoice:
    """Let the operator compute ``layers`` if ``choice`` is fused and it supports them.

    Returns the path that the model takes. Raises InputError if the flags require the fused one but it cannot.
    """
    unfit = why_layers_unfit(layers) if choice.is_fused else ""
    if unfit:
        return choose_plain(flags, unfit, "cpu")
    if choice.is_fused:
        for number, layer in enumerate(layers):
            is_last = number == len(layers) - 1
            fused = partial(add_encoder_layer, layer, number, choice.precision, is_last, inputs)
            set_forward(layer, partial(_run_fused, fused))
    return choice


def _run_fused(fused, src, src_mask=None, cache=None, output_attentions=False):
    assert cache is None and not output_attentions  # pretraining uses neither
    return fused(src, src_mask)


class OpChains:
    """The ops of ``block``, followed along their variables. For the op None, methods return None."""

    def __init__(self, block):
        self.block = block
        self.makers: dict[str, Any] = {}
        self.readers: DefaultDict[str, list] = defaultdict(list)
        for op in block.ops:
            self.makers.update((name, op) for name in op.output_arg_names)
            for name in op.input_arg_names:
                self.readers[name].append(op)

    def maker(self, op, slot: str, kind: str):
        """Return the op of type ``kind`` that produces the input ``slot`` of ``op``, or None."""
        if op is None or slot not in op.input_names:
            return None
        found = self.makers.get(op.input(slot)[0])
        return found if found is not None and found.type == kind else None

    def only_reader(self, op) -> Any:
        """Return the only op that reads the output ``Out`` of ``op``, or None if there is not exactly one."""
        if op is None or "Out" not in op.output_names:
            return None
        readers = self.readers[op.output("Out")[0]]
        return readers[0] if len(readers) == 1 else None


FLASH_ATTENTION = "flash_attn"
ON_CPU = {"op_device": "cpu"}  # the kernel reads its seed there


class Attention(NamedTuple):
    """The plain ops of one attention, from the product of queries and keys to that with the values."""

    ops: list  # all of them, in order
    q: str  # the variables of queries, keys, values and mask; [B, S, H, D], the mask [B, 1, 1, S]
    k: str
    v: str
    mask: str
    dropout: float
    out: str  # [B, S, H, D]


def fuse_attention(main: paddle.static.Program, pass_seed: paddle.static.Variable) -> int:
    """Compute each attention of ``main``, a program without a backward pass, by flash attention.

    Dropout depends only on ``pass_seed``, int32 [1], and the attention's position. Returns their number.
    """
    block = main.global_block()
    found = find_attentions(block)
    if found:
        # The seed and offset of the first attention, int64 [2].
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
            insert_op(
                block, index, type=kind, inputs=inputs, outputs={"Out": [out]}, attrs={**attrs, **ON_CPU}
            )
    for number, attention in enumerate(found):
        _replace_attention(block, attention, number)
    sync(main)
    return len(found)


def find_attentions(block) -> list[Attention]:
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


def _replace_attention(block, attention: Attention, number: int) -> None:
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


FUSED_SOFTMAX = "fused_softmax_mask"


def fuse_softmax(main: paddle.static.Program) -> int:
    """Fuse mask and softmax in each attention of ``main``, which has no backward pass yet; return how many.

    The op reads a float16 or float32 mask [B, 1, S, S], shared by all layers.
    """
    block = main.global_block()
    wide_masks: dict = {}
    found = find_attentions(block)
    for attention in found:
        kinds = {op.type: op for op in attention.ops}
        add, softmax = kinds["elementwise_add"], kinds["softmax"]
        if attention.mask not in wide_masks:
            wide_masks[attention.mask] = _widen(block, attention.mask, _place_of(block, add))
        insert_op(
            block,
            _place_of(block, softmax),
            type=FUSED_SOFTMAX,
            inputs={"X": [add.input("X")[0]], "Mask": [wide_masks[attention.mask]]},
            outputs={"Out": [block.var(softmax.output("Out")[0])]},
        )
        remove_ops(block, lambda op, gone=(add, softmax): op in gone)
    sync(main)
    return len(found)


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


FLASH, SOFTMAX_MASK = "flash", "softmax_mask"
# Supported by Paddle's flash attention library, whose backward pass takes heads of up to 192 on all of them.
FLASH_CAPABILITIES = ((8, 0), (9, 0))
LARGEST_FLASH_HEAD, FLASH_HEAD_MULTIPLE = 192, 8


class FusedOps(NamedTuple):
    """What is fused. ``attention``: FLASH, SOFTMAX_MASK or ''. ``reasons``: {op left out: why, in words}."""

    attention: str = ""
    gemm_epilogue: bool = False
    collectives: bool = False
    reasons: dict[str, str] = {}

    def describe(self) -> str:
        """Return the choice in words, for the log."""
        names = [f"{ATTENTION} ({self.attention})"] if self.attention else []
        names += [GEMM_EPILOGUE] if self.gemm_epilogue else []
        names += [COLLECTIVES] if self.collectives else []
        fused = ", ".join(names) or "none"
        plain = "; ".join(f"not {name}: {reason}" for name, reason in self.reasons.items())
        return f"fused ops: {fused}" + (f" ({plain})" if plain else "")


NOTHING_FUSED = FusedOps()


def choose_fused(config: PretrainConfig, head_size: int, capability: Optional[Capability]) -> FusedOps:
    """Return the fused ops for heads of ``head_size`` on a GPU. Raises InputError if a named one lacks."""
    if builds_pir() and config.named_ops:
        raise InputError(
            f"--fused_ops {config.fused_ops}: such ops are put into programs of Paddle 2.6, and those of "
            "Paddle 3.3 cannot be changed; leave it out"
        )
    if builds_pir() or (config.fused_ops == AUTO and config.device == "cpu"):
        return NOTHING_FUSED
    wanted = set(FUSED_OPS) if config.fused_ops == AUTO else config.named_ops
    attention, why_plain = FLASH, _why_plain(config) or _why_no_flash(head_size, capability)
    if why_plain:
        why_no_softmax = _why_no_fused_softmax(config)
        attention = SOFTMAX_MASK
        why_plain = f"{why_plain}, and {why_no_softmax}" if why_no_softmax else ""
    reasons = {
        ATTENTION: why_plain,
        GEMM_EPILOGUE: _why_plain(config),
        COLLECTIVES: "" if config.processes > 1 else "a single process has none",
    }
    reasons = {name: reason for name, reason in reasons.items() if reason and name in wanted}
    if reasons and config.fused_ops != AUTO:
        name = sorted(reasons)[0]
        raise InputError(f"--fused_ops {name}: {reasons[name]}; leave it out")
    able = wanted - set(reasons)
    return FusedOps(
        attention if ATTENTION in able else "", GEMM_EPILOGUE in able, COLLECTIVES in able, reasons
    )


def _why_no_flash(head_size: int, capability: Optional[Capability]) -> str:
    if capability is None:
        return "the GPU does not report its compute capability"
    if not FLASH_CAPABILITIES[0] <= capability <= FLASH_CAPABILITIES[1]:
        return "flash attention needs compute capability 8.0 to 9.0, this GPU has " + words_of(capability)
    if head_size > LARGEST_FLASH_HEAD or head_size % FLASH_HEAD_MULTIPLE:
        return f"the heads of flash attention are multiples of 8, at most 192 wide, and these are {head_size}"
    return ""


def _why_no_fused_softmax(config: PretrainConfig) -> str:
    if config.device == "cpu" or (config.use_amp and config.amp_dtype == "bfloat16"):
        return "softmax and mask are fused only on GPUs, in float16 or float32"
    if config.max_seq_len < LEAST_LENGTH or config.max_seq_len % LENGTH_MULTIPLE:
        return (
            f"the fused softmax takes multiples of {LENGTH_MULTIPLE} tokens, {LEAST_LENGTH} or more, "
            f"not --max_seq_len {config.max_seq_len}"
        )
    return ""


def _why_plain(config: PretrainConfig) -> str:
    """Return why half-precision GPU ops cannot be built, in words, or ''."""
    if config.device == "cpu":
        return "there is no such op on a CPU"
    if not config.computes_in_half:
        return "it needs half precision, and --use_amp is false or --amp_dtype float32"
    return "" if paddle.is_compiled_with_cuda() else "this Paddle is a CPU build"


GROUP_BYTES = 32 << 20


def fuse_collectives(main: paddle.static.Program, block, rank: int) -> None:
    """Fuse gradient merge's sums and the sharded optimizer's broadcasts of ``main``, the program of ``rank``.

    ``block`` updates the parameters. What is summed during the backward pass is grouped already.
    """
    for is_wanted in (is_sum, is_broadcast):
        groups: DefaultDict[tuple, list] = defaultdict(list)
        grouped = {
            name for op in block.ops if op.type == "coalesce_tensor" for name in op.output("FusedOutput")
        }
        for op in block.ops:
            if is_wanted(op) and op.output_arg_names[0] not in grouped:
                variable = find_variable(block, op.output_arg_names[0])
                groups[(op.attr("root") if is_broadcast(op) else -1, variable.dtype)].append(op)
        for (root, _), ops in groups.items():
            for piece in _pieces(block, ops):
                _fuse(block, piece, copies=root in (-1, rank))
    sync(main)


def _pieces(block, ops: list) -> Iterator[list]:
    piece: list = []
    size = 0
    for op in ops:
        variable = find_variable(block, op.output_arg_names[0])
        piece.append(op)
        size += 4 * int(np.prod(variable.shape))
        if size >= GROUP_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _fuse(block, ops: list, copies: bool) -> None:
    names = [op.output_arg_names[0] for op in ops]
    first = find_variable(block, names[0])
    fused = block.create_var(name=f"{names[0]}.fused", dtype=first.dtype, stop_gradient=True)
    known = ("ring_id", "root", "reduce_type", "use_calc_stream", "op_role")
    kind = ops[0].type
    attrs = {name: value for name, value in ops[0].all_attrs().items() if name in known}
    (target,) = ops[0].output_names
    (source,) = (slot for slot in ops[0].input_names if ops[0].input(slot))
    place = _place_of(block, ops[0])
    remove_ops(block, lambda op: op in ops)
    insert_described(block, place, kind, {source: [fused.name]}, {target: [fused.name]}, attrs)
    settings = {
        "copy_data": copies,
        "use_align": True,
        "dtype": int(first.dtype),
        "op_role": attrs["op_role"],
    }
    outputs = {"Output": names, "FusedOutput": [fused.name]}
    insert_described(block, place, "coalesce_tensor", {"Input": names}, outputs, settings)
