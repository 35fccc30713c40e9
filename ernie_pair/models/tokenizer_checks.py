"""Check that the files of a tokenizer agree: that ids are those of the library that the folder is for."""

import unicodedata
from functools import lru_cache
from pathlib import Path
from typing import List

import numpy as np

from data_tools.files.errors import InputError
from data_tools.files.json_file import shown
from data_tools.text.folder_tokenizer import FAST_TOKENIZER, VOCAB, open_folder_tokenizer
from data_tools.text.wordpiece import WordPiece, read_tokens
from ernie_pair.models.hugging_face.fast_tokenizer import UNUSED, build_fast_tokenizer
from ernie_pair.models.spec import ModelSpec
from ernie_pair.models.tokenizer_files import read_tokenizer

CURE = "copy the model's folder again"
NUM_STRINGS = 2000


def refuse_other_vocabulary(tokenizer_file: Path, vocab_file: Path, spec: ModelSpec) -> None:
    """Raise InputError when a vocab.txt beside a tokenizer.json has other tokens for its ids."""
    tokens, held = read_tokens(vocab_file), read_tokenizer(tokenizer_file, spec).vocab
    for token, index in held.items():
        if index < len(tokens) and tokens[index] != token and not token.startswith(UNUSED):
            raise InputError(
                f"{tokenizer_file}: token {index} is {shown(token)}, and not in {VOCAB}, which has "
                f"{shown(tokens[index])} there; {CURE}"
            )


def refuse_other_cutting(folder: Path, lower_case: bool) -> None:
    """Raise InputError when a tokenizer.json of this package makes other ids than the vocab.txt beside it.

    Compared are the ids of every assigned character between two letters, and of random strings.
    """
    path = folder / FAST_TOKENIZER
    if not path.is_file():
        return
    ours = WordPiece.from_file(folder / VOCAB, lower_case)
    theirs = open_folder_tokenizer(path).without_control_tokens()
    if theirs.to_json() == build_fast_tokenizer(ours).to_str(pretty=True):
        return
    texts = probing_texts()
    for text, mine, other in zip(texts, ours.encode_batch(texts), theirs.encode_batch(texts)):
        if mine != other:
            raise InputError(
                f"{path}: it cuts {shown(text)} into other tokens than {VOCAB} does by ERNIE's rule; {CURE}"
            )


@lru_cache(maxsize=1)
def probing_texts() -> List[str]:
    """Return texts on which two tokenizers are compared: all assigned characters, and random strings."""
    points = (point for point in range(0x110000) if not 0xD800 <= point < 0xE000)
    letters = [chr(point) for point in points if unicodedata.category(chr(point)) not in ("Cn", "Co")]
    rng = np.random.default_rng(0)
    picked = np.array(letters)
    strings = ["".join(rng.choice(picked, size)) for size in rng.integers(1, 20, NUM_STRINGS).tolist()]
    return [f"a{letter}b" for letter in letters] + strings
