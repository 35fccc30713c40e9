"""The training loss: the cross entropy, weighted by class, and the divergence of two passes.

R-Drop (Liang et al. 2021) lets every pair pass twice, under two draws of dropout. The loss of a pair is then
the mean of its two cross entropies and ``alpha`` times half of KL(p|q) + KL(q|p). The paper adds the two
entropies up: its alpha is twice this one. --symmetric consistency does the same with a pair in both orders,
(a, b) and (b, a); --symmetric average takes the mean of their logits, and of that the cross entropy. B rows,
C classes.
"""

from abc import ABC, abstractmethod
from contextlib import contextmanager
from importlib import import_module
from typing import Callable, Iterator, Mapping, NamedTuple, Optional

import numpy as np
import paddle
from paddle.nn import functional as F

from ernie_pair.core.errors import InputError
from ernie_pair.inference.token_rows import exchange_texts
from ernie_pair.models.labels import RANKING, Labels
from ernie_pair.pairs.config.pair_config import RANKING_LOSSES, PairConfig
from ernie_pair.pairs.data.encoded_pairs import Batch
from ernie_pair.training.training_step import LossParts

Forward = Callable[[paddle.Tensor, paddle.Tensor], paddle.Tensor]
ToDevice = Callable[[np.ndarray], paddle.Tensor]


class RowLosses(NamedTuple):
    """Losses of rows, float32 [B], the right classes, int64 [B], and ``parts`` float32 [B] for the log."""

    losses: paddle.Tensor
    answers: paddle.Tensor
    parts: tuple[paddle.Tensor, ...] = ()


class PairLoss:
    """The loss of a micro-batch. ``class_weights``: float32 [C], what a row counts; None: all the same.

    ``symmetric``: none, average or consistency, of which ``symmetric_alpha`` is the alpha. A subclass has
    another loss of rows, and says in ``parts`` what it tells of it. ``metric`` names what the third of its
    numbers is, divided by the rows.
    """

    metric = "accuracy"
    parts: tuple[str, ...] = ()
    fingerprint: Mapping[str, object] = {}  # what of it must stay for a run to be resumed

    def __init__(
        self,
        rdrop_alpha: float = 0.0,
        class_weights: Optional[np.ndarray] = None,
        symmetric: str = "none",
        symmetric_alpha: float = 1.0,
    ):
        self.class_weights, self.symmetric = class_weights, symmetric
        self.divergence_alpha = symmetric_alpha if symmetric == "consistency" else rdrop_alpha
        self.has_divergence = bool(rdrop_alpha) or symmetric == "consistency"

    @property
    def passes_twice(self) -> bool:
        """Return whether every pair passes twice, and a batch is made of the given one first."""
        return self.has_divergence or self.symmetric != "none"

    def weight_of(self, batch: Batch) -> float:
        """Return what the batch counts among others of its size; without class weights all count the same."""
        return 1.0 if self.class_weights is None else _sum(self.weights_of_rows(_known(batch.labels)))

    def __call__(self, forward: Forward, batch: Batch, to_device: ToDevice = paddle.to_tensor) -> LossParts:
        """Return the loss of a micro-batch, computed in float32.

        ``forward`` takes input ids and token types int64 [B, S] and returns logits [B, C]; where pairs pass
        twice it gets 2B rows. ``to_device`` makes tensors of arrays.
        """
        doubled = batch
        if self.passes_twice:  # the rows once more behind, with their texts exchanged or as they are
            again = batch if self.symmetric == "none" else exchange_texts(batch)
            both = (None if a is None or b is None else np.concatenate([a, b]) for a, b in zip(batch, again))
            doubled = Batch(*both)  # type: ignore[arg-type]  # the ids are no None
        logits_BC = wide_logits(forward(to_device(doubled.input_ids), to_device(doubled.token_type_ids)))
        divergence = None
        if self.has_divergence:
            # (KL(p|q) + KL(q|p)) / 2 of each row, where p and q are softmax: sum (p - q) (log p - log q) / 2.
            log_p, log_q = map(F.log_softmax, logits_BC.chunk(2))
            divergences_B = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(axis=1) / 2
            divergence = self._mean(divergences_B, _known(batch.labels))
        if self.symmetric == "average":
            first_BC, second_BC = logits_BC.chunk(2)
            logits_BC, doubled = (first_BC + second_BC) / 2, batch
        labels_B = _known(doubled.labels)
        rows = self.losses_of_rows(logits_BC, doubled, to_device)
        loss = self._mean(rows.losses, labels_B)
        if divergence is not None:
            loss = loss + self.divergence_alpha * divergence
        with paddle.no_grad():
            right = (logits_BC.argmax(axis=1) == rows.answers).astype("float32").sum()
            parts = [self._mean(part.detach(), labels_B) for part in rows.parts]
            apart = right * 0 if divergence is None else divergence.detach()
            numbers = paddle.stack([loss.detach(), apart, right, *parts])
        return LossParts(loss, numbers, len(labels_B))

    def losses_of_rows(self, logits_BC, batch: Batch, to_device: ToDevice) -> RowLosses:
        """Return the losses of the rows of ``batch``, whose logits float32 [B, C] are given."""
        answers_B = to_device(_known(batch.labels))
        # Paddle's own mean asks the device whether any label is to be ignored.
        return RowLosses(F.cross_entropy(logits_BC, answers_B, reduction="none"), answers_B)

    def weights_of_rows(self, labels_B: np.ndarray) -> np.ndarray:
        """Return what each row counts, float32 [B], where there are class weights."""
        assert self.class_weights is not None
        return self.class_weights[labels_B]

    def _mean(self, values_B: paddle.Tensor, labels_B: np.ndarray) -> paddle.Tensor:
        if self.class_weights is None:
            return values_B.mean()
        weights_B = self.weights_of_rows(labels_B)
        shares_B = (weights_B / (_sum(weights_B) or 1.0)).astype(np.float32)
        return (values_B * paddle.to_tensor(shares_B)).sum()


