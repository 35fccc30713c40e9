"""One run per fold; every row is predicted by the run that has not seen its texts."""

import json
import logging
from collections import deque
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any, Collection, Dict, Iterable, Iterator, Sequence

import numpy as np

from data_tools.files.atomic_files import published
from ernie_pair.checkpoint.run_config import keep_config
from ernie_pair.inference.scores import decide
from ernie_pair.models.labels import refuse_no_classes
from ernie_pair.models.source import open_model
from ernie_pair.pair.config.pair_config import PairConfig, chosen_labels
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.data.rejected import ENDING, tell_rejected
from ernie_pair.score.evaluation.evaluation_report import FILES, write_report
from ernie_pair.score.evaluation.predict_pair import prediction_lines
from ernie_pair.series.cross_validation_report import (
    CrossValidateConfig,
    CrossValidation,
    answers_of,
    evaluation_of_folds,
    lines_of_folds,
    measure_folds,
    table_of_folds,
)
from ernie_pair.series.folds import FoldRows, Folds, describe_folds, make_folds, rows_of_fold
from ernie_pair.series.metric_table import points_of
from ernie_pair.series.series import (
    PREDICTIONS,
    OneRun,
    Plan,
    Ranks,
    Series,
    pair_source,
    read_logits,
    report_series,
    sha256_of_weights,
    unfinished,
)
from ernie_pair.train.run_log import refuse_missing

