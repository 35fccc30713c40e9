"""The flags of pretraining, under the recipe's names."""

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Dict, Literal, NamedTuple, Optional, Tuple, Union

from data_tools.files.errors import InputError, counted
from data_tools.options.options import option, refuse_empty
from ernie_pair.checkpoint.checkpoints import RetentionFlags
from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.pretrain.config.flags import NgramFlags, RecipeFlags
from ernie_pair.runtime.amp_flags import DeterministicFlags
from ernie_pair.runtime.device import default_device
from ernie_pair.runtime.processes.world import World, count_accumulation_steps
from ernie_pair.train.loop import STYLES
from ernie_pair.train.run_flags import ReportFlags, WarmupFlags

SHORTEST = 8  # tokens; also the minimum of --max_seq_len
_EXAMPLE = (
    "write lengths and steps as in --phases 128:9000,512:1000, or a micro-batch size as well, as in "
    "128:9000:32,512:1000:8"
)


class Phase(NamedTuple):
    """``steps`` steps on samples of at most ``length`` tokens, control tokens included.

    ``micro_batch_size``: samples per process in one forward pass.
    """

    length: int
    steps: int
    micro_batch_size: int


@lru_cache(maxsize=8)  # called in every step
def parse_phases(text: str, max_seq_len: int, max_steps: int, micro_batch_size: int) -> Tuple[Phase, ...]:
    """Parse '128:9000:32,512:1000'; '' is one phase of ``max_seq_len`` and ``max_steps``.

    ``micro_batch_size``: for phases that give none.

    Raises InputError if ``text`` is malformed, if its longest length is not ``max_seq_len``, or if its steps
    do not add up to ``max_steps``.
    """
    if not text.strip():
        return (Phase(max_seq_len, max_steps, micro_batch_size),)
    phases = tuple(_phase_of(part, text, micro_batch_size) for part in text.replace(" ", "").split(","))
    longest, steps = max(phase.length for phase in phases), sum(phase.steps for phase in phases)
    if longest != max_seq_len:
        raise InputError(
            f"--phases {text}: the longest samples have {longest} tokens, --max_seq_len is {max_seq_len}; "
            f"pass --max_seq_len {longest}"
        )
    if steps != max_steps:
        raise InputError(
            f"--phases {text}: {steps} steps in all, and --max_steps is {max_steps}; pass --max_steps {steps}"
        )
    return phases


def _phase_of(part: str, text: str, micro_batch_size: int) -> Phase:
    if not re.fullmatch(r"\d{1,9}:\d{1,9}(:\d{1,9})?", part, re.ASCII):
        raise InputError(f"--phases {text}: {part or 'nothing'} is not a phase; {_EXAMPLE}")
    length, steps, rows = map(int, [*part.split(":"), str(micro_batch_size)][:3])
    if length < SHORTEST or steps < 1:
        raise InputError(
            f"--phases {text}: {part} asks for samples of {length} tokens in {steps} steps; use {SHORTEST} "
            "tokens or more, and at least 1 step"
        )
    if rows < 1:
        raise InputError(f"--phases {text}: {part} has a micro-batch of 0 samples; use 1 or more")
    return Phase(length, steps, rows)


LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True)
class PretrainConfig(
    RetentionFlags, NgramFlags, WarmupFlags, ReportFlags, RecipeFlags, KernelFlags, DeterministicFlags
):
    """Pretrain an ERNIE or a BERT on a tokenized corpus, in the static graph by default.

    Start it again to resume.
    """

    EXAMPLE = "--model_name_or_path ernie-1.0 --input_dir data --output_dir output --max_steps 10000"
    USUAL_RATE = 0.01  # the recipe's

    model_name_or_path: str = option(
        help="a built-in name (ernie-1.0) or a folder: config.json, the tokenizer's files, weights",
        group="model",
    )
    input_dir: str = option(
        help="folder holding PREFIX_ids.npy and PREFIX_idx.npz, or several: '5.0 data/a 7.0 data/b'",
        group="data",
    )
    output_dir: str = option(help="checkpoints, metrics and VisualDL logs go here", group="checkpoints")
    model_type: Optional[Literal["ernie", "ernie-gram", "ernie_gram", "bert"]] = option(
        None, help="model family; none: taken from config.json", group="model"
    )
    binary_head: Optional[bool] = option(  # type: ignore[assignment]  # None: see `has_order`
        None,
        help="two segments per sample, to learn their order too; false: one segment, masked tokens only; "
        "none: true from random weights, otherwise whether the given weights have a sentence-order head",
        group="data",
        resume="fixed",
    )
    from_scratch: bool = option(
        False,
        help="start from random weights: config.json and the tokenizer's files are enough",
        group="model",
    )
    continue_training: Optional[bool] = option(
        None, help="the recipe's name: true requires weights, false means --from_scratch true", group="model"
    )
    split: str = option(
        "949,50,1", help="shares of the documents for training, validation, test", group="data", resume="same"
    )
    max_seq_len: int = option(
        512,
        help="tokens per sample, [CLS] and [SEP] included",
        group="data",
        unit="tokens",
        at_least=8,
        resume="same",
    )
    phases: str = option(
        "",
        help="consecutive phases of sequence length and steps, for example 128:9000,512:1000, or with a "
        "micro-batch size for each, 128:9000:32,512:1000:8; empty: --max_seq_len throughout",
        group="data",
        resume="same",
    )
    bucket_size: int = option(
        0,
        help="samples of similar length that are read together, to reduce padding; 0: do not sort by length",
        group="data",
        unit="samples",
        at_least=0,
        resume="same",
    )
    micro_batch_size: int = option(
        8,
        help="samples per process in one forward pass",
        group="optimisation",
        unit="samples",
        at_least=1,
        resume="layout",
    )
    global_batch_size: int = option(
        0,
        help="samples per step over all processes; 0: micro_batch_size, the largest of --phases, x processes",
        group="optimisation",
        unit="samples",
        at_least=0,
        resume="same",
    )
    dp_degree: int = option(
        1,
        help="groups of processes, each with the whole optimizer state",
        group="devices",
        unit="groups",
        at_least=1,
    )
    sharding_degree: int = option(
        1,
        help="processes of a group, each with a part of the optimizer state",
        group="devices",
        unit="processes",
        at_least=1,
        resume="layout",
    )
    use_sharding: Optional[bool] = option(
        None, help="split the optimizer state; none: if --sharding_degree is above 1", group="devices"
    )
    on_nan: Literal["stop", "skip"] = option(
        "stop", help="when the loss is not finite: stop the run, or skip the step", group="optimisation"
    )
    use_recompute: bool = option(
        False, help="recompute activations in the backward pass: less memory, more time", group="optimisation"
    )
    optimizer: Literal["adamw", "lamb"] = option(
        "adamw",
        help="lamb: scales the step of each layer by the norm of its weights, for large batches",
        group="optimisation",
        resume="same",
    )
    max_lr: float = option(
        1e-4, help="learning rate at the end of warm-up", group="optimisation", above=0, resume="same"
    )
    min_lr: float = option(
        1e-5, help="learning rate at decay_steps and after", group="optimisation", at_least=0, resume="same"
    )
    decay_steps: int = option(
        0,
        help="steps until min_lr is reached; 0: max_steps",
        group="optimisation",
        unit="steps",
        at_least=0,
    )
    lr_decay_style: str = option(
        "linear",
        help="shape of the decay to min_lr; constant: max_lr to the end, regardless of min_lr and "
        "decay_steps",
        group="optimisation",
        choices=STYLES,
        resume="same",
    )
    max_steps: int = option(
        500000, help="total number of steps", group="optimisation", unit="steps", at_least=1
    )
    weight_decay: float = option(
        0.01,
        help="decay of every weight except biases and norms",
        group="optimisation",
        at_least=0,
        resume="same",
    )
    adam_beta1: float = option(
        0.9, help="decay of the first moment", group="optimisation", at_least=0, below=1, resume="same"
    )
    adam_beta2: float = option(
        0.999, help="decay of the second moment", group="optimisation", at_least=0, below=1, resume="same"
    )
    adam_epsilon: float = option(
        1e-8,
        help="the optimizer's epsilon; 1e-6 is usual for lamb",
        group="optimisation",
        above=0,
        below=1,
        resume="same",
    )
    grad_clip: float = option(
        1.0,
        help="maximum global norm of the gradient; 0: no clipping",
        group="optimisation",
        at_least=0,
        resume="same",
    )
    hidden_dropout_prob: float = option(
        0.1, help="dropout of the hidden states", group="model", at_least=0, below=1, resume="same"
    )
    attention_probs_dropout_prob: float = option(
        0.1, help="dropout of the attention weights", group="model", at_least=0, below=1, resume="same"
    )
    save_steps: int = option(
        50000,
        help="steps between exported models, model_STEP/",
        group="checkpoints",
        unit="steps",
        at_least=1,
    )
    checkpoint_steps: int = option(
        5000, help="steps between checkpoints, model_last", group="checkpoints", unit="steps", at_least=1
    )
    logging_freq: int = option(
        20, help="steps between log lines", group="evaluation", unit="steps", at_least=1
    )
    eval_freq: int = option(
        1000, help="steps between validations", group="evaluation", unit="steps", at_least=1
    )
    share_folder: bool = option(
        True,
        help="all machines share one output_dir; false: each machine has its own, with everything it needs",
        group="devices",
    )
    num_workers: int = option(
        1,
        help="data loading processes per training process, at most its number of cores; 0: none",
        group="devices",
        unit="processes",
        at_least=0,
    )
    seed: int = option(
        1234,
        help="seed of weights, data order, masks and dropout",
        group="optimisation",
        at_least=0,
        at_most=LARGEST_SEED,
        resume="same",
    )
    fresh_start: bool = option(
        False,
        help="start anew and rename what an earlier run left in output_dir; without this flag the run "
        "resumes",
        group="checkpoints",
    )
    allow_change: str = option(
        "",
        help="flags that may differ from the run of the checkpoint, for example max_lr,min_lr",
        group="checkpoints",
    )
    device: Literal["cpu", "gpu"] = option(default_device(), help="where to run", group="devices")

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output_dir")
        if self.from_scratch and self.continue_training:
            raise InputError("--from_scratch true and --continue_training true contradict; pass one of them")
        self._refuse_rates()
        if self.sharding_degree > 1 and self.use_sharding is False:
            raise InputError(
                f"--sharding_degree {self.sharding_degree} splits the optimizer state, and --use_sharding "
                "false does not; leave --use_sharding out, or pass --sharding_degree 1"
            )
        self.phase_list  # noqa: B018 - raises if --phases is invalid
        largest = self.largest_micro_batch
        if 0 < self.bucket_size < largest:
            raise InputError(
                f"--bucket_size {self.bucket_size} is below --micro_batch_size {largest}, so a batch "
                "would mix lengths; raise it, ideally to the samples of all processes"
            )
        if self.optimizer == "lamb" and self.weight_decay == 0:
            raise InputError(
                "--optimizer lamb adapts what decays, and with --weight_decay 0 nothing decays: no layer "
                "would be adapted; pass a --weight_decay above 0, or --optimizer adamw"
            )
        if self.narrows_weights:
            self.refuse_narrow_sums(self.accumulation_steps, "micro_batch_size")
        if self.reduce_dtype == "half" and self.accumulation_steps > 1:
            raise InputError(
                f"--reduce_dtype half: the gradients of the {self.accumulation_steps} micro-batches of a "
                "step are accumulated, and summed over the processes, in float32; leave it out, or raise "
                "--micro_batch_size until one micro-batch makes a step"
            )

    def _refuse_rates(self):
        if not self.min_lr <= self.max_lr:
            raise InputError(
                f"--min_lr {self.min_lr} is above --max_lr {self.max_lr}: the rate would rise after warm-up; "
                "lower --min_lr or raise --max_lr"
            )
        if self.lr_decay_steps <= self.num_warmup_steps and self.lr_decay_style != "constant":
            raise InputError(
                f"--warmup_rate or --warmup_steps asks for a warm-up of {self.num_warmup_steps} steps, and "
                f"--decay_steps {self.decay_steps} ends the decay before it; lower the one or raise the other"
            )

    @property
    def phase_list(self) -> Tuple[Phase, ...]:
        """Return the phases of the run; a single one if --phases is empty."""
        return parse_phases(self.phases, self.max_seq_len, self.max_steps, self.micro_batch_size)

    @property
    def largest_micro_batch(self) -> int:
        """Return the largest micro-batch size of all phases."""
        return max(phase.micro_batch_size for phase in self.phase_list)

    @property
    def full_length_micro_batch(self) -> int:
        """Return the micro-batch size for the longest samples, which evaluation uses."""
        longest = [phase for phase in self.phase_list if phase.length == self.max_seq_len]
        return min(phase.micro_batch_size for phase in longest)

    def micro_batch_at(self, step: int) -> int:
        """Return the micro-batch size of a step; steps count from 0."""
        ends = accumulate(phase.steps for phase in self.phase_list)
        return next(p.micro_batch_size for p, end in zip(self.phase_list, ends) if step < end)

    def count_passes(self, micro_batch_size: int) -> int:
        """Return how many micro-batches of ``micro_batch_size`` each process computes in a step.

        Raises InputError if they do not divide the global batch evenly.
        """
        one_pass = micro_batch_size * self.processes
        if micro_batch_size != self.micro_batch_size and self.samples_per_step % one_pass:
            raise InputError(
                f"--phases {self.phases}: micro-batches of {micro_batch_size} on "
                f"{counted(self.processes, 'process', 'processes')} do not divide the "
                f"{self.samples_per_step} samples of a step; use sizes that do, or another "
                "--global_batch_size"
            )
        return count_accumulation_steps(self.samples_per_step, micro_batch_size, self.processes)

    @property
    def starts_from_scratch(self) -> bool:
        """Return whether the run starts from random weights, under either flag."""
        return self.from_scratch or self.continue_training is False

    @property
    def lr_decay_steps(self) -> int:
        """Return the step at which the learning rate reaches ``min_lr``."""
        return self.decay_steps or self.max_steps

    @property
    def num_warmup_steps(self) -> int:
        """Return the number of warm-up steps.

        --warmup_rate is a share of ``max_steps``, as in the recipe, not of the decay steps.
        """
        return self.count_warmup_steps(self.max_steps)

    @property
    def rates(self) -> Dict[str, Union[float, str]]:
        """Return the schedule as keyword arguments of ``learning_rate``."""
        return {
            "max_lr": self.max_lr,
            "min_lr": self.min_lr,
            "warmup_steps": self.num_warmup_steps,
            "decay_steps": self.lr_decay_steps,
            "style": self.lr_decay_style,
        }

    @property
    def samples_per_step(self) -> int:
        """Return the global batch size."""
        return self.global_batch_size or self.largest_micro_batch * self.processes

    @property
    def processes(self) -> int:
        """Return the number of processes; all of them read data, also within a sharding group."""
        return self.dp_degree * self.sharding_degree

    @property
    def accumulation_steps(self) -> int:
        """Return the micro-batches per process and step, in the phase that has the most."""
        return max(self.count_passes(phase.micro_batch_size) for phase in self.phase_list)


def refuse_unready(config: PretrainConfig, world: World, local: World) -> None:
    """Raise InputError for a combination that is not supported, before anything is built.

    ``local``: this process among those of its machine.
    """
    if config.processes != world.size:
        raise InputError(
            f"--dp_degree {config.dp_degree} x --sharding_degree {config.sharding_degree} asks for "
            f"{counted(config.processes, 'process', 'processes')}, but {world.size} were started; pass "
            f"--dp_degree {max(1, world.size // config.sharding_degree)}, or start {config.processes}"
        )
    if not config.share_folder and local.size % config.sharding_degree:
        raise InputError(
            f"--share_folder false keeps the whole optimizer state on each machine: --sharding_degree "
            f"{config.sharding_degree} must divide the {counted(local.size, 'process', 'processes')} of a "
            f"machine; pass --sharding_degree {local.size}, or share the folder"
        )
    config.refuse_half_precision_on(config.device)
    config.accumulation_steps  # noqa: B018 - raises if the batch sizes do not divide evenly
