"""The flags that trainings share: reports, warm-up, frozen layers, length, schedule, output folder."""

from dataclasses import dataclass
from typing import Any, Literal, Optional

from ernie_pair.core.cli.options import (
    Options,
    check_names,
    check_unset,
    checkpoint_steps_option,
    checkpoints_option,
    evaluation_option,
    evaluation_steps_option,
    kept_optimisation_option,
    kept_precision_option,
    layout_option,
    model_option,
    names_in,
    new_model_option,
    optimisation_option,
)
from ernie_pair.core.errors import InputError
from ernie_pair.core.installation import TRAINING
from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.runtime.amp_flags import AmpFlags
from ernie_pair.runtime.device import DeviceFlag
from ernie_pair.training.schedule import STYLES, Schedule

MAX_SEED = 2**31 - 1
# Of --report_to: {name: what it needs, see `needs` of an option}.
REPORTERS = {
    "tensorboard": {"tensorboardX": "tensorboard"},
    "wandb": {"wandb": "wandb"},
    "mlflow": {"mlflow": "mlflow"},
}
BEST_IF_AUTO = (
    "auto: accuracy for classes, mse for regression, mrr for ranking, recall_at_10 for vectors, spearman for "
    "those of graded dev pairs"
)


def best_metric_option(rows: str, **kwargs: Any) -> Any:
    """Declare ``best_metric``, of an evaluation on ``rows``; ``kwargs``: of `option`."""
    help = f"metric on {rows} that chooses the best model; {BEST_IF_AUTO}"
    return evaluation_option("auto", help=help, resume="fixed", usual=True, **kwargs)


@dataclass(frozen=True)
class OutputFolder(Options):
    """Where a training writes: a base on its own, so that it is the first of all fields."""

    output_dir: str = checkpoints_option(
        help="checkpoints, the best model, metrics and VisualDL logs go here", writes="FOLDER", affects="run"
    )


@dataclass(frozen=True, kw_only=True)
class SharedFlags(AmpFlags, KernelFlags, DeviceFlag):
    """The flags of every training, in either graph: weights, steps, precision, reports and checkpoints."""

    NEEDS = TRAINING

    USUAL_RATE = 0.1  # of the warm-up, if neither of its flags is given

    from_scratch: bool = model_option(
        False,
        help="start from random weights: config.json and the tokenizer's files are enough",
        affects="new weights, run",
        usual=True,
    )
    warmup_rate: Optional[float] = optimisation_option(
        None,
        help="share of the steps spent on warm-up; none: 0.1 for pairs and 0.01 in pretraining",
        at_least=0,
        below=1,
        affects="schedule",
    )
    warmup_steps: Optional[int] = optimisation_option(
        None, help="warm-up in steps, instead of --warmup_rate", unit="steps", at_least=0, affects="schedule"
    )
    weight_decay: float = kept_optimisation_option(
        0.01, help="decay of every weight except biases and norms", at_least=0, affects="optimizer"
    )
    grad_clip: float = kept_optimisation_option(
        0.0, help="maximum global norm of the gradient; 0: no clipping", at_least=0, affects="optimizer"
    )
    seed: int = kept_optimisation_option(
        1234,
        help="seed of weights, data order, masks and dropout",
        affects="run",
        at_least=0,
        at_most=MAX_SEED,
        usual=True,
    )
    use_recompute: bool = optimisation_option(
        False,
        help="recompute each encoder layer in the backward pass: slower, but with far less memory",
        affects="encoder",
    )
    on_nan: Literal["stop", "skip"] = optimisation_option(
        "stop", help="when the loss is not finite: stop the run, or skip the step"
    )
    report_to: str = evaluation_option(
        "",
        help="where to log curves besides VisualDL: tensorboard, wandb, mlflow, or several separated by "
        "commas",
        needs=REPORTERS,
        affects="loop, shown",
    )
    sync_freq: int = evaluation_option(
        0,
        help="steps between checks that the loss is finite, each of which waits for the device; 0: every "
        "step on a CPU, every training log line on a GPU",
        unit="steps",
        at_least=0,
    )
    logging_freq: int = evaluation_steps_option(10, help="steps between log lines", usual=True)
    keep_checkpoints: int = checkpoints_option(
        3, help="number of newest checkpoints to keep, at least 2", unit="checkpoints", at_least=2
    )
    keep_every: int = checkpoints_option(
        0,
        help="also keep the checkpoints at every multiple of this many steps; 0: none",
        unit="steps",
        at_least=0,
        affects="loop",
    )
    fresh_start: bool = checkpoints_option(
        False,
        help="start anew and rename what an earlier run left in output_dir; without this flag the run "
        "resumes",
        affects="start",
        usual=True,
    )
    max_minutes: float = checkpoints_option(
        0,
        help="after so many minutes stop behind the current step, saved, with exit code 143, as on SIGTERM; "
        "0: go on to the end",
        unit="minutes",
        at_least=0,
        affects="start",
    )
    allow_change: str = checkpoints_option(
        "",
        help="flags that may differ from the run of the checkpoint, for example weight_decay,seed",
        affects="start",
    )
    dry_run: bool = checkpoints_option(
        False,
        help="run a few steps without writing anything, then print all flags and the steps, memory and time "
        "of the run",
        affects="start, loop",
    )

    def __post_init__(self):
        super().__post_init__()
        fault = f" is not one of {', '.join(REPORTERS)}; use some of them, separated by commas"
        check_names("report_to", self.reporters, REPORTERS, fault)
        if self.warmup_rate is not None and self.warmup_steps is not None:
            raise InputError(
                f"--warmup_rate {self.warmup_rate} and --warmup_steps {self.warmup_steps} both set the "
                "warm-up; leave one of them out"
            )

    @property
    def reporters(self) -> tuple[str, ...]:
        """Return the names in ``report_to``, each once; none if it is empty or `none`."""
        return tuple(name for name in names_in(self.report_to) if name != "none")

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

    def sync_freq_on(self, device: str) -> int:
        """Return the steps between reads of the metrics on ``device``; 0: only if something else is due."""
        return self.sync_freq or int(device == "cpu")


