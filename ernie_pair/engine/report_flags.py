"""The flags of how a run is shown: before it starts, by which other tools, how often its numbers are read."""

from dataclasses import dataclass
from typing import Tuple

from data_tools.base.options import Options, names_in, option, refuse_unknown_names

REPORTERS = ("tensorboard", "wandb", "mlflow")


@dataclass(frozen=True)
class ReportToFlags(Options):
    """Where something is shown beside its own files."""

    report_to: str = option(
        "",
        help="where curves go beside VisualDL: tensorboard, wandb, mlflow, or several with commas",
        group="evaluation",
    )

    def __post_init__(self):
        super().__post_init__()
        fault = f" is none of {', '.join(REPORTERS)}; use some of them, with commas"
        refuse_unknown_names("report_to", self.reporters, REPORTERS, fault)

    @property
    def reporters(self) -> Tuple[str, ...]:
        """Return the names in ``report_to``, each once; none for an empty one or `none`."""
        return tuple(name for name in names_in(self.report_to) if name != "none")


@dataclass(frozen=True)
class ReportFlags(ReportToFlags):
    """A part of `PairConfig` and of `PretrainConfig`."""

    sync_freq: int = option(
        0,
        help="steps between looks at the loss, which wait for the device and notice what is not finite; "
        "0: each on a CPU, on a GPU with each training line",
        group="evaluation",
        unit="steps",
        at_least=0,
    )
    dry_run: bool = option(
        False,
        help="print all flags, the steps, the memory and the time of the run, after a few steps in memory; "
        "nothing is written",
        group="checkpoints",
    )

    def sync_freq_on(self, device: str) -> int:
        """Return the steps between looks at the metrics on ``device``; 0: where something else is due."""
        return self.sync_freq or int(device == "cpu")
