"""The flags of pretraining, under the recipe's names, and the models that they fit."""

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Literal, NamedTuple, Optional, Union

from data_tools.samples.masking import MaskingFlags
from data_tools.text.folder_tokenizer import AnyTokenizer
from ernie_pair.core.cli.options import (
    check_unset,
    checkpoint_steps_option,
    checkpoints_option,
    data_option,
    defaults_of,
    devices_option,
    evaluation_option,
    evaluation_steps_option,
    file_option,
    kept_data_option,
    kept_optimisation_option,
    layout_option,
    model_folder_option,
    model_option,
    new_model_option,
    optimisation_option,
    processes_option,
    speed_option,
)
from ernie_pair.core.errors import InputError, counted
from ernie_pair.models.spec import CONFIG, ModelSpec
from ernie_pair.runtime.processes.world import World, count_accumulation_steps
from ernie_pair.training.run_flags import SharedFlags
from ernie_pair.training.schedule import STYLES

AUTO = "auto"
# Their GPU kernels add up in float32, whatever the type of their input.
HALF_OPS = frozenset({"softmax", "layer_norm", "gelu"})
# The families that are pretrained; a BERT, a RoBERTa-wwm and a MacBERT are all of model_type bert.
PRETRAINED = ("ernie", "ernie_gram", "bert")
SHORTEST = 8  # tokens; also the minimum of --max_seq_len
_EXAMPLE = (
    "write lengths and steps as in --phases 128:9000,512:1000, or a micro-batch size as well, as in "
    "128:9000:32,512:1000:8"
)


class Phase(NamedTuple):
    """``steps`` steps on samples of up to ``length`` tokens, ``micro_batch_size`` per process and pass."""

    length: int
    steps: int
    micro_batch_size: int


