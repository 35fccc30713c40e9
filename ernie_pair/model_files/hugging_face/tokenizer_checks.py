"""Check that the tokenizer.json of transformers splits text as `WordPiece` does with vocab.txt."""

from pathlib import Path
from typing import Any, Dict, Iterator, Mapping, Tuple

from data_tools.base.errors import InputError
from data_tools.files.json_file import is_whole_number, read_json_object, shown
from ernie_pair.model_files.hugging_face.fast_tokenizer import UNUSED
from ernie_pair.model_files.hugging_face.folder import FAST_TOKENIZER, VOCAB

LARGEST = 64 << 20
CURE = "take a model whose tokenizer is BERT's, or remove tokenizer.json if vocab.txt is right"


def refuse_other_cutting(folder: Path, vocab_file: Path, lower_case: bool, is_own: bool) -> None:
    """Raise InputError when the tokenizer.json in ``folder``, if there is one, makes other ids.

    ``is_own``: this package wrote it, in words that other libraries would write otherwise.
    """
    path = folder / FAST_TOKENIZER
    if not path.is_file():
        return
    found = read_json_object(path, CURE, most=LARGEST)
    model, normalizer = (_object_in(found, key) for key in ("model", "normalizer"))
    for key, value in _problems_of(model, normalizer, lower_case, is_own):
        raise InputError(f"{path}: {key} is {shown(value)}; {CURE}")
    tokens = vocab_file.read_bytes().decode("utf-8", "replace").replace("\r\n", "\n").split("\n")
    for token, index in _object_in(model, "vocab").items():
        is_there = is_whole_number(index, 0, len(tokens) - 1) and tokens[index] == token
        if not is_there and not token.startswith(UNUSED):
            raise InputError(f"{path}: token {shown(index)} is {shown(token)}, and not in {VOCAB}; {CURE}")


def _object_in(found: Mapping[str, Any], key: str) -> Dict[str, Any]:
    """Return the object of a key; an empty one where it has another value."""
    value = found.get(key)
    return value if isinstance(value, dict) else {}


def _problems_of(
    model: Mapping[str, Any], normalizer: Mapping[str, Any], lower_case: bool, is_own: bool
) -> Iterator[Tuple[str, object]]:
    """Yield (key, value) of what is not the way of BERT, or keeps case where the other file does not."""
    if model.get("type", "WordPiece") != "WordPiece":
        yield "the type of the model", model["type"]
    if is_own:
        return
    if normalizer.get("type") != "BertNormalizer":
        yield "the type of the normalizer", normalizer.get("type")
    if normalizer.get("lowercase", True) != lower_case:
        yield "lowercase", normalizer["lowercase"]
    if normalizer.get("strip_accents") not in (None, lower_case):
        yield "strip_accents", normalizer["strip_accents"]
    if normalizer.get("handle_chinese_chars") is False:
        yield "handle_chinese_chars", False
