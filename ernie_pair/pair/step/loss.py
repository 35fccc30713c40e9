"""The loss that a step lowers: the cross entropy, weighted by class, and the divergence of R-Drop.

R-Drop (Liang et al. 2021) lets every pair pass twice, under two draws of dropout. The loss of a pair is then
the mean of its two cross entropies and ``alpha`` times half of KL(p|q) + KL(q|p). The paper adds the two
entropies up: its alpha is twice this one. B rows, C classes.
"""

from typing import Callable, NamedTuple, Optional

import numpy as np
import paddle
from paddle.nn import functional as F

from ernie_pair.pair.data.encoded_pairs import Batch

Forward = Callable[[paddle.Tensor, paddle.Tensor], paddle.Tensor]
ToDevice = Callable[[np.ndarray], paddle.Tensor]


class LossParts(NamedTuple):
    """The loss of one micro-batch as a tensor with its graph, and numbers for the log, on the device."""

    loss: paddle.Tensor  # its mean over the rows, each counted by its weight
    numbers: paddle.Tensor  # float32 [3]: loss, divergence, rows that were predicted right; see `metric`
    rows: int  # that were asked, with R-Drop each pair twice


class PairLoss:
    """The loss of a micro-batch. ``class_weights``: float32 [C], what a row counts; None: all the same.

    ``metric`` names what the third of its numbers is, divided by the rows.
    """

    metric = "accuracy"

    def __init__(self, rdrop_alpha: float = 0.0, class_weights: Optional[np.ndarray] = None):
        self.rdrop_alpha, self.class_weights = rdrop_alpha, class_weights

    def weight_of(self, batch: Batch) -> float:
        """Return what the batch counts among others of its size; without class weights all count the same."""
        return 1.0 if self.class_weights is None else _sum(self.class_weights[batch.labels])

    def __call__(self, forward: Forward, batch: Batch, to_device: ToDevice = paddle.to_tensor) -> LossParts:
        """Return the loss of a micro-batch, computed in float32.

        ``forward`` takes input ids and token types int64 [B, S] and returns logits [B, C]; R-Drop gives it
        every row twice. ``to_device`` makes tensors of arrays.
        """
        copies = 2 if self.rdrop_alpha else 1
        assert batch.labels is not None  # training reads them
        ids_BS, types_BS, labels_B = (np.concatenate([a] * copies) if copies > 1 else a for a in batch)
        logits_BC, answers_B = (
            wide_logits(forward(to_device(ids_BS), to_device(types_BS))),
            to_device(labels_B),
        )
        loss = self._mean_entropy(logits_BC, answers_B, labels_B)
        divergence = None
        if self.rdrop_alpha:
            divergence = self._mean(_divergences(*logits_BC.chunk(2)), batch.labels)
            loss = loss + self.rdrop_alpha * divergence
        return LossParts(loss, _numbers_of(loss, divergence, logits_BC, answers_B), len(labels_B))

    def _mean_entropy(self, logits_BC, answers_B: paddle.Tensor, labels_B: np.ndarray) -> paddle.Tensor:
        # Paddle's own mean asks the device whether any label is to be ignored.
        return self._mean(F.cross_entropy(logits_BC, answers_B, reduction="none"), labels_B)

    def _mean(self, values_B: paddle.Tensor, labels_B: np.ndarray) -> paddle.Tensor:
        if self.class_weights is None:
            return values_B.mean()
        weights_B = self.class_weights[labels_B]
        shares_B = (weights_B / (_sum(weights_B) or 1.0)).astype(np.float32)
        return (values_B * paddle.to_tensor(shares_B)).sum()


@paddle.no_grad()
def _numbers_of(loss, divergence, logits_BC: paddle.Tensor, answers_B: paddle.Tensor) -> paddle.Tensor:
    right = (logits_BC.argmax(axis=1) == answers_B).astype("float32").sum()
    return paddle.stack([loss.detach(), right * 0 if divergence is None else divergence.detach(), right])


def _sum(weights: np.ndarray) -> float:
    return float(weights.sum(dtype=np.float64))


def wide_logits(logits: paddle.Tensor) -> paddle.Tensor:
    """Return the logits in float32, whatever they were computed in."""
    return logits if logits.dtype == paddle.float32 else logits.astype("float32")


def _divergences(first_BC: paddle.Tensor, second_BC: paddle.Tensor) -> paddle.Tensor:
    """Return (KL(p|q) + KL(q|p)) / 2 of every row, float32 [B]; p and q are softmax of the logits [B, C].

    It is sum (p - q) (log p - log q) / 2.
    """
    log_p, log_q = F.log_softmax(first_BC), F.log_softmax(second_BC)
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(axis=1) / 2
