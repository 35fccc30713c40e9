"""The flags of ernie-pair cross-validate, and what its folds show together."""

from dataclasses import dataclass, fields
from itertools import count
from pathlib import Path
from typing import Any, Dict, Iterator, List, Literal, NamedTuple, Tuple

import numpy as np

from data_tools.files.errors import InputError
from data_tools.files.progress import CountProgress
from data_tools.options.options import option
from ernie_pair.models.labels import RANKING, REGRESSION
from ernie_pair.pair.config.ask_config import EvaluateConfig
from ernie_pair.pair.config.pair_config import PairConfig, TrainConfig
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.targets.metrics import METRICS, measure, percentile_interval, resamples
from ernie_pair.report.page import Table
from ernie_pair.score.evaluation.calibration import fit_temperature
from ernie_pair.score.evaluation.evaluation import Answers, CountedRows, Fitted, evaluation_of
from ernie_pair.series.folds import Folds
from ernie_pair.series.metric_table import SHOWN, Metrics, defined, metric_cells

# What the files of the folds, which this package writes, have no need of.
# fmt: off
AS_WRITTEN: Dict[str, object] = {
    "text_a": "", "text_b": "", "label": "", "encoding": "utf-8", "on_bad_row": "stop",
    "streaming": False, "fresh_start": False, "cache_dir": "",
}
# fmt: on


@dataclass(frozen=True)
class CrossValidateConfig(PairConfig):
    """Train a pair classifier once per fold, and predict every row with the run that has not seen its texts.

    Start it again to resume.
    """

    EXAMPLE = "--folds 5 --model_name_or_path ernie-gram-zh --train_file all.tsv --output_dir folds"

    model_name_or_path: str = option(
        help="a built-in name (ernie-gram-zh, ernie-1.0) or a model folder", group="model"
    )
    train_file: str = option(
        help="labelled pairs to divide into folds: .tsv, .csv, .json, .jsonl, or a set such as lcqmc",
        group="data",
    )
    output_dir: str = option(
        help="a folder per fold, predictions.tsv, folds.tsv and the report go here", group="data"
    )
    folds: int = option(
        5,
        help="number of parts into which the rows are divided",
        group="evaluation",
        unit="folds",
        at_least=2,
    )
    group_by: Literal["text", "pair"] = option(
        "text",
        help="rows that stay in the same fold: all rows connected by a chain of shared texts, or only equal "
        "pairs",
        group="evaluation",
    )
    dev_file: str = option(
        "",
        help="labelled pairs for choosing the best model of each fold; empty: see --dev_share",
        group="data",
    )
    dev_share: float = option(
        0.1,
        help="without --dev_file: share of a fold's training rows, in whole groups, for choosing its best "
        "model",
        group="evaluation",
        above=0,
        at_most=0.5,
    )
    best_metric: str = option(
        "accuracy",
        help="metric on those rows that chooses the best model",
        group="evaluation",
        choices=METRICS,
    )
    bootstrap: int = option(
        1000,
        help="bootstrap resamples of the groups for the confidence intervals of the means; 0: no intervals",
        group="evaluation",
        unit="resamples",
        at_least=0,
    )
    worst_rows: int = option(
        200,
        help="maximum number of wrong rows in errors.tsv, highest loss first",
        group="evaluation",
        unit="rows",
        at_least=0,
    )
    overwrite: bool = option(
        False, help="replace files that this command did not make, or that have changed since", group="data"
    )

    def __post_init__(self):
        super().__post_init__()
        if self.target in (REGRESSION, RANKING):
            raise InputError(
                f"--target {self.target}: cross-validate is for classes; leave it out, or train once"
            )
        if self.streaming:
            raise InputError("--streaming true never reads all rows, and folds need them all; leave it out")
        if self.fresh_start:
            raise InputError(
                "--fresh_start true is for a single run; give another --output_dir to start again"
            )
        if self.evaluation_strategy == "no":
            raise InputError(
                "--evaluation_strategy no chooses no best model, and each fold is predicted by its best; "
                "leave it out"
            )
        if self.dry_run:
            raise InputError("--dry_run true is for a single run; try it with ernie-pair train")

    def config_of(self, train_file: str, dev_file: str, output_dir: str) -> TrainConfig:
        """Return the flags of one fold's run, whose pairs are in files that this package has written."""
        own = {item.name: getattr(self, item.name) for item in fields(TrainConfig)}
        places = {"train_file": train_file, "dev_file": dev_file, "output_dir": output_dir}
        return TrainConfig(**{**own, **AS_WRITTEN, **places})


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


def evaluation_of_folds(
    result: CrossValidation, answers: Answers, config: CrossValidateConfig
) -> Dict[str, Any]:
    """Return what the report says: the metrics are means over the folds, the rest is of all rows together."""
    model = f"{config.folds} folds of {config.model_name_or_path}"
    config_of_report = EvaluateConfig(model, config.train_file, str(result.predictions), bootstrap=0)
    together = evaluation_of(answers, config_of_report)
    evaluation: Dict[str, Any] = {
        **together,
        **defined(result.mean),
        "folds": [{"rows": rows, **defined(metrics)} for rows, metrics in zip(result.rows, result.folds)],
        "deviation": defined(result.deviation),
        "all_rows": {name: together[name] for name in METRICS},
    }
    return {**evaluation, "intervals": result.interval} if result.interval else evaluation


def table_of_folds(result: CrossValidation) -> Table:
    """Return the table of the report: a row per fold, then mean and deviation."""
    rows = [
        [f"fold {number}", size, *defined(metrics).values()]
        for number, size, metrics in zip(count(1), result.rows, result.folds)
    ]
    rows.append(["mean", sum(result.rows), *defined(result.mean).values()])
    rows.append(["deviation", None, *defined(result.deviation).values()])
    note = (
        "The metrics at the top are the means over the folds, and their intervals are by bootstrap over "
        "groups of rows that share texts. Curves, slices and worst rows are of all rows together, each "
        "predicted by the fold whose run has seen none of its texts."
    )
    return Table("Folds", ["", "rows", *METRICS], rows, note)


def lines_of_folds(result: CrossValidation) -> Iterator[str]:
    """Yield the lines of the folds for the terminal."""
    rows: List[Tuple[object, object, Metrics]] = [*zip(count(1), result.rows, result.folds)]
    rows += [("mean", sum(result.rows), result.mean), ("deviation", "", result.deviation)]
    for end, name in enumerate(("95 % from", "95 % to") if result.interval else ()):
        rows.append((name, "", {metric: ends[end] for metric, ends in result.interval.items()}))
    yield "  ".join(["fold".ljust(9), "rows".rjust(7), *(name.rjust(8) for name in SHOWN)])
    for head, size, metrics in rows:
        yield f"{head:<9}  {size:>7}  {metric_cells(metrics, 'nan')}"
