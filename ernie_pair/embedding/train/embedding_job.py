"""The job of training an embedding model: what a step and an evaluation of the encoder are.

A step makes the vectors of its global batch, wherever they are computed, and each process computes the loss
of all of them; its gradient with respect to the vectors then goes back through the passes that made them. So
the negatives are those of the whole step, and any division of it over processes and micro-batches has one
gradient. Of several micro-batches each passes twice, with the same dropout, and only one graph is held at a
time (Gao et al. 2021, "Scaling deep contrastive learning batch size under memory limited setup").
"""

import math
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np
import paddle

from ernie_pair.checkpoint.checkpoint_folder import Checkpoint, Content
from ernie_pair.embedding.retrieval import RetrievalSet, measure_retrieval
from ernie_pair.embedding.train.contrastive import ContrastiveBatch, contrastive_loss
from ernie_pair.embedding.train.embedding_config import EmbeddingConfig
from ernie_pair.inference.embedder import unit_rows
from ernie_pair.inference.token_rows import EncodedPairs
from ernie_pair.models.embedding_json import EMBEDDING, EmbeddingSettings
from ernie_pair.models.networks.kernel_path import answers_of_rows, constant_weights, seed_dropout
from ernie_pair.models.networks.text_encoder import TextEncoder
from ernie_pair.pair.train import job_state
from ernie_pair.pair.train.pair_job import open_optimizer, rates_of
from ernie_pair.runtime.processes.world import seed_of
from ernie_pair.train.hooks import StopRequests
from ernie_pair.train.loop import learning_rate
from ernie_pair.train.step.amp import AmpContext, loss_scale_of, move_if_sound
from ernie_pair.train.step.data_parallel import DataParallel
from ernie_pair.train.step.recompute import num_frozen_layers
from ernie_pair.train.step_work import DeferredMetrics, EncoderSize, count_encoder


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


class WaitingStep(NamedTuple):
    """A step whose numbers have not been read yet.

    ``on_device``: float32 [2] loss and right anchors, the same on every rank; ``squares`` of this rank's part
    of the gradient's norm. ``counts`` are sums of this rank: tokens, padded tokens, operations.
    """

    metrics: DeferredMetrics
    on_device: paddle.Tensor
    squares: Any
    has_norm: bool
    counts: np.ndarray
    num_pairs: int
    rate: float