def _known(labels: Optional[np.ndarray]) -> np.ndarray:
    assert labels is not None  # training reads them
    return labels


def _sum(weights: np.ndarray) -> float:
    return float(weights.sum(dtype=np.float64))


def wide_logits(logits: paddle.Tensor) -> paddle.Tensor:
    """Return the logits in float32, whatever they were computed in."""
    return logits if logits.dtype == paddle.float32 else logits.astype("float32")


LOWEST = -1e4  # the score of a candidate that is not there: it has no share of the softmax


def loss_of(labels: Labels, config: PairConfig, class_weights: Optional[np.ndarray]) -> PairLoss:
    """Return the loss of a model that learns ``labels``, as the flags say."""
    if labels.has_classes:
        return PairLoss(config.rdrop_alpha, class_weights, config.symmetric, config.symmetric_alpha)
    if labels.target == RANKING:
        return ranking_loss_of(config)
    return SquaredError()


def ranking_loss_of(config: PairConfig) -> "RankingLoss":
    """Return the loss of --ranking_loss."""
    module, _, name = RANKING_LOSSES[config.ranking_loss].partition(":")
    return getattr(import_module(module), name).from_config(config)


class SquaredError(PairLoss):
    """Mean squared error of the output, as in transformers; ``numbers`` end with the absolute errors."""

    metric = "mae"

    def __call__(self, forward: Forward, batch: Batch, to_device: ToDevice = paddle.to_tensor) -> LossParts:
        """Return the loss of a micro-batch, computed in float32; see `PairLoss`."""
        assert batch.labels is not None  # training reads them
        outputs_B1 = wide_logits(forward(to_device(batch.input_ids), to_device(batch.token_type_ids)))
        errors_B = outputs_B1.squeeze(1) - to_device(batch.labels).astype("float32")
        loss = (errors_B**2).mean()
        with paddle.no_grad():
            total = errors_B.abs().sum()
            numbers = paddle.stack([loss.detach(), total * 0, total])
        return LossParts(loss, numbers, len(batch.labels))


class RankingLoss(PairLoss, ABC):
    """A loss over the candidates of each query, all of which are in one micro-batch.

    ``numbers`` of what it returns end with the number of queries whose highest score is of a relevant one.
    """

    metric = "hit_at_1"

    @classmethod
    def from_config(cls, config: PairConfig) -> "RankingLoss":
        """Return the loss that the flags describe."""
        return cls()

    def __call__(self, forward: Forward, batch: Batch, to_device: ToDevice = paddle.to_tensor) -> LossParts:
        """Return the mean loss of the queries of a micro-batch, computed in float32; see `PairLoss`."""
        assert batch.labels is not None  # training reads them
        outputs_B1 = wide_logits(forward(to_device(batch.input_ids), to_device(batch.token_type_ids)))
        places, is_there, labels = _by_query(batch.labels)
        is_there_QM, labels_QM = paddle.to_tensor(is_there), paddle.to_tensor(labels)
        found_QM = paddle.gather(outputs_B1.squeeze(1), paddle.to_tensor(places.ravel())).reshape(
            places.shape
        )
        scores_QM = paddle.where(is_there_QM, found_QM, paddle.full_like(found_QM, LOWEST))
        loss = self._loss_of(scores_QM, is_there_QM, labels_QM).mean()
        with paddle.no_grad():
            first_Q1 = scores_QM.argmax(axis=1, keepdim=True)
            hits = (paddle.take_along_axis(labels_QM, first_Q1, axis=1) > 0).astype("float32").sum()
            numbers = paddle.stack([loss.detach(), hits * 0, hits])
        return LossParts(loss, numbers, len(places))

    @abstractmethod
    def _loss_of(self, scores_QM, is_there_QM, labels_QM) -> paddle.Tensor:
        """Return the loss of each query, float32 [Q]; ``labels_QM`` float32, 0.0 for what is not there."""


