"""A series of runs: the plan that they share, what they have made, and the files that show all of them.

OUT/plan.json is its record:

    {"made_by": "ernie-pair", "command": "cross-validate", "settings": {"folds": 5, ...},
     "inputs": {"train_file": [["all.tsv", "sha256"]], ...}, "outputs": {"report.json": "sha256", ...}}

``settings`` is the plan: a folder with another one is refused. ``outputs`` are the files that show all runs
together; they are replaced as long as nobody else has changed them.

A run is a folder. So a series that was killed goes on with the run that it was at, and no run is repeated.
"""

import gc
import logging
import math
import time
from collections import deque
from contextlib import suppress
from dataclasses import fields, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Callable, Collection, Iterator, Mapping, Optional, Sequence, TypeVar, Union

import numpy as np

from ernie_pair.checkpoint.run_config import keep_config
from ernie_pair.checkpoint.run_folder import ensure_run_id
from ernie_pair.core.cli.options import defaults_of
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.core.files.atomic_files import CONFIG_YAML, published
from ernie_pair.core.files.json_file import as_read, read_json_object
from ernie_pair.core.files.results import Results, files_of, followed
from ernie_pair.evaluation.predict_pair import prediction_lines, read_log_probabilities
from ernie_pair.experiments.config import CrossValidateConfig, LearningCurveConfig, SearchParamsConfig
from ernie_pair.models.labels import Labels, check_has_classes, parse_label_map
from ernie_pair.models.source import ModelSource, open_model
from ernie_pair.pairs.audit.new_pairs import write_pairs
from ernie_pair.pairs.audit.trained_pairs import was_trained_on
from ernie_pair.pairs.config.pair_config import PairConfig, TrainConfig, chosen_labels
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.data.pair_source import SPLITS, PairSource, check_columns, label_map_in
from ernie_pair.pairs.data.rejected import ENDING, log_rejected
from ernie_pair.pairs.targets.metrics import METRICS, choose_metric
from ernie_pair.pairs.train.trainer import PairTrainer
from ernie_pair.runtime.cpu import keep_freed_memory
from ernie_pair.runtime.device import start_device
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import gather_results, launched_world
from ernie_pair.training.callbacks import PairCallback
from ernie_pair.training.process_group import join_process_group
from ernie_pair.training.run_log import Reporter
from ernie_pair.training.task import TrainResult

PLAN, PREDICTIONS = "plan.json", "predictions.tsv"
WRITTEN_FIRST = (PLAN, CONFIG_YAML, *(f"{part}{ENDING}" for part in SPLITS))  # before the first run
Plan = dict[str, object]
SeriesConfig = Union[CrossValidateConfig, LearningCurveConfig, SearchParamsConfig]
Result = TypeVar("Result")
Metrics = dict[str, float]
Point = tuple[int, Metrics]  # the step of a reporter, and values by their names

logger = logging.getLogger(__name__)


class Series:
    """The record of the series that ``command`` makes in the ``output_dir`` of ``config``.

    ``files`` in the folder show all runs together, and are made from ``inputs``, {flag: path}.
    """

    def __init__(self, command: str, config: Any, files: Sequence[str], inputs: dict[str, str]):
        self.folder, self.path = Path(config.output_dir), Path(config.output_dir) / PLAN
        self._command = command
        outputs = [self.folder / name for name in files]
        of_inputs: dict[str, Sequence[Path]] = {flag: files_of(path) for flag, path in inputs.items()}
        where = {"overwrite": config.overwrite, "record": followed(self.path)}
        self._results_of = lambda plan: Results(command, outputs, of_inputs, plan, **where)
        self._results = self._results_of({})

    def check_existing(self) -> None:
        """Raise InputError if one of the files exists and is not as a series of this command has made it."""
        self._results.check_existing(from_any_inputs=True)

    def keep(self, plan: Plan) -> None:
        """Write the record: ``plan``, and what the one that is there says besides.

        Raises InputError, and writes nothing, when the folder holds runs of another plan.
        """
        plan, before = as_read(plan), {}
        if self.path.exists():
            record = read_json_object(self.path, "give another --output_dir, or remove the file")
            before = record.get("settings")
            if record.get("command") != self._command or not isinstance(before, dict):
                raise InputError(f"{self.path} is not a plan of {self._command}; give another --output_dir")
        for key, value in before.items():
            if plan.get(key, value) != value:
                raise InputError(
                    f"{self.path}: {key} was {value} and is now {plan[key]}; give another --output_dir"
                )
        self._results = self._results_of({**before, **plan})
        self._results.keep()

    def published(self):
        """Return the context that yields drafts of the ``files``, in their order, and records them."""
        return self._results.published()