class EmbeddingJob:
    """The job of training ``model``; satisfies ``ernie_pair.train.run.Job``.

    ``settings`` are those of the trained model; ``total_steps`` bounds the schedule. ``beginning`` says in
    words what the initial weights are.
    """

    def __init__(
        self,
        config: EmbeddingConfig,
        model: TextEncoder,
        dev: DevTexts,
        total_steps: int,
        process_group,
        settings: EmbeddingSettings,
        *,
        vocab_file: Path,
        beginning: str = "start from the model as given",
    ):
        self.config, self.model, self.dev, self.settings = config, model, dev, settings
        self.process_group, self.total_steps = process_group, total_steps
        self.vocab_file, self.beginning = vocab_file, beginning
        self.rates = rates_of(config, total_steps)
        self.precision, self.loss_scale = AmpContext(config, model), loss_scale_of(config)
        self.optimizer = open_optimizer(config, model)
        self.parallel = DataParallel(model, self.optimizer, process_group, widens_sums=config.widens_sums)
        self.skipped_updates = 0
        self._operations = _Operations(config, model)
        # Whether the numbers of a step decide, on the host, whether the weights move.
        self._judges = self.loss_scale is not None or config.on_nan == "skip"
        self._reads_each_step = config.sync_freq_on(config.device) == 1
        self._waiting: List[WaitingStep] = []
        # Told the events within a step, and the rows of each batch of an evaluation; see `PairCallback`.
        self.on_event: Callable[[str], None] = lambda event: None
        self.on_batch: Optional[Callable[[int], None]] = None
        self._stop: Optional[StopRequests] = None  # that of the last step

    def load_initial_weights(self) -> str:
        """Return in words what the initial weights are: the model has been given them already."""
        return self.beginning

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        return learning_rate(step, **self.rates)

    def step(
        self, micro_batches: List[ContrastiveBatch], number: int, stop: StopRequests
    ) -> Mapping[str, float]:
        """Move the weights once and return the metrics of the step.

        loss is that of the global batch, accuracy the share of its anchors that find their positive first.
        With --on_nan skip the weights stay where the loss or the gradient is not finite, with a loss scale
        where the gradient is not: on all ranks alike.
        """
        rate = self.learning_rate(number - self.skipped_updates)
        self.model.train()
        with constant_weights(self.model):
            numbers = self._run(micro_batches, number)
        if self.loss_scale is not None:
            self.parallel.unscale(self.loss_scale)
        has_norm = self._judges or self._is_logged(number)
        squares = self.parallel.squares() if has_norm else 0.0
        metrics, self._stop = DeferredMetrics(self._read), stop
        counts = self._operations.count(micro_batches, self.model.pad_id)
        num_pairs = micro_batches[0].step.num_pairs
        self._waiting.append(WaitingStep(metrics, numbers, squares, has_norm, counts, num_pairs, rate))
        if self.process_group.size == 1:
            stop.set_total(stop.local())
        if self._judges:
            self._read()
            return {**metrics, **move_if_sound(self, rate, metrics["loss"], metrics["gradient_norm"])}
        is_known = has_norm and self.process_group.rank == 0 and isinstance(squares, float)
        self.on_event("on_pre_optimizer_step")
        self.parallel.step(rate, math.sqrt(squares) if is_known else None)
        self.on_event("on_optimizer_step")
        self.parallel.clear()
        if self._reads_each_step:
            self._read()
        return metrics

    def _is_logged(self, number: int) -> bool:
        return number % self.config.logging_freq == 0 or number == self.total_steps

    def _run(self, batches: List[ContrastiveBatch], number: int) -> paddle.Tensor:
        """Run forward and backward over the micro-batches, and return loss and right anchors, [2]."""
        if len(batches) == 1:
            (batch,) = batches
            with self.parallel.passing(True):
                vectors = self._vectors(batch, number, 0, self.parallel.forward)
                gradient, numbers = self._gradient([vectors.detach()], batches)
                self._backward(vectors, gradient, batch)
            return numbers
        with paddle.no_grad():
            made = [self._vectors(one, number, place, self.model) for place, one in enumerate(batches)]
        gradient, numbers = self._gradient(made, batches)
        for place, batch in enumerate(batches):
            with self.parallel.passing(place == len(batches) - 1):
                vectors = self._vectors(batch, number, place, self.parallel.forward)
                self._backward(vectors, gradient, batch)
            if place < len(batches) - 1:
                self.on_event("on_substep_end")
        return numbers

    def _vectors(self, batch: ContrastiveBatch, number: int, place: int, forward) -> paddle.Tensor:
        """Return the vectors of a micro-batch, float32 [B, D]; its dropout follows from its place."""
        seed_dropout(self.model, seed_of(self.config.seed, self.process_group.rank, number, place))
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
        dims, temperature = self.settings.dims, self.settings.temperature
        found = contrastive_loss(every, step, dims, temperature)
        found.loss.backward()
        return every.grad, paddle.stack([found.loss.detach(), found.right])

    def _backward(self, vectors: paddle.Tensor, gradient: paddle.Tensor, batch: ContrastiveBatch) -> None:
        """Send the gradient of a micro-batch's vectors back through the pass that made them.

        The ranks' gradients become means, and are to be sums: hence the factor.
        """
        own = gradient if len(gradient) == len(vectors) else gradient[paddle.to_tensor(batch.places)]
        loss = (vectors * own).sum() * self.parallel.loss_factor
        (loss if self.loss_scale is None else self.loss_scale.scale(loss)).backward()

    def _read(self) -> None:
        """Set the metrics of all steps that wait, by one sum over the ranks."""
        steps, self._waiting = self._waiting, []
        if not steps or self._stop is None:
            return
        is_first = self.process_group.rank == 0  # whose loss is everybody's
        own = [
            [*(each.on_device.numpy() * is_first), float(each.squares) * is_first, *each.counts]
            for each in steps
        ]
        heard = np.append(np.array(own, dtype=np.float64).ravel(), self._stop.local())
        added = self.process_group.all_reduce_now(heard)
        self._stop.set_total(added[-1])
        for step, sums in zip(steps, added[:-1].reshape(len(steps), -1).tolist()):
            step.metrics.set(_metrics_of(step, sums))

    def evaluate(self, split: str) -> Dict[str, float]:
        """Return how well the texts of the dev pairs find their matches; see `measure_retrieval`."""
        self._read()
        group, size, dev = self.process_group, self.config.eval_batch_size, self.dev
        with self.precision.casting():
            vectors = vectors_of_rows(self.model, dev.rows, size, group, self.on_batch)
            asking = None
            if dev.asking is not None:
                asking = vectors_of_rows(self.model, dev.asking, size, group, self.on_batch)
        return measure_retrieval(vectors, dev.asked, asking)

    def state_files(self) -> Iterator[Tuple[str, Content]]:
        """Iterate over (name, content) of the checkpoint files of this rank; see `job_state`."""
        yield from job_state.state_files(self)
        if self.process_group.rank == 0:
            yield EMBEDDING, self.settings.to_json().encode()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore a checkpoint, all ranks together. Raises CheckpointError with nothing set."""
        job_state.restore(self, checkpoint)


def _metrics_of(step: WaitingStep, sums: List[float]) -> Dict[str, float]:
    loss, right, squares, tokens, padded_tokens, flops = sums
    metrics = {
        "loss": loss,
        "accuracy": right / step.num_pairs,
        "padding_share": 1 - tokens / padded_tokens,
        **{"tokens": tokens, "padded_tokens": padded_tokens, "flops": flops},
        "learning_rate": step.rate,
    }
    return {**metrics, "gradient_norm": math.sqrt(squares)} if step.has_norm else metrics


class _Operations:
    """Counts the operations of training ``model``; frozen layers pass forward alone."""

    def __init__(self, config: EmbeddingConfig, model: TextEncoder):
        spec = model.spec
        self.size = EncoderSize(spec.num_layers, spec.hidden_size, spec.intermediate_size)
        frozen = num_frozen_layers(config, spec.num_layers) or 0
        self.trained = self.size._replace(layers=spec.num_layers - frozen)
        self.reads_all = model.pooling != "first_token"

    def count(self, batches: List[ContrastiveBatch], pad_id: int) -> np.ndarray:
        """Return tokens, padded tokens and operations of a rank's micro-batches, float64 [3]."""
        found = np.zeros(3)
        for batch in batches:
            rows, length = batch.input_ids.shape
            read = None if self.reads_all else rows
            operations = count_encoder(self.size, rows, length, read)
            operations += 2 * count_encoder(self.trained, rows, length, read)
            found += [np.count_nonzero(batch.input_ids != pad_id), batch.input_ids.size, operations]
        return found
