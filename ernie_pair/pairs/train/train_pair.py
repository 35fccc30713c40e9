"""Pair training: a classifier, a ranker or a regression as a task of the one engine; see `Task`."""

import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Callable, Iterator, Optional, Sequence

import numpy as np
import paddle
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from ernie_pair.checkpoint.checkpoint_folder import Content
from ernie_pair.checkpoint.fingerprint import Fingerprint
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.core.cli.options import defaults_of
from ernie_pair.core.errors import InputError
from ernie_pair.inference.scores import probabilities
from ernie_pair.models.labels import RANKING, Labels
from ernie_pair.models.model_card import BASELINE, Measured, ModelCard
from ernie_pair.models.networks.classifier import PairClassifier
from ernie_pair.models.networks.custom_model import CustomModel
from ernie_pair.models.networks.encoders import predict_logits
from ernie_pair.models.temperature import (
    CALIBRATION,
    Calibration,
    calibration_bytes,
    mean_of_orders,
)
from ernie_pair.pairs.config.pair_config import PairConfig, TrainConfig
from ernie_pair.pairs.data.encoded_pairs import Batch, EncodedPairs
from ernie_pair.pairs.targets.metrics import (
    LIKELIEST,
    LOWER_IS_BETTER,
    ComputeMetrics,
    CountedQueries,
    CountedRows,
    CountedScores,
    check_best_metric,
    choose_measure,
    describe_single_class,
    find_single_class,
    measure_with,
)
from ernie_pair.pairs.train.datasets import PairData, open_pair_data, pair_sources, words_of_pairs
from ernie_pair.pairs.train.initial_model import InitialModel, open_initial_model, with_best_metric
from ernie_pair.pairs.train.loss import Fgm, PairLoss, loss_of
from ernie_pair.runtime.paddle_patches.optimizer_state import scheduler_in
from ernie_pair.runtime.processes.world import World
from ernie_pair.training.step_metrics import PROBABILITY_COUNTS, count_probabilities
from ernie_pair.training.task import Task, TrainResult, train_task
from ernie_pair.training.training_step import LossParts, MicroBatchResult, PendingStep

LOSS, DIVERGENCE, NUM_CORRECT, PARTS = range(4)  # places among the numbers of a pass, see `LossParts`
RESAMPLES = 200
FITTED_ON = 10_000  # pairs, at most, that the head of --pooling cosine begins with
COMMANDS = """\
ernie-pair evaluate --model_path . --input_file pairs.tsv --output_file metrics.json
ernie-pair predict --model_path . --input_file pairs.tsv --output_file predictions.tsv"""
PYTHON = """\
from ernie_pair import load

answer = load(".").predict([("怎么注销信用卡", "如何注销信用卡")])
print({shown})"""
PYTHON_FOR_LAYER = """\
from ernie_pair import PairConfig, PairTrainer

layer = {name}(...)  # as it was made for this run
trainer = PairTrainer(layer, PairConfig("output", max_seq_len={length}), weights=".")
answer = trainer.predict([("怎么注销信用卡", "如何注销信用卡")])
print({shown})"""
TITLES = {True: "{} sentence-pair classifier", False: "{} model that scores sentence pairs"}
SHOWN = {True: "answer.labels, answer.probabilities", False: "answer.scores"}
ANY_SHAPE = [None, None]
COMPARED = ("ernie", "ernie_gram", "bert")  # families, by the tests

logger = logging.getLogger(__name__)


def train_pair(config: TrainConfig) -> TrainResult:
    """Train a sentence-pair classifier on files, from the newest checkpoint of ``output_dir`` or a model.

    Returns what `PairTrainer.train` does; that class takes lists, DataFrames and models in memory, and
    predicts afterwards. Raises an ErniePairError.
    """
    return train_task(PairTask(config))


@dataclass
class Overrides:
    """The parts of a run that are not as the flags say; None: they are.

    ``make_optimizer`` and ``make_scheduler`` are called once the model is frozen and has its kernels;
    ``evaluate`` replaces the evaluation on the dev pairs, ``log`` is called with each line of the log.
    """

    compute_metrics: Optional[ComputeMetrics] = None
    loss: Optional[PairLoss] = None
    make_optimizer: Optional[Callable[[], Optimizer]] = None
    make_scheduler: Optional[Callable[[int, Any], LRScheduler]] = None  # takes the steps, and an optimizer
    evaluate: Optional[Callable[[], dict[str, float]]] = None
    log: Optional[Callable[[dict[str, float]], None]] = None