@lru_cache(maxsize=8)  # called in every step
def parse_phases(text: str, max_seq_len: int, max_steps: int, micro_batch_size: int) -> tuple[Phase, ...]:
    """Parse '128:9000:32,512:1000'; '' is one phase of ``max_seq_len`` and ``max_steps``.

    ``micro_batch_size``: for phases that give none. Raises InputError if ``text`` is malformed, if its
    longest length is not ``max_seq_len``, or if its steps do not add up to ``max_steps``.
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


@dataclass(frozen=True, kw_only=True)
class SampleFlags(MaskingFlags):
    """What is masked, also by the n-grams of a lexicon, and how much of the text an evaluation reads."""

    ngram_lexicon: str = file_option(
        "",
        help="ngrams.txt of ernie-pair build ngrams, for the ERNIE-Gram objective: an n-gram is masked by "
        "one [MASK] and predicted as a whole; empty: single tokens only",
        resume="fixed",
    )
    decoder_masked_prob: float = data_option(
        0.0,
        help="RetroMAE: a decoder of one layer reconstructs the whole text from the vector of [CLS] and, for "
        "each token, the others but this share of their words; 0.5 as in the paper; 0: no decoder",
        at_least=0,
        below=1,
        resume="fixed",
    )
    eval_iters: int = evaluation_option(10, help="global batches per validation", unit="batches", at_least=1)

    def __post_init__(self):
        super().__post_init__()
        if self.ngram_lexicon:
            fault = " is for words, and --ngram_lexicon says what is masked together; leave one of them out"
            check_unset(self, defaults_of(self, "words"), fault)


@dataclass(frozen=True)
class PretrainConfig(SharedFlags, SampleFlags):
    """Pretrain an ERNIE or a BERT on a tokenized corpus, in the static graph by default.

    Start it again to resume.
    """

    EXAMPLE = "--model_name_or_path ernie-1.0 --input_dir data --output_dir output --max_steps 10000"
    USUAL_RATE = 0.01  # the recipe's

    graph: Literal["auto", "static", "dynamic"] = devices_option(
        AUTO,
        help="static: a program for the whole step; dynamic: the same step computed op by op, to inspect the "
        "model; auto: static, and dynamic for --decoder_masked_prob",
    )
    mp_degree: int = devices_option(
        1,
        help="the recipe's degree of tensor parallelism, which is not supported: must be 1",
        at_least=1,
        at_most=1,
    )
    pp_degree: int = devices_option(
        1,
        help="the recipe's degree of pipeline parallelism, which is not supported: must be 1",
        at_least=1,
        at_most=1,
    )
    model_name_or_path: str = model_folder_option(
        help="a built-in name (ernie-1.0) or a folder: config.json, the tokenizer's files, weights"
    )
    input_dir: str = data_option(
        help="folder holding PREFIX_ids.npy and PREFIX_idx.npz, or several: '5.0 data/a 7.0 data/b'",
        reads="FOLDER",
    )
    output_dir: str = checkpoints_option(
        help="checkpoints, metrics and VisualDL logs go here", writes="FOLDER"
    )
    model_type: Optional[Literal["ernie", "ernie-gram", "ernie_gram", "bert"]] = new_model_option(
        None, help="model family; none: taken from config.json", usual=True
    )
    binary_head: Optional[bool] = data_option(  # type: ignore[assignment]  # None: see `has_order`
        None,
        help="two segments per sample, to learn their order too; false: one segment, masked tokens only; "
        "none: true from random weights, otherwise whether the given weights have a sentence-order head",
        resume="fixed",
    )
    split: str = kept_data_option("949,50,1", help="shares of the documents for training, validation, test")
    max_seq_len: int = kept_data_option(
        512, help="tokens per sample, [CLS] and [SEP] included", unit="tokens", at_least=8, usual=True
    )
    phases: str = kept_data_option(
        "",
        help="consecutive phases of sequence length and steps, for example 128:9000,512:1000, or with a "
        "micro-batch size for each, 128:9000:32,512:1000:8; empty: --max_seq_len throughout",
    )
    bucket_size: int = kept_data_option(
        0,
        help="samples of similar length that are read together, to reduce padding; 0: do not sort by length",
        unit="samples",
        at_least=0,
    )
    micro_batch_size: int = layout_option(
        8, help="samples per process in one forward pass", unit="samples", usual=True
    )
    global_batch_size: int = kept_optimisation_option(
        0,
        help="samples per step over all processes; 0: micro_batch_size, the largest of --phases, x processes",
        unit="samples",
        at_least=0,
        usual=True,
    )
    dp_degree: int = devices_option(
        1,
        help="groups of processes, each with the whole optimizer state",
        unit="groups",
        at_least=1,
        usual=True,
    )
    sharding_degree: int = processes_option(
        1, help="processes of a group, each with a part of the optimizer state", resume="layout", usual=True
    )
    use_sharding: Optional[bool] = devices_option(
        None, help="split the optimizer state; none: if --sharding_degree is above 1"
    )
    optimizer: Literal["adamw", "lamb"] = kept_optimisation_option(
        "adamw", help="lamb: scales the step of each layer by the norm of its weights, for large batches"
    )
    max_lr: float = kept_optimisation_option(
        1e-4, help="learning rate at the end of warm-up", above=0, usual=True
    )
    min_lr: float = kept_optimisation_option(
        1e-5, help="learning rate at decay_steps and after", at_least=0, usual=True
    )
    decay_steps: int = optimisation_option(
        0, help="steps until min_lr is reached; 0: max_steps", unit="steps", at_least=0, usual=True
    )
    lr_decay_style: str = kept_optimisation_option(
        "linear",
        help="shape of the decay to min_lr; constant: max_lr to the end, regardless of min_lr and "
        "decay_steps",
        choices=STYLES,
    )
    max_steps: int = optimisation_option(
        500000, help="total number of steps", unit="steps", at_least=1, usual=True
    )
    adam_beta1: float = kept_optimisation_option(0.9, help="decay of the first moment", at_least=0, below=1)
    adam_beta2: float = kept_optimisation_option(
        0.999, help="decay of the second moment", at_least=0, below=1
    )
    adam_epsilon: float = kept_optimisation_option(
        1e-8, help="the optimizer's epsilon; 1e-6 is usual for lamb", above=0, below=1
    )
    grad_clip: float = kept_optimisation_option(
        1.0, help="maximum global norm of the gradient; 0: no clipping", at_least=0
    )
    hidden_dropout_prob: float = model_option(
        0.1, at_least=0, below=1, resume="same", help="dropout of the hidden states", affects="dropout"
    )
    attention_probs_dropout_prob: float = model_option(
        0.1, at_least=0, below=1, resume="same", help="dropout of the attention weights", affects="dropout"
    )
    save_steps: int = checkpoint_steps_option(
        50000, help="steps between exported models, model_STEP/", usual=True
    )
    checkpoint_steps: int = checkpoint_steps_option(
        5000, help="steps between checkpoints, model_last", usual=True
    )
    logging_freq: int = evaluation_steps_option(20, help="steps between log lines", usual=True)
    eval_freq: int = evaluation_steps_option(1000, help="steps between validations", usual=True)
    share_folder: bool = devices_option(
        True,
        help="all machines share one output_dir; false: each machine has its own, with everything it needs",
    )
    num_workers: int = speed_option(
        1,
        help="data loading processes per training process, at most its number of cores; 0: none",
        unit="processes",
        at_least=0,
        usual=True,
    )

    def __post_init__(self):
        super().__post_init__()
        if self.decoder_masked_prob:
            self._refuse_beside_decoder()
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

    def _refuse_beside_decoder(self):
        for name in ("ngram_lexicon", "binary_head", "graph"):
            value = getattr(self, name)
            if value and value not in (AUTO, "dynamic"):
                raise InputError(
                    f"--decoder_masked_prob {self.decoder_masked_prob}: RetroMAE masks single tokens of one "
                    f"segment, in the dynamic graph, and --{name} {str(value).lower()} is something else; "
                    "leave one of them out"
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
    def is_dynamic(self) -> bool:
        """Return whether the run uses the dynamic graph, in which alone RetroMAE's decoder is computed."""
        return self.graph == "dynamic" or self.decoder_masked_prob > 0

    @property
    def phase_list(self) -> tuple[Phase, ...]:
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
        """Return each process's micro-batches in a step. Raises InputError if they do not divide it."""
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
    def lr_decay_steps(self) -> int:
        """Return the step at which the learning rate reaches ``min_lr``."""
        return self.decay_steps or self.max_steps

    @property
    def num_warmup_steps(self) -> int:
        """Return the warm-up steps; --warmup_rate is a share of ``max_steps``, as in the recipe."""
        return self.count_warmup_steps(self.max_steps)

    @property
    def rates(self) -> dict[str, Union[float, str]]:
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


