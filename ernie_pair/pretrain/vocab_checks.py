"""Do vocabulary and model fit together? Ids are compared as the model will see them.

A vocabulary may have more tokens than the model has rows: the `##` twins that mark words in a corpus
(ERNIE 3.0 has none of its own). They are turned into plain characters before the model sees them.
"""

import numpy as np

from data_tools.base.errors import InputError
from data_tools.text.wordpiece import WordPiece
from ernie_pair.model_files.config_json import CONFIG
from ernie_pair.model_files.spec import ModelSpec
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig


def refuse_unfit_model(config: PretrainConfig, tokenizer: WordPiece, spec: ModelSpec) -> None:
    """Raise InputError when the samples that ``config`` asks for are not for the model of ``spec``."""
    if config.max_seq_len > spec.max_positions:
        raise InputError(
            f"--max_seq_len {config.max_seq_len} is above the model's {spec.max_positions} positions; "
            "lower it"
        )
    if config.binary_head and spec.token_types == 1:
        raise InputError(
            f"{CONFIG}: type_vocab_size 1 cannot tell two segments apart; use --binary_head false"
        )
    if tokenizer.pad_id != spec.pad_id:
        raise InputError(
            f"[PAD] is token {tokenizer.pad_id} of vocab.txt, but the model masks its pad_token_id "
            f"{spec.pad_id}; fix {CONFIG}, or give the model's own vocab.txt"
        )


def refuse_ids_beyond(tokenizer: WordPiece, vocab_size: int) -> None:
    """Raise InputError when a token would reach the model whose id is beyond its ``vocab_size`` rows."""
    beyond = np.flatnonzero(tokenizer.base_ids >= vocab_size)
    if len(beyond):
        raise InputError(
            f"vocab.txt has {tokenizer.vocab_size} tokens and the model {vocab_size} rows: "
            f"{tokenizer.tokens[beyond[0]]!r}, line {beyond[0] + 1}, has none; give the model's own "
            "vocab.txt, which may be longer only by the ## twins of its characters"
        )
