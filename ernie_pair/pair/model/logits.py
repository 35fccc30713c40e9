"""The logits of every row of a file, the same to the last bit for any number of processes."""

import sys
from typing import Callable, Optional

import numpy as np
import paddle
from tqdm import tqdm

from data_tools.base.errors import NumbersError
from ernie_pair.device.paddle_patches.core_settings import without_tf32
from ernie_pair.pair.data.encoded_pairs import EncodedPairs, evaluation_batches
from ernie_pair.pair.model.classifier import PairClassifier
from ernie_pair.pair.model.kernel_path import constant_weights


def logits_of(
    model: PairClassifier,
    rows: EncodedPairs,
    batch_size: int,
    process_group,
    asked: Optional[Callable[[int], None]] = None,
) -> np.ndarray:
    """Return the logits of every row, float32 [N, C], in the order of the file, on every rank.

    The batches follow from the file and ``batch_size`` alone and are dealt to the ranks one by one, so a row
    always stands in the same batch. ``asked`` is told the rows of each batch, of all ranks; without it a bar
    shows them on a terminal. Leaves ``model`` in evaluation mode. Raises NumbersError for a logit that is not
    finite.
    """
    model.eval()
    batches = evaluation_batches(rows.lengths, batch_size)[process_group.rank :: process_group.size]
    hidden = asked is not None or process_group.rank > 0 or not sys.stderr.isatty()
    answers = []
    with paddle.no_grad(), constant_weights(model), without_tf32():
        for picked in tqdm(batches, unit="batch", disable=hidden, leave=False):
            batch = rows.batch(picked)
            answer = model(paddle.to_tensor(batch.input_ids), paddle.to_tensor(batch.token_type_ids))
            answers.append(answer.astype("float32"))
            if asked is not None:
                asked(len(picked) * process_group.size)
        logits = np.zeros((len(rows), model.num_classes), dtype=np.float32)
        if answers:  # they are copied once: a copy waits for all that the device was asked for
            logits[np.concatenate(batches)] = paddle.concat(answers).numpy()
    logits = process_group.all_reduce_now(logits)
    if not np.isfinite(logits).all():
        row = int(np.flatnonzero(~np.isfinite(logits).all(axis=1))[0])
        raise NumbersError(
            f"the logits of row {row} are {logits[row].tolist()}; the weights are damaged, train again"
        )
    return logits
