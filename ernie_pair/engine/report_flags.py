"""The flags for reporting a run: the dry run, other tools to log to, and how often metrics are read."""

from dataclasses import dataclass
from typing import Tuple

from data_tools.base.options import Options, names_in, option, refuse_unknown_names

REPORTERS = ("tensorboard", "wandb", "mlflow")


@dataclass(frozen=True)
class ReportToFlags(Options):
    """Where results are shown besides their own files."""

    report_to: str = option(
        "",
        help="where to log curves besides VisualDL: tensorboard, wandb, mlflow, or several separated by "
        "commas",
        group="evaluation",
    )

    def __post_init__(self):
        super().__post_init__()
        fault = f" is not one of {', '.join(REPORTERS)}; use some of them, separated by commas"
        refuse_unknown_names("report_to", self.reporters, REPORTERS, fault)

    @property
    def reporters(self) -> Tuple[str, ...]:
        """Return the names in ``report_to``, each once; none if it is empty or `none`."""
        return tuple(name for name in names_in(self.report_to) if name != "none")


@dataclass(frozen=True)
class ReportFlags(ReportToFlags):
    """A part of `PairConfig` and of `PretrainConfig`."""

    sync_freq: int = option(
        0,
        help="steps between checks that the loss is finite, each of which waits for the device; 0: every "
        "step on a CPU, every training log line on a GPU",
        group="evaluation",
        unit="steps",
        at_least=0,
    )
    dry_run: bool = option(
        False,
        help="run a few steps without writing anything, then print all flags and the steps, memory and time "
        "of the run",
        group="checkpoints",
    )

    def sync_freq_on(self, device: str) -> int:
        """Return the steps between reads of the metrics on ``device``; 0: only if something else is due."""
        return self.sync_freq or int(device == "cpu")