def refuse_other_classes(flag: str, labels: dict[str, Labels], cure: str) -> Labels:
    """Return the labels of all models, {name in ``flag``: its own}. Raises InputError if they differ."""
    (first, known), *others = labels.items()
    for name, theirs in others:
        if theirs.names != known.names:
            raise InputError(
                f"--{flag}: {first} tells {', '.join(known.names)} apart and {name} "
                f"{', '.join(theirs.names)}; {cure}"
            )
    return known


def hash_weights(source: ModelSource) -> str:
    """Return the SHA-256 of the weights, of each file that holds some, in hex."""
    return " ".join(map(sha256_of_file, source.weight_files)) or "random weights"


def iterate_unfinished(runs: Sequence[str], is_done: Callable[[int], bool]) -> Iterator[int]:
    """Yield the place of each run that is not done yet, with a line on each and on the time left.

    ``runs`` are what the log calls them. The run is to be done when the next place is asked for.
    """
    seconds: list[float] = []
    for place, run in enumerate(runs):
        if is_done(place):
            logger.info("run %d of %d is done: %s", place + 1, len(runs), run)
            continue
        left = sum(not is_done(later) for later in range(place, len(runs))) if seconds else 0
        rest = f"; about {timedelta(seconds=round(left * sum(seconds) / len(seconds)))} left" if left else ""
        logger.info("run %d of %d: %s%s", place + 1, len(runs), run, rest)
        started = time.monotonic()
        yield place
        seconds.append(time.monotonic() - started)


class PairSeries:
    """A series of runs of `ernie-pair train` from one model, each made by all ranks; one without a launcher.

    Opened by every rank alike; the first alone writes. ``config`` has the label_map of the words of the
    training pairs, if none is given.
    """

    def __init__(self, command: str, config: SeriesConfig, files: Sequence[str]):
        self.world = launched_world()
        start_console(self.world)
        start_device(config.device, self.world, config)
        self._group = join_process_group(self.world)
        kind_of_model, is_new = config.model_type or "", config.from_scratch
        self.source = open_model(config.model_name_or_path, model_type=kind_of_model, from_scratch=is_new)
        self.labels = chosen_labels(config, self.source.spec)
        self._flags = [n for n in ("train_file", "dev_file", "test_file") if getattr(config, n, "")]
        check_columns([PairSource.of(config, flag, self.labels) for flag in self._flags])
        label_map = label_map_in(PairSource.of(config, "train_file"), self.labels, config.label_map)
        if label_map:
            self.labels = parse_label_map(label_map)
        metric = choose_metric(config.best_metric, self.labels.target)
        self.config: Any = replace(config, best_metric=metric, label_map=label_map)
        self.series = Series(command, config, files, {flag: getattr(config, flag) for flag in self._flags})
        self.output_dir = self.series.folder
        self.on_first(self.series.check_existing)

    def keep(self, command: str, plan: Plan) -> None:
        """Write the record, with the hashes of the pairs and of the model in ``plan``, and the flags."""
        plan.update((f"{flag} (sha256)", PairSource.of(self.config, flag).sha256()) for flag in self._flags)
        self.series.keep({**plan, "model (sha256)": hash_weights(self.source)})
        keep_config(self.output_dir, command, self.config)

    def on_first(self, action: Callable[[], Result]) -> Optional[Result]:
        """Return on every rank what ``action`` returns, a JSON value, or raise what it raises, on rank 0."""
        first = self.world.is_first
        return gather_results(self._group.all_reduce, self.world, lambda: action() if first else None)[0]


