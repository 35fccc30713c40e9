"""Fused encoder layers in the static program, on a CPU."""

from functools import partial
from typing import Sequence

import numpy as np
import paddle
from paddle import nn

from ernie_pair.core.errors import MachineError, message_of
from ernie_pair.core.files.keyed_cache import user_cache
from ernie_pair.kernels.choice import KernelChoice, KernelFlags, agree_on_path, choose_kernels, choose_plain
from ernie_pair.kernels.encoder_layer import why_layers_unfit
from ernie_pair.kernels.library import open_kernels
from ernie_pair.kernels.operator import GraphInputs, OperatorError, add_encoder_layer, load_operator
from ernie_pair.pretraining.graph.step_monitors import RankSums
from ernie_pair.runtime.cpu_env import cpu_threads
from ernie_pair.runtime.paddle_patches.layers import set_forward

PLAIN = KernelChoice("plain", reason="nothing else was requested")


def choose_path(flags: KernelFlags, device: str, num_processes: int) -> KernelChoice:
    """Return the path of a run on ``device``, the same in all its processes; call it after ``start_static``.

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
        return RankSums(num_processes, paddle.static.Executor(paddle.CPUPlace()))(values)

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
