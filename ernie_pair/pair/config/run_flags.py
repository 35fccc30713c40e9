"""The flags shared by every training of a dynamic model on pairs: its rows, its length, its output."""

from dataclasses import dataclass
from typing import Literal

from data_tools.base.errors import InputError
from data_tools.base.options import Options, option
from data_tools.text.lines import ENCODINGS
from ernie_pair.device.device import default_device
from ernie_pair.engine.lr_schedule import STYLES
from ernie_pair.engine.schedule import Schedule
from ernie_pair.pair.data.pair_columns import FIRST_TEXT_HELP, SECOND_TEXT_HELP
from ernie_pair.pair.data.pair_records import BAD_ROW_HELP, ENCODING_HELP

LARGEST_SEED = 2**31 - 1


@dataclass(frozen=True)
class RunFlags(Options):
    """A part of the settings of training in the dynamic graph."""

    from_scratch: bool = option(
        False,
        help="start from random weights: config.json and the tokenizer's files are enough",
        group="model",
    )
    text_a: str = option("", help=FIRST_TEXT_HELP, group="data")
    text_b: str = option("", help=SECOND_TEXT_HELP, group="data")
    label: str = option("", help="the column of the label", group="data")
    encoding: str = option("utf-8", help=ENCODING_HELP, group="data", choices=ENCODINGS)
    on_bad_row: Literal["stop", "skip"] = option("stop", help=BAD_ROW_HELP, group="data")
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
        64, help="pairs per process in one forward pass", group="optimisation", unit="pairs", at_least=1
    )
    learning_rate: float = option(
        5e-5, help="peak learning rate, reached at the end of warm-up", group="optimisation", above=0
    )
    lr_scheduler_type: str = option(
        "linear",
        help="schedule after warm-up: linear or cosine decay to 0, or constant",
        group="optimisation",
        choices=STYLES,
    )
    weight_decay: float = option(
        0.01, help="decay of every weight except biases and norms", group="optimisation", at_least=0
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