class PairTask(Task):
    """The training of a model of pairs, for the command and for `PairTrainer`, which opens its parts itself.

    ``overrides``: what the user replaces.
    """

    command = "train"
    model: PairClassifier
    data: PairData

    def __init__(
        self,
        config: PairConfig,
        start: Optional[InitialModel] = None,
        data: Optional[PairData] = None,
        overrides: Optional[Overrides] = None,
    ):
        super().__init__(config)
        self.overrides = overrides or Overrides()
        self.logits: Optional[np.ndarray] = None  # of the dev pairs, float32 [N, C], the last time
        # The class predicted for all rows though their labels differ, at the last evaluation and when warned.
        self._single_class: Optional[int] = None
        self._warned_of_class: Optional[int] = None
        if start is not None:
            self.take(start)
        if data is not None:
            self.data = data

    def open_model(self) -> None:
        """Open the model that the flags name."""
        words = partial(words_of_pairs, pair_sources(self.config, None), self.config.label_map)
        start = open_initial_model(self.config, self.config.model_name_or_path, words)
        self.config = with_best_metric(self.config, start)
        self.take(start)

    def take(self, start: InitialModel) -> None:
        """Take the model to begin with."""
        self.initial, self.model = start, start.model
        self.source, self.beginning = start.source, start.beginning
        if self.config.save_format != "paddle":
            self.model.check_equal_in_hf()

    def open_data(self, world: World) -> None:
        """Open the files that the flags name."""
        self.data = open_pair_data(self.config, self.source, world)

    @property
    def lower_is_better(self) -> bool:  # type: ignore[override]
        """Return whether a lower best_metric is better."""
        return self.config.lower_is_better

    def describe(self) -> None:
        """Log where the models of this run load, when that is not everywhere."""
        if self.model.spec.has_match:
            logger.info(
                "match embeddings: the encoder is told which tokens stand in the other text too; PaddleNLP "
                "alone cannot load such a model, and can with --match_embeddings false"
            )
        if self.model.pooling not in ("", "cls"):
            logger.info(
                "--pooling %s: the models of this run load in ernie-pair alone, and not in PaddleNLP's "
                "AutoModelForSequenceClassification, which has no such pooling",
                self.model.pooling,
            )
        if isinstance(self.model, CustomModel):
            logger.info(
                "%s is a layer of your own: its models load with PairTrainer alone, by weights=FOLDER",
                self.model.family,
            )
        if self.config.model_class:
            logger.info(
                "--model_class %s: the models of this run load in ernie-pair alone, and there with this flag",
                self.config.model_class,
            )

    def prepare(self, total_steps: int, process_group: Any, *unused: Any) -> None:
        """Open loss, optimizer and forward pass, those of the user's own where there are some."""
        config, overrides, labels = self.config, self.overrides, self.model.spec.labels
        if self.model.spec.has_match and not self.model.match_head.is_told():
            self.model.match_head.tell_information(self.data.token_counts)
        if self.model.pooling == "cosine" and not self.model.classifier.is_fitted():
            self._fit_cosine_head(process_group)
        optimizer = overrides.make_optimizer() if overrides.make_optimizer else None
        scheduler = overrides.make_scheduler(total_steps, optimizer) if overrides.make_scheduler else None
        if scheduler is None and optimizer is not None:
            scheduler = scheduler_in(optimizer)
        super().prepare(total_steps, process_group, optimizer, scheduler)
        self.num_classes, self.passes_per_row = self.model.num_classes, config.passes_of_a_pair
        compiled = compile_forward(config, self.model, process_group.size)
        self.is_compiled = compiled is not None
        if compiled is not None:
            self.parallel.forward = compiled
            logger.info("the forward pass is one program (--to_static)")
        self.loss_function = overrides.loss or loss_of(labels, config, self.data.class_weights)
        self.fgm: Optional[Fgm] = None
        if config.fgm_epsilon:
            words = self.model.encoder.embeddings.word_embeddings.weight
            self.fgm = Fgm(words, config.fgm_epsilon, process_group.average)

    def _fit_cosine_head(self, process_group: Any) -> None:
        """Let a new head begin with what the model says of the training pairs; of many, of the dev pairs."""
        head, data, size = self.model.classifier, self.data, self.config.batch_size
        rows = data.dev if data.train is None or len(data.train) > FITTED_ON else data.train
        head.begin(1.0, 0.0)
        logits = predict_logits(self.model, rows, size, process_group)  # the cosine, of class 1 half of it
        head.fit(logits[:, -1] * logits.shape[1], rows.known_labels, self.model.spec.labels)

    def pin_batches(self) -> Optional[Callable[[list[Batch]], list[Batch]]]:
        """Return what lays the next micro-batches into pinned memory, from which a GPU reads on its own."""
        if self.config.device != "gpu":
            return None
        doubles = self.loss_function.passes_twice  # the rows, before they are laid there
        return lambda batches: batches if doubles else [PinnedBatch.of(batch) for batch in batches]

    def loss(self, batch: Batch) -> LossParts:
        """Return the loss of a micro-batch, as `PairLoss` computes it."""
        to_device = batch.to_device if isinstance(batch, PinnedBatch) else paddle.to_tensor
        return self.loss_function(self.forward, batch, to_device)

    def weight_of(self, batch: Batch) -> float:
        """Return what the rows of a micro-batch count; 1 without class weights."""
        return self.loss_function.weight_of(batch)

    def total_weight(self, batches: list[Batch]) -> float:
        """Return what the rows of the global batch count; known before the first forward pass."""
        if self.loss_function.class_weights is None:
            return super().total_weight(batches)
        mine = sum(map(self.weight_of, batches))
        return float(self.process_group.all_reduce_now(np.array([mine]))[0]) or 1.0

    def forward_backward(self, batches: list[Batch], number: int) -> tuple[list[MicroBatchResult], float]:
        """Run forward and backward over the micro-batches; with FGM once more, the embedding moved."""
        if self.fgm is None:
            return super().forward_backward(batches, number)
        total_weight = self.total_weight(batches)
        results = self.run_passes(batches, number, total_weight, is_last_round=False)
        with self.fgm.applied():
            moved = self.run_passes(batches, number, total_weight, first=len(batches))
        return [*results, *(one._replace(is_adversarial=True) for one in moved)], total_weight

    def count_flops(self, rows: int, length: int) -> int:
        """Return the FLOPs of training; of a layer of the user's own two per weight and token forward.

        Twice as many for the gradients of what is trained. Products of states are not known.
        """
        if not isinstance(self.model, CustomModel):
            return super().count_flops(rows, length)
        weights = 2 * self.model.num_product_weights() + 4 * self.model.num_product_weights(trained_only=True)
        return rows * length * self.passes_per_row * weights

    def sum_numbers(self, results: list[MicroBatchResult], rows: Iterator[np.ndarray]) -> np.ndarray:
        """Return the sums over the passes of this rank: loss, divergence, accuracy, parts; FGM's loss."""
        total = np.zeros(1)
        for one, row in zip(results, rows):
            numbers = np.append(one.weight * row, 0.0)
            numbers[NUM_CORRECT] = row[NUM_CORRECT] / one.rows
            if one.is_adversarial:
                numbers = np.append(np.zeros(len(row)), numbers[LOSS])
            total = total + numbers
        return total

    def metrics_of(self, step: PendingStep, sums: list[float]) -> dict[str, float]:
        """Return loss and accuracy, or what `PairLoss.metric` names, and the parts of the loss."""
        loss, total_weight = self.loss_function, step.total_weight
        metrics = {"loss": sums[LOSS] / total_weight}
        if loss.metric:
            metrics[loss.metric] = sums[NUM_CORRECT] / (len(step.batches) * self.process_group.size)
        metrics.update({name: value / total_weight for name, value in zip(loss.parts, sums[PARTS:])})
        if loss.has_divergence:
            metrics["divergence"] = sums[DIVERGENCE] / total_weight
        if self.fgm is not None:
            metrics["adversarial_loss"] = sums[-1] / total_weight
        return metrics

    def evaluate(self, split: str) -> dict[str, float]:
        """Return the metrics of the dev pairs, where every row counts the same."""
        config, rows, group = self.config, self.data.dev, self.process_group
        if self.overrides.evaluate is not None:
            self.read()
            metrics = self.overrides.evaluate()
            check_best_metric(config.best_metric, metrics)
            return metrics
        passed = rows if rows.orders is None else rows.orders
        with self.evaluating():
            logits = predict_logits(self.model, passed, config.batch_size, group, self.on_batch)
        self.logits = logits = logits if rows.orders is None else mean_of_orders(logits)
        labels, world = self.model.spec.labels, World(group.rank, group.size)
        if labels.has_classes:
            self._single_class = find_single_class(logits.argmax(axis=1), rows.known_labels)
        measure, own = choose_measure(labels, rows.groups), self.overrides.compute_metrics
        shared = world, group.all_reduce
        return measure_with(measure, own, config.best_metric, *shared, logits, rows.known_labels)

    def more_files(self) -> Iterator[tuple[str, Content]]:
        """Yield what was learned, and calibration.json of a model that is asked in both orders."""
        from ernie_pair.pairs.audit.trained_pairs import trained_pairs_file  # for what is saved alone

        yield from trained_pairs_file(self.source.vocab_file.parent, *self.data.learned).items()
        if self.config.scored_as != "none":
            yield CALIBRATION, calibration_bytes(Calibration(symmetric=self.config.scored_as))

    def baseline(self) -> Optional[float]:
        """Return the best_metric of counting shared characters on the dev pairs; None where it says nothing.

        So it is where the user measures, and for a metric whose lower values are better.
        """
        found = self.data.baseline.get(self.config.best_metric)
        is_own = self.overrides.evaluate is not None or self.overrides.compute_metrics is not None
        is_of_use = found is not None and np.isfinite(found) and not (is_own or self.lower_is_better)
        return found if is_of_use else None

    def facts(self) -> dict[str, object]:
        """Return the thresholds of shared characters, which later evaluations of the model go by."""
        return {BASELINE: dict(self.data.thresholds)} if self.data.thresholds else {}

    def ignored_options(self) -> Sequence[str]:
        """Return the options of what this run does not do."""
        config = self.config
        has_effect = {
            "model_class": bool(config.model_class),
            "encoding": config.encoding != "utf-8",
            "symmetric_alpha": config.symmetric == "consistency",
            **dict.fromkeys(defaults_of(config, "ranking"), self.source.spec.target == RANKING),
        }
        return [name for name, is_used in has_effect.items() if not is_used]

    def resume_fingerprint(self) -> Fingerprint:
        """Return the metric, the pooling and the order of the rows; the user's own optimizer and loss."""
        config = self.config
        order = "in buckets of like length" if config.bucket else "of any length"
        streamed = f", streamed through {config.shuffle_buffer} rows" if config.streaming else ""
        turned = ""
        if config.lower_is_better != (config.best_metric in LOWER_IS_BETTER):
            turned = f" ({'lower' if config.lower_is_better else 'greater'} is better)"
        own = {}
        if self.overrides.make_optimizer:
            own["optimizer"] = type(self.optimizer).__name__
        if self.scheduler is not None:
            own["scheduler"] = type(self.scheduler).__name__
        return {
            "best_metric": config.best_metric + turned,
            "pooling": self.model.pooling,
            "order of the rows (--bucket, --streaming, --shuffle_buffer)": order + streamed,
            **own,
            **(self.overrides.loss.fingerprint if self.overrides.loss else {}),
        }

    def counts(self) -> dict[str, object]:
        """Return how often each probability of class 1 was given, of a model with two classes."""
        logits = self.logits
        if logits is None or not self.model.spec.labels.has_classes or self.model.num_classes != 2:
            return {}
        shares, labels = probabilities(logits)[:, 1], self.data.dev.known_labels
        return {PROBABILITY_COUNTS: count_probabilities(shares, labels)}

    def on_log(self, line: dict[str, float]) -> None:
        """Give the line to the user's own ``log``."""
        if self.overrides.log is not None:
            self.overrides.log(line)

    def on_evaluate(self, state: TrainState) -> None:
        """Warn where one class is predicted for all rows: once, until it changes."""
        if state.step == 0:  # a new head does so at step 0
            return
        label, before = self._single_class, self._warned_of_class
        self._warned_of_class = label
        if label is None or label == before:
            return
        name = self.source.spec.labels.names[label]
        named = f"class {name}" if name == str(label) else name
        logger.warning("step %d: %s", state.step, describe_single_class(named, len(self.data.dev)))

    def save(self, draft: Path) -> None:
        """Write the model, and what stands beside its weights in a checkpoint."""
        config = self.config
        self.model.write(draft, self.source.vocab_file, config.max_seq_len, config.save_format)
        for name, content in self.more_files():
            assert isinstance(content, bytes)
            (draft / name).write_bytes(content)

    def card(self, kernels: str, step: int, metrics: dict[str, float]) -> ModelCard:
        """Return the card of the model of ``step``; classes, queries or scores give the intervals."""
        config, spec, is_layer = self.config, self.model.spec, isinstance(self.model, CustomModel)
        logits = self.logits
        found = {} if logits is None else _intervals(logits, self.data.dev, spec.labels, config.seed)
        return ModelCard(
            title=TITLES[spec.labels.has_classes].format(self.model.family),
            facts={
                "base model": self.source.name,
                "initial weights": self.beginning.removeprefix("start from ").removeprefix("the weights "),
                **self.initial.facts,
                **_meaning_of(spec.labels),
                "tokens per pair": str(config.max_seq_len),
                "match embeddings": "yes" if spec.has_match else "no",
                "computed by": kernels,
                "chosen": f"step {step}, the best {config.best_metric} so far",
            },
            data=self.data.files,
            flags=self.shown_flags(model_type=spec.family or None),
            metrics={name: Measured(value, found.get(name)) for name, value in metrics.items()},
            measured_on="On the dev pairs that chose the model"
            + (f", by {LIKELIEST}. " if spec.labels.has_classes else ". ")
            + f"Intervals: bootstrap, {RESAMPLES} resamples.",
            commands="" if is_layer else COMMANDS,
            python=(PYTHON_FOR_LAYER if is_layer else PYTHON).format(
                name=self.model.family, length=config.max_seq_len, shown=SHOWN[spec.labels.has_classes]
            ),
        )


