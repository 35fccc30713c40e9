"""The groups of flags that `PretrainConfig` consists of, and the models that they fit."""

from dataclasses import dataclass
from typing import Any, FrozenSet, Literal, Optional

from data_tools.files.errors import InputError
from data_tools.options.options import Options, names_in, option, refuse_unknown_names
from data_tools.samples.masking import MaskingFlags
from data_tools.text.folder_tokenizer import AnyTokenizer
from ernie_pair.models.spec import CONFIG, ModelSpec
from ernie_pair.runtime.amp_flags import AmpFlags

ATTENTION, GEMM_EPILOGUE, COLLECTIVES = "attention", "gemm_epilogue", "collectives"
FUSED_OPS = (ATTENTION, GEMM_EPILOGUE, COLLECTIVES)
AUTO, NONE = "auto", "none"
# The least length of a batch on a GPU, up to --max_seq_len, and its multiple: the fused softmax needs both.
LEAST_LENGTH, LENGTH_MULTIPLE = 32, 8


@dataclass(frozen=True)
class FusedFlags(Options):
    """Which fused ops of GPUs the static graph uses."""

    fused_ops: str = option(
        AUTO,
        help=f"on GPUs: {AUTO}, {NONE}, or some of {', '.join(FUSED_OPS)}, which must then be available",
        group="devices",
        resume="layout",
    )

    def __post_init__(self):
        super().__post_init__()
        fault = f": there is no such op; use {AUTO}, {NONE}, or some of {','.join(FUSED_OPS)}"
        refuse_unknown_names("fused_ops", sorted(self.asked_ops), FUSED_OPS, fault)

    @property
    def asked_ops(self) -> FrozenSet[str]:
        """Return the ops that --fused_ops names."""
        return frozenset() if self.fused_ops in (AUTO, NONE) else frozenset(names_in(self.fused_ops))


# Flags that only the static graph supports, with the one value that the dynamic graph accepts.
STATIC_ALONE = {
    "dp_degree": 1,
    "sharding_degree": 1,
    "use_amp": False,
    "use_recompute": False,
    "on_nan": "stop",
}


@dataclass(frozen=True)
class GraphFlags(Options):
    """Which graph the run uses."""

    graph: Literal["static", "dynamic"] = option(
        "static",
        help="static, or dynamic: the same losses computed op by op, to inspect the model; one process, "
        "float32",
        group="devices",
    )

    def __post_init__(self):
        super().__post_init__()
        if not self.is_dynamic:
            return
        for name, only in STATIC_ALONE.items():
            asked: Any = getattr(self, name, only)
            if asked != only:
                shown = str(asked).lower() if isinstance(asked, bool) else asked
                raise InputError(
                    f"--graph dynamic does not support --{name} {shown}, but static does; leave one out"
                )
        if getattr(self, "asked_ops", None):
            raise InputError(
                "--graph dynamic does not support --fused_ops, which is for the static graph; leave it out"
            )

    @property
    def is_dynamic(self) -> bool:
        """Return whether the run uses the dynamic graph."""
        return self.graph == "dynamic"


# Their GPU kernels add up in float32, whatever the type of their input.
HALF_OPS = frozenset({"softmax", "layer_norm", "gelu"})


@dataclass(frozen=True)
class HalfFlags(AmpFlags):
    """Mixed precision of the static graph."""

    amp_fp32_ops: str = option(
        "",
        help=f"operators that mixed precision keeps in float32: some of {', '.join(sorted(HALF_OPS))}",
        group="precision",
        resume="same",
    )

    def __post_init__(self):
        super().__post_init__()
        fault = f": its precision cannot be chosen; use some of {','.join(sorted(HALF_OPS))}"
        refuse_unknown_names("amp_fp32_ops", sorted(self.float32_ops), HALF_OPS, fault)

    @property
    def float32_ops(self) -> FrozenSet[str]:
        """Return the ops of --amp_fp32_ops."""
        return frozenset(names_in(self.amp_fp32_ops))


