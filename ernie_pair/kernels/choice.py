"""Which path a model takes, fused or plain, and why not the faster one."""

from typing import Callable, NamedTuple, Optional, Tuple

import numpy as np

from data_tools.base.errors import InputError
from ernie_pair.kernels.kernel_flags import DTYPES, KernelFlags
from ernie_pair.kernels.levels import LEVEL_ASKED, LEVELS, has_bf16, refuse_bf16
from ernie_pair.kernels.library import Kernels, open_kernels

OF_THE_CPU = "the fused kernels are of the CPU"
AllReduce = Callable[[np.ndarray], np.ndarray]  # the sum over all processes of a run
REFUSED = len(LEVELS)  # a place after those of the levels, where none is plain


class KernelChoice(NamedTuple):
    """The path of a run: ``fused``, with its level and the precision of products, or ``plain``, and why.

    ``notes``: what else there is to know of the fused one: why it is no faster, what it leaves to Paddle.
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
        """Return whether Paddle's own kernels are to be given products in half precision, on a GPU."""
        return not self.is_fused and self.precision != "fp32"

    def describe(self) -> str:
        """Return the path as a line for the log or a report."""
        if not self.is_fused:
            products = f", products in {self.precision}" if self.is_cast else ""
            return f"plain kernels of Paddle{products}: {self.reason}"
        return "; ".join([f"fused kernels, {self.level}, products in {self.precision}", *self.notes])

    def with_note(self, note: str) -> "KernelChoice":
        """Return the path with one more note, if ``note`` is none that is empty."""
        return self._replace(notes=(*self.notes, note)) if note else self


def choose_kernels(flags: KernelFlags, device: str, unfit: str = "", casts: bool = False) -> KernelChoice:
    """Return the path of a model on ``device``, cpu or gpu; ``unfit``: why its layers cannot be fused.

    ``casts``: the caller gives a GPU its products in half precision, as who asks a model does.

    Raises InputError where --kernels fused or --precision asks for what cannot be.
    """
    if flags.kernels == "plain":
        return KernelChoice("plain", reason="--kernels plain")
    if device == "cpu" and flags.precision == "fp16":
        raise InputError("--precision fp16 needs a GPU; use fp32, or bf16 where there is AVX512-BF16")
    if device == "gpu" and casts and flags.kernels == "auto":
        return KernelChoice("plain", precision=flags.precision, reason=OF_THE_CPU)
    reason = _why_plain(device, unfit)
    if reason:
        return choose_plain(flags, reason, device)
    kernels = open_kernels()
    if flags.precision == "bf16" and not kernels.has_bf16:
        refuse_bf16(kernels.why_no_bf16)
    return KernelChoice("fused", kernels.level, flags.precision).with_note(_why_not_faster(flags, kernels))


def _why_not_faster(flags: KernelFlags, kernels: Kernels) -> str:
    if not kernels.has_bf16:
        return f"no bf16: {kernels.why_no_bf16}"
    return "--precision bf16 is faster" if flags.precision == "fp32" else kernels.why_lower


def _why_plain(device: str, unfit: str) -> str:
    if device != "cpu":
        return OF_THE_CPU
    return open_kernels().reason or unfit


def choose_plain(flags: KernelFlags, reason: str, device: str) -> KernelChoice:
    """Return the plain path, since for ``reason`` the kernels cannot be used.

    Raises InputError where the flags insist on them.
    """
    if flags.precision != "fp32":
        has_amp = device == "gpu" and hasattr(flags, "use_amp")  # training does, asking does not
        amp = f"--use_amp true --amp_dtype {DTYPES[flags.precision]} in its place"
        cure = amp if has_amp else "--precision fp32"
        raise InputError(f"--precision {flags.precision} is of the fused kernels: {reason}; use {cure}")
    if flags.kernels == "fused":
        raise InputError(f"--kernels fused: {reason}; use --kernels auto")
    return KernelChoice("plain", reason=reason)


def agree_on_path(
    choose: Callable[[], KernelChoice], flags: KernelFlags, device: str, size: int, all_reduce: AllReduce
) -> KernelChoice:
    """Return what ``choose()`` does, where all ``size`` processes of a run choose alike; else the plain path.

    Two kinds of kernels sum gradients in two orders, and weights that are to be equal would drift apart.
    Every process calls this, and none raises before all have heard of it: InputError of ``choose()``, and in
    the others too; or where the flags insist on what they cannot share.
    """
    if size == 1 or device != "cpu" or flags.kernels == "plain":
        return choose()
    refusal: Optional[InputError] = None
    try:
        choice = choose()
        place = LEVELS.index(choice.level)
        if choice.precision == "fp32":  # what is above differs in products of bfloat16 alone
            place = min(place, LEVELS.index("avx512"))
    except InputError as error:
        refusal, place = error, REFUSED
    counts = all_reduce(np.eye(REFUSED + 1)[place])
    if refusal is not None:
        raise refusal
    if counts[REFUSED]:
        raise InputError("another process of this run refuses --kernels or --precision; see what it says")
    lowest = LEVELS[int(np.flatnonzero(counts)[0])]
    if choice.precision == "bf16" and has_bf16(lowest) and counts[place] < size:
        raise InputError(
            "--precision bf16: the processors of this run multiply in different ways; set "
            f"{LEVEL_ASKED}={lowest} in the environment of every process"
        )
    if choice.is_fused and counts[place] < size:
        return choose_plain(flags, "another process of this run cannot use these kernels", device)
    return choice
