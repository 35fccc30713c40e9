"""tokenizer_config.json of a model: whether case is kept, and the length of the training pairs.

{"tokenizer_class": "BertTokenizer", "do_lower_case": false, "model_max_length": 128}
"""

from pathlib import Path
from typing import Any, Dict, Mapping, NamedTuple

from data_tools.base.errors import InputError
from data_tools.files.json_file import is_number, read_json_object, shown
from ernie_pair.model_files.config_checks import SHORTEST_PAIR
from ernie_pair.model_files.config_json import FAMILIES

TOKENIZER = "tokenizer_config.json"
# Settings of PaddleNLP's tokenizers under which words are cut in a way that is not ours.
OTHER_WAYS = {
    **{"use_jieba": True, "use_bpe_encoder": True, "do_basic_tokenize": False},
    **{"tokenize_chinese_chars": False, "tokenizer_class": "ErnieTinyTokenizer"},
}
_OWN_CLASSES = {
    **dict.fromkeys(("roberta", "xlm_roberta"), "RobertaChineseTokenizer"),
    "albert": "AlbertChineseTokenizer",
}


class TokenizerSettings(NamedTuple):
    """The settings of tokenizer_config.json.

    ``is_folders``: the tokenizer is what its folder says (`data_tools.text.folder_tokenizer`), and not
    `WordPiece`, which cuts a vocab.txt by ERNIE's rule.
    """

    lower_case: bool
    trained_length: int  # tokens per pair; 0: it does not say
    is_folders: bool = False


def read_tokenizer_settings(
    folder: Path, config: Mapping[str, Any], is_folders: bool = False
) -> TokenizerSettings:
    """Read the file in ``folder``; where there is none, its keys are looked for in ``config``.

    Raises InputError when it is damaged, or asks for what ``is_folders`` false does not allow: another way to
    cut texts than ERNIE's rule.
    """
    path = folder / TOKENIZER
    if not path.exists():
        return parse_tokenizer(config, str(folder), is_folders)
    return parse_tokenizer(read_json_object(path, "correct it"), str(path), is_folders)


def parse_tokenizer(settings: Mapping[str, Any], where: str, is_folders: bool = False) -> TokenizerSettings:
    """Check the settings of a tokenizer, and return those that matter here.

    Raises InputError naming ``where`` for a wrong value, and for another way of cutting text than ERNIE's.
    """
    lower_case = settings.get("do_lower_case", True)
    if not isinstance(lower_case, bool):
        raise InputError(f"{where}: do_lower_case is {shown(lower_case)}; write true or false")
    others = [key for key, value in OTHER_WAYS.items() if key in settings and settings[key] == value]
    if settings.get("strip_accents") not in (None, lower_case):
        others.append("strip_accents")
    if others and not is_folders:
        raise InputError(
            f"{where}: {others[0]} is {shown(settings[others[0]])}, and texts are cut into word pieces as "
            "BertTokenizer cuts them, in no other way; take a model of that kind"
        )
    length = settings.get("model_max_length")
    if length is not None and not is_number(length, SHORTEST_PAIR):
        raise InputError(
            f"{where}: model_max_length is {shown(length)}, and a pair has {SHORTEST_PAIR} tokens or more; "
            "correct it, or remove it"
        )
    # PaddleNLP writes 1e30 for none.
    known = length if type(length) is int and length < 1 << 31 else 0
    return TokenizerSettings(lower_case, known, is_folders)


def tokenizer_json(family: str, lower_case: bool, max_seq_len: int) -> Dict[str, Any]:
    """Return the content of tokenizer_config.json; ``max_seq_len`` 0 is left out."""
    said = {"tokenizer_class": tokenizer_class_of(family), "do_lower_case": lower_case}
    return {**said, "model_max_length": max_seq_len} if max_seq_len else said


def tokenizer_class_of(family: str) -> str:
    """Return PaddleNLP's tokenizer of word pieces; without a family ERNIE's, whose rule is ours."""
    return _OWN_CLASSES.get(family, f"{FAMILIES[family or 'ernie']}Tokenizer")
