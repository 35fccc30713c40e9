"""The flags of pretraining, under the recipe's names."""

import math
from dataclasses import dataclass
from typing import Literal

from data_tools.command_line import option
from data_tools.dataset_utils import refuse_ngram_laws
from data_tools.errors import InputError
from ernie_pair.runtime import default_device
from ernie_pair.world import World, passes_per_update


@dataclass(frozen=True)
class PretrainConfig:
    """Pretrain ERNIE 1.0 in static graph on a tokenized corpus. Start it again to resume."""

    model_name_or_path: str = option(
        help="a built-in name (ernie-1.0) or a folder: config.json, vocab.txt, weights"
    )
    input_dir: str = option(
        help="folder holding PREFIX_ids.npy and PREFIX_idx.npz, or several: '5.0 data/a 7.0 data/b'"
    )
    output_dir: str = option(help="checkpoints, metrics and VisualDL logs go here")
    model_type: Literal["ernie"] = option("ernie", help="the family of the model")
    from_scratch: bool = option(False, help="start from random weights: config.json and vocab.txt are enough")
    split: str = option("949,50,1", help="shares of the documents for training, validation, test")
    max_seq_len: int = option(512, help="tokens per sample, [CLS] and [SEP] included")
    micro_batch_size: int = option(8, help="samples per process in one forward pass")
    global_batch_size: int = option(
        0, help="samples per update, all processes; 0: micro_batch_size x processes"
    )
    dp_degree: int = option(1, help="processes that share the data")
    sharding_degree: int = option(1, help="processes that share the optimizer state")
    use_sharding: bool = option(False, help="share the optimizer state")
    use_amp: bool = option(False, help="mixed precision, on GPU")
    use_recompute: bool = option(
        False, help="recompute activations in the backward pass: less memory, more time"
    )
    max_lr: float = option(1e-4, help="learning rate at the end of warm-up")
    min_lr: float = option(1e-5, help="learning rate at decay_steps and after")
    warmup_rate: float = option(0.01, help="share of decay_steps spent on warm-up")
    decay_steps: int = option(0, help="updates until min_lr is reached; 0: max_steps")
    max_steps: int = option(500000, help="updates in all")
    weight_decay: float = option(0.01, help="decay of every weight except biases and norms")
    adam_beta1: float = option(0.9, help="AdamW's first moment")
    adam_beta2: float = option(0.999, help="AdamW's second moment")
    adam_epsilon: float = option(1e-8, help="AdamW's epsilon")
    grad_clip: float = option(1.0, help="largest global norm of the gradient; 0: no clipping")
    hidden_dropout_prob: float = option(0.1, help="dropout of the hidden states")
    attention_probs_dropout_prob: float = option(0.1, help="dropout of the attention weights")
    masked_lm_prob: float = option(0.15, help="share of the tokens to mask")
    short_seq_prob: float = option(0.1, help="share of the samples with a shorter target length")
    favor_longer_ngram: bool = option(False, help="mask long n-grams more often than short ones")
    max_ngrams: int = option(3, help="longest n-gram of words masked together")
    geometric: bool = option(False, help="n-grams end after each word with p = 0.2, in place of p(n) ~ 1/n")
    whole_word_mask: bool = option(True, help="mask words; false: tokens, each on its own")
    masking_fn: str = option("", help="your own masking, package.module:function; none: the built-in one")
    binary_head: bool = option(True, help="learn the order of sentences too; false: masked tokens alone")
    save_steps: int = option(50000, help="updates between exported models, model_STEP/")
    checkpoint_steps: int = option(5000, help="updates between checkpoints, model_last")
    logging_freq: int = option(20, help="updates between log lines")
    eval_freq: int = option(1000, help="updates between validations")
    eval_iters: int = option(10, help="global batches in a validation")
    num_workers: int = option(1, help="loader processes per process; 0: none")
    seed: int = option(1234, help="of weights, data order, masks and dropout")
    device: Literal["cpu", "gpu"] = option(default_device(), help="where to run")

    def __post_init__(self):
        for name in ("max_steps", "micro_batch_size", "dp_degree", "sharding_degree", "max_ngrams"):
            _at_least(self, name, 1)
        for name in ("save_steps", "checkpoint_steps", "logging_freq", "eval_freq", "eval_iters"):
            _at_least(self, name, 1)
        for name in ("global_batch_size", "decay_steps", "num_workers", "seed", "weight_decay", "grad_clip"):
            _at_least(self, name, 0)
        _at_least(self, "max_seq_len", 8)
        for name in ("warmup_rate", "hidden_dropout_prob", "attention_probs_dropout_prob", "short_seq_prob"):
            _within(self, name, 0, 1)
        for name in ("adam_beta1", "adam_beta2"):
            _within(self, name, 0, 1)
        if not 0 < self.masked_lm_prob < 1:
            raise InputError(f"--masked_lm_prob {self.masked_lm_prob} is not between 0 and 1; use 0.15")
        if not 0 < self.adam_epsilon < 1:
            raise InputError(f"--adam_epsilon {self.adam_epsilon} is not between 0 and 1; use 1e-8")
        self._refuse_rates()
        refuse_ngram_laws(self)

    def _refuse_rates(self):
        if not (math.isfinite(self.max_lr) and self.max_lr > 0 and self.min_lr >= 0):
            raise InputError(
                f"--max_lr {self.max_lr} must be above 0 and --min_lr {self.min_lr} not below it"
            )
        if not self.min_lr <= self.max_lr:
            raise InputError(
                f"--min_lr {self.min_lr} is above --max_lr {self.max_lr}: the rate would rise after warm-up; "
                "lower --min_lr or raise --max_lr"
            )

    @property
    def lr_decay_steps(self) -> int:
        return self.decay_steps or self.max_steps

    @property
    def warmup_steps(self) -> int:
        return round(self.warmup_rate * self.lr_decay_steps)

    @property
    def samples_per_update(self) -> int:
        return self.global_batch_size or self.micro_batch_size * self.dp_degree

    @property
    def passes(self) -> int:
        """Forward passes of each process in one update."""
        return passes_per_update(self.samples_per_update, self.micro_batch_size, self.dp_degree)


def refuse_unready(config: PretrainConfig, world: World) -> None:
    """Raises InputError for a combination that this version does not do, before anything is built."""
    if config.use_sharding or config.sharding_degree > 1:
        raise InputError("--use_sharding and --sharding_degree above 1 are not ready; use --dp_degree alone")
    if config.dp_degree != world.size:
        raise InputError(
            f"--dp_degree {config.dp_degree} asks for {config.dp_degree} process(es), but {world.size} were "
            f"started; pass --dp_degree {world.size}, or launch with --nproc_per_node {config.dp_degree}"
        )
    if config.use_amp and config.device == "cpu":
        raise InputError(
            "--use_amp true needs a GPU: Paddle has no half-precision CPU kernels; use --use_amp false"
        )
    config.passes  # noqa: B018 - raises where the batch sizes do not divide


def _at_least(config, name: str, least: float) -> None:
    value = getattr(config, name)
    if not (math.isfinite(value) and value >= least):
        raise InputError(f"--{name} {value} is below {least}; use {least} or more")


def _within(config, name: str, low: float, high: float) -> None:
    value = getattr(config, name)
    if not low <= value < high:
        raise InputError(f"--{name} {value} is not in [{low}, {high}); use a value in it")
