"""The flags of the commands that make several runs, or combine their models; no framework is loaded here."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Dict, Literal

from ernie_pair.core.cli.options import (
    OverwriteFlag,
    data_option,
    defaults_of,
    devices_option,
    evaluation_option,
    file_option,
    model_folder_option,
    model_option,
    optimisation_option,
    parse_shares,
    path_option,
    precision_option,
    speed_option,
)
from ernie_pair.core.errors import InputError
from ernie_pair.core.installation import TRAINING
from ernie_pair.inference.backends import THREADS_HELP
from ernie_pair.models.labels import RANKING, REGRESSION
from ernie_pair.pairs.config.pair_config import MODEL_NAME_HELP, PairConfig, TrainConfig
from ernie_pair.pairs.data.pair_records import ColumnFlags
from ernie_pair.pairs.targets.metrics import AUTO, METRICS
from ernie_pair.training.run_flags import best_metric_option


def _refuse_of_one_run(config: PairConfig) -> None:
    if config.fresh_start:
        raise InputError("--fresh_start true is for a single run; give another --output_dir to start again")
    if config.dry_run:
        raise InputError("--dry_run true is for a single run; try it with ernie-pair train")


@dataclass(frozen=True)
class ClassRunsConfig(OverwriteFlag, PairConfig):
    """Flags of several runs of classifiers, on parts of the training pairs."""

    def __post_init__(self):
        super().__post_init__()
        if self.target in (REGRESSION, RANKING):
            raise InputError(f"--target {self.target}: this command is for classes; leave it out")
        if self.streaming:
            raise InputError("--streaming true never reads all rows, and parts need them all; leave it out")
        _refuse_of_one_run(self)
        if self.evaluation_strategy == "no":
            raise InputError("--evaluation_strategy no chooses no best model to predict with; leave it out")

    def config_of(self, train_file: Path, dev_file: Path, output_dir: Path, **flags: Any) -> TrainConfig:
        """Return the flags of one run, whose pairs are in files that this package has written."""
        own = {item.name: getattr(self, item.name) for item in fields(TrainConfig)}
        flags |= {"train_file": train_file, "dev_file": dev_file, "output_dir": output_dir, "cache_dir": ""}
        return TrainConfig(**{**own, **defaults_of(PairConfig, "rows"), **flags})


@dataclass(frozen=True)
class CrossValidateConfig(ClassRunsConfig):
    """Train a pair classifier once per fold, and predict every row with the run that has not seen its texts.

    Start it again to resume.
    """

    EXAMPLE = "--folds 5 --model_name_or_path ernie-gram-zh --train_file all.tsv --output_dir folds"

    model_name_or_path: str = model_folder_option(help=MODEL_NAME_HELP)
    train_file: str = file_option(
        help="labelled pairs to divide into folds: .tsv, .csv, .xlsx, .jsonl, ... or a set such as lcqmc"
    )
    output_dir: str = data_option(
        help="a folder per fold, predictions.tsv, folds.tsv and the report go here", writes="FOLDER"
    )
    folds: int = evaluation_option(
        5, help="number of parts into which the rows are divided", unit="folds", at_least=2, usual=True
    )
    group_by: Literal["text", "pair"] = evaluation_option(
        "text",
        help="rows that stay in the same fold: all rows connected by a chain of shared texts, or only equal "
        "pairs",
    )
    dev_file: str = file_option(
        "", help="labelled pairs for choosing the best model of each fold; empty: see --dev_share", usual=True
    )
    dev_share: float = evaluation_option(
        0.1,
        help="without --dev_file: share of a fold's training rows, in whole groups, for choosing its best "
        "model",
        above=0,
        at_most=0.5,
        usual=True,
    )
    best_metric: str = best_metric_option("those rows", choices=(*METRICS, AUTO))
    bootstrap: int = evaluation_option(
        1000,
        unit="resamples",
        help="bootstrap resamples of the groups for the confidence intervals of the means; 0: no intervals",
        at_least=0,
    )
    worst_rows: int = evaluation_option(
        5000,
        help="maximum number of wrong rows in errors.tsv and on the page, highest loss first",
        unit="rows",
        at_least=0,
    )


@dataclass(frozen=True)
class LearningCurveConfig(ClassRunsConfig, TrainConfig):
    """Train on shares of the pairs, and predict what more labels would give. Start it again to resume."""

    EXAMPLE = f"{TrainConfig.EXAMPLE} --test_file lcqmc"

    output_dir: str = data_option(help="a folder per run, curve.json and curve.html go here", writes="FOLDER")
    test_file: str = file_option(help="labelled pairs that every run is measured on")
    shares: str = data_option(
        "0.25,0.5,1", help="shares of the training pairs, three or more that rise; each holds those before it"
    )
    seeds: int = optimisation_option(
        3, help="runs on each share: --seed and those after it", unit="runs", at_least=2, usual=True
    )
    metric: Literal["accuracy", "f1", "auc"] = evaluation_option("accuracy", help="what is predicted")
    bootstrap: int = evaluation_option(
        1000, unit="resamples", help="resamples of test rows and seeds for the intervals", at_least=1
    )

    def __post_init__(self):
        super().__post_init__()
        shares = parse_shares("shares", self.shares, max(3, self.shares.count(",") + 1), "size")
        if not shares or sorted({*shares}) != shares or shares[-1] > 1:
            raise InputError(f"--shares {self.shares} must rise, to 1 at most; use 0.25,0.5,1")


@dataclass(frozen=True)
class SearchParamsConfig(OverwriteFlag, TrainConfig):
    """Train with one set of flags after another, and find the best set. Start it again to resume."""

    NEEDS = {**TRAINING, "optuna": "tune"}
    EXAMPLE = (
        "--model_name_or_path ernie-gram-zh --train_file lcqmc --dev_file lcqmc --output_dir searched "
        "--space space.yaml"
    )

    output_dir: str = data_option(
        help="a folder per trial, the study, best.yaml, best and the report go here", writes="FOLDER"
    )
    space: str = optimisation_option(
        help="what to search, a YAML file or {...}: {learning_rate: {suggest: float, low: 1e-5, high: 1e-4, "
        "log: true}}; float, int or categorical (choices: [...]) and what Optuna's suggest_... takes",
        reads="FILE",
    )
    trials: int = optimisation_option(
        20, help="trials of all starts together", unit="trials", at_least=1, usual=True
    )
    evaluations: int = evaluation_option(
        10, help="evaluations of a trial, in place of --eval_freq", unit="evaluations", at_least=1
    )
    pruner: Literal["median", "asha", "none"] = optimisation_option(
        "median", help="stop trials below the median of earlier ones, or not in the best third (asha)"
    )

    def __post_init__(self):
        super().__post_init__()
        _refuse_of_one_run(self)
        if self.evaluation_strategy in ("epoch", "no"):
            raise InputError(
                f"--evaluation_strategy {self.evaluation_strategy} is not for trials; leave it out"
            )

    def config_of(self, changes: Dict[str, Any]) -> TrainConfig:
        """Return these flags with ``changes``, for one run. Raises InputError for invalid values."""
        own = {item.name: getattr(self, item.name) for item in fields(TrainConfig)}
        without_amp = changes.get("use_amp", self.use_amp) is False
        return TrainConfig(**{**own, **(defaults_of(self, "amp") if without_amp else {}), **changes})


@dataclass(frozen=True)
class CompareConfig(OverwriteFlag):
    """Fine-tune from several starts with several seeds, and compare them. Start it again to resume."""

    NEEDS = TRAINING
    EXAMPLE = (
        "--starts 'domain=output/dynamic base=ernie-1.0' --train_config train.yaml --output_dir compared"
    )

    starts: str = model_option(
        help='names and models: "domain=output/dynamic base=ernie-1.0"; random:MODEL: new weights; one with '
        "spaces needs quotes of its own",
        reads="NAME=PATH",
    )
    train_config: str = optimisation_option(
        help="a YAML file of flags of `ernie-pair train`, the same for every run", reads="FILE"
    )
    output_dir: str = data_option(
        help="a folder per run, compare.html, compare.json and compare.png go here", writes="FOLDER"
    )
    seeds: int = optimisation_option(
        3,
        help="runs from each start: the seed of --train_config, and those after it",
        unit="runs",
        at_least=1,
    )
    test_file: str = file_option(
        "", help="labelled pairs to compare on; empty: the dev_file of --train_config"
    )
    general_file: str = file_option(
        "",
        help="labelled pairs of another domain, two classes: what the training of each start costs on them; "
        "AUC before, of an encoder by its similarities, and after",
    )
    domain_data: str = path_option(
        "", help="a corpus of held-out text, its folder or PREFIX; every start predicts its masked words"
    )
    bootstrap: int = evaluation_option(
        1000,
        unit="resamples",
        help="bootstrap resamples for the confidence interval of a difference",
        at_least=1,
    )
    symmetric: Literal["none", "average"] = evaluation_option(
        "none",
        help="average: score both orders of a pair and take the mean of the logits; always used if "
        "--train_config has --symmetric average",
    )

    def __post_init__(self):
        super().__post_init__()
        if not Path(self.train_config).is_file():
            raise InputError(
                f"--train_config {self.train_config}: no such file; write the flags of train in it"
            )


@dataclass(frozen=True)
class CompareModelsConfig(ColumnFlags, OverwriteFlag):
    """Compare trained classifiers, exported, in ONNX Runtime on this machine.

    Each predicts its most probable class; saved thresholds do not count.
    """

    EXAMPLE = "--models 'teacher=output/best student=small/best' --input_file test.tsv --output_dir compared"
    NEEDS = {**TRAINING, "onnxruntime": ""}

    models: str = model_option(
        help='names and trained models: "teacher=output/best student=small/best"; the others are compared '
        "with the first; one with spaces needs quotes of its own",
        reads="NAME=PATH",
    )
    input_file: str = file_option(
        help="labelled pairs to measure on: files, folders, or a set such as lcqmc (its dev part)",
        stdin=(".tsv", ".jsonl"),
    )
    output_dir: str = data_option(
        help="models.json, models.md and models.html go here, and the exported models", writes="FOLDER"
    )
    int8: Literal["last", "all", "none"] = precision_option(
        "last", help="which models to measure in int8 as well"
    )
    bootstrap: int = evaluation_option(
        1000, unit="resamples", help="bootstrap resamples for the confidence intervals", at_least=1
    )
    seed: int = evaluation_option(1234, help="seed of the resamples", at_least=0)
    threads: int = speed_option(0, help=THREADS_HELP, unit="threads", at_least=0)
    device: Literal["cpu", "gpu", "gpu:N"] = devices_option("cpu", help="where the exported models run")

    def __post_init__(self):
        super().__post_init__()
        if self.device != "cpu" and self.int8 != "none":
            raise InputError(f"--device {self.device}: int8 runs on the CPU; add --int8 none")
