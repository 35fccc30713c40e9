"""Models with names chosen by the user, given in one flag: a=output/best 'b=my models/small'."""

import re
import shlex
from dataclasses import dataclass

from data_tools.files.errors import InputError
from data_tools.options.options import Options, evaluation_option

NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")  # of folders and of pictures, whose font lacks Chinese
RULE = "a name has only a to z, A to Z, 0 to 9, _ . and -, at most 40 of them"


def parse_named_models(flag: str, text: str, example: str) -> dict[str, str]:
    """Return {name: model} of ``text``, words apart by blanks; quotes, as of a shell, keep a blank in a word.

    ``flag`` and ``example``, how it is written right, are said in errors. Raises InputError naming the word
    that is wrong.
    """
    found: dict[str, str] = {}
    try:
        words = shlex.split(text)
    except ValueError:
        raise InputError(
            f"--{flag} {text}: a quote, or a backslash, has no counterpart; {example}, and a path with "
            "blanks in quotes: 'a=my models/small'"
        ) from None
    for word in words:
        name, equals, path = word.partition("=")
        if not (equals and path and NAME.fullmatch(name)) or name in found:
            rule = "" if not name or NAME.fullmatch(name) else f" ({RULE})"
            raise InputError(f"--{flag} {text}: {word} is not NAME=MODEL with a new name{rule}; {example}")
        found[name] = path
    return found


@dataclass(frozen=True)
class RobustnessFlags(Options):
    """How the robustness and the intervals of a model are measured."""

    robustness_rows: int = evaluation_option(
        2000, help="maximum rows of each kind; 0: all", unit="rows", at_least=0
    )
    robustness_file: str = evaluation_option(
        "", help="file to write the perturbed pairs to: .tsv, .csv or .jsonl; empty: none"
    )
    bootstrap: int = evaluation_option(
        1000,
        help="bootstrap resamples for the confidence intervals; 0: no intervals",
        unit="resamples",
        at_least=0,
    )
    seed: int = evaluation_option(1234, help="seed of the resamples and of the perturbed pairs", at_least=0)