# Flags that say which words are masked together; with a lexicon, the lexicon decides.
OF_DRAWN_WORDS = ("max_ngrams", "favor_longer_ngram", "geometric", "level_weights", "masking_fn")


@dataclass(frozen=True)
class NgramFlags(MaskingFlags):
    """What is masked, also by the n-grams of a lexicon."""

    ngram_lexicon: str = option(
        "",
        help="ngrams.txt of ernie-pair build ngrams, for the ERNIE-Gram objective: an n-gram is masked by "
        "one [MASK] and predicted as a whole; empty: single tokens only",
        group="data",
        resume="fixed",
    )

    def __post_init__(self):
        super().__post_init__()
        for name in OF_DRAWN_WORDS:
            asked = getattr(self, name)
            if self.ngram_lexicon and asked != getattr(MaskingFlags, name):
                shown = str(asked).lower() if isinstance(asked, bool) else asked
                raise InputError(
                    f"--ngram_lexicon determines what is masked together, and --{name} {shown} contradicts "
                    "it; leave one of them out"
                )


MODEL_PARALLEL = {"mp_degree": "tensor parallelism", "pp_degree": "pipeline parallelism"}


@dataclass(frozen=True)
class RecipeFlags(HalfFlags, FusedFlags, GraphFlags):
    """The recipe's flags that have no effect here, or another name."""

    mp_degree: int = option(
        1,
        help="the recipe's degree of tensor parallelism, which is not supported: must be 1",
        group="devices",
    )
    pp_degree: int = option(
        1,
        help="the recipe's degree of pipeline parallelism, which is not supported: must be 1",
        group="devices",
    )
    scale_loss: Optional[float] = option(
        None, help="the recipe's name for --init_loss_scaling", group="precision", at_least=1
    )
    eval_iters: int = option(
        10, help="global batches per validation", group="evaluation", unit="batches", at_least=1
    )
    test_iters: int = option(
        0,
        help="global batches in the test at the end of the run; 0: --eval_iters",
        group="evaluation",
        unit="batches",
        at_least=0,
    )

    def __post_init__(self):
        super().__post_init__()
        for name, degree in (("mp_degree", self.mp_degree), ("pp_degree", self.pp_degree)):
            if degree != 1:
                raise InputError(
                    f"--{name} {degree}: {MODEL_PARALLEL[name]} is not supported, every process holds "
                    f"the whole model; pass --{name} 1, and use the processes with --dp_degree or "
                    "--sharding_degree"
                )
        if self.scale_loss is not None and self.init_loss_scaling not in (
            AmpFlags.init_loss_scaling,
            self.scale_loss,
        ):
            raise InputError(
                f"--scale_loss {self.scale_loss} and --init_loss_scaling {self.init_loss_scaling} set the "
                "same value; leave one of them out"
            )

    @property
    def first_loss_scale(self) -> float:
        """Return the initial loss scale, given under either name."""
        return self.init_loss_scaling if self.scale_loss is None else self.scale_loss

    def iters_of(self, split: str) -> int:
        """Return how many global batches an evaluation of ``valid`` or ``test`` reads."""
        return self.test_iters or self.eval_iters if split == "test" else self.eval_iters


# The families that are pretrained; a BERT, a RoBERTa-wwm and a MacBERT are all of model_type bert.
PRETRAINED = ("ernie", "ernie_gram", "bert")


def refuse_other_family(spec: ModelSpec) -> None:
    """Raise InputError when ``spec`` is of a family that is not pretrained here; none is ERNIE's."""
    if spec.family not in ("", *PRETRAINED):
        raise InputError(
            f"{CONFIG}: {spec.family} cannot be pretrained here; give a model of model_type "
            f"{', '.join(PRETRAINED)} (BERT, RoBERTa-wwm, MacBERT are bert)"
        )


def refuse_unfit_model(
    flags: MaskingFlags, max_seq_len: int, tokenizer: AnyTokenizer, spec: ModelSpec
) -> None:
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