class ListwiseLoss(RankingLoss):
    """Cross-entropy of softmax over a query's candidates against the shares of their labels.

    It bounds nDCG where a label is 1 or 0 (Bruch et al. 2019, An Analysis of the Softmax Cross Entropy Loss).
    """

    def _loss_of(self, scores_QM, is_there_QM, labels_QM) -> paddle.Tensor:
        wanted_QM = labels_QM / labels_QM.sum(axis=1, keepdim=True)
        return -(wanted_QM * F.log_softmax(scores_QM)).sum(axis=1)


class ListNetLoss(RankingLoss):
    """ListNet (Cao et al. 2007): cross-entropy of the softmax of scores against that of labels."""

    def _loss_of(self, scores_QM, is_there_QM, labels_QM) -> paddle.Tensor:
        wanted_QM = F.softmax(paddle.where(is_there_QM, labels_QM, paddle.full_like(labels_QM, LOWEST)))
        return -(wanted_QM * F.log_softmax(scores_QM)).sum(axis=1)


class RankNetLoss(RankingLoss):
    """RankNet (Burges et al. 2005): logistic loss of two candidates of different labels, the mean of all."""

    def _loss_of(self, scores_QM, is_there_QM, labels_QM) -> paddle.Tensor:
        is_better_QMM = labels_QM.unsqueeze(2) > labels_QM.unsqueeze(1)
        pairs_QMM = paddle.logical_and(is_better_QMM, is_there_QM.unsqueeze(1)).astype("float32")
        losses_QMM = self._loss_of_pairs(scores_QM.unsqueeze(2), scores_QM.unsqueeze(1))
        weighted_QMM = losses_QMM * pairs_QMM * self._weights_of(scores_QM, labels_QM)
        return weighted_QMM.sum(axis=[1, 2]) / pairs_QMM.sum(axis=[1, 2])

    def _loss_of_pairs(self, better, other) -> paddle.Tensor:
        return -F.log_sigmoid(better - other)

    def _weights_of(self, scores_QM, labels_QM):
        return 1.0


class LambdaRankLoss(RankNetLoss):
    """LambdaRank (Burges et al. 2006): RankNet, each pair weighted by what its exchange changes in nDCG."""

    def _weights_of(self, scores_QM, labels_QM):
        with paddle.no_grad():
            ranks_QM = scores_QM.argsort(axis=1, descending=True).argsort(axis=1)
            discounts_QM = 1 / paddle.log2(ranks_QM.astype("float32") + 2)
            by_rank_M = discounts_QM[0].sort(descending=True)  # those of all ranks, in any query
            ideal_Q = labels_QM.sort(axis=1, descending=True) @ by_rank_M
            gains_QMM, changes_QMM = (
                (each_QM.unsqueeze(2) - each_QM.unsqueeze(1)).abs() for each_QM in (labels_QM, discounts_QM)
            )
            return gains_QMM * changes_QMM / ideal_Q.reshape([-1, 1, 1])


class MarginLoss(RankNetLoss):
    """The mean, over two candidates of different labels, of how much is missing to ``margin``."""

    def __init__(self, margin: float):
        super().__init__()
        self.margin = margin

    @classmethod
    def from_config(cls, config: PairConfig) -> "MarginLoss":
        """Return the loss with the margin of --margin."""
        return cls(config.margin)

    def _loss_of_pairs(self, better, other) -> paddle.Tensor:
        return F.relu(self.margin - better + other)


def _by_query(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows int64 [Q, M], which are there, their labels float32, of labels and queries int64 [B, 2]."""
    grades, queries = labels.T
    sizes = np.bincount(queries)
    columns = np.arange(sizes.max())
    is_there = columns < sizes[:, None]
    places = np.where(is_there, (np.cumsum(sizes) - sizes)[:, None] + columns, 0)
    return places, is_there, (grades[places] * is_there).astype(np.float32)


class Fgm:
    """The perturbation of ``embedding``; ``average``: over ranks, in place. InputError: it is frozen."""

    def __init__(self, embedding, epsilon: float, average: Callable[[paddle.Tensor], None]):
        if embedding.stop_gradient:
            raise InputError(
                f"--fgm_epsilon {epsilon} follows the gradient of the word embedding, which is frozen; let "
                "it train, or use --fgm_epsilon 0"
            )
        self.embedding, self.epsilon, self.average = embedding, epsilon, average

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Move the embedding within, and restore it; a gradient of 0 or not finite moves nothing."""
        with paddle.no_grad():
            gradient = self.embedding.grad.clone()
            self.average(gradient)
            length = gradient.norm()  # it stays on the device: nobody waits for it
            before = self.embedding.clone()
            has_direction = paddle.logical_and(paddle.isfinite(length), length > 0)
            moved = before + gradient * (self.epsilon / length)
            paddle.assign(paddle.where(has_direction, moved, before), self.embedding)
        try:
            yield
        finally:
            with paddle.no_grad():
                paddle.assign(before, self.embedding)
