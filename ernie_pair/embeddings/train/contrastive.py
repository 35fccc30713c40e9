"""The texts that an encoder learns from, each encoded once, and which of them belong together."""

import hashlib
import json
import logging
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional, Sequence

import numpy as np
import paddle
from paddle.nn import functional as F

from data_tools.corpus.mixture import Blend
from ernie_pair.core.errors import InputError, counted
from ernie_pair.embeddings.train.embedding_config import EmbeddingConfig
from ernie_pair.inference.token_rows import EncodedPairs
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.targets.metrics import number_texts
from ernie_pair.runtime.processes.world import World
from ernie_pair.training.schedule import BatchOrder

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingTexts:
    """Texts and what is known of them; all numbers are places in ``texts``.

    ``anchors`` and ``positives`` int64 [N] belong together, as pair i of the training. ``negatives`` are hard
    negatives of an anchor: {place: places}, ascending.
    """

    texts: list[str]
    anchors: np.ndarray
    positives: np.ndarray
    negatives: dict[int, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.anchors)

    @property
    def is_augmented(self) -> bool:
        """Return whether each text belongs to itself alone: SimCSE."""
        return self.anchors is self.positives

    @cached_property
    def match_keys(self) -> np.ndarray:
        """Return anchor * texts + positive of all that belong together, both ways, int64 ascending."""
        number, (a, b) = len(self.texts), (self.anchors, self.positives)
        return np.unique(np.concatenate([a * number + b, b * number + a]))

    def belong_together(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return whether texts ``left`` [A, 1] and ``right`` [1, C] do, or are one text, bool [A, C]."""
        keys = left * len(self.texts) + right
        places = np.minimum(np.searchsorted(self.match_keys, keys), len(self.match_keys) - 1)
        return (self.match_keys[places] == keys) | (left == right)

    def negatives_of(self, pair: int, epoch: int, count: int) -> np.ndarray:
        """Return at most ``count`` hard negatives of a pair, int64; the epochs take them in turn."""
        found = self.negatives.get(int(self.anchors[pair]))
        if found is None or not count:
            return np.zeros(0, dtype=np.int64)
        size = min(count, len(found))
        return found[(epoch * size + np.arange(size)) % len(found)]


def texts_of_pairs(pairs: Pairs, negatives: Optional[Pairs], where: str) -> TrainingTexts:
    """Return the texts of labelled pairs: rows of label 1 belong together, those of 0 are hard negatives.

    ``negatives``: rows of a text and a hard negative of it besides; no text is its own. What is a match of an
    anchor is no negative of it. Raises InputError if nothing belongs together, or no row of ``negatives`` is
    of use.
    """
    places: dict[str, int] = {}
    left, right = (number_texts(side, places) for side in (pairs.left, pairs.right))
    is_match = pairs.known_labels == 1
    if not is_match.any():
        raise InputError(f"{where} has no pair of label 1: nothing belongs together; take another file")
    anchors, positives = left[is_match], right[is_match]
    rows = [(left[~is_match], right[~is_match])]
    if negatives is not None:
        rows.append((number_texts(negatives.left, places), number_texts(negatives.right, places)))
    texts = TrainingTexts(list(places), anchors, positives)
    left, right = (np.concatenate(side) for side in zip(*rows))
    keys = left * len(places) + right
    is_of_use = np.isin(left, anchors) & ~np.isin(keys, texts.match_keys)
    if negatives is not None and not is_of_use[-len(negatives) :].any():
        raise InputError(
            f"{negatives.path}: none of its rows is a negative: their first texts are none of a pair of "
            f"label 1 in {where}, or their second ones match these; give negatives of the texts that are "
            "trained with"
        )
    has_match = np.isin(left, anchors)
    lacking, matches = int((~has_match).sum()), int((has_match & ~is_of_use).sum())
    if lacking or matches:
        logger.info(
            "%s: %d of %d negatives are not used: the first texts of %d have no match, and %d are matches of "
            "theirs in another row",
            where, lacking + matches, len(is_of_use), lacking, matches,
        )  # fmt: skip
    left, right = np.divmod(np.unique(keys[is_of_use]), len(places))
    if not len(left) and 1 in (len(np.unique(anchors)), len(np.unique(positives))):
        raise InputError(
            f"{where}: all {len(anchors)} pairs of label 1 share a text, so that every text is a match and "
            "none a negative; add pairs of other texts, or rows of label 0"
        )
    firsts, begins = np.unique(left, return_index=True)
    of_anchors = {int(text): found for text, found in zip(firsts, np.split(right, begins[1:]))}
    return replace(texts, negatives=of_anchors)


def texts_alone(texts: Iterable[str], where: str) -> TrainingTexts:
    """Return texts that each belong to themselves, each once. Raises InputError for fewer than two."""
    every = list(dict.fromkeys(texts))
    if len(every) < 2:
        raise InputError(
            f"{where} has {counted(len(every), 'text')}; a step compares several, give a file of more"
        )
    places = np.arange(len(every), dtype=np.int64)
    return TrainingTexts(every, places, places)


def sha256_of_texts(texts: Iterable[str]) -> str:
    """Return the SHA-256 of texts, in hex."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(json.dumps(text).encode() + b"\n")
    return digest.hexdigest()


class StepTexts(NamedTuple):
    """The texts of a global batch. ``numbers`` int64 [2 N + H]: of N anchors, N positives, hard negatives.

    ``is_hidden`` bool [N, N + H]: which candidates (positives, then hard negatives) an anchor is not compared
    with, since they belong to it as well: the same text, or one that a label calls a match.
    """

    num_pairs: int
    numbers: np.ndarray
    is_hidden: np.ndarray

    @property
    def has_negatives(self) -> bool:
        """Return whether an anchor is compared with more than its own positive: else nothing is learned."""
        return int((~self.is_hidden).sum()) > self.num_pairs

    def loss(self, rows: paddle.Tensor, temperature: float) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Return the cross-entropy of each anchor's positive among all candidates, see `step_loss`."""
        answers = paddle.arange(self.num_pairs)
        hidden = paddle.to_tensor(np.where(self.is_hidden, HIDDEN, 0).astype(np.float32))
        scores_NC = paddle.matmul(rows[: self.num_pairs], rows[self.num_pairs :], transpose_y=True)
        scores_NC = scores_NC / temperature + hidden
        right = (scores_NC.argmax(axis=1) == answers).astype("float32").sum()
        return F.cross_entropy(scores_NC, answers, reduction="none").mean(), right


class ContrastiveBatch(NamedTuple):
    """A micro-batch: token ids and types int64 [B, S] of the rows ``places`` int64 [B] of the step."""

    input_ids: np.ndarray
    token_type_ids: np.ndarray
    places: np.ndarray
    step: Any  # a `StepTexts`, or what another objective has in its place


# Makes the step of pairs int64 [N] and the hard negatives of each, as `describe_step` does.
Describe = Callable[[TrainingTexts, np.ndarray, list[np.ndarray]], Any]


class ContrastiveSteps:
    """The steps of a data set: a pure function of the texts, the flags and the place."""

    def __init__(self, texts: TrainingTexts, rows: EncodedPairs, config: EmbeddingConfig, describe: Describe):
        self.texts, self.rows, self.config, self.describe = texts, rows, config, describe

    def of_rank(self, world: World, consumed: int) -> Iterator[list[ContrastiveBatch]]:
        """Yield a rank's micro-batches of each step from pair ``consumed`` on, alike in any layout."""
        size, found = self.config.pairs_per_step(world.size), self.rows.lengths
        lengths = np.maximum(found[self.texts.anchors], found[self.texts.positives])
        order = BatchOrder(lengths, self.config.seed, size, self.config.bucket)
        while True:
            pairs = order.rows_at(consumed, size)
            epochs = np.arange(consumed, consumed + size) // len(self.texts)
            yield self._micro_batches(pairs, epochs, world)
            consumed += size

    def _micro_batches(self, pairs: np.ndarray, epochs: np.ndarray, world: World) -> list[ContrastiveBatch]:
        negatives = [
            self.texts.negatives_of(pair, epoch, self.config.hard_negatives)
            for pair, epoch in zip(pairs.tolist(), epochs.tolist())
        ]
        step = self.describe(self.texts, pairs, negatives)
        ends = np.cumsum([0, *map(len, negatives)]) + 2 * len(pairs)
        found, size = [], self.config.batch_size
        # The micro-batches of one pass of all ranks lie side by side.
        for begin in range(0, len(pairs), size)[world.rank :: world.size]:
            own = np.arange(begin, begin + size)
            hard = np.arange(ends[begin], ends[begin + size])
            places = np.concatenate([own, len(pairs) + own, hard])
            # Anchors ask with the prompt of queries, if it is another.
            as_query = (places < len(pairs)) & (len(self.rows) > len(self.texts.texts))
            batch = self.rows.batch(step.numbers[places] + len(self.texts.texts) * as_query)
            found.append(ContrastiveBatch(batch.input_ids, batch.token_type_ids, places, step))
        return found


def mixed_steps(
    sets: Sequence[ContrastiveSteps], shares: Sequence[float], world: World, consumed: int
) -> Iterator[list[ContrastiveBatch]]:
    """Yield a rank's micro-batches of each step from pair ``consumed`` on; each step is of one of ``sets``.

    After any number of steps each has had floor or ceil of its share, in parts of 10,000; see `Blend`.
    """
    size = sets[0].config.pairs_per_step(world.size)
    blend = Blend([Fraction(max(1, round(10_000 * share / sum(shares)))) for share in shares])
    number = consumed // size
    streams = [one.of_rank(world, had * size) for one, had in zip(sets, blend.counts(number))]
    while True:
        yield next(streams[int(blend.locate(number)[0])])
        number += 1


def describe_step(texts: TrainingTexts, pairs: np.ndarray, negatives: list[np.ndarray]) -> StepTexts:
    """Return the texts of a global batch of ``pairs`` int64 [N], each with its hard negatives."""
    anchors, positives = texts.anchors[pairs], texts.positives[pairs]
    numbers = np.concatenate([anchors, positives, *negatives]).astype(np.int64)
    candidates = numbers[len(pairs) :]
    is_hidden = texts.belong_together(anchors[:, None], candidates[None])
    # What equals the positive is as right as that; and so, going by both labels, is its own match.
    is_hidden |= texts.belong_together(positives[:, None], candidates[None])
    is_hidden[np.arange(len(pairs)), np.arange(len(pairs))] = False
    return StepTexts(len(pairs), numbers, is_hidden)


HIDDEN = -1e9  # added to a cosine / temperature: its weight in the softmax is 0 in float32


def step_loss(
    vectors: paddle.Tensor, step: Any, dims: Sequence[int], temperature: float
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Return the loss of a step, and how many of its pairs are right, each a tensor of a number.

    ``vectors``: float32 [rows, D], of any length. ``dims``: the lengths at which they are cut off, the last
    of which says how many are right. A ``step`` has them as vectors of length 1.
    """
    units = (F.normalize(vectors[:, :dim], axis=1, epsilon=1e-12) for dim in dims)
    losses, right = zip(*(step.loss(rows, temperature) for rows in units))
    return paddle.stack(losses).mean(), right[-1].detach()
