"""The outputs of a model for every row of a file, bit-identical for any number of processes."""

from typing import Callable, Optional

import numpy as np
import paddle
from tqdm import tqdm

from data_tools.files.errors import NumbersError
from data_tools.files.progress import shows_bars
from ernie_pair.inference.token_rows import EncodedPairs, evaluation_batches
from ernie_pair.models.networks.classifier import PairClassifier
from ernie_pair.models.networks.kernel_path import constant_weights
from ernie_pair.runtime.paddle_patches.core_settings import without_tf32


def answers_of_rows(
    model,
    rows: EncodedPairs,
    width: int,
    batch_size: int,
    process_group,
    asked: Optional[Callable[[int], None]] = None,
) -> np.ndarray:
    """Return the ``width`` numbers that ``model`` gives every row, float32 [N, width], on every rank.

    The batches follow from the rows and ``batch_size`` alone and are dealt to the ranks one by one, so a row
    always stands in the same batch. ``asked`` is told the rows of each batch, of all ranks; without it a bar
    of the first rank shows them, see `shows_bars`. Leaves ``model`` in evaluation mode.
    """
    model.eval()
    batches = evaluation_batches(rows.lengths, batch_size)[process_group.rank :: process_group.size]
    is_hidden = asked is not None or process_group.rank > 0 or not shows_bars()
    found = np.zeros((len(rows), width), dtype=np.float32)
    answers = []
    with paddle.no_grad(), constant_weights(model), without_tf32():
        for picked in tqdm(batches, unit="batch", disable=is_hidden, leave=False):
            batch = rows.batch(picked)
            answer = model(paddle.to_tensor(batch.input_ids), paddle.to_tensor(batch.token_type_ids))
            answers.append(answer.astype("float32"))
            if asked is not None:
                asked(len(picked) * process_group.size)
        if answers:  # they are copied once: a copy waits for all that the device was asked for
            found[np.concatenate(batches)] = paddle.concat(answers).numpy()
    return process_group.all_reduce_now(found)


def logits_of(
    model: PairClassifier,
    rows: EncodedPairs,
    batch_size: int,
    process_group,
    asked: Optional[Callable[[int], None]] = None,
) -> np.ndarray:
    """Return the logits of every row, float32 [N, C], in the order of the file, on every rank.

    ``asked`` and the batches are those of `answers_of_rows`. Leaves ``model`` in evaluation mode. Raises
    NumbersError for a logit that is not finite.
    """
    logits = answers_of_rows(model, rows, model.num_classes, batch_size, process_group, asked)
    if not np.isfinite(logits).all():
        row = int(np.flatnonzero(~np.isfinite(logits).all(axis=1))[0])
        raise NumbersError(
            f"the logits of row {row} are {logits[row].tolist()}; the weights are damaged, train again"
        )
    return logits
