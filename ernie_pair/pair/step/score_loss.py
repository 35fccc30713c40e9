"""The losses of models without classes, and the choice of the loss of a run.

B rows, Q queries, M candidates of the one that has most.
"""

from abc import ABC, abstractmethod
from typing import Optional, Tuple

import numpy as np
import paddle
from paddle.nn import functional as F

from ernie_pair.model_files.labels import RANKING, Labels
from ernie_pair.pair.config.pair_config import PairConfig
from ernie_pair.pair.data.encoded_pairs import Batch
from ernie_pair.pair.step.loss import Forward, LossParts, PairLoss, ToDevice, pair_loss, wide_logits

LOWEST = -1e4  # the score of a candidate that is not there: it has no share of the softmax


def loss_of(labels: Labels, config: PairConfig, class_weights: Optional[np.ndarray]) -> PairLoss:
    """Return the loss of a model that learns ``labels``, as the flags say."""
    if labels.has_classes:
        return pair_loss(config, class_weights)
    if labels.target == RANKING:
        return MarginLoss(config.margin) if config.ranking_loss == "margin" else ListwiseLoss()
    return SquaredError()


class SquaredError(PairLoss):
    """The loss of regression: the mean squared error of the output, as transformers computes it.

    ``numbers`` of what it returns end with the sum of the absolute errors.
    """

    metric = "mae"

    def __call__(self, forward: Forward, batch: Batch, to_device: ToDevice = paddle.to_tensor) -> LossParts:
        """Return the loss of a micro-batch, computed in float32; see `PairLoss`."""
        assert batch.labels is not None  # training reads them
        outputs_B1 = wide_logits(forward(to_device(batch.input_ids), to_device(batch.token_type_ids)))
        errors_B = outputs_B1.squeeze(1) - to_device(batch.labels).astype("float32")
        loss = (errors_B**2).mean()
        return LossParts(loss, _numbers_of(loss, errors_B), len(batch.labels))


@paddle.no_grad()
def _numbers_of(loss: paddle.Tensor, errors_B: paddle.Tensor) -> paddle.Tensor:
    total = errors_B.abs().sum()
    return paddle.stack([loss.detach(), total * 0, total])


class RankingLoss(PairLoss, ABC):
    """A loss over the candidates of each query, all of which are in one micro-batch.

    ``numbers`` of what it returns end with the number of queries whose highest score is of a relevant one.
    """

    metric = "hit_at_1"

    def __call__(self, forward: Forward, batch: Batch, to_device: ToDevice = paddle.to_tensor) -> LossParts:
        """Return the mean loss of the queries of a micro-batch, computed in float32; see `PairLoss`."""
        assert batch.labels is not None  # training reads them
        outputs_B1 = wide_logits(forward(to_device(batch.input_ids), to_device(batch.token_type_ids)))
        places, is_there, relevant = _by_query(batch.labels)
        is_there_QM, relevant_QM = paddle.to_tensor(is_there), paddle.to_tensor(relevant)
        found_QM = paddle.gather(outputs_B1.squeeze(1), paddle.to_tensor(places.ravel())).reshape(
            places.shape
        )
        scores_QM = paddle.where(is_there_QM, found_QM, paddle.full_like(found_QM, LOWEST))
        loss = self._loss_of(scores_QM, is_there_QM, relevant_QM).mean()
        return LossParts(loss, _hits_of(loss, scores_QM, relevant_QM), len(places))

    @abstractmethod
    def _loss_of(self, scores_QM, is_there_QM, relevant_QM) -> paddle.Tensor:
        """Return the loss of each query, float32 [Q]; ``relevant_QM``: 1.0 or 0.0, what is not there 0.0."""


class ListwiseLoss(RankingLoss):
    """The cross-entropy of softmax over the candidates of a query against its relevant ones, all alike.

    That is ListNet (Cao et al. 2007) with labels of 1 and 0.
    """

    def _loss_of(self, scores_QM, is_there_QM, relevant_QM) -> paddle.Tensor:
        wanted_QM = relevant_QM / relevant_QM.sum(axis=1, keepdim=True)
        return -(wanted_QM * F.log_softmax(scores_QM)).sum(axis=1)


class MarginLoss(RankingLoss):
    """The mean, over pairs of a relevant and another candidate, of how much is missing to ``margin``."""

    def __init__(self, margin: float):
        super().__init__()
        self.margin = margin

    def _loss_of(self, scores_QM, is_there_QM, relevant_QM) -> paddle.Tensor:
        others_QM = is_there_QM.astype("float32") - relevant_QM
        pairs_QMM = relevant_QM.unsqueeze(2) * others_QM.unsqueeze(1)
        missing_QMM = F.relu(self.margin - scores_QM.unsqueeze(2) + scores_QM.unsqueeze(1))
        return (missing_QMM * pairs_QMM).sum(axis=[1, 2]) / pairs_QMM.sum(axis=[1, 2])


def _by_query(labels: np.ndarray) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows of each query int64 [Q, M], which of them are there, bool, and relevant, float32.

    ``labels`` int64 [B, 2]: the label of each row and the number of its query, which rises from 0.
    """
    relevance, queries = labels.T
    sizes = np.bincount(queries)
    columns = np.arange(sizes.max())
    is_there = columns < sizes[:, None]
    places = np.where(is_there, (np.cumsum(sizes) - sizes)[:, None] + columns, 0)
    return places, is_there, (relevance[places] * is_there).astype(np.float32)


@paddle.no_grad()
def _hits_of(loss: paddle.Tensor, scores_QM: paddle.Tensor, relevant_QM: paddle.Tensor) -> paddle.Tensor:
    first_Q1 = scores_QM.argmax(axis=1, keepdim=True)
    hits = paddle.take_along_axis(relevant_QM, first_Q1, axis=1).sum()
    return paddle.stack([loss.detach(), hits * 0, hits])
