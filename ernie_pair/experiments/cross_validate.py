"""One run per fold; every row is predicted by the run that has not seen its texts. What the folds show."""

import logging
from collections import deque
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Tuple

import numpy as np

from ernie_pair.checkpoint.run_folder import cleanup_on_error
from ernie_pair.core.progress import CountProgress, say
from ernie_pair.evaluation.calibration import fit_temperature
from ernie_pair.evaluation.evaluation import Answers, Fitted, evaluate_classes
from ernie_pair.evaluation.evaluation_report import FILES, write_report
from ernie_pair.evaluation.predict_pair import prediction_lines
from ernie_pair.experiments.config import CrossValidateConfig
from ernie_pair.experiments.series import (
    PREDICTIONS,
    WRITTEN_FIRST,
    ClassRuns,
    Metrics,
    defined,
    read_logits,
    report_series,
)
from ernie_pair.experiments.split_pairs import Folds, describe_folds, make_folds, split_fold
from ernie_pair.pairs.config.ask_config import EvaluateConfig
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.targets.metrics import (
    LIKELIEST,
    METRICS,
    CountedRows,
    measure,
    percentile_interval,
    resamples,
)
from ernie_pair.report.page import Table, text_table
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.runtime.processes.world import launched_world

AT_LIKELIEST = f"Metrics of classes are those of {LIKELIEST}."
PARTS = "folds"  # the folder of the rows of each fold

logger = logging.getLogger(__name__)


class CrossValidation(NamedTuple):
    """What the folds show together.

    ``folds``: the metrics of each fold on its own rows; ``mean`` and ``deviation`` are over the folds, and
    ``interval`` is the 95 % interval of the mean, {} without resamples. ``rows``: of each fold.
    ``predictions``: the file of what every row of the input is predicted by the fold that has not seen it.
    """

    folds: List[Metrics]
    rows: List[int]
    mean: Metrics
    deviation: Metrics
    interval: Dict[str, List[float]]
    predictions: Path


def measure_folds(
    logits: np.ndarray, labels: np.ndarray, folds: Folds, config: CrossValidateConfig, predictions: Path
) -> CrossValidation:
    """Measure each fold of logits [N, C] on labels int64 [N] on its own, and all of them together."""
    parts = [np.flatnonzero(folds.fold == number) for number in range(config.folds)]
    measured = [measure(logits[rows], labels[rows]) for rows in parts]
    table = np.array([[metrics[name] for name in METRICS] for metrics in measured])
    mean, deviation = (dict(zip(METRICS, row.tolist())) for row in (table.mean(0), table.std(0, ddof=1)))
    intervals = _intervals(logits, labels, folds, parts, config) if config.bootstrap else {}
    return CrossValidation(measured, list(map(len, parts)), mean, deviation, intervals, predictions)


def _intervals(
    logits: np.ndarray, labels: np.ndarray, folds: Folds, parts: List[np.ndarray], config: CrossValidateConfig
) -> Dict[str, List[float]]:
    """Return the percentile bootstrap of each mean over the folds.

    Rows that share texts are no independent ones: in each fold whole groups are drawn with replacement, as
    many as it has.
    """
    counted = [CountedRows(logits[rows], labels[rows]) for rows in parts]
    groups = [np.unique(folds.group[rows], return_inverse=True)[1] for rows in parts]
    drawn = [resamples(int(g.max()) + 1, config.bootstrap, config.seed + n) for n, g in enumerate(groups)]
    means = []
    with CountProgress(config.bootstrap, "resample") as progress:
        for counts in zip(*drawn):
            values = [rows.measure(c[g]) for rows, c, g in zip(counted, counts, groups)]
            means.append([np.mean([each[name] for each in values]) for name in METRICS])
            progress.advance(1)
    columns = np.array(means).T
    result = {name: column for name, column in zip(METRICS, columns) if not np.isnan(column).all()}
    return {name: percentile_interval(column) for name, column in result.items()}


def answers_of(pairs: Pairs, names: Tuple[str, ...], logits: np.ndarray) -> Answers:
    """Return the predictions of all folds as those of one model, with a temperature fitted on them."""
    fitted = Fitted(fit_temperature(logits, pairs.known_labels), pairs.path, len(pairs), pairs.sha256)
    return Answers(pairs, names, logits, None, 1.0, fitted)


def evaluate_folds(result: CrossValidation, answers: Answers, config: CrossValidateConfig) -> Dict[str, Any]:
    """Return what the report says: the metrics are means over the folds, the rest is of all rows together."""
    model = f"{config.folds} folds of {config.model_name_or_path}"
    config_of_report = EvaluateConfig(model, config.train_file, str(result.predictions), bootstrap=0)
    together = evaluate_classes(answers, config_of_report)
    evaluation: Dict[str, Any] = {
        **together,
        **defined(result.mean),
        "folds": [{"rows": rows, **defined(metrics)} for rows, metrics in zip(result.rows, result.folds)],
        "deviation": defined(result.deviation),
        "all_rows": {name: together[name] for name in METRICS},
    }
    return {**evaluation, "intervals": result.interval} if result.interval else evaluation


