"""Training an embedding model as a task of the one engine; see `Task`.

A step makes the vectors of its global batch, wherever they are computed, and each process computes the loss
of all of them; its gradient with respect to the vectors then goes back through the passes that made them. So
the negatives are those of the whole step, and any division of it over processes and micro-batches has one
gradient. Of several micro-batches each passes twice, with the same dropout, and only one graph is held at a
time (Gao et al. 2021, "Scaling deep contrastive learning batch size under memory limited setup").
"""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Iterator, Optional

import numpy as np
import paddle

from ernie_pair.checkpoint.checkpoint_folder import Content
from ernie_pair.checkpoint.fingerprint import Fingerprint
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.core.errors import InputError
from ernie_pair.embeddings.embed_config import AUTO
from ernie_pair.embeddings.open_embedder import settings_of_model
from ernie_pair.embeddings.retrieval import BEST, GRADED_BEST, measure_retrieval
from ernie_pair.embeddings.train.contrastive import ContrastiveBatch, step_loss
from ernie_pair.embeddings.train.embedding_config import USUAL_LENGTH, EmbeddingConfig, TrainEmbeddingConfig
from ernie_pair.embeddings.train.embedding_data import PARTS, Datasets, EmbeddingData, open_embedding_data
from ernie_pair.inference.embedder import unit_rows
from ernie_pair.inference.token_rows import EncodedPairs
from ernie_pair.models.embedding_json import (
    EMBEDDING,
    NORMALIZE,
    SIMILARITIES,
    EmbeddingSettings,
    width_after,
)
from ernie_pair.models.model_card import Measured, ModelCard
from ernie_pair.models.networks.encoders import predict_rows
from ernie_pair.models.networks.kernel_path import choose_path
from ernie_pair.models.networks.text_encoder import TextEncoder, build_text_encoder, load_text_weights
from ernie_pair.models.source import ModelSource, open_start
from ernie_pair.pairs.audit.trained_pairs import trained_pairs_file
from ernie_pair.runtime.processes.world import World
from ernie_pair.training.recompute import num_frozen_layers
from ernie_pair.training.task import Task, TrainResult, train_task
from ernie_pair.training.training_step import LossParts, MicroBatchResult, PendingStep

logger = logging.getLogger(__name__)

COMMANDS = """\
ernie-pair embed --model_path . --input_file texts.txt --output_dir vectors
ernie-pair evaluate --model_path . --input_file pairs.tsv --output_file metrics.json"""


def train_embedding(config: TrainEmbeddingConfig) -> TrainResult:
    """Train a sentence-embedding model on files, from the newest checkpoint of ``output_dir`` or a model.

    Returns what `EmbeddingTrainer.train` does. Raises an ErniePairError.
    """
    return train_task(EmbeddingTask(config))