def check_layout(config: PretrainConfig, world: World, local: World) -> None:
    """Raise InputError for what is not supported; ``local``: this process among those of its machine."""
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
    config.check_device_precision(config.device)
    config.accumulation_steps  # noqa: B018 - raises if the batch sizes do not divide evenly


def check_family(spec: ModelSpec) -> None:
    """Raise InputError when ``spec`` is of a family that is not pretrained here; none is ERNIE's."""
    if spec.family not in ("", *PRETRAINED):
        raise InputError(
            f"{CONFIG}: {spec.family} cannot be pretrained here; give a model of model_type "
            f"{', '.join(PRETRAINED)} (BERT, RoBERTa-wwm, MacBERT are bert)"
        )


def check_model_fits(flags: MaskingFlags, max_seq_len: int, tokenizer: AnyTokenizer, spec: ModelSpec) -> None:
    """Raise InputError when the samples of ``flags``, up to that length, do not fit the model of ``spec``."""
    if max_seq_len > spec.max_positions:
        raise InputError(
            f"--max_seq_len {max_seq_len} is above the model's {spec.max_positions} positions; lower it"
        )
    if flags.has_order and spec.token_types == 1:
        raise InputError(
            f"{CONFIG}: type_vocab_size 1 cannot tell two segments apart; use --binary_head false"
        )
    if tokenizer.pad_id != spec.pad_id:
        raise InputError(
            f"[PAD] is token {tokenizer.pad_id} of vocab.txt, but the model masks its pad_token_id "
            f"{spec.pad_id}; fix {CONFIG}, or give the model's own vocab.txt"
        )