class ClassRuns(PairSeries):
    """A series of runs of classifiers on parts of the training ``pairs``; ``dev``: those of --dev_file."""

    def __init__(self, command: str, config: SeriesConfig, files: Sequence[str], if_learned: str):
        super().__init__(command, config, files)
        check_has_classes(self.labels, config.model_name_or_path, command)
        self.names, self.pairs = self.labels.names, self.read("train")
        self.dev: Any = self.read("dev") if self.config.dev_file else None
        seen = was_trained_on(config.model_name_or_path, self.pairs)
        if seen.any() and self.world.is_first:
            told = "%d of %d rows were trained on by %s, so that %s"
            logger.warning(told, seen.sum(), len(seen), config.model_name_or_path, if_learned)

    def read(self, split: str) -> Pairs:
        """Return the pairs of a file, and note the rows that are left out."""
        pairs = PairSource.of(self.config, f"{split}_file", self.labels).read()
        rejected = self.output_dir / f"{split}{ENDING}" if self.world.is_first else None
        log_rejected(getattr(self.config, f"{split}_file"), pairs.bad, len(pairs), rejected)
        return pairs

    def begin(self, command: str, parts: Mapping[Path, Pairs], flags: Collection[str] = ()) -> None:
        """Keep the plan, the flags of training and ``flags``, and write the ``parts`` that are not there."""
        own = {item.name for item in fields(PairConfig)} | {"best_metric", *flags}
        own -= {"output_dir", "cache_dir", *defaults_of(self.config, "shown", "start")}
        self.keep(command, {name: getattr(self.config, name) for name in sorted(own)})
        for path, pairs in parts.items():
            if not path.is_file():
                with published(path) as (draft,):
                    write_pairs(draft, path, pairs, self.labels)

    def make_missing(self, runs: Sequence[tuple[TrainConfig, Path]]) -> list[Path]:
        """Make the runs of (flags, test file) that are not done, and return the predictions of each."""
        folders = [config.output_dir for config, _ in runs]
        files = [Path(folder) / PREDICTIONS for folder in folders]
        for place in iterate_unfinished(folders, lambda place: bool(self.on_first(files[place].is_file))):
            config, test_file = runs[place]
            run = TrainingRun(config)
            run.train()
            self.on_first(partial(self._write_predictions, files[place], run.logits(str(test_file))))
        return files

    def _write_predictions(self, path: Path, logits: np.ndarray) -> None:
        with published(path) as (draft,):  # from then on the run is done
            lines = prediction_lines(logits, self.names, deque())
            draft.write_text("".join(lines), encoding="utf-8")


class TrainingRun:
    """A run of `ernie-pair train` with the flags ``config``; it goes on where its folder stands.

    Made and asked by every rank alike. Raises an ErniePairError for whatever the user can fix.
    """

    def __init__(self, config: TrainConfig, callbacks: Sequence[PairCallback] = ()):
        gc.collect()  # the model of the run before
        self._trainer = PairTrainer(
            config.model_name_or_path, config, config.train_file, config.dev_file, callbacks=callbacks
        )
        if self._trainer.model.fused_state is not None:
            keep_freed_memory()

    def train(self) -> TrainResult:
        """Train to the end, or until a callback stops the run."""
        return self._trainer.train()

    def logits(self, file: str) -> np.ndarray:
        """Return the logits, float32 [N, C], that its best model gives the pairs of ``file``.

        They are scored as the model says, in one order or both: as it will answer once it is shipped.
        Raises CheckpointError when the run has published none.
        """
        if self._trainer.state.best_model_checkpoint is None:
            raise no_best_model(self._trainer.config.output_dir)
        return self._trainer.predict(file).predictions


def no_best_model(folder: object) -> CheckpointError:
    """Return the error of a run in ``folder`` that has published no model."""
    return CheckpointError(f"{folder} holds no best model; remove it and run the same command again")


def read_logits(path: Path, num_rows: int, num_classes: int) -> np.ndarray:
    """Return log p in a run's predictions, float64 [rows, C], as logits. Raises CheckpointError."""
    with suppress(ValueError):
        logits = read_log_probabilities(path, num_classes)
        if len(logits) == num_rows:
            return logits
    raise CheckpointError(f"{path} is damaged; remove it and start the same command again")


def report_series(
    names: Sequence[str], output_dir: Path, flags: dict[str, Any], points: Sequence[Point]
) -> None:
    """Show ``flags`` and ``points``, (step, values by their names), by the reporters ``names``.

    Called once all runs of this start have ended: W&B has one run open at a time. Values that are not finite
    are left out.
    """
    if not names:
        return
    run_id = ensure_run_id(output_dir)
    for reporter in [Reporter(name, output_dir, run_id) for name in names]:
        reporter.configuration(flags)
        for step, values in points:
            reporter.scalars({name: v for name, v in values.items() if math.isfinite(v)}, step)
        reporter.close()


def defined(metrics: Mapping[str, Optional[float]]) -> dict[str, Optional[float]]:
    """Return METRICS as JSON can hold them: what is undefined, as auc of one class is, is None."""
    values = {name: metrics[name] for name in METRICS}
    return {n: value if value is not None and math.isfinite(value) else None for n, value in values.items()}