FOLDS = "folds.tsv"
# fmt: off
WITHOUT_EFFECT = {  # on a prediction
    "output_dir", "report_to", "cache_dir", "bootstrap", "worst_rows", "overwrite",
}
# fmt: on

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
    """The input of a cross-validation, divided; opened by every rank alike. Folds are counted from 0."""

    def __init__(self, config: CrossValidateConfig):
        refuse_missing(config.reporters)
        self.config, self.ranks = config, Ranks(config)
        self.source = open_model(
            config.model_name_or_path, model_type=config.model_type or "", from_scratch=config.from_scratch
        )
        self.labels = chosen_labels(config, self.source.spec)
        refuse_no_classes(self.labels, config.model_name_or_path, "cross-validate")
        inputs = {"train_file": config.train_file, "dev_file": config.dev_file}
        files = (PREDICTIONS, FOLDS, *FILES)
        self.series = Series("cross-validate", "cross-validation", "folds", config, files, inputs)
        self.ranks.on_first(self.series.refuse_foreign)
        self.output_dir, self.names = self.series.folder, self.labels.names
        self.pairs = self._read("train")
        self.dev = self._read("dev") if config.dev_file else None
        self.folds = make_folds(self.pairs, self.names, config.folds, config.group_by, config.seed)
        described = describe_folds(self.folds, self.pairs.known_labels, self.names)
        logger.info("%s: %s", config.train_file, described)

    def _read(self, split: str) -> Pairs:
        source = pair_source(self.config, split, self.labels)
        pairs = source.read()
        rejected = self.output_dir / f"{split}{ENDING}" if self.ranks.world.is_first else None
        tell_rejected(source.name, pairs.bad, len(pairs), rejected)
        return pairs

    def _run(self, number: int) -> Path:
        return self.output_dir / f"fold-{number + 1}"

    def _part(self, number: int, name: str) -> Path:
        if name == "dev" and self.dev is not None:
            return self.output_dir / "folds" / "dev.jsonl"
        return self.output_dir / "folds" / f"fold-{number + 1}-{name}.jsonl"

    def make(self) -> CrossValidation:
        self.ranks.on_first(self._begin)
        numbers = range(self.config.folds)
        for number in unfinished([str(self._run(each)) for each in numbers], self._is_done):
            self._make(number)
        logits = np.zeros((len(self.pairs), len(self.names)))  # log p, by the fold that has not seen the row
        for number in numbers:
            own = np.flatnonzero(self.folds.fold == number)
            logits[own] = read_logits(self._run(number) / PREDICTIONS, len(own), len(self.names))
        result = measure_folds(
            logits, self.pairs.known_labels, self.folds, self.config, self.output_dir / PREDICTIONS
        )
        self.ranks.on_first(partial(self._publish, result, logits))
        if self.ranks.world.is_first:
            print("\n".join(lines_of_folds(result)))
        return result

    def _begin(self) -> None:
        """Keep the plan, and write what each fold learns from and is asked.

        Raises InputError before anything is written if a fold has no rows to learn from or to choose by.
        """
        parts = [self._rows(number) for number in range(self.config.folds)]
        self.series.keep(self._plan())
        keep_config(self.output_dir, "cross-validate", self.config)
        for number, rows in enumerate(parts):
            for name, picked in rows._asdict().items():
                if len(picked):
                    self._write_missing(self._part(number, name), self.pairs, picked.tolist())
        if self.dev is not None:
            self._write_missing(self._part(0, "dev"), self.dev, range(len(self.dev)))

    def _rows(self, number: int) -> FoldRows:
        share = 0.0 if self.config.dev_file else self.config.dev_share
        return rows_of_fold(self.folds, self.pairs.known_labels, number, share, self.config.seed)

    def _plan(self) -> Plan:
        config = self.config
        own = {item.name for item in fields(PairConfig)} | {"folds", "group_by", "dev_share", "best_metric"}
        flags: Dict[str, Any] = {name: getattr(config, name) for name in sorted(own - WITHOUT_EFFECT)}
        flags["train_file (sha256)"] = self.pairs.sha256
        flags["model (sha256)"] = sha256_of_weights(self.source)
        if config.dev_file:
            flags["dev_file (sha256)"] = pair_source(config, "dev", self.source.spec.labels).sha256()
        return json.loads(json.dumps(flags))

    def _write_missing(self, path: Path, pairs: Pairs, rows: Sequence[int]) -> None:
        if path.is_file():
            return
        with published(path) as (draft,), open(draft, "w", encoding="utf-8") as file:
            for row in rows:
                label = self.names[pairs.known_labels[row]]
                pair = {"sentence1": pairs.left[row], "sentence2": pairs.right[row], "label": label}
                file.write(json.dumps(pair, ensure_ascii=False) + "\n")

    def _is_done(self, number: int) -> bool:
        return bool(self.ranks.on_first((self._run(number) / PREDICTIONS).is_file))

    def _make(self, number: int) -> None:
        train, dev, test = (str(self._part(number, name)) for name in ("train", "dev", "test"))
        run = OneRun(self.config.config_of(train, dev, str(self._run(number))))
        run.train()
        logits = run.logits(test)
        self.ranks.on_first(lambda: self._write_predictions(number, logits))

    def _write_predictions(self, number: int, logits: np.ndarray) -> None:
        """Write the predictions of a fold; from then on it is done."""
        with published(self._run(number) / PREDICTIONS) as (draft,):
            _write_lines(draft, prediction_lines([decide(logits)], self.names, True, deque()))

    def _publish(self, result: CrossValidation, logits: np.ndarray) -> None:
        config, left_out = self.config, [row.place for row in self.pairs.bad]
        answers = answers_of(self.pairs, self.names, logits)
        evaluation = evaluation_of_folds(result, answers, config)
        with self.series.published() as (predictions, folds, *report):
            lines = prediction_lines([decide(logits)], self.names, True, deque(left_out))
            _write_lines(predictions, lines)
            _write_lines(folds, _fold_lines(self.folds, set(left_out)))
            write_report(report, evaluation, answers, config.worst_rows, [table_of_folds(result)])
        points = points_of("fold", result.folds, "mean", result.mean)
        report_series(config.reporters, self.output_dir, asdict(config), points)
        logger.info(
            "every row predicted once: %s; report: %s", result.predictions, self.output_dir / FILES[-1]
        )


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(lines)


def _fold_lines(folds: Folds, left_out: Collection[int]) -> Iterator[str]:
    """Yield a header, then the place of each good row in the input, its fold from 1 and its group."""
    yield "index\tfold\tgroup\n"
    places = (place for place in range(len(folds.fold) + len(left_out)) if place not in left_out)
    for place, fold, group in zip(places, folds.fold.tolist(), folds.group.tolist()):
        yield f"{place}\t{fold + 1}\t{group}\n"