class EmbeddingTask(Task):
    """The training of an encoder, for the command and for `EmbeddingTrainer`.

    ``name_or_path``: of the model to begin with; ``datasets``: the data; None: both as the flags say.
    """

    command = "train-embedding"
    model: TextEncoder
    source: ModelSource
    data: EmbeddingData
    settings: EmbeddingSettings  # of the trained model

    def __init__(self, config: EmbeddingConfig, name_or_path: str = "", datasets: Optional[Datasets] = None):
        metric = config.best_metric
        metric = BEST if metric == AUTO and not config.has_graded_dev else metric
        super().__init__(replace(config, best_metric=metric))
        self._name_or_path, self._datasets = name_or_path, datasets
        self.num_steps = self.num_without_negatives = 0  # of this start
        self._has_warned = False  # of steps without negatives

    def open_model(self) -> None:
        """Open the model, its pooling and length where no flag says. Raises InputError, CheckpointError."""
        config = self.config
        self.source = open_start(config, self._name_or_path)
        self.settings = settings = _settings_of(config, self.source)
        self.config = config = replace(config, pooling=settings.pooling, max_seq_len=settings.max_seq_len)
        self.model = build_text_encoder(
            self.source, config.seed, config.dropout, settings.pooling, settings.graph_steps
        )
        if config.save_format != "paddle":
            self.model.check_equal_in_hf()
        num_frozen_layers(config, len(self.model.layers()))  # refused before any data are read
        choose_path(self.model, config, config.device)  # the same
        self.beginning = load_text_weights(self.model, self.source)

    def open_data(self, world: World) -> None:
        """Open the texts to train on and the dev pairs."""
        datasets = self._datasets or {part: getattr(self.config, f"{part}_file") for part in PARTS}
        self.data = open_embedding_data(self.config, datasets, self.source, self.settings, world)
        metric, is_graded = self.config.best_metric, not len(self.data.dev.retrieval.queries)
        if metric == AUTO:
            self.config = replace(self.config, best_metric=GRADED_BEST if is_graded else BEST)
        elif is_graded and metric != GRADED_BEST:
            raise InputError(
                f"--best_metric {metric} needs matches, and the dev pairs are graded; use {GRADED_BEST}"
            )

    def loss(self, batch: ContrastiveBatch) -> LossParts:
        """Raise NotImplementedError: a step has one loss, of the vectors of all its micro-batches."""
        raise NotImplementedError

    def forward_backward(
        self, batches: list[ContrastiveBatch], number: int
    ) -> tuple[list[MicroBatchResult], float]:
        """Run forward and backward over the micro-batches; the loss of all ranks is that of each."""
        step = batches[0].step
        self.num_steps += 1
        self.num_without_negatives += not step.has_negatives
        numbers = self._run(batches, number)
        is_first = float(self.process_group.rank == 0)
        return [MicroBatchResult(numbers, step.num_pairs, is_first)], float(step.num_pairs)

    def metrics_of(self, step: PendingStep, sums: list[float]) -> dict[str, float]:
        """Return the loss of the global batch, and the share of anchors that find their positive first."""
        return {"loss": sums[0], "accuracy": sums[1] / step.total_weight}

    def _run(self, batches: list[ContrastiveBatch], number: int) -> paddle.Tensor:
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
        with self.autocast():
            vectors = forward(paddle.to_tensor(batch.input_ids), paddle.to_tensor(batch.token_type_ids))
        return vectors.astype("float32")

    def _gradient(
        self, made: list[paddle.Tensor], batches: list[ContrastiveBatch]
    ) -> tuple[paddle.Tensor, paddle.Tensor]:
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
        loss, right = step_loss(every, step, self.settings.dims, self.settings.temperature)
        loss.backward()
        return every.grad, paddle.stack([loss.detach(), right])

    def _send_back(self, vectors: paddle.Tensor, gradient: paddle.Tensor, batch: ContrastiveBatch) -> None:
        """Send back a micro-batch's gradient; the ranks' means are to be sums: hence the factor."""
        own = gradient if len(gradient) == len(vectors) else gradient[paddle.to_tensor(batch.places)]
        self.backward((vectors * own).sum(), self.parallel.loss_factor)

    def evaluate(self, split: str) -> dict[str, float]:
        """Return how well the texts of the dev pairs find their matches; see `measure_retrieval`."""
        dev = self.data.dev
        with self.evaluating():
            vectors = self.vectors_of(dev.rows)
            as_queries = None if dev.as_queries is None else self.vectors_of(dev.as_queries)
        return measure_retrieval(vectors, dev.retrieval, as_queries)

    def vectors_of(self, rows: EncodedPairs) -> np.ndarray:
        """Return the vectors of rows, float32 [N, D] of length 1, on every rank; or NumbersError."""
        shared = self.model.dim, self.config.eval_batch_size, self.process_group, self.on_batch
        return unit_rows(predict_rows(self.model, rows, *shared), "the model")

    def more_files(self) -> Iterator[tuple[str, Content]]:
        """Yield embedding.json, and which pairs were learned."""
        yield EMBEDDING, self.settings.to_json().encode()
        yield from self._learned().items()

    def _learned(self) -> dict[str, bytes]:
        return trained_pairs_file(self.source.vocab_file.parent, *self.data.learned)

    def on_log(self, line: dict[str, float]) -> None:
        """Warn, where nothing is evaluated, as `on_evaluate` does."""
        if self.config.evaluation_strategy == "no":
            self._warn_of_no_negatives()

    def on_evaluate(self, state: TrainState) -> None:
        """Warn where steps had no negatives: at the first evaluation behind one, and once."""
        self._warn_of_no_negatives()

    def _warn_of_no_negatives(self) -> None:
        if self.num_without_negatives and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%d of %d steps held no negative, and taught nothing: all of their texts belong together, or "
                "are the same, or have one score; give more different pairs, a larger --batch_size, or "
                "--negatives_file",
                self.num_without_negatives,
                self.num_steps,
            )

    def resume_fingerprint(self) -> Fingerprint:
        """Return the lengths of the vectors, and what there is of modules, prompts and sampling weights."""
        dims, beyond = ",".join(map(str, self.settings.dims)), self.settings.beyond_pooling()
        modules = {"modules and prompts": json.dumps(beyond, sort_keys=True)} if beyond else {}
        given = self.config.sampling_weights
        return {"dims": dims, **modules, **({"sampling_weights": given} if given else {})}

    def save(self, draft: Path) -> None:
        """Write the encoder with its embedding.json, and which pairs were learned."""
        self.model.write_embedding(draft, self.source.vocab_file, self.settings, self.config.save_format)
        for name, content in self._learned().items():
            (draft / name).write_bytes(content)

    def card(self, kernels: str, step: int, metrics: dict[str, float]) -> ModelCard:
        """Return the card of the encoder of ``step``."""
        from ernie_pair.evaluation.embeddings.export_embedding import PYTHON

        config = self.config
        return ModelCard(
            title=f"An embedding model of the family {self.model.family}",
            facts={
                "base model": self.source.name,
                "initial weights": self.beginning.removeprefix("start from ").removeprefix("the weights "),
                "numbers of a vector": ", ".join(map(str, self.settings.dims)),
                "pooling": self.settings.pooling,
                "tokens per text": str(config.max_seq_len),
                "computed by": kernels,
                "chosen": f"step {step}, the best {config.best_metric} so far",
            },
            data=self.data.files,
            flags=self.shown_flags(),
            metrics={name: Measured(value) for name, value in metrics.items()},
            measured_on=f"Of the dev pairs: {self.data.dev.retrieval.describe()}.",
            commands=COMMANDS,
            python=PYTHON,
        )


