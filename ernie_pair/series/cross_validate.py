"""One run per fold; every row is predicted by the run that has not seen its texts."""

import json
import logging
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Sequence

import numpy as np

from data_tools.files.atomic_files import published
from data_tools.files.results import Results, files_of, settings_of
from ernie_pair.checkpoint.run_config import keep_config
from ernie_pair.models.labels import Labels, refuse_no_classes
from ernie_pair.models.source import ModelSource, open_model
from ernie_pair.pair.config.pair_config import PairConfig
from ernie_pair.pair.config.target_flags import chosen_labels
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.data.pair_records import Columns, RowRules
from ernie_pair.pair.data.pair_source import PairSource
from ernie_pair.pair.data.rejected import ENDING, tell_rejected
from ernie_pair.score.evaluation.evaluation_report import FILES, write_report
from ernie_pair.series.cross_validation_report import (
    CrossValidateConfig,
    CrossValidation,
    answers_of,
    evaluation_of_folds,
    lines_of_folds,
    measure_folds,
    table_of_folds,
)
from ernie_pair.series.folds import (
    FOLDS,
    FoldFiles,
    FoldRows,
    describe_folds,
    fold_lines,
    lines_of,
    make_folds,
    places_in_input,
    rows_of_fold,
    write_lines,
)
from ernie_pair.series.plan import (
    PLAN,
    PREDICTIONS,
    OneRun,
    Plan,
    Point,
    Ranks,
    report_series,
    sha256_of_weights,
    unfinished,
    with_older_plan,
    write_plan,
)
from ernie_pair.train.reporters import refuse_missing

MARK = "folds"  # a key that only these plans have
# What changes no prediction.
WITHOUT_EFFECT = ("output_dir", "report_to", "cache_dir", "bootstrap", "worst_rows", "overwrite")

logger = logging.getLogger(__name__)


def cross_validate(config: CrossValidateConfig) -> CrossValidation:
    """Run the missing folds, write the results, print a table, and return it.

    Raises an ErniePairError for whatever the user can fix.
    """
    return _CrossValidation(config).make()


def cross_validate_command(config: CrossValidateConfig) -> None:
    """Run the missing runs, write what they show, print a table. Raises an ErniePairError."""
    cross_validate(config)


