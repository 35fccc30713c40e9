"""The logits of every row of a file, the same to the last bit for any number of processes."""

import sys

import numpy as np
import paddle
from tqdm import tqdm

from data_tools.base.errors import NumbersError
from ernie_pair.pair.data.encoded_pairs import EncodedPairs, evaluation_batches
from ernie_pair.pair.model.classifier import PairClassifier


def logits_of(model: PairClassifier, rows: EncodedPairs, batch_size: int, process_group) -> np.ndarray:
    """Return the logits of every row, float32 [N, C], in the order of the file, on every rank.

    The batches follow from the file and ``batch_size`` alone and are dealt to the ranks one by one, so a row
    always stands in the same batch. Leaves ``model`` in evaluation mode. Raises NumbersError for a logit that
    is not finite.
    """
    model.eval()
    logits = np.zeros((len(rows), model.num_classes), dtype=np.float32)
    batches = evaluation_batches(rows.lengths, batch_size)[process_group.rank :: process_group.size]
    hidden = process_group.rank > 0 or not sys.stderr.isatty()
    with paddle.no_grad():
        for picked in tqdm(batches, unit="batch", disable=hidden, leave=False):
            batch = rows.batch(picked)
            answer = model(paddle.to_tensor(batch.input_ids), paddle.to_tensor(batch.token_type_ids))
            logits[picked] = answer.astype("float32").numpy()
    logits = process_group.all_reduce_now(logits)
    if not np.isfinite(logits).all():
        row = int(np.flatnonzero(~np.isfinite(logits).all(axis=1))[0])
        raise NumbersError(
            f"the logits of row {row} are {logits[row].tolist()}; the weights are damaged, train again"
        )
    return logits
