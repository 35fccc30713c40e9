"""The flags of ernie-pair cross-validate."""

from dataclasses import dataclass, fields
from typing import Dict, Literal

from data_tools.base.errors import InputError
from data_tools.base.options import option
from ernie_pair.model_files.labels import RANKING, REGRESSION
from ernie_pair.pair.config.pair_config import PairConfig, TrainConfig
from ernie_pair.pair.metrics import METRICS

# What the files of the folds, which this package writes, have no need of.
AS_WRITTEN: Dict[str, object] = {
    **{"text_a": "", "text_b": "", "label": "", "encoding": "utf-8", "on_bad_row": "stop"},
    **{"streaming": False, "fresh_start": False, "cache_dir": ""},
}


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
