"""The loss of distillation: hard labels, soft targets, hidden states (Hinton et al. 2015).

The loss of a labelled pair is (1 - a) CE(label) + a t^2 KL(p|q), where p and q are the softmax of the logits
of teacher and student divided by the temperature t, and a is --soft_weight; that of a pair without label is
t^2 KL(p|q). --hidden_weight times the distance of the hidden states is added to both. B rows, C classes.
"""

from contextlib import ExitStack
from typing import Optional

import numpy as np
import paddle
from paddle.nn import functional as F

from ernie_pair.models.labels import UNLABELLED
from ernie_pair.pair.config.distill_config import StudentConfig
from ernie_pair.pair.data.encoded_pairs import Batch
from ernie_pair.pair.distill.models import StateDistance, Teacher
from ernie_pair.pair.train.loss import Forward, PairLoss, RowLosses, ToDevice
from ernie_pair.train.job import LossParts


class DistillLoss(PairLoss):
    """The loss of a micro-batch of distillation; ``parts`` of it are told in the log.

    The logits of ``teacher`` are those of the batch where it has them, otherwise it is asked. ``distance``:
    of the hidden states, None where they are not compared. The accuracy of a step counts a pair without
    label as right where the student chooses the class of its teacher.
    """

    def __init__(
        self,
        config: StudentConfig,
        teacher: Teacher,
        class_weights: Optional[np.ndarray],
        distance: Optional[StateDistance] = None,
    ):
        super().__init__(config.rdrop_alpha, class_weights, config.symmetric, config.symmetric_alpha)
        self.config, self.teacher, self.distance = config, teacher, distance
        self.parts = ("soft_loss",) if distance is None else ("soft_loss", "hidden_loss")
        self._batch: Optional[Batch] = None

    def __call__(self, forward: Forward, batch: Batch, to_device: ToDevice = paddle.to_tensor) -> LossParts:
        """Return the loss of a micro-batch; see `PairLoss`."""
        with ExitStack() as reading:
            for reader in (
                () if self.distance is None else (self.distance.of_student, self.distance.of_teacher)
            ):
                reading.enter_context(reader)
            self._batch = batch
            return super().__call__(forward, batch, to_device)

    def losses_of_rows(self, logits_BC, asked: Batch, to_device: ToDevice) -> RowLosses:
        """Return the losses of the rows of ``asked``, whose logits float32 [B, C] are given."""
        assert asked.labels is not None  # training reads them
        taught_BC = self._taught(asked, to_device)
        soft_B = soft_losses(logits_BC, taught_BC, self.config.temperature)
        has_label_B = asked.labels != UNLABELLED
        share_B = paddle.to_tensor(np.where(has_label_B, self.config.soft_weight, 1).astype(np.float32))
        known_B = paddle.to_tensor(np.where(has_label_B, asked.labels, 0))
        hard_B = F.cross_entropy(logits_BC, known_B, reduction="none")
        losses_B = (1 - share_B) * hard_B + share_B * soft_B
        answers_B = paddle.where(paddle.to_tensor(has_label_B), known_B, taught_BC.argmax(axis=1))
        if self.distance is None:
            return RowLosses(losses_B, answers_B, (soft_B,))
        is_token_BS1 = paddle.to_tensor((asked.input_ids != self.teacher.model.pad_id)[:, :, None])
        apart_B = self.distance.rows(is_token_BS1.astype("float32"))
        return RowLosses(losses_B + self.config.hidden_weight * apart_B, answers_B, (soft_B, apart_B))

    def _taught(self, asked: Batch, to_device: ToDevice) -> paddle.Tensor:
        """Return the logits of the teacher, float32 [B, C], of the pairs as the files have them."""
        if asked.teacher_logits is not None:
            return to_device(asked.teacher_logits)
        batch = self._batch
        assert batch is not None
        logits_BC = self.teacher(to_device(batch.input_ids), to_device(batch.token_type_ids))
        return paddle.concat([logits_BC] * (len(asked.input_ids) // len(batch.input_ids)))

    def weights_of_rows(self, labels_B: np.ndarray) -> np.ndarray:
        """Return what each row counts, float32 [B]: one without label 1."""
        return np.where(labels_B == UNLABELLED, np.float32(1), super().weights_of_rows(labels_B))


def soft_losses(logits_BC, taught_BC, temperature: float) -> paddle.Tensor:
    """Return t^2 KL(p|q) of every row, float32 [B], of the logits of student and teacher [B, C]."""
    log_q_BC = F.log_softmax(logits_BC / temperature)
    log_p_BC = F.log_softmax(taught_BC / temperature)
    return temperature**2 * (log_p_BC.exp() * (log_p_BC - log_q_BC)).sum(axis=1)
