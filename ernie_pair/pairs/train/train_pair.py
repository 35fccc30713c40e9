"""Pair training: a classifier, a ranker or a regression as a task of the one engine; see `Task`.

The job is what a step and an evaluation of the model are, and what a step costs.
"""

import logging
from functools import partial
from pathlib import Path
from typing import Callable, Iterator, Optional, Sequence, Union

import numpy as np
import paddle

from ernie_pair.checkpoint.checkpoint_folder import Content
from ernie_pair.checkpoint.fingerprint import Fingerprint
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.core.errors import InputError
from ernie_pair.inference.scores import probabilities
from ernie_pair.models.labels import RANKING, Labels
from ernie_pair.models.model_card import BASELINE, Measured, ModelCard
from ernie_pair.models.networks.classifier import PairClassifier
from ernie_pair.models.networks.kernel_path import logits_of
from ernie_pair.models.networks.plain_model import PlainModel
from ernie_pair.models.temperature import (
    CALIBRATION,
    Calibration,
    calibration_bytes,
    mean_of_orders,
    write_calibration,
)
from ernie_pair.pairs.config.pair_config import OF_RANKING, PairConfig, TrainConfig
from ernie_pair.pairs.data.encoded_pairs import Batch, EncodedPairs
from ernie_pair.pairs.targets.counted_rows import intervals
from ernie_pair.pairs.targets.metrics import (
    LIKELIEST,
    LOWER_IS_BETTER,
    OF_TARGET,
    CountedQueries,
    CountedScores,
    MeasureFunction,
    bootstrap_intervals,
    check_best_metric,
    choose_measure,
    describe_single_class,
    find_single_class,
    measure_with,
)
from ernie_pair.pairs.train.datasets import PairData, open_pair_data, pair_sources, words_of_pairs
from ernie_pair.pairs.train.initial_model import InitialModel, open_initial_model, with_best_metric
from ernie_pair.pairs.train.loss import Fgm, PairLoss, loss_of
from ernie_pair.pairs.train.own_parts import OwnParts
from ernie_pair.runtime.paddle_patches.optimizer_state import scheduler_in
from ernie_pair.runtime.processes.world import World
from ernie_pair.training import probability_counts
from ernie_pair.training.job import LossParts, Pass, StepOperations, TaskJob, WaitingStep
from ernie_pair.training.task import Task, TrainResult, result_of

LOSS, DIVERGENCE, RIGHT, PARTS = range(4)  # places among the numbers of a pass, see `LossParts`


