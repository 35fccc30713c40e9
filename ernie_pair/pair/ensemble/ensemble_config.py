"""The flags of ernie-pair ensemble."""

from dataclasses import dataclass
from typing import List

from data_tools.base.errors import InputError
from data_tools.base.options import Options, option
from ernie_pair.engine.report_flags import ReportToFlags
from ernie_pair.pair.export.export_config import ExportFlags


@dataclass(frozen=True)
class Members(Options):
    """The models of an ensemble; a base by itself puts them first of all fields."""

    models: List[str] = option(
        help="two or more trained models: folders, or the OUT of runs for their best ones",
        positional=True,
        group="model",
    )


@dataclass(frozen=True)
class EnsembleConfig(ExportFlags, ReportToFlags, Members):
    """Export several classifiers as one: the mean of their logits, each at its temperature."""

    EXAMPLE = "folds/fold-1 folds/fold-2 folds/fold-3 --output_dir shipped --format onnx --eval_file test.tsv"

    output_dir: str = option(help="the folder to make, which `run`, `serve` and Python take", group="data")
    eval_file: str = option(
        "",
        help="labelled pairs to measure each model and the ensemble on; a report goes to OUTPUT_DIR/report",
        group="evaluation",
    )
    calibrate_on: str = option(
        "",
        help="labelled pairs to fit the ensemble's temperature on, other than --eval_file; empty: 1",
        group="evaluation",
    )
    tune_on: str = option(
        "",
        help="labelled pairs to choose the ensemble's threshold on, that of --at_precision; empty: the "
        "likelier class is the answer",
        group="evaluation",
    )
    at_precision: float = option(
        0.95,
        help="of --tune_on: the precision of class 1 that the threshold gives",
        group="evaluation",
        above=0,
        at_most=1,
    )
    bootstrap: int = option(
        1000,
        help="resamples for the intervals of --eval_file; 0: no intervals",
        group="evaluation",
        unit="resamples",
        at_least=0,
    )
    worst_rows: int = option(
        200, help="most wrong rows that errors.tsv holds", group="evaluation", unit="rows", at_least=0
    )
    batch_size: int = option(64, help="pairs in one forward pass", group="devices", unit="pairs", at_least=1)
    report_to: str = option(
        "",
        help="where the metrics of --eval_file go besides: tensorboard, wandb, mlflow, with commas; files of "
        "theirs lie in OUTPUT_DIR-log",
        group="evaluation",
    )

    def __post_init__(self):
        super().__post_init__()
        if len(self.models) < 2:
            raise InputError(f"{self.models[0]} alone is no ensemble; name two models or more")
        if self.tune_on and self.threshold is not None:
            raise InputError(
                f"--tune_on {self.tune_on} chooses a threshold, and --threshold {self.threshold} gives one; "
                "leave one of them out"
            )
        if self.reporters and not self.eval_file:
            raise InputError(f"--report_to {self.report_to} has no metrics to show; give --eval_file as well")
