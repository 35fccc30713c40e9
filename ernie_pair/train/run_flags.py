"""The flags that trainings share: reports, warm-up, frozen layers, length, schedule, output folder."""

from dataclasses import dataclass
from typing import Literal, Optional, Tuple

from data_tools.files.errors import InputError
from data_tools.options.options import Options, names_in, option, refuse_empty, refuse_unknown_names
from ernie_pair.checkpoint.checkpoints import RetentionFlags
from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.runtime.amp_flags import AmpFlags, DeterministicFlags
from ernie_pair.runtime.device import default_device
from ernie_pair.train.hooks import Schedule
from ernie_pair.train.loop import STYLES

LARGEST_SEED = 2**31 - 1
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
    """How a run is reported, and whether it is only planned."""

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
    """The warm-up, as a share of the run or in steps."""

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
    """Which layers learn, and how fast; the dynamic graph alone has these."""

    freeze: Literal["none", "embeddings", "encoder"] = option(
        "none",
        help="what is frozen, without dropout: the embeddings, or the embeddings and all layers",
        group="optimisation",
        resume="fixed",
    )
    freeze_layers: int = option(
        0,
        help="freeze the embeddings and this many layers above them",
        group="optimisation",
        unit="layers",
        at_least=0,
        resume="fixed",
    )
    layer_decay: float = option(
        1.0,
        help="layer-wise learning rate decay: each layer below the head learns at this fraction of the rate "
        "of the layer above",
        group="optimisation",
        above=0,
        at_most=1,
        resume="same",
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


@dataclass(frozen=True)
class RunFlags(Options):
    """How long a training in the dynamic graph runs, how fast it learns, and when it logs and saves."""

    from_scratch: bool = option(
        False,
        help="start from random weights: config.json and the tokenizer's files are enough",
        group="model",
    )
    epochs: int = option(
        3, help="passes over the training pairs", group="optimisation", unit="epochs", at_least=1
    )
    max_steps: int = option(
        0,
        help="total number of steps; 0: as many as --epochs needs",
        group="optimisation",
        unit="steps",
        at_least=0,
    )
    batch_size: int = option(
        64,
        help="pairs per process in one forward pass",
        group="optimisation",
        unit="pairs",
        at_least=1,
        resume="layout",
    )
    gradient_accumulation_steps: int = option(
        1,
        help="forward passes of --batch_size pairs per process in one step",
        group="optimisation",
        unit="batches",
        at_least=1,
        resume="layout",
    )
    grad_clip: float = option(
        0.0,
        help="maximum global norm of the gradient; 0: no clipping",
        group="optimisation",
        at_least=0,
        resume="same",
    )
    learning_rate: float = option(
        5e-5,
        help="peak learning rate, reached at the end of warm-up",
        group="optimisation",
        above=0,
        resume="same",
    )
    lr_scheduler_type: str = option(
        "linear",
        help="schedule after warm-up: linear or cosine decay to 0, or constant",
        group="optimisation",
        choices=STYLES,
        resume="same",
    )
    weight_decay: float = option(
        0.01,
        help="decay of every weight except biases and norms",
        group="optimisation",
        at_least=0,
        resume="same",
    )
    evaluation_strategy: Literal["auto", "steps", "epoch", "no"] = option(
        "auto",
        help="when to evaluate, besides before the first step and at the end: every --eval_freq steps, at "
        "the end of each epoch, or both (auto); no: never, and there is no best model",
        group="evaluation",
    )
    eval_freq: int = option(
        100,
        help="steps between evaluations; see --evaluation_strategy",
        group="evaluation",
        unit="steps",
        at_least=1,
    )
    logging_freq: int = option(
        10, help="steps between log lines", group="evaluation", unit="steps", at_least=1
    )
    save_strategy: Literal["steps", "epoch", "no"] = option(
        "steps",
        help="when to write a checkpoint, besides at the end: every --checkpoint_steps steps, at the end of "
        "each epoch, or never",
        group="checkpoints",
    )
    checkpoint_steps: int = option(
        500,
        help="steps between checkpoints; see --save_strategy",
        group="checkpoints",
        unit="steps",
        at_least=1,
    )
    keep_best: int = option(
        1,
        help="number of best models to keep; the link best points to the best of them",
        group="checkpoints",
        unit="models",
        at_least=1,
    )
    seed: int = option(
        1234,
        help="seed of weights, data order and dropout",
        group="optimisation",
        at_least=0,
        at_most=LARGEST_SEED,
        resume="same",
    )
    early_stopping_patience: int = option(
        0,
        help="stop after this many consecutive evaluations without a better best_metric; 0: never",
        group="evaluation",
        unit="evaluations",
        at_least=0,
    )
    early_stopping_min_delta: float = option(
        0.0,
        help="an evaluation must be better by more than this to count as better",
        group="evaluation",
        at_least=0,
    )
    fresh_start: bool = option(
        False,
        help="start anew and rename what an earlier run left in output_dir; without this flag the run "
        "resumes",
        group="checkpoints",
    )
    allow_change: str = option(
        "",
        help="flags that may differ from the run of the checkpoint, for example learning_rate,seed",
        group="checkpoints",
    )
    on_nan: Literal["stop", "skip"] = option(
        "stop", help="when the loss is not finite: stop the run, or skip the step", group="optimisation"
    )
    device: Literal["cpu", "gpu"] = option(default_device(), help="where to run", group="devices")

    def __post_init__(self):
        super().__post_init__()
        for name, nothing in (("early_stopping_patience", 0), ("keep_best", 1), ("save_format", "paddle")):
            value = getattr(self, name, nothing)
            if self.evaluation_strategy == "no" and value != nothing:
                raise InputError(
                    f"--{name} {value} is for best models, and --evaluation_strategy no chooses none; leave "
                    "one of them out"
                )

    def pairs_per_step(self, processes: int) -> int:
        """Return the global batch size: the number of pairs in one step, over all ``processes``."""
        return self.batch_size * self.gradient_accumulation_steps * processes

    def schedule(self, max_steps: int, pairs_per_step: int, num_rows: int, sync_freq: int) -> Schedule:
        """Return when a run logs, evaluates and saves; ``num_rows``: of an epoch, 0: a stream."""
        return Schedule(
            max_steps=max_steps,
            global_batch_size=pairs_per_step,
            logging_freq=self.logging_freq,
            eval_freq=self.eval_freq if self.evaluation_strategy in ("auto", "steps") else 0,
            checkpoint_steps=self.checkpoint_steps if self.save_strategy == "steps" else 0,
            samples_per_epoch=num_rows,
            evaluates=self.evaluation_strategy != "no",
            evaluates_epochs=self.evaluation_strategy in ("auto", "epoch"),
            saves_epochs=self.save_strategy == "epoch",
            sync_freq=sync_freq,
        )


@dataclass(frozen=True)
class OutputConfig(Options):
    """The folder of results; a base on its own puts it first of all fields, as in PairConfig("output")."""

    output_dir: str = option(
        help="checkpoints, the best model, metrics and VisualDL logs go here", group="checkpoints"
    )

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output_dir")


@dataclass(frozen=True)
class TrainingFlags(
    LayerFlags,
    WarmupFlags,
    ReportFlags,
    AmpFlags,
    KernelFlags,
    DeterministicFlags,
    RetentionFlags,
    RunFlags,
    OutputConfig,
):
    """The flags of every training in the dynamic graph; see `Task`."""

    def __post_init__(self):
        super().__post_init__()
        self.refuse_half_precision_on(self.device)
        self.refuse_narrow_sums(self.gradient_accumulation_steps, "batch_size")
        if self.reduce_dtype == "half" and not self.narrows_weights:
            raise InputError(
                "--reduce_dtype half: with --amp_level O1 the gradients are in float32; leave it out, or use "
                "O2"
            )
