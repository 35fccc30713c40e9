"""Choose the kernels of a classifier, fused or plain, and ask it for its outputs for every row of a file."""

from contextlib import nullcontext
from typing import Callable, ContextManager, Optional, Union

import numpy as np
import paddle
from tqdm import tqdm

from ernie_pair.core.errors import NumbersError
from ernie_pair.core.progress import shows_bars
from ernie_pair.inference.token_rows import EncodedPairs, evaluation_batches
from ernie_pair.kernels.choice import (
    DTYPES,
    AllReduce,
    KernelChoice,
    KernelFlags,
    agree_on_path,
    choose_kernels,
)
from ernie_pair.kernels.encoder_layer import (
    ModelState,
    are_fit,
    attach_kernels,
    detach_kernels,
    unsupported_reason,
)
from ernie_pair.models.networks.classifier import PairClassifier
from ernie_pair.models.networks.custom_model import CustomModel
from ernie_pair.models.networks.encoders import EncoderModel
from ernie_pair.runtime.cpu import cpu_threads
from ernie_pair.runtime.gpu import check_gpu_capability, paddle_capability
from ernie_pair.runtime.paddle_patches.core_settings import set_math_threads, without_tf32

AnyModel = Union[EncoderModel, CustomModel]


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
    is_own = isinstance(model, CustomModel)
    unfit = f"{model.family} is a layer of your own" if is_own else unsupported_reason(parts[0])
    choice = agree_on_path(
        lambda: choose_kernels(flags, device, unfit, casts), flags, device, size, all_reduce
    )
    if choice.is_cast:
        flag = f"--precision {choice.precision}"
        check_gpu_capability(paddle_capability(), DTYPES[choice.precision], flag, "use another precision")
    state = model.fused_state
    if choice.is_fused and (state is None or state.precision != choice.precision):
        model.fused_state = ModelState(choice.precision, cpu_threads())
        attach_kernels(*parts, model.fused_state)
    elif not choice.is_fused and state is not None:
        detach_kernels(*parts)
        model.fused_state = None
    if not choice.is_fused or all(map(are_fit, parts[1])):
        return choice
    return choice.with_note("embeddings by Paddle")


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


def constant_weights(model: AnyModel) -> ContextManager[None]:
    """Return a context in which the weights of ``model`` do not change: copies in bfloat16 are made once."""
    return nullcontext() if model.fused_state is None else model.fused_state.constant_weights()


def predict_rows(
    model,
    rows: EncodedPairs,
    width: int,
    batch_size: int,
    process_group,
    on_batch: Optional[Callable[[int], None]] = None,
) -> np.ndarray:
    """Return the ``width`` numbers that ``model`` gives every row, float32 [N, width], on every rank.

    The batches follow from the rows and ``batch_size`` alone and are dealt to the ranks one by one, so a row
    always stands in the same batch. ``on_batch`` is given the rows of each batch, of all ranks; without it a
    bar of the first rank shows them, see `shows_bars`. Leaves ``model`` in evaluation mode.
    """
    model.eval()
    batches = evaluation_batches(rows.lengths, batch_size)[process_group.rank :: process_group.size]
    is_hidden = on_batch is not None or process_group.rank > 0 or not shows_bars()
    found = np.zeros((len(rows), width), dtype=np.float32)
    answers = []
    with paddle.no_grad(), constant_weights(model), without_tf32():
        for picked in tqdm(batches, unit="batch", disable=is_hidden, leave=False):
            batch = rows.batch(picked)
            answer = model(paddle.to_tensor(batch.input_ids), paddle.to_tensor(batch.token_type_ids))
            answers.append(answer.astype("float32"))
            if on_batch is not None:
                on_batch(len(picked) * process_group.size)
        if answers:  # they are copied once: a copy waits for all that the device was asked for
            found[np.concatenate(batches)] = paddle.concat(answers).numpy()
    return process_group.all_reduce_now(found)


def predict_logits(
    model: PairClassifier,
    rows: EncodedPairs,
    batch_size: int,
    process_group,
    on_batch: Optional[Callable[[int], None]] = None,
) -> np.ndarray:
    """Return the logits of every row, float32 [N, C], in the order of the file, on every rank.

    ``on_batch`` and the batches are those of `predict_rows`. Leaves ``model`` in evaluation mode. Raises
    NumbersError for a logit that is not finite.
    """
    logits = predict_rows(model, rows, model.num_classes, batch_size, process_group, on_batch)
    if not np.isfinite(logits).all():
        row = int(np.flatnonzero(~np.isfinite(logits).all(axis=1))[0])
        raise NumbersError(
            f"the logits of row {row} are {logits[row].tolist()}; the weights are damaged, train again"
        )
    return logits