class PairJob(TaskJob):
    """The job of pair training; see `TaskJob`, whose arguments ``more`` are.

    ``valid`` are the rows that ``evaluate("valid")`` measures with ``measure``, None: by what the model is
    for. ``class_weights``: float32 [C], None where all classes count the same. ``loss``: None is that of the
    flags. ``own_evaluation`` replaces that of ``valid``, and returns its metrics.
    """

    def __init__(
        self,
        config: PairConfig,
        model: PairClassifier,
        valid: EncodedPairs,
        total_steps: int,
        process_group,
        *,
        measure: Optional[MeasureFunction] = None,
        class_weights: Optional[np.ndarray] = None,
        loss: Optional[PairLoss] = None,
        own_evaluation: Optional[Callable[[], dict[str, float]]] = None,
        vocab_file: Optional[Path] = None,
        **more,
    ):
        operations: Union[PlainOperations, StepOperations]
        if isinstance(model, PlainModel):
            operations = PlainOperations(config, model)
        else:  # R-Drop and --symmetric let every pair pass twice, FGM every batch
            first_token, passes = model.pooling == "cls", config.passes_of_a_pair
            operations = StepOperations(config, model, passes, model.num_classes, first_token=first_token)
        super().__init__(
            config, model, total_steps, process_group, vocab_file=vocab_file, operations=operations, **more
        )
        self.own_evaluation, self.valid = own_evaluation, valid
        self.measure = measure or choose_measure(model.spec.labels, valid.groups)
        compiled = compile_forward(config, model, process_group.size)
        if compiled is not None:
            self.parallel.forward = compiled
        self.is_compiled = compiled is not None
        self.loss = loss or loss_of(model.spec.labels, config, class_weights)
        self.fgm: Optional[Fgm] = None
        if config.fgm_epsilon:
            words = model.encoder.embeddings.word_embeddings.weight
            self.fgm = Fgm(words, config.fgm_epsilon, process_group.average)
        self.logits: Optional[np.ndarray] = None  # of ``valid``, float32 [N, C], the last time
        self.single_class: Optional[int] = None  # that `evaluate` got for all rows, though the labels differ

    def placer(self) -> Optional[Callable[[list[Batch]], list[Batch]]]:
        """Return what lays the next micro-batches into pinned memory, from which a GPU reads on its own."""
        if self.config.device != "gpu":
            return None
        doubles = self.loss.passes_twice  # the rows, before they are laid there
        return lambda batches: batches if doubles else [PinnedBatch.of(batch) for batch in batches]

    def loss_of(self, batch: Batch) -> LossParts:
        """Return the loss of a micro-batch, as `PairLoss` computes it."""
        to_device = batch.to_device if isinstance(batch, PinnedBatch) else paddle.to_tensor
        return self.loss(self.forward, batch, to_device)

    def weight_of(self, batch: Batch) -> float:
        """Return what the rows of a micro-batch count; 1 without class weights."""
        return self.loss.weight_of(batch)

    def weight_of_all(self, batches: list[Batch]) -> float:
        """Return what the rows of the global batch count; known before the first forward pass."""
        if self.loss.class_weights is None:
            return super().weight_of_all(batches)
        mine = sum(map(self.loss.weight_of, batches))
        return float(self.process_group.all_reduce_now(np.array([mine]))[0]) or 1.0

    def run_micro_batches(self, batches: list[Batch], number: int) -> tuple[list[Pass], float]:
        """Run forward and backward over the micro-batches; with FGM once more, the embedding moved."""
        if self.fgm is None:
            return super().run_micro_batches(batches, number)
        whole = self.weight_of_all(batches)
        passes = self.go_through(batches, number, whole, is_last_round=False)
        with self.fgm.applied():
            moved = self.go_through(batches, number, whole, first_pass=len(batches))
        return [*passes, *(one._replace(is_adversarial=True) for one in moved)], whole

    def sums_of(self, passes: list[Pass], numbers: list[np.ndarray]) -> np.ndarray:
        """Return the sums over the passes of this rank: loss, divergence, accuracy, parts; FGM's loss."""
        total = np.zeros(len(numbers[0]) + 1)
        for one, row in zip(passes, numbers):
            if one.is_adversarial:
                total[-1] += one.weight * row[LOSS]
                continue
            of_rows = one.weight * row
            of_rows[RIGHT] = row[RIGHT] / one.rows
            total[:-1] += of_rows
        return total

    def metrics_of(self, step: WaitingStep, sums: list[float]) -> dict[str, float]:
        """Return loss and accuracy, or what `PairLoss.metric` names, and the parts of the loss."""
        metrics = {"loss": sums[LOSS] / step.whole}
        if self.loss.metric:
            metrics[self.loss.metric] = sums[RIGHT] / (len(step.batches) * self.process_group.size)
        metrics.update({name: value / step.whole for name, value in zip(self.loss.parts, sums[PARTS:])})
        if self.loss.has_divergence:
            metrics["divergence"] = sums[DIVERGENCE] / step.whole
        if self.fgm is not None:
            metrics["adversarial_loss"] = sums[-1] / step.whole
        return metrics

    def evaluate(self, split: str) -> dict[str, float]:
        """Return what ``measure`` gives of ``split``, where every row counts the same."""
        self.read()
        if self.own_evaluation is not None:
            metrics = self.own_evaluation()
            check_best_metric(self.config.best_metric, metrics)
            return metrics
        rows = self.valid
        passed = rows if rows.orders is None else rows.orders
        with self.precision.casting():
            logits = logits_of(self.model, passed, self.config.batch_size, self.process_group, self.on_batch)
        logits = logits if rows.orders is None else mean_of_orders(logits)
        self.logits = logits
        if self.model.spec.labels.has_classes:
            self.single_class = find_single_class(logits.argmax(axis=1), rows.known_labels)
        return self.measure(logits, rows.known_labels)

    def more_files(self) -> Iterator[tuple[str, Content]]:
        """Yield calibration.json with --symmetric average: the model is asked as it learns."""
        if self.vocab_file is not None and self.config.scored_as != "none":
            yield CALIBRATION, calibration_bytes(Calibration(symmetric=self.config.scored_as))


class PlainOperations:
    """Estimates the operations of training a layer of the user's own: two per weight and token forward.

    Twice as many for the gradients of what is trained. Products of states, as in attention, are not counted.
    """

    def __init__(self, config: PairConfig, model: PlainModel):
        trained = model.num_product_weights(trained_only=True)
        self.of_a_token = config.passes_of_a_pair * (2 * model.num_product_weights() + 4 * trained)

    def count(self, batch: int, length: int) -> int:
        """Return the operations of one micro-batch of ``batch`` pairs of ``length`` tokens."""
        return batch * length * self.of_a_token


