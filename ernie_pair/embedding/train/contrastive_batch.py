"""What one step compares: the texts of its whole global batch, and which of them belong together.

The vectors of a step are rows of one matrix: those of the N anchors, of their N positives, and of H hard
negatives. A process makes some of them, and knows where they belong in it; all processes know the whole.
"""

from typing import Iterator, List, NamedTuple

import numpy as np

from ernie_pair.embedding.train.training_texts import TrainingTexts
from ernie_pair.inference.token_rows import EncodedPairs
from ernie_pair.pair.data.batch_order import BatchOrder
from ernie_pair.processes.world import World


class StepTexts(NamedTuple):
    """The texts of a global batch. ``numbers`` int64 [2 N + H] are those of its rows.

    ``is_hidden`` bool [N, N + H]: which candidates (positives, then hard negatives) an anchor is not compared
    with, since they belong to it as well: the same text, or one that a label calls a match.
    """

    num_pairs: int
    numbers: np.ndarray
    is_hidden: np.ndarray


class ContrastiveBatch(NamedTuple):
    """A micro-batch: token ids and types int64 [B, S] of the rows ``places`` int64 [B] of the step."""

    input_ids: np.ndarray
    token_type_ids: np.ndarray
    places: np.ndarray
    step: StepTexts


class StepRules(NamedTuple):
    """How texts make steps: ``batch_size`` pairs a micro-batch of a process.

    ``hard_negatives`` at most go with each pair; ``bucket``: pairs of similar length stand together.
    """

    seed: int
    batch_size: int
    accumulation_steps: int = 1
    hard_negatives: int = 1
    bucket: bool = True


class ContrastiveSteps:
    """The steps of a training: a pure function of the texts, the rules and the place."""

    def __init__(self, texts: TrainingTexts, rows: EncodedPairs, rules: StepRules):
        self.texts, self.rows, self.rules = texts, rows, rules

    def of_rank(self, world: World, consumed: int) -> Iterator[List[ContrastiveBatch]]:
        """Yield the micro-batches of a rank for every step, without end, from pair ``consumed`` on.

        A step takes the same pairs however they are divided over ranks and micro-batches.
        """
        rules = self.rules
        size = rules.batch_size * rules.accumulation_steps * world.size
        lengths = np.maximum(
            *(self.rows.lengths[side] for side in (self.texts.anchors, self.texts.positives))
        )
        order = BatchOrder(lengths, rules.seed, size, rules.bucket)
        while True:
            pairs = order.rows_at(consumed, size)
            epochs = np.arange(consumed, consumed + size) // len(self.texts)
            yield self._micro_batches(pairs, epochs, world)
            consumed += size

    def _micro_batches(self, pairs: np.ndarray, epochs: np.ndarray, world: World) -> List[ContrastiveBatch]:
        negatives = [
            self.texts.negatives_of(pair, epoch, self.rules.hard_negatives)
            for pair, epoch in zip(pairs.tolist(), epochs.tolist())
        ]
        step = describe_step(self.texts, pairs, negatives)
        ends = np.cumsum([0, *map(len, negatives)]) + 2 * len(pairs)
        found, size = [], self.rules.batch_size
        for begin in self._begins(len(pairs), world):
            own = np.arange(begin, begin + size)
            hard = np.arange(ends[begin], ends[begin + size])
            places = np.concatenate([own, len(pairs) + own, hard])
            batch = self.rows.batch(self._rows_of(step, places))
            found.append(ContrastiveBatch(batch.input_ids, batch.token_type_ids, places, step))
        return found

    def _rows_of(self, step: StepTexts, places: np.ndarray) -> np.ndarray:
        """Return the encoded rows of ``places``: anchors ask with the prompt of queries, if it is another."""
        count = len(self.texts.texts)
        as_query = (places < step.num_pairs) & (len(self.rows) > count)
        return step.numbers[places] + count * as_query

    def _begins(self, num_pairs: int, world: World) -> List[int]:
        """Return where the micro-batches of a rank begin: those of one pass lie side by side."""
        return list(range(0, num_pairs, self.rules.batch_size))[world.rank :: world.size]


def describe_step(texts: TrainingTexts, pairs: np.ndarray, negatives: List[np.ndarray]) -> StepTexts:
    """Return the texts of a global batch of ``pairs`` int64 [N], each with its hard negatives."""
    anchors, positives = texts.anchors[pairs], texts.positives[pairs]
    numbers = np.concatenate([anchors, positives, *negatives]).astype(np.int64)
    candidates = numbers[len(pairs) :]
    is_hidden = texts.belong_together(anchors[:, None], candidates[None])
    # What equals the positive is as right as that; and so, going by both labels, is its own match.
    is_hidden |= texts.belong_together(positives[:, None], candidates[None])
    is_hidden[np.arange(len(pairs)), np.arange(len(pairs))] = False
    return StepTexts(len(pairs), numbers, is_hidden)
