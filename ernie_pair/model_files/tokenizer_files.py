"""The files of a model's tokenizer: opened, and written beside the weights.

vocab.txt, tokenizer_config.json                                   cut by ERNIE's rule, `WordPiece`
tokenizer.json, tokenizer_config.json, vocab.txt of word pieces    of a published folder: its own rule
"""

import json
import shutil
from pathlib import Path
from typing import Dict

from data_tools.text.folder_tokenizer import (
    FAST_TOKENIZER,
    KEPT,
    AnyTokenizer,
    open_folder_tokenizer,
    read_settings,
)
from data_tools.text.wordpiece import WordPiece
from ernie_pair.model_files.config_json import VOCAB
from ernie_pair.model_files.spec import ModelSpec
from ernie_pair.model_files.tokenizer_json import TOKENIZER, tokenizer_json


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
        return {VOCAB: vocab_file.read_bytes(), TOKENIZER: _encoded(settings)}
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


def _encoded(settings: Dict[str, object]) -> bytes:
    return f"{json.dumps(settings, indent=2, ensure_ascii=False)}\n".encode()
