"""The flags of the commands that compare or combine models; no framework is loaded for them."""

from dataclasses import dataclass
from pathlib import Path
from typing import List, Literal

from data_tools.files.errors import InputError
from data_tools.options.options import Options, option, refuse_empty
from data_tools.text.text_files import ENCODINGS
from ernie_pair.pair.data.pair_records import ENCODING_HELP
from ernie_pair.score.export.export_config import ExportFlags
from ernie_pair.train.run_flags import ReportToFlags


@dataclass(frozen=True)
class CompareConfig(Options):
    """Fine-tune from several starts with several seeds, and compare them. Start it again to resume."""

    EXAMPLE = (
        "--starts 'domain=output/dynamic base=ernie-1.0' --train_config train.yaml --output_dir compared"
    )

    starts: str = option(
        help='names and models: "domain=output/dynamic base=ernie-1.0"; random:MODEL: new weights; one with '
        "spaces needs quotes of its own",
        group="model",
    )
    train_config: str = option(
        help="a YAML file of flags of `ernie-pair train`, the same for every run", group="optimisation"
    )
    output_dir: str = option(
        help="a folder per run, compare.html, compare.json and compare.png go here", group="data"
    )
    seeds: int = option(
        3,
        help="runs from each start: the seed of --train_config, and those after it",
        group="optimisation",
        unit="runs",
        at_least=1,
    )
    test_file: str = option(
        "", help="labelled pairs to compare on; empty: the dev_file of --train_config", group="data"
    )
    domain_data: str = option(
        "",
        help="a corpus of held-out text, its folder or PREFIX; every start predicts its masked words",
        group="data",
    )
    domain_samples: int = option(
        1000, help="samples of --domain_data", group="data", unit="samples", at_least=1
    )
    bootstrap: int = option(
        1000,
        help="bootstrap resamples for the confidence interval of a difference",
        group="evaluation",
        unit="resamples",
        at_least=1,
    )
    overwrite: bool = option(
        False, help="replace files that this command did not make, or that have changed since", group="data"
    )
    symmetric: Literal["none", "average"] = option(
        "none",
        help="average: score both orders of a pair and take the mean of the logits; always used if "
        "--train_config has --symmetric average",
        group="evaluation",
    )

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output_dir")
        if not Path(self.train_config).is_file():
            raise InputError(
                f"--train_config {self.train_config}: no such file; write the flags of train in it"
            )


@dataclass(frozen=True)
class CompareModelsConfig(Options):
    """Compare trained classifiers, exported, in ONNX Runtime on this machine's CPU.

    Each predicts its most probable class; saved thresholds do not count.
    """

    EXAMPLE = "--models 'teacher=output/best student=small/best' --input_file test.tsv --output_dir compared"

    models: str = option(
        help='names and trained models: "teacher=output/best student=small/best"; the others are compared '
        "with the first; one with spaces needs quotes of its own",
        group="model",
    )
    input_file: str = option(
        help="labelled pairs to measure on: a file, or a set such as lcqmc (its dev part)",
        group="data",
        stdin=(".tsv", ".jsonl"),
    )
    output_dir: str = option(
        help="models.json, models.md and models.html go here, and the exported models", group="data"
    )
    int8: Literal["last", "all", "none"] = option(
        "last", help="which models to measure in int8 as well", group="precision"
    )
    alone: int = option(
        200,
        help="pairs to score one at a time, to measure the latency of a single pair",
        group="evaluation",
        unit="pairs",
        at_least=2,
    )
    bootstrap: int = option(
        1000,
        help="bootstrap resamples for the confidence intervals",
        group="evaluation",
        unit="resamples",
        at_least=1,
    )
    seed: int = option(1234, help="seed of the resamples", group="evaluation", at_least=0)
    threads: int = option(
        0,
        help="threads of one forward pass; 0: the number of cores of this process",
        group="devices",
        unit="threads",
        at_least=0,
    )
    text_a: str = option(
        "", help="the column of the first text; empty: a known name, or the first column", group="data"
    )
    text_b: str = option("", help="the column of the second text", group="data")
    label: str = option("", help="the column of the label", group="data")
    encoding: str = option("utf-8", help=ENCODING_HELP, group="data", choices=ENCODINGS)
    overwrite: bool = option(False, help="replace existing results", group="data")

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output_dir")


@dataclass(frozen=True)
class Members(Options):
    """The models of an ensemble; a base on its own puts them first of all fields."""

    models: List[str] = option(
        help="two or more trained models: folders, or output folders of runs for their best models",
        positional=True,
        group="model",
    )


@dataclass(frozen=True)
class EnsembleConfig(ExportFlags, ReportToFlags, Members):
    """Export several classifiers as one: the mean of their logits, each at its temperature."""

    EXAMPLE = "folds/fold-1 folds/fold-2 folds/fold-3 --output_dir shipped --format onnx --dev_file test.tsv"

    output_dir: str = option(
        help="folder to create, for use with `predict`, `serve` and Python", group="data"
    )
    dev_file: str = option(
        "",
        help="labelled pairs to measure each model and the ensemble on; a report goes to OUTPUT_DIR/report",
        group="evaluation",
    )
    calibrate_on: str = option(
        "",
        help="labelled pairs to fit the ensemble's temperature on, other than --dev_file; empty: "
        "temperature 1",
        group="evaluation",
    )
    tune_on: str = option(
        "",
        help="labelled pairs to choose the ensemble's threshold on, for --at_precision; empty: the more "
        "probable class is predicted",
        group="evaluation",
    )
    at_precision: float = option(
        0.95,
        help="precision of class 1 that the threshold must give on --tune_on",
        group="evaluation",
        above=0,
        at_most=1,
    )
    bootstrap: int = option(
        1000,
        help="bootstrap resamples for the confidence intervals on --dev_file; 0: no intervals",
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
    batch_size: int = option(64, help="pairs in one forward pass", group="devices", unit="pairs", at_least=1)
    report_to: str = option(
        "",
        help="where else to log the metrics of --dev_file: tensorboard, wandb, mlflow, or several separated "
        "by commas; their files are written to OUTPUT_DIR-log",
        group="evaluation",
    )

    def __post_init__(self):
        super().__post_init__()
        if len(self.models) < 2:
            raise InputError(f"{self.models[0]} alone is not an ensemble; name two models or more")
        if self.tune_on and self.threshold is not None:
            raise InputError(
                f"--tune_on {self.tune_on} chooses a threshold, and --threshold {self.threshold} gives one; "
                "leave one of them out"
            )
        if self.reporters and not self.dev_file:
            raise InputError(f"--report_to {self.report_to} has no metrics to show; give --dev_file as well")
