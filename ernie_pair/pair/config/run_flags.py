"""The flags shared by every training of a dynamic model on pairs: its rows, its length, its output."""

from dataclasses import dataclass
from typing import Literal, Union

from data_tools.files.errors import InputError
from data_tools.options.options import Options, option
from data_tools.text.text_files import ENCODINGS
from ernie_pair.pair.data.pair_records import BAD_ROW_HELP, ENCODING_HELP, FIRST_TEXT_HELP, SECOND_TEXT_HELP
from ernie_pair.pair.targets.metrics import class_weights_in
from ernie_pair.runtime.amp_flags import AmpFlags
from ernie_pair.runtime.device import default_device
from ernie_pair.runtime.gpu.builds import refuse_old_gpu
from ernie_pair.runtime.gpu.cards import Card
from ernie_pair.train.hooks import Schedule
from ernie_pair.train.loop import STYLES

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


# What must not change between a checkpoint and the run that goes on from it.
SAME_STEP = (
    *(
        "grad_clip",
        "class_weights",
        "rdrop_alpha",
        "symmetric",
        "fgm_epsilon",
        "use_amp",
        "amp_dtype",
        "amp_level",
        "precision",
    ),
    *("init_loss_scaling", "incr_every_n_steps", "incr_ratio", "decr_every_n_nan_or_inf", "decr_ratio"),
)


@dataclass(frozen=True)
class StepFlags(AmpFlags):
    """A part of `PairConfig`."""

    gradient_accumulation_steps: int = option(
        1,
        help="forward passes of --batch_size pairs per process in one step",
        group="optimisation",
        unit="batches",
        at_least=1,
    )
    grad_clip: float = option(
        0.0, help="maximum global norm of the gradient; 0: no clipping", group="optimisation", at_least=0
    )
    class_weights: str = option(
        "",
        help="weight of each class in the loss, for example 1,2.5; balanced: computed from the training "
        "labels",
        group="optimisation",
    )
    rdrop_alpha: float = option(
        0.0,
        help="R-Drop: run every pair twice and add this times the divergence to the loss; 0: off",
        group="optimisation",
        at_least=0,
    )
    symmetric: Literal["none", "average", "consistency"] = option(
        "none",
        help="run every pair in both orders; average: train and score with the mean of the logits; "
        "consistency: add the divergence of the two orders to the loss, and score in one order",
        group="optimisation",
    )
    symmetric_alpha: float = option(
        1.0,
        help="for --symmetric consistency: weight of the divergence of the two orders",
        group="optimisation",
        at_least=0,
    )
    fgm_epsilon: float = option(
        0.0,
        help="FGM: length of the adversarial step on the word embeddings, for example 1; 0: off",
        group="optimisation",
        at_least=0,
    )
    sharding: Literal["none", "stage2"] = option(
        "none",
        help="stage2: split gradients and optimizer state over the GPUs (ZeRO stage 2)",
        group="devices",
    )
    to_static: Union[bool, Literal["auto"]] = option(
        "auto",
        help="compile the forward pass into one program instead of running op by op; auto: on a GPU, where "
        "possible",
        group="devices",
    )
    sharding_offload: bool = option(
        False, help="for stage2: keep the optimizer state in CPU memory", group="devices"
    )

    def __post_init__(self):
        super().__post_init__()
        class_weights_in(self.class_weights)
        self._refuse_symmetry()
        if self.fgm_epsilon and self.narrows_weights:
            raise InputError(
                f"--fgm_epsilon {self.fgm_epsilon} moves the embedding by less than the narrow weights of "
                "--amp_level O2 can tell apart; use O1"
            )
        if self.reduce_dtype == "half" and not self.narrows_weights:
            raise InputError(
                "--reduce_dtype half: with --amp_level O1 the gradients are in float32; leave it out, or use "
                "O2"
            )
        self._refuse_sharding()

    def _refuse_symmetry(self) -> None:
        if self.symmetric != "none" and self.rdrop_alpha:
            raise InputError(
                f"--symmetric {self.symmetric} runs every pair in both orders, and --rdrop_alpha "
                f"{self.rdrop_alpha} twice in one; leave one of them out"
            )
        if self.symmetric != "consistency" and self.symmetric_alpha != 1.0:
            raise InputError(
                f"--symmetric_alpha {self.symmetric_alpha} is for --symmetric consistency, and this is "
                f"--symmetric {self.symmetric}; leave it out"
            )

    @property
    def scored_as(self) -> str:
        """Return how the pairs of an evaluation are scored; see `pair_symmetry`."""
        return "average" if self.symmetric == "average" else "none"

    @property
    def passes_of_a_pair(self) -> int:
        """Return how often a step lets each pair pass forward."""
        return (2 if self.rdrop_alpha or self.symmetric != "none" else 1) * (2 if self.fgm_epsilon else 1)

    def refuse_on(self, card: Card) -> None:
        """Raise InputError if ``card`` has no units for what is asked.

        The dynamic graph needs them for float16 too; a program of the static one computes without.
        """
        super().refuse_on(card)
        if self.computes_in_half:
            cure = "use another type, or --use_amp false"
            refuse_old_gpu(card.capability, self.amp_dtype, f"--amp_dtype {self.amp_dtype}", cure)

    def _refuse_sharding(self) -> None:
        if self.sharding_offload and self.sharding == "none":
            raise InputError("--sharding_offload true needs --sharding stage2; add it, or leave it out")
        if self.sharding == "none":
            return
        if self.fgm_epsilon:
            raise InputError(
                "--fgm_epsilon needs the embedding's gradient on every process, and --sharding stage2 leaves "
                "it on one; use --sharding none"
            )
        if self.sharding_offload and not (self.narrows_weights and self.amp_dtype == "float16"):
            raise InputError(
                "--sharding_offload true keeps float32 masters of float16 weights in the CPU's memory; add "
                "--use_amp true --amp_level O2 --amp_dtype float16, or leave it out"
            )