def _meaning_of(labels: Labels) -> dict[str, str]:
    if labels.has_classes:
        return {"classes": ", ".join(labels.names)}
    if labels.target == RANKING:
        return {"scores": "of the candidates of a query: the higher, the better"}
    limits = labels.label_range
    return {"scores": "any number" if limits is None else "from {:g} to {:g}".format(*limits)}


def _intervals(logits: np.ndarray, dev: EncodedPairs, labels: Labels, seed: int) -> dict[str, list]:
    if labels.has_classes:
        return CountedRows(np.asarray(logits), dev.known_labels).intervals(RESAMPLES, seed)
    if labels.target == RANKING:
        assert dev.groups is not None  # the dev pairs are read with their queries
        return CountedQueries(logits, dev.known_labels, dev.groups).intervals(RESAMPLES, seed)
    return CountedScores(logits, dev.known_labels, labels.label_range).intervals(RESAMPLES, seed)


def compile_forward(config: PairConfig, model: PairClassifier, num_processes: int) -> Optional[Callable]:
    """Return the forward pass of ``model`` as a program, or None if the dynamic graph is used.

    ``model`` itself computes on as before. Raises InputError if --to_static true asks for what cannot be.
    """
    is_wanted = config.to_static is True
    if not is_wanted and (config.to_static is False or config.device == "cpu"):
        return None
    reason = why_not_compiled(config, model, num_processes)
    if reason and is_wanted:
        raise InputError(f"--to_static true: {reason}; leave it out")
    if reason:
        return None
    spec = [paddle.static.InputSpec(ANY_SHAPE, "int64", name) for name in ("input_ids", "token_type_ids")]
    return paddle.jit.to_static(model.forward, input_spec=spec, full_graph=True)


