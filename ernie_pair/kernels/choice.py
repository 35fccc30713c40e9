"""Which path a model takes, fused or plain, and why not the faster one."""

from dataclasses import dataclass, fields
from typing import Callable, Literal, NamedTuple, Optional, Tuple

import numpy as np

from ernie_pair.core.cli.options import Options, devices_option, kept_precision_option
from ernie_pair.core.errors import InputError
from ernie_pair.kernels.library import open_kernels
from ernie_pair.runtime.cpu import LEVEL_ASKED, LEVELS, has_bf16, raise_no_bf16

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}  # precision: its type in Paddle
CPU_ONLY = "the fused kernels are for the CPU"
AllReduce = Callable[[np.ndarray], np.ndarray]  # the sum over all processes of a run
FAILED = len(LEVELS)  # an index after those of the levels: the process raised an error


@dataclass(frozen=True, kw_only=True)
class KernelFlags(Options):
    """A part of the flags of commands that compute."""

    kernels: Literal["auto", "fused", "plain"] = devices_option(
        "auto",
        help="on a CPU: faster fused layers, where the model and the processor allow; plain: Paddle's own "
        "layers",
        affects="speed, trained",
    )
    precision: Literal["fp32", "bf16", "fp16"] = kept_precision_option(
        "fp32",
        help="precision of matrix products; bf16 on a CPU needs AVX512-BF16; on a GPU, half precision is for "
        "evaluation and prediction, and training has --use_amp",
    )

    def __post_init__(self):
        super().__post_init__()
        if self.precision != "fp32" and self.kernels == "plain":
            raise InputError(
                f"--precision {self.precision} is not supported by --kernels plain, which on a CPU are "
                "Paddle's own, in float32; leave one of them out"
            )


# Of a trained embedding model, where no other way to train or to compute it can be asked for.
EMBEDDING_HELP = "precision of products of a trained --embedding_model; bf16 on a CPU needs AVX512-BF16"
DEFAULT_KERNELS = {item.name: item.default for item in fields(KernelFlags)}


class KernelChoice(NamedTuple):
    """The path of a run: ``fused``, with its level and the precision of products, or ``plain``, and why.

    ``notes``: more about the path: why it is not faster, what it leaves to Paddle, what a GPU fuses.
    """

    path: str
    level: str = "none"
    precision: str = "fp32"
    reason: str = ""
    notes: Tuple[str, ...] = ()

    @property
    def is_fused(self) -> bool:
        """Return whether the fused kernels are used."""
        return self.path == "fused"

    @property
    def name(self) -> str:
        """Return the path in two or three words, for a checkpoint or a report."""
        if self.is_fused:
            return f"fused {self.level} {self.precision}"
        return f"plain {self.precision}" if self.is_cast else "plain"

    @property
    def is_cast(self) -> bool:
        """Return whether Paddle's own kernels compute products in half precision, on a GPU."""
        return not self.is_fused and self.precision != "fp32"

    def describe(self, with_notes: bool = True) -> str:
        """Return the path as a line for the log, or without the notes for a report."""
        if not self.is_fused:
            products = f", products in {self.precision}" if self.is_cast else ""
            line = f"plain kernels of Paddle{products}: {self.reason}"
        else:
            line = f"fused kernels, {self.level}, products in {self.precision}"
        return "; ".join([line, *self.notes]) if with_notes else line

    def with_note(self, note: str) -> "KernelChoice":
        """Return the path with one more note, unless ``note`` is empty."""
        return self._replace(notes=(*self.notes, note)) if note else self


def choose_kernels(flags: KernelFlags, device: str, unfit: str = "", casts: bool = False) -> KernelChoice:
    """Return the path of a model on ``device``, cpu or gpu; ``unfit``: why its layers cannot be fused.

    ``casts``: on a GPU the caller casts the products to half precision, as in evaluation and prediction.

    Raises InputError if --kernels fused or --precision asks for what is not available.
    """
    if flags.kernels == "plain":
        return KernelChoice("plain", reason="--kernels plain")
    if device == "cpu" and flags.precision == "fp16":
        raise InputError("--precision fp16 needs a GPU; use fp32, or bf16 if the processor has AVX512-BF16")
    if device != "cpu" and casts and flags.kernels == "auto":
        return KernelChoice("plain", precision=flags.precision, reason=CPU_ONLY)
    reason = CPU_ONLY if device != "cpu" else open_kernels().reason or unfit
    if reason:
        return choose_plain(flags, reason, device)
    kernels = open_kernels()
    if flags.precision == "bf16" and not kernels.has_bf16:
        raise_no_bf16(kernels.why_no_bf16)
    note = "--precision bf16 is faster" if flags.precision == "fp32" else kernels.why_lower
    note = note if kernels.has_bf16 else f"no bf16: {kernels.why_no_bf16}"
    return KernelChoice("fused", kernels.level, flags.precision).with_note(note)


def choose_plain(flags: KernelFlags, reason: str, device: str) -> KernelChoice:
    """Return the plain path with the ``reason`` for it. Raises InputError if the flags require another."""
    if flags.precision != "fp32":
        has_amp = device != "cpu" and hasattr(flags, "use_amp")  # in training, not in prediction
        amp = f"--use_amp true --amp_dtype {DTYPES[flags.precision]} instead"
        hint = amp if has_amp else "--precision fp32"
        raise InputError(f"--precision {flags.precision} needs the fused kernels: {reason}; use {hint}")
    if flags.kernels == "fused":
        raise InputError(f"--kernels fused: {reason}; use --kernels auto")
    return KernelChoice("plain", reason=reason)


def agree_on_path(
    choose: Callable[[], KernelChoice], flags: KernelFlags, device: str, size: int, all_reduce: AllReduce
) -> KernelChoice:
    """Return the path of ``choose()`` if all ``size`` processes of a run agree on it, else the plain path.

    Two kinds of kernels sum gradients in two orders, so weights that must stay equal would drift apart.
    Every process calls this, and none raises before all know of it: the InputError of ``choose()``, one in
    the other processes too, or one if the flags require a path that they do not share.
    """
    if size == 1 or device != "cpu" or flags.kernels == "plain":
        return choose()
    refusal: Optional[InputError] = None
    try:
        choice = choose()
        place = LEVELS.index(choice.level)
        if choice.precision == "fp32":  # higher levels differ only in products of bfloat16
            place = min(place, LEVELS.index("avx512"))
    except InputError as error:
        refusal, place = error, FAILED
    counts = all_reduce(np.eye(FAILED + 1)[place])
    if refusal is not None:
        raise refusal
    if counts[FAILED]:
        raise InputError("another process of this run refuses --kernels or --precision; see its message")
    lowest = LEVELS[int(np.flatnonzero(counts)[0])]
    if choice.precision == "bf16" and has_bf16(lowest) and counts[place] < size:
        raise InputError(
            "--precision bf16: the processors of this run multiply in different ways; set "
            f"{LEVEL_ASKED}={lowest} in the environment of every process"
        )
    if choice.is_fused and counts[place] < size:
        return choose_plain(flags, "another process of this run cannot use these kernels", device)
    return choice
