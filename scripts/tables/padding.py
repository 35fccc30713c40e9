"""Padding: its share of batches, and the speed of the fused kernels with it and without it.

The share is that of all batches; real tokens per second of CPU time, on one thread, are of a few evenly
spaced ones: of forward passes, in training forward and backward. Without --pair_file pairs of 8 to 400 tokens
are made.
"""

from functools import partial
from pathlib import Path
from statistics import median
from typing import Callable, Dict, Iterator, List, NamedTuple
from unittest.mock import patch

import numpy as np
import paddle
from side_by_side.cases import Shape, read_rows, silence, write_model

from data_tools.text.folder_tokenizer import AnyTokenizer
from ernie_pair.inference.token_rows import (
    EncodedPairs,
    encode_single_texts,
    encode_texts,
    evaluation_batches,
    open_tokenizer,
)
from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.kernels.library import open_kernels
from ernie_pair.models.networks import encoders
from ernie_pair.models.networks.classifier import build_classifier
from ernie_pair.models.networks.encoders import EncoderModel, PaddingLeftOut
from ernie_pair.models.networks.kernel_path import choose_path, constant_weights, take_threads
from ernie_pair.models.networks.text_encoder import build_text_encoder
from ernie_pair.models.source import open_model
from ernie_pair.training.batch_order import BatchOrder
from tables import Row, seconds_of

SHORTEST, LONGEST = 8, 400  # tokens of the pairs that are made
LEAST_TOKENS = 6000  # that are measured


class Task(NamedTuple):
    """Batches that a model computes; ``trains``: backward as well."""

    name: str
    model: EncoderModel
    rows: EncodedPairs
    batches: List[np.ndarray]
    trains: bool = False


def measured(config, folder: Path) -> Iterator[Row]:
    shape = Shape(config.num_hidden_layers, config.hidden_size, config.batch_size, config.max_seq_len)
    with silence():
        write_model(folder / "model", config.vocab_file, "ernie", shape)
        source = open_model(str(folder / "model"), model_type="", from_scratch=True)
        tokenizer = open_tokenizer(source.vocab_file, source.spec, config.max_seq_len)
        texts = read_rows(config.pair_file, config.rows) if config.pair_file else made(tokenizer, config.rows)
        classifier, encoder = build_classifier(source, 0, 0.1), build_text_encoder(source, 0, 0.1)
    left, right = map(list, zip(*texts))
    pairs = encode_texts(left, right, None, tokenizer, config.max_seq_len)
    singles = encode_single_texts([*left, *right], tokenizer, config.max_seq_len)
    yield Row(f"{len(pairs):,} pairs of {pairs.lengths.mean():.1f} tokens", "padded, not, ratio", "padding")
    for precision in ("fp32", "bf16") if open_kernels().has_bf16 else ("fp32",):
        for model in (classifier, encoder):
            choose_path(model, KernelFlags("fused", precision), "cpu")
            take_threads(model, 1)
        for task in tasks_of(classifier, encoder, pairs, singles, config.batch_size):
            yield row_of(task, precision, config.runs)


def made(tokenizer: AnyTokenizer, count: int) -> List[tuple[str, str]]:
    """Return pairs whose lengths are spread evenly over all that are asked for."""
    rng = np.random.default_rng(0)
    words = [token for token in tokenizer.tokens if len(token) == 1 and token.isalpha()]
    found = []
    for length in rng.integers(SHORTEST, LONGEST + 1, count) - 3:
        drawn = rng.choice(words, length)
        cut = rng.integers(1, length)
        found.append((" ".join(drawn[:cut]), " ".join(drawn[cut:])))
    return found


def tasks_of(classifier, encoder, pairs: EncodedPairs, singles: EncodedPairs, size: int) -> Iterator[Task]:
    """Yield the batches of each command, of whole steps in training."""
    count = len(pairs) // size * size
    in_order = list(np.arange(count).reshape(-1, size))
    of_anchors = np.maximum(singles.lengths[: len(pairs)], singles.lengths[len(pairs) :])

    def drawn(lengths: np.ndarray) -> List[np.ndarray]:
        return list(BatchOrder(lengths, 0, size, bucket=True).rows_at(0, count).reshape(-1, size))

    yield Task("predict", classifier, pairs, evaluation_batches(pairs.lengths, size))
    yield Task(f"predict {size} pairs at a time", classifier, pairs, in_order)
    yield Task("embed", encoder, singles, evaluation_batches(singles.lengths, size))
    yield Task("train", classifier, pairs, drawn(pairs.lengths), trains=True)
    sides = [np.concatenate([rows, rows + len(pairs)]) for rows in drawn(of_anchors)]
    yield Task("train-embedding", encoder, singles, sides, trains=True)


def row_of(task: Task, precision: str, runs: int) -> Row:
    """Measure a task with its padding and without, in turn."""

    def padded(encoder, layers, *rest) -> PaddingLeftOut:
        return PaddingLeftOut(encoder, None, *rest)

    def tokens_of(rows: np.ndarray) -> int:
        return int(task.rows.lengths[rows].sum())

    tokens = sum(map(tokens_of, task.batches))
    cells = sum(len(rows) * int(task.rows.lengths[rows].max()) for rows in task.batches)
    count = -(-LEAST_TOKENS * len(task.batches) // tokens)
    few = [task.batches[int((place + 0.5) * len(task.batches) / count)] for place in range(count)]
    compute(task, few[0])  # takes its memory
    ways: Dict[str, Callable[..., PaddingLeftOut]] = {"padded": padded, "not": PaddingLeftOut}
    seconds = dict.fromkeys(ways, 0.0)
    for rows in few:
        taken: Dict[str, List[float]] = {way: [] for way in ways}
        for _ in range(runs):
            for way, leaving_out in ways.items():
                with patch.object(encoders, "PaddingLeftOut", leaving_out):
                    taken[way].append(seconds_of(partial(compute, task, rows)).processor)
        for way in ways:
            seconds[way] += median(taken[way])
    before, after = (sum(map(tokens_of, few)) / seconds[way] for way in ways)
    figure = f"{before:,.0f} {after:,.0f} {after / before:.2f}"
    return Row(f"{task.name}, {precision}: real tokens/s", figure, f"{1 - tokens / cells:.1%}")


def compute(task: Task, rows: np.ndarray) -> None:
    task.model.train() if task.trains else task.model.eval()
    with constant_weights(task.model), paddle.set_grad_enabled(task.trains):
        batch = task.rows.batch(rows)
        answer = task.model(paddle.to_tensor(batch.input_ids), paddle.to_tensor(batch.token_type_ids))
        if task.trains:
            answer.square().mean().backward()
            task.model.clear_gradients()
