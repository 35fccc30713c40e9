"""Check that a model can be pretrained, and that the requested samples fit it."""

from data_tools.base.errors import InputError
from data_tools.samples.masking_flags import MaskingFlags
from data_tools.text.folder_tokenizer import AnyTokenizer
from ernie_pair.model_files.config_json import CONFIG
from ernie_pair.model_files.spec import ModelSpec

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