def _settings_of(config: EmbeddingConfig, source: ModelSource) -> EmbeddingSettings:
    """Return the settings of the trained model: its vectors have length 1, and are compared by cosines."""
    retrieval = "" if config.pooling == AUTO else config.pooling
    is_plain = source.embedding is None
    usual = USUAL_LENGTH if is_plain else 0
    start = settings_of_model(source, retrieval, config.max_seq_len or usual)
    if not is_plain:
        logger.info("pooling %s, %d tokens per text", start.pooling, start.max_seq_len)
    if any(start.prompts.values()):
        start.check_prompt(start.prompt_of("query") or start.prompt_of("passage"), source.name)
    steps = tuple(step for step in start.steps if step.kind != "truncate")
    steps = steps if steps[-1:] == (NORMALIZE,) else (*steps, NORMALIZE)
    whole = width_after(start.pooling, source.spec.hidden_size, steps)
    if start.steps != steps or start.similarity != SIMILARITIES[0]:
        logger.info(
            "trained: vectors of %d numbers and length 1, for cosines; the start says %d numbers%s and %s",
            whole,
            start.dim,
            "" if NORMALIZE in start.steps else ", of any length",
            start.similarity,
        )
    chosen = config.chosen_dims
    if chosen and chosen[-1] > whole:
        raise InputError(
            f"--dims {config.dims}: the vectors of this model have {whole} numbers; give none above that"
        )
    dims = tuple(sorted({*chosen, whole}))
    return replace(
        start, steps=steps, dim=whole, dims=dims, temperature=config.temperature, similarity=SIMILARITIES[0]
    )
