"""The flags of ernie-pair ensemble."""

from dataclasses import dataclass
from typing import List

from data_tools.base.errors import InputError
from data_tools.base.options import Options, option
from ernie_pair.engine.report_flags import ReportToFlags
from ernie_pair.pair.export.export_config import ExportFlags


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

    EXAMPLE = "folds/fold-1 folds/fold-2 folds/fold-3 --output_dir shipped --format onnx --eval_file test.tsv"

    output_dir: str = option(help="folder to create, for use with `run`, `serve` and Python", group="data")
    eval_file: str = option(
        "",
        help="labelled pairs to measure each model and the ensemble on; a report goes to OUTPUT_DIR/report",
        group="evaluation",
    )
    calibrate_on: str = option(
        "",
        help="labelled pairs to fit the ensemble's temperature on, other than --eval_file; empty: "
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
        help="bootstrap resamples for the confidence intervals on --eval_file; 0: no intervals",
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
        help="where else to log the metrics of --eval_file: tensorboard, wandb, mlflow, or several separated "
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
        if self.reporters and not self.eval_file:
            raise InputError(f"--report_to {self.report_to} has no metrics to show; give --eval_file as well")
