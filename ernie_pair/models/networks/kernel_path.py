"""Choose the kernels of a model, fused or plain, and give it its dropout and its threads."""

from contextlib import nullcontext
from typing import ContextManager, Sequence, Union

import numpy as np
import paddle

from ernie_pair.kernels import encoder_layer
from ernie_pair.kernels.choice import (
    DTYPES,
    AllReduce,
    KernelChoice,
    KernelFlags,
    agree_on_path,
    choose_kernels,
)
from ernie_pair.models.networks.custom_model import CustomModel
from ernie_pair.models.networks.encoders import EncoderModel
from ernie_pair.runtime.cpu import cpu_threads
from ernie_pair.runtime.gpu import check_gpu_capability, gpu_capability, paddle_capability
from ernie_pair.runtime.paddle_patches.core_settings import set_math_threads
from ernie_pair.runtime.paddle_patches.layers import fuse_attention

AnyModel = Union[EncoderModel, CustomModel]
FLASH_CAPABILITY = (8, 0)


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
    fuse_attention(parts[0], is_wanted=False)  # of another device
    is_own = isinstance(model, CustomModel)
    unfit = f"{model.family} is a layer of your own" if is_own else encoder_layer.unsupported_reason(parts[0])
    choice = agree_on_path(
        lambda: choose_kernels(flags, device, unfit, casts), flags, device, size, all_reduce
    )
    if choice.is_cast:
        flag = f"--precision {choice.precision}"
        check_gpu_capability(paddle_capability(), DTYPES[choice.precision], flag, "use another precision")
    if device != "cpu" and (choice.is_cast or getattr(flags, "computes_in_half", False)):
        choice = fuse_half_attention(parts[0], choice)
    state = model.fused_state
    if choice.is_fused and (state is None or state.precision != choice.precision):
        model.fused_state = encoder_layer.ModelState(choice.precision, cpu_threads())
        encoder_layer.attach_kernels(*parts, model.fused_state)
    elif not choice.is_fused and state is not None:
        encoder_layer.detach_kernels(*parts)
        model.fused_state = None
    if not choice.is_fused or all(map(encoder_layer.are_fit, parts[1])):
        return choice
    return choice.with_note("embeddings by Paddle")


def fuse_half_attention(layers: Sequence, choice: KernelChoice) -> KernelChoice:
    """Let a GPU that has it compute the attention of ``layers``, in half precision, by flash attention."""
    if (gpu_capability() or (0, 0)) < FLASH_CAPABILITY:
        return choice
    fuse_attention(layers, is_wanted=True)
    return choice.with_note("flash attention")


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
    amp = paddle.amp.auto_cast
    return amp(level="O1", dtype=DTYPES[choice.precision]) if choice.is_cast else nullcontext()


def seed_dropout(model: AnyModel, seed: int) -> None:
    """Set the dropout seed of the next forward pass, 31 bits."""
    paddle.seed(seed)
    if model.fused_state is not None:
        model.fused_state.seed.set(seed)
