"""The flags for reporting a run: the dry run, other tools to log to, and how often metrics are read."""

from dataclasses import dataclass
from typing import Literal, Optional, Tuple

from data_tools.files.errors import InputError
from data_tools.options.options import Options, names_in, option, refuse_unknown_names

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


@dataclass(frozen=True)
class WarmupFlags(Options):
    """The warm-up, as a share of the run or in steps; a part of `PairConfig` and of `PretrainConfig`."""

    USUAL_RATE = 0.1  # if neither flag is given

    warmup_rate: Optional[float] = option(
        None,
        help="share of the steps spent on warm-up; none: 0.1 for pairs and 0.01 in pretraining",
        group="optimisation",
        at_least=0,
        below=1,
    )
    warmup_steps: Optional[int] = option(
        None,
        help="warm-up in steps, instead of --warmup_rate",
        group="optimisation",
        unit="steps",
        at_least=0,
    )

    def __post_init__(self):
        super().__post_init__()
        if self.warmup_rate is not None and self.warmup_steps is not None:
            raise InputError(
                f"--warmup_rate {self.warmup_rate} and --warmup_steps {self.warmup_steps} both set the "
                "warm-up; leave one of them out"
            )

    @property
    def warmup_share(self) -> float:
        """Return the share of the steps spent on warm-up if no steps are given."""
        return self.USUAL_RATE if self.warmup_rate is None else self.warmup_rate

    def count_warmup_steps(self, total_steps: int) -> int:
        """Return the warm-up steps of a run. Raises InputError if they are all of ``total_steps``."""
        if self.warmup_steps is None:
            return round(self.warmup_share * total_steps)
        if self.warmup_steps >= total_steps:
            raise InputError(
                f"--warmup_steps {self.warmup_steps} covers all {total_steps} steps of the run; "
                "lower it, or train for longer"
            )
        return self.warmup_steps


@dataclass(frozen=True)
class LayerFlags(Options):
    """A part of the settings of training in the dynamic graph."""

    freeze: Literal["none", "embeddings", "encoder"] = option(
        "none",
        help="what is frozen, without dropout: the embeddings, or the embeddings and all layers",
        group="optimisation",
    )
    freeze_layers: int = option(
        0,
        help="freeze the embeddings and this many layers above them",
        group="optimisation",
        unit="layers",
        at_least=0,
    )
    layer_decay: float = option(
        1.0,
        help="layer-wise learning rate decay: each layer below the head learns at this fraction of the rate "
        "of the layer above",
        group="optimisation",
        above=0,
        at_most=1,
    )
    use_recompute: bool = option(
        False,
        help="recompute each encoder layer in the backward pass: slower, but with far less memory",
        group="optimisation",
    )

    def __post_init__(self):
        super().__post_init__()
        if self.freeze == "encoder" and self.freeze_layers:
            raise InputError(
                f"--freeze encoder freezes all layers, and --freeze_layers {self.freeze_layers} some; "
                "leave one of them out"
            )

    @property
    def freezes_embeddings(self) -> bool:
        """Return whether the embeddings, the lowest of all, stay as they are."""
        return self.freeze != "none" or self.freeze_layers > 0
