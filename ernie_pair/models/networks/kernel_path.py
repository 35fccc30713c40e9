"""Choose the kernels of a classifier, fused or plain, and configure the fused ones."""

from contextlib import nullcontext
from typing import ContextManager, Union

import numpy as np
import paddle

from ernie_pair.kernels.attach import attach_kernels, describe_unfit, detach_kernels, why_layers_unfit
from ernie_pair.kernels.choice import (
    DTYPES,
    AllReduce,
    KernelChoice,
    KernelFlags,
    agree_on_path,
    choose_kernels,
)
from ernie_pair.kernels.encoder_layer import ModelState
from ernie_pair.models.networks.encoder_model import EncoderModel
from ernie_pair.models.networks.plain_model import PlainModel
from ernie_pair.runtime.cpu_env import cpu_threads
from ernie_pair.runtime.gpu.builds import paddle_capability, refuse_old_gpu
from ernie_pair.runtime.paddle_patches.core_settings import set_math_threads

AnyModel = Union[EncoderModel, PlainModel]


def choose_path(
    model: AnyModel,
    flags: KernelFlags,
    device: str,
    size: int = 1,
    all_reduce: AllReduce = np.asarray,
    casts: bool = False,
) -> KernelChoice:
    """Give ``model`` the kernels that the flags select on ``device``, cpu or gpu, and return which.

    The ``size`` processes of a run, which ``all_reduce`` sums over, get the same. ``casts``: who calls it
    asks the model within ``casting``, so that a GPU may have half precision. Nothing happens to a model that
    has its kernels already. Raises InputError if they cannot be had.
    """
    parts = model.layers(), model.embeddings()
    is_own = isinstance(model, PlainModel)
    unfit = f"{model.family} is a layer of your own" if is_own else why_layers_unfit(parts[0])
    choice = agree_on_path(
        lambda: choose_kernels(flags, device, unfit, casts), flags, device, size, all_reduce
    )
    if choice.is_cast:
        refuse_old_gpu(
            paddle_capability(),
            DTYPES[choice.precision],
            f"--precision {choice.precision}",
            "use another precision",
        )
    held = model.fused_state
    if choice.is_fused and (held is None or held.precision != choice.precision):
        model.fused_state = ModelState(choice.precision, cpu_threads())
        attach_kernels(*parts, model.fused_state)
    elif not choice.is_fused and held is not None:
        detach_kernels(*parts)
        model.fused_state = None
    return choice.with_note(describe_unfit(parts[1])) if choice.is_fused else choice


def take_threads(model: AnyModel, threads: int) -> None:
    """Let this thread run ``model`` on ``threads`` threads of a CPU; 0: as many as the process has."""
    if threads:
        set_math_threads(threads)
        if model.fused_state is not None:
            model.fused_state.threads = threads


def casting(choice: KernelChoice) -> ContextManager[None]:
    """Return a context in which a GPU computes products in the half precision of ``choice``, if it has one.

    Softmax and layer norm stay in float32, which is Paddle's own rule at O1.
    """
    if not choice.is_cast:
        return nullcontext()
    return paddle.amp.auto_cast(level="O1", dtype=DTYPES[choice.precision])


def seed_dropout(model: AnyModel, seed: int) -> None:
    """Set the dropout seed of the next forward pass, 31 bits."""
    paddle.seed(seed)
    if model.fused_state is not None:
        model.fused_state.seed.set(seed)


def constant_weights(model: AnyModel) -> ContextManager[None]:
    """Return a context in which the weights of ``model`` do not change: copies in bfloat16 are made once."""
    return nullcontext() if model.fused_state is None else model.fused_state.constant_weights()