ANY_SHAPE = [None, None]
COMPARED = ("ernie", "ernie_gram", "bert")  # families, by the tests


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
        name = model.family if isinstance(model, PlainModel) else type(model).__name__
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


RESAMPLES = 200
COMMANDS = """\
ernie-pair evaluate --model_path . --input_file pairs.tsv --output_file metrics.json
ernie-pair predict --model_path . --input_file pairs.tsv --output_file predictions.tsv"""
PYTHON = """\
from ernie_pair import load

answer = load(".").predict([("怎么注销信用卡", "如何注销信用卡")])
print({shown})"""
OF_A_LAYER = """\
from ernie_pair import PairConfig, PairTrainer

layer = {name}(...)  # as it was made for this run
trainer = PairTrainer(layer, PairConfig("output", max_seq_len={length}), weights=".")
answer = trainer.predict([("怎么注销信用卡", "如何注销信用卡")])
print({shown})"""
TITLES = {True: "{} sentence-pair classifier", False: "{} model that scores sentence pairs"}
SHOWN = {True: "answer.labels, answer.probabilities", False: "answer.scores"}

logger = logging.getLogger(__name__)


def train_pair(config: TrainConfig) -> TrainResult:
    """Fine-tune from the newest checkpoint of ``output_dir``, or a model. Raises an ErniePairError."""
    return result_of(PairTask(config))


