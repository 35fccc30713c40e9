"""CoSENT and AnglE: pairs with a graded score, learned by the order of their similarities.

    loss = log(1 + sum of exp((s(k) - s(i)) / temperature) over all i, k where pair i has the higher score)

CoSENT (Huang et al. 2024, "CoSENT: Consistent Sentence Embedding via Similarity Ranking"): s is the cosine.
AnglE (Li and Li 2023, "AnglE-optimized Text Embeddings", arXiv:2309.12871): s is the difference of angles
in complex space, which has a gradient where the cosine is flat. Both sum over the pairs of the whole step.
"""

from typing import NamedTuple

import numpy as np
import paddle

from ernie_pair.core.errors import InputError
from ernie_pair.embeddings.train.contrastive import HIDDEN, Describe, TrainingTexts
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.targets.metrics import number_texts


class GradedStep(NamedTuple):
    """A global batch of N graded pairs, see `StepTexts`; ``scores`` float64 [N] are those of the file."""

    num_pairs: int
    numbers: np.ndarray
    scores: np.ndarray
    is_angle: bool

    @property
    def has_negatives(self) -> bool:
        """Return whether any pair has a higher score than another: else nothing is learned."""
        return bool((self.scores != self.scores[0]).any())

    def loss(self, rows: paddle.Tensor, temperature: float) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Return the loss; a pair counts as right by the share of all comparisons that come out right."""
        left, right = rows[: self.num_pairs], rows[self.num_pairs :]
        similarities_N = (left * right).sum(axis=1)
        if self.is_angle:
            similarities_N = (similarities_N + sines(left, right)).abs()
        similarities_N = similarities_N / temperature
        is_higher = self.scores[:, None] > self.scores[None]
        above_NN = similarities_N[None] - similarities_N[:, None]  # 0 or more: the lower one is not below
        hidden_NN = paddle.to_tensor(np.where(is_higher, 0, HIDDEN).astype(np.float32))
        terms = paddle.concat([paddle.zeros([1]), (above_NN + hidden_NN).flatten()])
        is_right = (above_NN < 0).astype("float32") * paddle.to_tensor(is_higher.astype(np.float32))
        return paddle.logsumexp(terms), is_right.sum() * (self.num_pairs / max(1, int(is_higher.sum())))


def sines(left: paddle.Tensor, right: paddle.Tensor) -> paddle.Tensor:
    """Return the imaginary part of left x conjugate of right, float32 [N]: complex numbers [N, D/2].

    Their real parts come first; an odd D gets a zero at its end.
    """
    if left.shape[1] % 2:
        left, right = (paddle.concat([one, paddle.zeros([len(one), 1])], axis=1) for one in (left, right))
    (a, b), (c, d) = paddle.chunk(left, 2, axis=1), paddle.chunk(right, 2, axis=1)
    return (b * c - a * d).sum(axis=1)


def graded_texts(pairs: Pairs, where: str, is_angle: bool) -> tuple[TrainingTexts, Describe]:
    """Return the texts of graded pairs, and what makes their steps. Raises InputError for equal scores."""
    places: dict[str, int] = {}
    left, right = (number_texts(side, places) for side in (pairs.left, pairs.right))
    scores = pairs.known_labels
    if (scores == scores[0]).all():
        raise InputError(
            f"{where}: all scores are {scores[0]:g}, and the order of scores is learned; take another file"
        )

    def describe(texts: TrainingTexts, pairs: np.ndarray, negatives: list[np.ndarray]) -> GradedStep:
        return GradedStep(len(pairs), np.concatenate([left[pairs], right[pairs]]), scores[pairs], is_angle)

    return TrainingTexts(list(places), left, right), describe