@dataclass(frozen=True, kw_only=True)
class TrainingFlags(SharedFlags, OutputFolder):
    """The flags of every training in the dynamic graph; see `Task`."""

    epochs: int = optimisation_option(
        3, help="passes over the training pairs", unit="epochs", at_least=1, usual=True
    )
    max_steps: int = optimisation_option(
        0, unit="steps", help="total number of steps; 0: as many as --epochs needs", at_least=0, usual=True
    )
    batch_size: int = layout_option(
        64, help="pairs per process in one forward pass", unit="pairs", usual=True
    )
    gradient_accumulation_steps: int = layout_option(
        1, help="forward passes of --batch_size pairs per process in one step", unit="batches"
    )
    learning_rate: float = kept_optimisation_option(
        5e-5,
        help="peak learning rate, reached at the end of warm-up",
        above=0,
        affects="schedule",
        usual=True,
    )
    lr_scheduler_type: str = kept_optimisation_option(
        "linear",
        help="schedule after warm-up: linear or cosine decay to 0, constant, or constant until a last tenth "
        "decays (warmup_stable_decay)",
        choices=STYLES,
        affects="schedule",
    )
    dropout: float = new_model_option(
        0.1,
        help="dropout of hidden states, attention weights and classifier",
        at_least=0,
        below=1,
        resume="same",
    )
    evaluation_strategy: Literal["auto", "steps", "epoch", "no"] = evaluation_option(
        "auto",
        help="when to evaluate, besides before the first step and at the end: every --eval_freq steps, at "
        "the end of each epoch, or both (auto); no: never, and there is no best model",
        affects="loop",
    )
    eval_freq: int = evaluation_steps_option(
        100, help="steps between evaluations; see --evaluation_strategy", usual=True
    )
    best_metric: str = best_metric_option("the dev pairs")
    save_strategy: Literal["steps", "epoch", "no"] = checkpoints_option(
        "steps",
        help="when to write a checkpoint, besides at the end: every --checkpoint_steps steps, at the end of "
        "each epoch, or never",
        affects="loop",
    )
    checkpoint_steps: int = checkpoint_steps_option(
        500, help="steps between checkpoints; see --save_strategy"
    )
    save_format: Literal["paddle", "hf", "both"] = checkpoints_option(
        "paddle",
        help="format of the best model: for PaddleNLP, for transformers or sentence-transformers (hf), or "
        "both (hf in hugging_face/)",
        affects="loop, encoder",
    )
    keep_best: int = checkpoints_option(
        1,
        help="number of best models to keep; the link best points to the best of them",
        unit="models",
        at_least=1,
        affects="loop",
    )
    early_stopping_patience: int = evaluation_option(
        0,
        help="stop after this many consecutive evaluations without a better best_metric; 0: never",
        unit="evaluations",
        at_least=0,
        affects="loop",
    )
    amp_level: Literal["O1", "O2"] = kept_precision_option(
        "O1",
        help="O1: weights in float32; O2: weights in half precision too",
        affects="amp",
        only_with="use_amp=true",
    )
    freeze: Literal["none", "embeddings", "encoder"] = optimisation_option(
        "none",
        help="what is frozen, without dropout: the embeddings, or the embeddings and all layers",
        resume="fixed",
        affects="encoder",
    )
    freeze_layers: int = optimisation_option(
        0,
        help="freeze the embeddings and this many layers above them",
        unit="layers",
        at_least=0,
        resume="fixed",
        affects="encoder",
    )
    layer_decay: float = kept_optimisation_option(
        1.0,
        help="layer-wise learning rate decay: each layer below the head learns at this fraction of the rate "
        "of the layer above",
        above=0,
        at_most=1,
        affects="optimizer, encoder",
    )

    def __post_init__(self):
        super().__post_init__()
        if self.evaluation_strategy == "no":
            usual = {"early_stopping_patience": 0, "keep_best": 1, "save_format": "paddle"}
            fault = " is for best models, and --evaluation_strategy no chooses none; leave one of them out"
            check_unset(self, usual, fault)
        if self.freeze == "encoder" and self.freeze_layers:
            raise InputError(
                f"--freeze encoder freezes all layers, and --freeze_layers {self.freeze_layers} some; "
                "leave one of them out"
            )
        self.check_device_precision(self.device)
        if self.weights_are_half and self.amp_dtype == "float32":
            raise InputError(
                "--amp_level O2 keeps the weights in half precision; with --amp_dtype float32 use O1"
            )
        if self.weights_are_half and self.gradient_accumulation_steps > 1:
            raise InputError(
                "--amp_level O2 would accumulate several micro-batches' gradients in half precision; use "
                "O1, or raise --batch_size until one micro-batch makes a step"
            )

    @property
    def weights_are_half(self) -> bool:
        """Return whether the weights themselves are in half precision."""
        return self.use_amp and self.amp_level == "O2"

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
