"""Pair training: a classifier, a ranker or a regression as a task of the one engine; see `Task`."""

import logging
from pathlib import Path
from typing import Dict, Optional, Sequence

import numpy as np

from ernie_pair.checkpoint.fingerprint import Fingerprint
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.inference.scores import probabilities
from ernie_pair.models.labels import RANKING, Labels
from ernie_pair.models.model_card import Measured, ModelCard
from ernie_pair.models.networks.classifier import PairClassifier
from ernie_pair.models.networks.plain_model import PlainModel
from ernie_pair.models.temperature import Calibration, write_calibration
from ernie_pair.pair.config.pair_config import PairConfig, TrainConfig
from ernie_pair.pair.targets.bootstrap import bootstrap_intervals
from ernie_pair.pair.targets.metrics import describe_single_class
from ernie_pair.pair.targets.ranking_metrics import CountedQueries
from ernie_pair.pair.targets.regression_metrics import CountedScores
from ernie_pair.pair.targets.target_metrics import LOWER_IS_BETTER, OF_TARGET, UserMetrics, measure_of
from ernie_pair.pair.train.datasets import PairData, open_pair_data
from ernie_pair.pair.train.initial_model import InitialModel, open_initial_model, with_best_metric
from ernie_pair.pair.train.loss import SuppliedLoss, loss_of
from ernie_pair.pair.train.own_parts import OwnParts
from ernie_pair.pair.train.pair_job import Evaluated, PairJob
from ernie_pair.runtime.paddle_patches.optimizer_state import scheduler_in
from ernie_pair.runtime.processes.world import World
from ernie_pair.score.evaluation.evaluation import intervals
from ernie_pair.train import probability_counts
from ernie_pair.train.task import Task, run

RESAMPLES = 200
COMMANDS = """\
ernie-pair evaluate --model_path . --input_file pairs.tsv --output_file metrics.json
ernie-pair predict --model_path . --input_file pairs.tsv --output_file predictions.tsv"""
PYTHON = """\
from ernie_pair import PairConfig, PairTrainer

trainer = PairTrainer(".", PairConfig("output", max_seq_len={length}))
answer = trainer.predict([("怎么注销信用卡", "如何注销信用卡")])
print({shown})"""
OF_A_LAYER = """\
from ernie_pair import PairConfig, PairTrainer

layer = {name}(...)  # as it was made for this run
trainer = PairTrainer(layer, PairConfig("output", max_seq_len={length}), weights=".")
answer = trainer.predict([("怎么注销信用卡", "如何注销信用卡")])
print({shown})"""
TITLES = {
    True: "{} sentence-pair classifier",
    False: "{} model that scores sentence pairs",
}
SHOWN = {True: "answer.names, answer.probabilities", False: "answer.scores"}
OF_RANKING = ("ranking_loss", "margin", "most_candidates", "query")

logger = logging.getLogger(__name__)


def train_pair(config: TrainConfig) -> None:
    """Fine-tune from the newest checkpoint of ``output_dir``, or from the model that is named.

    Raises an ErniePairError for whatever the user can fix.
    """
    run(PairTask, config)


class PairTask(Task):
    """The training of a model of pairs, for the command and for `PairTrainer`, which opens its parts itself.

    ``own``: what the user replaces. ``supplied``: another loss than that of the flags.
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
        supplied: Optional[SuppliedLoss] = None,
    ):
        super().__init__(config)
        self.own, self.supplied = own or OwnParts(), supplied
        self._single_class: Optional[int] = None  # predicted for all rows at the last evaluation
        if start is not None:
            self.take(start)
        if data is not None:
            self.data = data

    def open_model(self) -> None:
        """Open the model that the flags name."""
        start = open_initial_model(self.config, self.config.model_name_or_path)
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
        world = World(process_group.rank, process_group.size)
        measure = measure_of(labels, data.dev.groups)
        job = PairJob(
            config,
            self.model,
            data.dev,
            total_steps,
            process_group,
            measure=UserMetrics(
                measure, own.compute_metrics, config.best_metric, world, process_group.all_reduce
            ),
            optimizer=optimizer,
            scheduler=scheduler or (None if optimizer is None else scheduler_in(optimizer)),
            own_evaluation=own.evaluate,
            loss=self.supplied.loss if self.supplied else loss_of(labels, config, data.class_weights),
            beginning=self.beginning,
            vocab_file=self.source.vocab_file,
        )
        if job.is_compiled:
            logger.info("the forward pass is one program (--to_static)")
        return job

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
            **(self.supplied.fingerprint if self.supplied else {}),
        }

    def counts(self) -> Dict[str, object]:
        """Return how often each probability of class 1 was given, of a model with two classes."""
        evaluated = self.job.evaluated
        if evaluated is None or not self.model.spec.labels.has_classes or self.model.num_classes != 2:
            return {}
        shares = probabilities(evaluated.logits)[:, 1]
        return {probability_counts.NAME: probability_counts.count_probabilities(shares, evaluated.labels)}

    def on_log(self, line: Dict[str, float]) -> None:
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

    def card(self, kernels: str, step: int, metrics: Dict[str, float]) -> ModelCard:
        """Return the card of the model of ``step``; classes, queries or scores give the intervals."""
        config, spec, is_layer = self.config, self.model.spec, isinstance(self.model, PlainModel)
        evaluated = self.job.evaluated
        found = {} if evaluated is None else _intervals(evaluated, spec.labels, config.seed)
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
            measured_on="On the dev pairs that chose the model. "
            f"Intervals: bootstrap, {RESAMPLES} resamples.",
            commands="" if is_layer else COMMANDS,
            python=(OF_A_LAYER if is_layer else PYTHON).format(
                name=self.model.family, length=config.max_seq_len, shown=SHOWN[spec.labels.has_classes]
            ),
        )


def _meaning_of(labels: Labels) -> Dict[str, str]:
    """Return what the answers of the model are, in words."""
    if labels.has_classes:
        return {"classes": ", ".join(labels.names)}
    if labels.target == RANKING:
        return {"scores": "of the candidates of a query: the higher, the better"}
    limits = labels.label_range
    return {"scores": "any number" if limits is None else "from {:g} to {:g}".format(*limits)}


def _intervals(evaluated: Evaluated, labels: Labels, seed: int) -> Dict[str, list]:
    if not labels.has_classes:
        names = OF_TARGET[labels.target].names
        if labels.target == RANKING:
            assert evaluated.groups is not None  # the dev pairs are read with their queries
            queries = CountedQueries(evaluated.logits, evaluated.labels, evaluated.groups)
            return bootstrap_intervals(queries.measure, names, queries.num_queries, RESAMPLES, seed)
        scores = CountedScores(evaluated.logits, evaluated.labels, labels.label_range)
        return bootstrap_intervals(scores.measure, names, len(evaluated.labels), RESAMPLES, seed)
    return intervals(np.asarray(evaluated.logits), evaluated.labels, RESAMPLES, seed)
