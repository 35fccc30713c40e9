"""The vectors of every text of an evaluation, the same to the last bit for any number of processes."""

import sys

import numpy as np
import paddle
from tqdm import tqdm

from ernie_pair.device.paddle_patches.core_settings import without_tf32
from ernie_pair.embedding.text_encoder import TextEncoder
from ernie_pair.inference.embedder import unit_rows
from ernie_pair.inference.token_rows import EncodedPairs, evaluation_batches
from ernie_pair.pair.model.kernel_path import constant_weights


def vectors_of_rows(model: TextEncoder, rows: EncodedPairs, batch_size: int, process_group) -> np.ndarray:
    """Return the vector of every row, float32 [N, D] of length 1, in their order, on every rank.

    The batches follow from the rows and ``batch_size`` alone and are dealt to the ranks one by one. Leaves
    ``model`` in evaluation mode. Raises NumbersError for a vector that is not finite.
    """
    model.eval()
    batches = evaluation_batches(rows.lengths, batch_size)[process_group.rank :: process_group.size]
    is_hidden = process_group.rank > 0 or not sys.stderr.isatty()
    vectors = np.zeros((len(rows), model.spec.hidden_size), dtype=np.float32)
    answers = []
    with paddle.no_grad(), constant_weights(model), without_tf32():
        for picked in tqdm(batches, unit="batch", disable=is_hidden, leave=False):
            batch = rows.batch(picked)
            answer = model(paddle.to_tensor(batch.input_ids), paddle.to_tensor(batch.token_type_ids))
            answers.append(answer.astype("float32"))
        if answers:  # they are copied once: a copy waits for all that the device was asked for
            vectors[np.concatenate(batches)] = paddle.concat(answers).numpy()
    return unit_rows(process_group.all_reduce_now(vectors), "the model")
