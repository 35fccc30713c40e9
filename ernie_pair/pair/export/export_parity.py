"""Compare a model and its exported form on the same batches; their difference verifies the export."""

from typing import List, Tuple

import numpy as np
import paddle
from paddle import nn

from data_tools.base.errors import CheckpointError
from data_tools.text.folder_tokenizer import AnyTokenizer
from data_tools.text.wordpiece import CONTINUATION
from ernie_pair.inference.token_rows import Batch, encode_texts, evaluation_batches

LARGEST_DIFFERENCE = 1e-4
SHAPES = ((1, 5), (3, 17), (8, 64), (2, 512))  # rows, tokens; no longer than the model is asked for
NUM_PAIRS, PAIRS_PER_BATCH = 24, 6


def parity_batches(tokenizer: AnyTokenizer, max_seq_len: int) -> List[Batch]:
    """Return batches of several lengths: random ids with padding, and texts, some longer than fits."""
    rng = np.random.default_rng(0)
    shapes = [(rows, min(length, max_seq_len)) for rows, length in SHAPES]
    return [
        *(_random_batch(rng, tokenizer, *shape) for shape in shapes),
        *_text_batches(rng, tokenizer, max_seq_len),
    ]


def _random_batch(rng: np.random.Generator, tokenizer: AnyTokenizer, rows: int, length: int) -> Batch:
    kept = rng.integers(2, length + 1, rows)
    kept[0] = length
    inside = np.arange(length) < kept[:, None]
    ids, types = (rng.integers(0, most, (rows, length)) for most in (tokenizer.vocab_size, 2))
    return Batch(np.where(inside, ids, tokenizer.pad_id), np.where(inside, types, 0), None)


def _text_batches(rng: np.random.Generator, tokenizer: AnyTokenizer, max_seq_len: int) -> List[Batch]:
    left, right = random_texts(rng, tokenizer, max_seq_len, NUM_PAIRS)
    rows = encode_texts(left, right, None, tokenizer, max_seq_len)
    return [rows.batch(picked) for picked in evaluation_batches(rows.lengths, PAIRS_PER_BATCH)]


def random_texts(
    rng: np.random.Generator, tokenizer: AnyTokenizer, longest: int, count: int
) -> Tuple[List[str], List[str]]:
    """Return ``count`` left and right texts of random tokens, up to ``longest`` of them in each."""
    words = [token for token in tokenizer.tokens if not token.startswith(("[", CONTINUATION))]
    left, right = (
        ["".join(rng.choice(words, size)) for size in rng.integers(1, longest + 1, count)] for _ in "ab"
    )
    return left, right


def answers_of(model: nn.Layer, batches: List[Batch]) -> List[np.ndarray]:
    """Return the logits, or what it answers, of the dynamic model, float32 [B, C] of each batch."""
    model.eval()
    with paddle.no_grad():
        return [model(*map(paddle.to_tensor, batch[:2])).numpy() for batch in batches]


def largest_difference(backend, batches: List[Batch], expected: List[np.ndarray]) -> float:
    """Return the largest difference of any logit of any batch from ``expected``, float32 [B, C] each.

    Raises CheckpointError when it is above 1e-4 or no number, or when the exported model does not run.
    """
    try:
        answers = [backend.logits(batch.input_ids, batch.token_type_ids) for batch in batches]
    except (RuntimeError, ValueError) as error:  # of Paddle Inference: MobileBERT's three-token windows
        reason = " ".join((str(error).strip().splitlines() or [""])[0].split())[:150]
        raise CheckpointError(
            f"the {backend.name} model does not run ({reason}): nothing is exported; pass another --format"
        ) from None
    worst = float(np.max([np.abs(answer - wanted).max() for answer, wanted in zip(answers, expected)]))
    if not worst <= LARGEST_DIFFERENCE:
        raise CheckpointError(
            f"the {backend.name} model differs from the trained one by {worst:.3g}, more than "
            f"{LARGEST_DIFFERENCE}: nothing is exported; export with the tested versions (constraints.txt)"
        )
    return worst