def build_fold_table(result: CrossValidation) -> Table:
    """Return the table of the report: a row per fold, then mean, deviation and the interval of the mean."""
    rows = [
        [f"fold {number}", size, *defined(metrics).values()]
        for number, size, metrics in zip(count(1), result.rows, result.folds)
    ]
    rows.append(["mean", sum(result.rows), *defined(result.mean).values()])
    rows.append(["deviation", None, *defined(result.deviation).values()])
    for end, name in enumerate(("95 % from", "95 % to") if result.interval else ()):
        ends = {metric: interval[end] for metric, interval in result.interval.items()}
        rows.append([name, None, *map(ends.get, METRICS)])
    note = (
        f"{AT_LIKELIEST} Those at the top are the means over the folds, and their intervals are by bootstrap "
        "over groups of rows that share texts. Curves, slices and worst rows are of all rows together, each "
        "predicted by the fold whose run has seen none of its texts."
    )
    return Table("Folds", ["", "rows", *METRICS], rows, note)


def cross_validate(config: CrossValidateConfig) -> CrossValidation:
    """Cross-validate a classifier: each fold is predicted by the run that has not seen it.

    Runs the missing folds, writes and prints the results, and returns them. Raises an ErniePairError.
    """
    start = cleanup_on_error(config.output_dir, launched_world(), *WRITTEN_FIRST, PARTS)
    with start, StopSignals(when="between two folds"):
        return _CrossValidation(config).make()


class _CrossValidation(ClassRuns):
    """The input of a cross-validation, divided; opened by every rank alike. Folds are counted from 0."""

    def __init__(self, config: CrossValidateConfig):
        files = (PREDICTIONS, "folds.tsv", *FILES)
        super().__init__("cross-validate", config, files, "every fold is measured on rows that it knows")
        self.folds = make_folds(self.pairs, self.names, config.folds, config.group_by, config.seed)
        described = describe_folds(self.folds, self.pairs.known_labels, self.names)
        logger.info("%s: %s", config.train_file, described)

    def _part(self, number: int, name: str) -> Path:
        if name == "dev" and self.dev is not None:
            return self.output_dir / PARTS / "dev.jsonl"
        return self.output_dir / PARTS / f"fold-{number + 1}-{name}.jsonl"

    def make(self) -> CrossValidation:
        self.on_first(self._begin)
        runs = []
        for number in range(self.config.folds):
            train, dev, test = (self._part(number, name) for name in ("train", "dev", "test"))
            config = self.config.config_of(train, dev, self.output_dir / f"fold-{number + 1}")
            runs.append((config, test))
        logits = np.zeros((len(self.pairs), len(self.names)))  # log p, by the fold that has not seen the row
        for number, file in enumerate(self.make_missing(runs)):
            own = np.flatnonzero(self.folds.fold == number)
            logits[own] = read_logits(file, len(own), len(self.names))
        result = measure_folds(
            logits, self.pairs.known_labels, self.folds, self.config, self.output_dir / PREDICTIONS
        )
        self.on_first(partial(self._publish, result, logits))
        if self.world.is_first:
            say(text_table(build_fold_table(result)._replace(note=AT_LIKELIEST)))
        return result

    def _begin(self) -> None:
        """Keep the plan, and write the rows of each fold. Raises InputError first if a fold lacks some."""
        config, labels = self.config, self.pairs.known_labels
        share = 0.0 if config.dev_file else config.dev_share
        parts = {} if self.dev is None else {self._part(0, "dev"): self.dev}
        for number in range(config.folds):
            rows = split_fold(self.folds, labels, number, share, config.seed)._asdict().items()
            parts.update({self._part(number, n): self.pairs.rows(own) for n, own in rows if len(own)})
        self.begin("cross-validate", parts, ("folds", "group_by", "dev_share"))

    def _publish(self, result: CrossValidation, logits: np.ndarray) -> None:
        config, left_out = self.config, [row.place for row in self.pairs.bad]
        answers = answers_of(self.pairs, self.names, logits)
        evaluation = evaluate_folds(result, answers, config)
        with self.series.published() as (predictions, folds, *report):
            lines = prediction_lines(logits, self.names, deque(left_out))
            predictions.write_text("".join(lines), encoding="utf-8")
            numbers, groups = (each.tolist() for each in (self.folds.fold + 1, self.folds.group))
            places = np.setdiff1d(np.arange(len(numbers) + len(left_out)), left_out).tolist()
            lines = (f"{place}\t{fold}\t{group}\n" for place, fold, group in zip(places, numbers, groups))
            folds.write_text(
                "".join(["index\tfold\tgroup\n", *lines]), encoding="utf-8"
            )  # the place is that in the input
            write_report(report, evaluation, answers, config.worst_rows, [build_fold_table(result)])
        points = [(n, {f"fold/{m}": v for m, v in of.items()}) for n, of in enumerate(result.folds, start=1)]
        points.append((config.folds, {f"mean/{metric}": value for metric, value in result.mean.items()}))
        report_series(config.reporters, self.output_dir, asdict(config), points)
        logger.info(
            "every row predicted once: %s; report: %s", result.predictions, self.output_dir / FILES[-1]
        )
