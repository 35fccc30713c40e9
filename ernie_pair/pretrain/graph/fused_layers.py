"""The encoder layers of the static program as ops of the fused kernels, where possible."""

from typing import Sequence

import numpy as np
import paddle
from paddle import nn

from data_tools.files.errors import MachineError, message_of
from data_tools.files.keyed_cache import user_cache
from ernie_pair.kernels.attach import why_layers_unfit
from ernie_pair.kernels.choice import KernelChoice, KernelFlags, agree_on_path, choose_kernels, choose_plain
from ernie_pair.kernels.library import open_kernels
from ernie_pair.kernels.operator import (
    GraphInputs,
    LayerSettings,
    OperatorError,
    add_encoder_layer,
    load_operator,
)
from ernie_pair.pretrain.graph.step_monitors import RankSums
from ernie_pair.runtime.cpu_env import cpu_threads
from ernie_pair.runtime.paddle_patches.layers import set_forward

PLAIN = KernelChoice("plain", reason="nothing else was requested")


def choose_path(flags: KernelFlags, device: str, num_processes: int) -> KernelChoice:
    """Return the path of a run on ``device``, the same in all its processes; call it after ``start_fleet``.

    The operator is compiled at first use. Raises InputError if the flags require what is unavailable.
    """

    def choose() -> KernelChoice:
        choice = choose_kernels(flags, device)
        return _with_operator(flags, device, choice) if choice.is_fused else choice

    def all_reduce(values: np.ndarray) -> np.ndarray:
        return RankSums(num_processes, paddle.static.Executor(paddle.CPUPlace()), cpu=True)(values)

    return agree_on_path(choose, flags, device, num_processes, all_reduce)


def _with_operator(flags: KernelFlags, device: str, choice: KernelChoice) -> KernelChoice:
    try:
        load_operator(open_kernels(), cpu_threads(), user_cache())
    except (OperatorError, MachineError) as error:
        reason = f"the operator for the static graph is not available: {message_of(error)}"
        return choose_plain(flags, reason, device)
    return choice.with_note("embeddings by Paddle")


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
            settings = LayerSettings(number, choice.precision, is_last=number == len(layers) - 1)
            set_forward(layer, _FusedLayer(layer, settings, inputs))
    return choice


class _FusedLayer:
    """Replaces the forward pass of ``layer``."""

    def __init__(self, layer: nn.Layer, settings: LayerSettings, inputs: GraphInputs):
        self.layer, self.settings, self.inputs = layer, settings, inputs

    def __call__(self, src, src_mask=None, cache=None, output_attentions=False):
        assert cache is None and not output_attentions  # pretraining uses neither
        return add_encoder_layer(self.layer, self.settings, src, src_mask, self.inputs)
