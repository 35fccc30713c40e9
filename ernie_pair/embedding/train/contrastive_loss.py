"""The loss of a step: each anchor should find its positive among all candidates of the global batch.

It is the mean over the anchors of -log softmax(cosines / temperature) at the positive: InfoNCE, as in SimCSE
(Gao et al. 2021), and with hard negatives its supervised form. With several lengths (Matryoshka,
Kusupati et al. 2022) it is the mean of the losses of the vectors cut off there. N anchors, C candidates.
"""

from typing import NamedTuple, Sequence

import numpy as np
import paddle
from paddle.nn import functional as F

from ernie_pair.embedding.train.contrastive_batch import StepTexts

HIDDEN = -1e9  # added to a cosine / temperature: its weight in the softmax is 0 in float32


class ContrastiveLoss(NamedTuple):
    """The loss with its graph, and how many anchors find their positive first; tensors of a number."""

    loss: paddle.Tensor
    right: paddle.Tensor


def contrastive_loss(
    vectors: paddle.Tensor, step: StepTexts, dims: Sequence[int], temperature: float
) -> ContrastiveLoss:
    """Return the loss of a step, of its vectors float32 [2 N + H, D] of any length.

    ``dims``: the lengths at which they are cut off, the last of which says how many anchors are right.
    """
    hidden = paddle.to_tensor(np.where(step.is_hidden, HIDDEN, 0).astype(np.float32))
    answers = paddle.arange(step.num_pairs)
    losses = []
    for dim in dims:
        rows = F.normalize(vectors[:, :dim], axis=1, epsilon=1e-12)
        scores_NC = paddle.matmul(rows[: step.num_pairs], rows[step.num_pairs :], transpose_y=True)
        scores_NC = scores_NC / temperature + hidden
        losses.append(F.cross_entropy(scores_NC, answers, reduction="none").mean())
    with paddle.no_grad():
        right = (scores_NC.argmax(axis=1) == answers).astype("float32").sum()
    return ContrastiveLoss(paddle.stack(losses).mean(), right)
