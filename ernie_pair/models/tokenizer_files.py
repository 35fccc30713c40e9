"""The files of a model's tokenizer: opened, and written beside the weights.

vocab.txt, tokenizer_config.json                                   cut by ERNIE's rule, `WordPiece`
tokenizer.json, tokenizer_config.json, vocab.txt of word pieces    of a published folder: its own rule
"""

import json
import shutil
from pathlib import Path
from typing import Dict, Mapping

from data_tools.text.folder_tokenizer import (
    FAST_TOKENIZER,
    KEPT,
    OWN_CLASS,
    SPECIAL_TOKENS,
    AnyTokenizer,
    open_folder_tokenizer,
    read_settings,
)
from data_tools.text.wordpiece import CONTROL_TOKENS, WordPiece, read_tokens
from ernie_pair.models.config_json import VOCAB
from ernie_pair.models.hugging_face.fast_tokenizer import build_fast_tokenizer
from ernie_pair.models.spec import TOKENIZER, ModelSpec, tokenizer_json

NO_LENGTH = int(1e30)  # what transformers writes where a tokenizer has no longest text


def read_tokenizer(vocab_file: Path, spec: ModelSpec) -> AnyTokenizer:
    """Open the tokenizer of the model ``spec`` in ``vocab_file``, one of TOKENIZER_FILES.

    Raises InputError when it is damaged.
    """
    if spec.tokenizer.is_folders:
        return open_folder_tokenizer(vocab_file, spec.family)
    return WordPiece.from_file(vocab_file, spec.lower_case)


def tokenizer_files(vocab_file: Path, spec: ModelSpec, max_seq_len: int = 0) -> Dict[str, bytes]:
    """Return {name: content} of what a model folder holds of its tokenizer.

    ``max_seq_len``: tokens per pair in training, which tokenizer_config.json remembers; 0: it does not.
    """
    if not spec.tokenizer.is_folders:
        settings = tokenizer_json(spec.family, spec.lower_case, max_seq_len)
        return {VOCAB: own_vocabulary(vocab_file, spec), TOKENIZER: _encoded(settings)}
    tokenizer = open_folder_tokenizer(vocab_file, spec.family)
    found = read_settings(vocab_file.parent, spec.family)
    kept = {key: found[key] for key in KEPT if key in found}
    settings = {**kept, "model_max_length": max_seq_len} if max_seq_len else kept
    is_json = vocab_file.name == FAST_TOKENIZER
    files = {
        FAST_TOKENIZER: vocab_file.read_bytes() if is_json else tokenizer.to_json().encode(),
        TOKENIZER: _encoded(settings),
    }
    if tokenizer.is_word_piece:
        files[VOCAB] = "".join(f"{token}\n" for token in tokenizer.tokens).encode()
    return files


def their_tokenizer_files(vocab_file: Path, spec: ModelSpec, max_seq_len: int) -> Dict[str, bytes]:
    """Return {name: content} of what a folder of transformers holds of its tokenizer; see `tokenizer_files`.

    ERNIE's rule is a tokenizer.json, under the class that takes it as it is: BertTokenizer cuts symbols
    otherwise. Control tokens in a text are text.
    """
    if spec.tokenizer.is_folders:
        return tokenizer_files(vocab_file, spec, max_seq_len)
    tokenizer = WordPiece(read_tokens(vocab_file)[: spec.vocab_size], spec.lower_case)
    special = {f"{token.strip('[]').lower()}_token": token for token in CONTROL_TOKENS}
    settings = {
        "tokenizer_class": OWN_CLASS,
        "split_special_tokens": True,
        "do_lower_case": tokenizer.lower_case,
        "model_max_length": max_seq_len or NO_LENGTH,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        **special,
    }
    return {
        VOCAB: own_vocabulary(vocab_file, spec),
        FAST_TOKENIZER: build_fast_tokenizer(tokenizer).to_str(pretty=True).encode(),
        TOKENIZER: _encoded(settings),
        SPECIAL_TOKENS: _encoded(special),
    }


def own_vocabulary(vocab_file: Path, spec: ModelSpec) -> bytes:
    """Return the lines of a vocab.txt that the model has rows for.

    Twins of characters beyond them mark the words of a corpus.
    """
    return b"".join(vocab_file.read_bytes().splitlines(keepends=True)[: spec.vocab_size])


def copy_tokenizer(vocab_file: Path, spec: ModelSpec, folder: Path) -> None:
    """Write the files of a model's tokenizer into another folder, unchanged where ERNIE's rule holds."""
    if spec.tokenizer.is_folders:
        for name, content in tokenizer_files(vocab_file, spec, spec.trained_length).items():
            (folder / name).write_bytes(content)
        return
    for name in (VOCAB, TOKENIZER):
        beside = vocab_file if name == VOCAB else vocab_file.parent / name
        if beside.is_file():
            shutil.copyfile(beside, folder / name)


def _encoded(settings: Mapping[str, object]) -> bytes:
    return f"{json.dumps(settings, indent=2, ensure_ascii=False)}\n".encode()