class _CrossValidation:
    """The input of a cross-validation, divided; opened by every rank alike."""

    def __init__(self, config: CrossValidateConfig):
        refuse_missing(config.reporters)
        self.config, self.ranks = config, Ranks(config)
        self.source = open_model(
            config.model_name_or_path, model_type=config.model_type or "", from_scratch=config.from_scratch
        )
        self.labels = chosen_labels(config, self.source.spec)
        refuse_no_classes(self.labels, config.model_name_or_path, "cross-validate")
        self.output_dir = Path(config.output_dir)
        self.results = _results(config)
        self.results.refuse_foreign()
        self.pairs = self._read("train")
        self.dev = self._read("dev") if config.dev_file else None
        names = self.labels.names
        self.folds = make_folds(self.pairs, names, config.folds, config.group_by, config.seed)
        logger.info("%s: %s", config.train_file, describe_folds(self.folds, self.pairs.known_labels, names))
        self.files = FoldFiles(self.output_dir, config.folds)

    def _read(self, split: str) -> Pairs:
        source = _source_of(self.config, split, self.labels)
        pairs = source.read()
        told = self.output_dir / f"{split}{ENDING}" if self.ranks.world.is_first else None
        tell_rejected(source.name, pairs.bad, len(pairs), told)
        return pairs

    def make(self) -> CrossValidation:
        """Make what is missing, and return what all of it shows."""
        self.ranks.by_first(self._begin)
        numbers = range(self.config.folds)
        for number in unfinished([str(self.files.run(each)) for each in numbers], self._is_done):
            self._make(number)
        logits = self._logits()
        found = measure_folds(
            logits, self.pairs.known_labels, self.folds, self.config, self.output_dir / PREDICTIONS
        )
        self.ranks.by_first(partial(self._publish, found, logits))
        if self.ranks.world.is_first:
            print("\n".join(lines_of_folds(found)))
        return found

    def _begin(self) -> None:
        """Keep the plan, and write what each fold learns from and is asked.

        Raises InputError before anything is written if a fold has no rows to learn from or to choose by.
        """
        parts = [self._rows(number) for number in range(self.config.folds)]
        path = self.output_dir / PLAN
        plan = with_older_plan(
            path, _plan(self.config, self.source, self.pairs), MARK, "cross-validation", {}
        )
        with published(path) as (draft,):
            write_plan(draft, plan)
        keep_config(self.output_dir, "cross-validate", self.config)
        for number, rows in enumerate(parts):
            self.files.write_rows(number, rows, self.pairs, self.labels.names)
        if self.dev is not None:
            self.files.write_dev(self.dev, self.labels.names)

    def _rows(self, number: int) -> FoldRows:
        share = 0.0 if self.config.dev_file else self.config.dev_share
        labels = self.pairs.known_labels
        return rows_of_fold(self.folds, labels, number, share, self.config.seed)

    def _is_done(self, number: int) -> bool:
        return bool(self.ranks.by_first(self.files.predictions(number).is_file))

    def _make(self, number: int) -> None:
        train, dev, test = (str(self.files.part(number, name)) for name in ("train", "dev", "test"))
        dev = dev if self.dev is None else str(self.files.dev)
        config = self.config.config_of(train, dev, str(self.files.run(number)))
        run = OneRun(config)
        run.train()
        logits = run.logits(test)
        self.ranks.by_first(lambda: self.files.write_predictions(number, logits, self.labels.names))

    def _logits(self) -> np.ndarray:
        """Return log p of every good row by the fold that has not seen it, float64 [N, C]."""
        size = len(self.labels.names)
        logits = np.zeros((len(self.pairs), size))
        for number in range(self.config.folds):
            own = np.flatnonzero(self.folds.fold == number)
            logits[own] = self.files.read_logits(number, len(own), size)
        return logits

    def _publish(self, found: CrossValidation, logits: np.ndarray) -> None:
        config, names = self.config, self.labels.names
        answers = answers_of(self.pairs, names, logits)
        evaluation = evaluation_of_folds(found, answers, config)
        left_out = [row.place for row in self.pairs.bad]
        with self.results.published() as (predictions, folds, *report):
            write_lines(predictions, lines_of(logits, names, left_out))
            write_lines(folds, fold_lines(self.folds, places_in_input(self.pairs)))
            write_report(report, evaluation, answers, config.worst_rows, [table_of_folds(found)])
        report_series(config.reporters, self.output_dir, asdict(config), _points(found))
        logger.info(
            "every row predicted once: %s; report: %s", found.predictions, self.output_dir / FILES[-1]
        )


def _points(found: CrossValidation) -> List[Point]:
    each = [
        (number, {f"fold/{name}": value for name, value in metrics.items()})
        for number, metrics in enumerate(found.folds, start=1)
    ]
    return [*each, (len(each), {f"mean/{name}": value for name, value in found.mean.items()})]


def _results(config: CrossValidateConfig) -> Results:
    """Return the files that show all folds together, which are replaced when they are made again."""
    outputs = [Path(config.output_dir, name) for name in (PREDICTIONS, FOLDS, *FILES)]
    inputs: Dict[str, Sequence[Path]] = {
        name: files_of(getattr(config, name)) for name in ("train_file", "dev_file")
    }
    settings = settings_of(config, "train_file", "dev_file", "output_dir")
    return Results("cross-validate", outputs, inputs, settings, config.overwrite)


def _source_of(config: CrossValidateConfig, split: str, labels: Labels) -> PairSource:
    columns, flag = Columns(config.text_a, config.text_b, config.label), f"{split}_file"
    return PairSource(flag, getattr(config, flag), split, labels, columns, RowRules.of(config))


def _plan(config: CrossValidateConfig, source: ModelSource, pairs: Pairs) -> Plan:
    """Return what all folds share; MARK is a flag among it."""
    own = {item.name for item in fields(PairConfig)} | {"folds", "group_by", "dev_share", "best_metric"}
    flags: Dict[str, Any] = {name: getattr(config, name) for name in sorted(own - set(WITHOUT_EFFECT))}
    plan: Plan = {**flags, "train_file (sha256)": pairs.sha256, "model (sha256)": sha256_of_weights(source)}
    if config.dev_file:
        plan["dev_file (sha256)"] = _source_of(config, "dev", source.spec.labels).sha256()
    return json.loads(json.dumps(plan))
