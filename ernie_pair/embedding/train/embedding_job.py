"""The job of training an embedding model: what a step and an evaluation of the encoder are.

A step makes the vectors of its global batch, wherever they are computed, and each process computes the loss
of all of them; its gradient with respect to the vectors then goes back through the passes that made them. So
the negatives are those of the whole step, and any division of it over processes and micro-batches has one
gradient. Of several micro-batches each passes twice, with the same dropout, and only one graph is held at a
time (Gao et al. 2021, "Scaling deep contrastive learning batch size under memory limited setup").
"""

from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np
import paddle

from ernie_pair.checkpoint.checkpoint_folder import Content
from ernie_pair.embedding.retrieval import RetrievalSet, measure_retrieval
from ernie_pair.embedding.train.contrastive import ContrastiveBatch, contrastive_loss
from ernie_pair.embedding.train.embedding_config import EmbeddingConfig
from ernie_pair.inference.embedder import unit_rows
from ernie_pair.inference.token_rows import EncodedPairs
from ernie_pair.models.embedding_json import EMBEDDING, EmbeddingSettings
from ernie_pair.models.networks.kernel_path import answers_of_rows
from ernie_pair.models.networks.text_encoder import TextEncoder
from ernie_pair.train.job import LossParts, Pass, StepOperations, TaskJob, WaitingStep


def vectors_of_rows(
    model: TextEncoder,
    rows: EncodedPairs,
    batch_size: int,
    process_group,
    asked: Optional[Callable[[int], None]] = None,
) -> np.ndarray:
    """Return the vector of every row, float32 [N, D] of length 1, in their order, on every rank.

    ``asked`` and the batches are those of `answers_of_rows`. Leaves ``model`` in evaluation mode. Raises
    NumbersError for a vector that is not finite.
    """
    vectors = answers_of_rows(model, rows, model.dim, batch_size, process_group, asked)
    return unit_rows(vectors, "the model")


class DevTexts(NamedTuple):
    """What an evaluation asks: the retrieval set, and its texts as token ids.

    ``asking``: the same texts with the prompt of queries, where that is another one.
    """

    asked: RetrievalSet
    rows: EncodedPairs
    asking: Optional[EncodedPairs] = None


class EmbeddingJob(TaskJob):
    """The job of training ``model``; see `TaskJob`, whose arguments ``more`` are.

    ``settings`` are those of the trained model.
    """

    def __init__(
        self,
        config: EmbeddingConfig,
        model: TextEncoder,
        dev: DevTexts,
        total_steps: int,
        process_group,
        settings: EmbeddingSettings,
        **more,
    ):
        operations = StepOperations(config, model, first_token=model.pooling == "first_token")
        super().__init__(config, model, total_steps, process_group, operations=operations, **more)
        self.dev, self.settings = dev, settings

    def loss_of(self, batch) -> LossParts:
        """Raise NotImplementedError: a step has one loss, of the vectors of all its micro-batches."""
        raise NotImplementedError

    def run_micro_batches(self, batches: List[ContrastiveBatch], number: int) -> Tuple[List[Pass], float]:
        """Run forward and backward over the micro-batches; the loss of all ranks is that of each."""
        numbers = self._run(batches, number)
        counts = np.sum([self.work_of(batch) for batch in batches], axis=0)
        is_first = float(self.process_group.rank == 0)
        num_pairs = batches[0].step.num_pairs
        return [Pass(numbers, num_pairs, is_first, *counts.tolist())], float(num_pairs)

    def metrics_of(self, step: WaitingStep, sums: List[float]) -> Dict[str, float]:
        """Return the loss of the global batch, and the share of anchors that find their positive first."""
        return {"loss": sums[0], "accuracy": sums[1] / step.whole}

    def _run(self, batches: List[ContrastiveBatch], number: int) -> paddle.Tensor:
        """Run forward and backward over the micro-batches, and return loss and right anchors, [2]."""
        if len(batches) == 1:
            (batch,) = batches
            with self.parallel.passing(True):
                vectors = self._vectors(batch, number, 0, self.parallel.forward)
                gradient, numbers = self._gradient([vectors.detach()], batches)
                self._send_back(vectors, gradient, batch)
            return numbers
        with paddle.no_grad():
            made = [self._vectors(one, number, place, self.model) for place, one in enumerate(batches)]
        gradient, numbers = self._gradient(made, batches)
        for place, batch in enumerate(batches):
            with self.parallel.passing(place == len(batches) - 1):
                vectors = self._vectors(batch, number, place, self.parallel.forward)
                self._send_back(vectors, gradient, batch)
            if place < len(batches) - 1:
                self.on_event("on_substep_end")
        return numbers

    def _vectors(self, batch: ContrastiveBatch, number: int, place: int, forward) -> paddle.Tensor:
        """Return the vectors of a micro-batch, float32 [B, D]; its dropout follows from its place."""
        self.seed_pass(number, place)
        with self.precision.casting():
            vectors = forward(paddle.to_tensor(batch.input_ids), paddle.to_tensor(batch.token_type_ids))
        return vectors.astype("float32")

    def _gradient(
        self, made: List[paddle.Tensor], batches: List[ContrastiveBatch]
    ) -> Tuple[paddle.Tensor, paddle.Tensor]:
        """Return the gradient of the loss with respect to all vectors of the step, and the numbers [2]."""
        step, size = batches[0].step, self.process_group.size
        if size == 1 and len(batches) == 1:  # the rows are in their order, and stay on the device
            every = made[0]
        else:
            rows = np.zeros((len(step.numbers), made[0].shape[1]), dtype=np.float32)
            for batch, vectors in zip(batches, made):
                rows[batch.places] = vectors.numpy()
            every = paddle.to_tensor(self.process_group.all_reduce_now(rows))
        every.stop_gradient = False
        loss, right = contrastive_loss(every, step, self.settings.dims, self.settings.temperature)
        loss.backward()
        return every.grad, paddle.stack([loss.detach(), right])

    def _send_back(self, vectors: paddle.Tensor, gradient: paddle.Tensor, batch: ContrastiveBatch) -> None:
        """Send the gradient of a micro-batch's vectors back through the pass that made them.

        The ranks' gradients become means, and are to be sums: hence the factor.
        """
        own = gradient if len(gradient) == len(vectors) else gradient[paddle.to_tensor(batch.places)]
        loss = (vectors * own).sum() * self.parallel.loss_factor
        (loss if self.loss_scale is None else self.loss_scale.scale(loss)).backward()

    def evaluate(self, split: str) -> Dict[str, float]:
        """Return how well the texts of the dev pairs find their matches; see `measure_retrieval`."""
        self.read()
        group, size, dev = self.process_group, self.config.eval_batch_size, self.dev
        with self.precision.casting():
            vectors = vectors_of_rows(self.model, dev.rows, size, group, self.on_batch)
            asking = None
            if dev.asking is not None:
                asking = vectors_of_rows(self.model, dev.asking, size, group, self.on_batch)
        return measure_retrieval(vectors, dev.asked, asking)

    def more_files(self) -> Iterator[Tuple[str, Content]]:
        """Yield embedding.json."""
        yield EMBEDDING, self.settings.to_json().encode()
