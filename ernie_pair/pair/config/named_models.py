"""Models with names of a person's choice, given in one flag: a=output/best 'b=my models/small'."""

import re
import shlex
from typing import Dict

from data_tools.base.errors import InputError

NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")


def parse_named_models(flag: str, text: str, example: str) -> Dict[str, str]:
    """Return {name: model} of ``text``, words apart by blanks; quotes, as of a shell, keep a blank in a word.

    ``flag`` and ``example``, how it is written right, are said in errors. Raises InputError naming the word
    that is wrong.
    """
    found: Dict[str, str] = {}
    for word in _words_of(flag, text, example):
        name, equals, path = word.partition("=")
        if not (equals and path and NAME.fullmatch(name)) or name in found:
            raise InputError(f"--{flag} {text}: {word} is no new NAME=MODEL; {example}")
        found[name] = path
    return found


def _words_of(flag: str, text: str, example: str):
    try:
        return shlex.split(text)
    except ValueError:
        raise InputError(
            f"--{flag} {text}: a quote, or a backslash, has no counterpart; {example}, and a path with "
            "blanks in quotes: 'a=my models/small'"
        ) from None