class PairTask(Task):
    """The training of a model of pairs, for the command and for `PairTrainer`, which opens its parts itself.

    ``own``: what the user replaces.
    """

    command = "train"
    model: PairClassifier
    data: PairData
    job: PairJob

    def __init__(
        self,
        config: PairConfig,
        start: Optional[InitialModel] = None,
        data: Optional[PairData] = None,
        own: Optional[OwnParts] = None,
    ):
        super().__init__(config)
        self.own = own or OwnParts()
        self._single_class: Optional[int] = None  # predicted for all rows at the last evaluation
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
        self.start, self.model = start, start.model
        self.source, self.beginning = start.source, start.beginning
        if self.config.save_format != "paddle":
            self.model.refuse_other_than_theirs()

    def open_data(self, world: World) -> None:
        """Open the files that the flags name."""
        self.data = open_pair_data(self.config, self.source, world)

    @property
    def lower_is_better(self) -> bool:  # type: ignore[override]
        """Return whether a lower best_metric is better."""
        return self.config.lower_is_better

    def describe(self) -> None:
        """Log where the models of this run load, when that is not everywhere."""
        if self.model.pooling == "mean":
            logger.info(
                "--pooling mean: the models of this run load in ernie-pair alone, and not in PaddleNLP's "
                "AutoModelForSequenceClassification, which has no such pooling"
            )
        if isinstance(self.model, PlainModel):
            logger.info(
                "%s is a layer of your own: its models load with PairTrainer alone, by weights=FOLDER",
                self.model.family,
            )
        if self.config.model_class:
            logger.info(
                "--model_class %s: the models of this run load in ernie-pair alone, and there with this flag",
                self.config.model_class,
            )

    def open_job(self, total_steps: int, process_group) -> PairJob:
        """Return the steps of a classifier, a ranker or a regression."""
        config, own, data, labels = self.config, self.own, self.data, self.model.spec.labels
        optimizer = own.make_optimizer() if own.make_optimizer else None
        scheduler = own.make_scheduler(total_steps, optimizer) if own.make_scheduler else None
        shared = World(process_group.rank, process_group.size), process_group.all_reduce
        measure = choose_measure(labels, data.dev.groups)
        job = PairJob(
            config,
            self.model,
            data.dev,
            total_steps,
            process_group,
            measure=partial(measure_with, measure, own.compute_metrics, config.best_metric, *shared),
            optimizer=optimizer,
            scheduler=scheduler or (None if optimizer is None else scheduler_in(optimizer)),
            own_evaluation=own.evaluate,
            loss=own.loss or loss_of(labels, config, data.class_weights),
            beginning=self.beginning,
            vocab_file=self.source.vocab_file,
        )
        if job.is_compiled:
            logger.info("the forward pass is one program (--to_static)")
        return job

    def baseline(self) -> Optional[float]:
        """Return the best_metric of counting shared characters on the dev pairs; None where it says nothing.

        So it is where the user measures, and for a metric whose lower values are better.
        """
        found = self.data.baseline.get(self.config.best_metric)
        is_own = self.own.evaluate is not None or self.own.compute_metrics is not None
        is_of_use = found is not None and np.isfinite(found) and not (is_own or self.lower_is_better)
        return found if is_of_use else None

    def facts(self) -> dict[str, object]:
        """Return the thresholds of shared characters, which later evaluations of the model go by."""
        return {BASELINE: dict(self.data.thresholds)} if self.data.thresholds else {}

    def idle_options(self) -> Sequence[str]:
        """Return the options of what this run does not do."""
        config = self.config
        has_effect = {
            "model_class": bool(config.model_class),
            "encoding": config.encoding != "utf-8",
            "symmetric_alpha": config.symmetric == "consistency",
            **dict.fromkeys(OF_RANKING, self.source.spec.target == RANKING),
        }
        return [name for name, is_used in has_effect.items() if not is_used]

    def known_by(self) -> Fingerprint:
        """Return the metric, the pooling and the order of the rows; the user's own optimizer and loss."""
        config = self.config
        order = "in buckets of like length" if config.bucket else "of any length"
        streamed = f", streamed through {config.shuffle_buffer} rows" if config.streaming else ""
        turned = ""
        if config.lower_is_better != (config.best_metric in LOWER_IS_BETTER):
            turned = f" ({'lower' if config.lower_is_better else 'greater'} is better)"
        own = {}
        if self.own.make_optimizer:
            own["optimizer"] = type(self.job.optimizer).__name__
        if self.job.scheduler is not None:
            own["scheduler"] = type(self.job.scheduler).__name__
        return {
            "best_metric": config.best_metric + turned,
            "pooling": self.model.pooling,
            "order of the rows (--bucket, --streaming, --shuffle_buffer)": order + streamed,
            **own,
            **(self.own.loss.fingerprint if self.own.loss else {}),
        }

    def counts(self) -> dict[str, object]:
        """Return how often each probability of class 1 was given, of a model with two classes."""
        logits = self.job.logits
        if logits is None or not self.model.spec.labels.has_classes or self.model.num_classes != 2:
            return {}
        shares, labels = probabilities(logits)[:, 1], self.data.dev.known_labels
        return {probability_counts.NAME: probability_counts.count_probabilities(shares, labels)}

    def on_log(self, line: dict[str, float]) -> None:
        """Give the line to the user's own ``log``."""
        if self.own.log is not None:
            self.own.log(line)

    def on_evaluate(self, state: TrainState) -> None:
        """Warn where one class is predicted for all rows: once, until it changes."""
        label, before = self.job.single_class, self._single_class
        if state.step == 0:  # a new head does so at step 0
            return
        self._single_class = label
        if label is None or label == before:
            return
        name = self.source.spec.labels.names[label]
        named = f"class {name}" if name == str(label) else name
        logger.warning("step %d: %s", state.step, describe_single_class(named, len(self.data.dev)))

    def save(self, draft: Path) -> None:
        """Write the model, and how it is asked if that is in both orders."""
        config = self.config
        self.model.write(draft, self.source.vocab_file, config.max_seq_len, config.save_format)
        if config.scored_as != "none":
            write_calibration(draft, Calibration(symmetric=config.scored_as))

    def card(self, kernels: str, step: int, metrics: dict[str, float]) -> ModelCard:
        """Return the card of the model of ``step``; classes, queries or scores give the intervals."""
        config, spec, is_layer = self.config, self.model.spec, isinstance(self.model, PlainModel)
        logits = self.job.logits
        found = {} if logits is None else _intervals(logits, self.data.dev, spec.labels, config.seed)
        return ModelCard(
            title=TITLES[spec.labels.has_classes].format(self.model.family),
            facts={
                "base model": self.source.name,
                "initial weights": self.beginning.removeprefix("start from ").removeprefix("the weights "),
                **self.start.facts,
                **_meaning_of(spec.labels),
                "tokens per pair": str(config.max_seq_len),
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
            python=(OF_A_LAYER if is_layer else PYTHON).format(
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
        return intervals(np.asarray(logits), dev.known_labels, RESAMPLES, seed)
    names = OF_TARGET[labels.target].names
    if labels.target == RANKING:
        assert dev.groups is not None  # the dev pairs are read with their queries
        queries = CountedQueries(logits, dev.known_labels, dev.groups)
        return bootstrap_intervals(queries.measure, names, queries.num_queries, RESAMPLES, seed)
    scores = CountedScores(logits, dev.known_labels, labels.label_range)
    return bootstrap_intervals(scores.measure, names, len(dev), RESAMPLES, seed)