def why_not_compiled(config: PairConfig, model: PairClassifier, num_processes: int) -> str:
    """Return why the forward pass of ``model`` cannot be compiled; empty: it can."""
    if type(model) is not PairClassifier:
        name = model.family if isinstance(model, CustomModel) else type(model).__name__
        return f"{name} is a class of your own, whose Python may do what a program cannot"
    if model.family not in COMPARED:
        return f"{model.family} is untested; tested are {', '.join(COMPARED)}"
    if model.fused_state is not None:
        return "the fused kernels of the CPU are no ops of Paddle's; add --kernels plain"
    if config.use_recompute:
        return "--use_recompute true runs a layer twice, with the random numbers of the first time"
    if config.use_amp:
        return "in a program --use_amp true casts by other rules, which is untested"
    if num_processes > 1:
        return f"summing its gradients over processes is untested, and there are {num_processes}"
    return ""


class PinnedBatch(Batch):
    """A micro-batch whose arrays lie in pinned memory too.

    ``pinned``: {id of an array of the batch: its copy}, which lives as long as the batch does.
    """

    pinned: dict[int, paddle.Tensor]

    @classmethod
    def of(cls, batch: Batch) -> "PinnedBatch":
        """Return ``batch`` with copies of its arrays in pinned memory."""
        made = cls(*batch)
        place = paddle.CUDAPinnedPlace()
        made.pinned = {
            id(array): paddle.to_tensor(array, place=place) for array in batch if array is not None
        }
        return made

    def to_device(self, array: np.ndarray) -> paddle.Tensor:
        """Return an array of this batch as a tensor on the GPU, without waiting for its copy."""
        return self.pinned[id(array)].cuda(blocking=False)
