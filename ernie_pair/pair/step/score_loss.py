"""The losses of models without classes, and which of all losses a run lowers. B rows."""

from typing import Optional

import numpy as np
import paddle

from ernie_pair.model_files.labels import Labels
from ernie_pair.pair.data.encoded_pairs import Batch
from ernie_pair.pair.step.loss import Forward, LossParts, PairLoss, ToDevice, wide_logits


def loss_of(labels: Labels, rdrop_alpha: float, class_weights: Optional[np.ndarray]) -> PairLoss:
    """Return the loss of a model that learns ``labels``."""
    return PairLoss(rdrop_alpha, class_weights) if labels.has_classes else SquaredError()


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
