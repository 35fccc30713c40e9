"""A command line that is refused, in this process: its exit code and its one line of error."""

import shlex
from typing import NamedTuple

from ernie_pair.__main__ import _run
from ernie_pair.core.cli.cli import exit_code_of


class Refusal(NamedTuple):
    code: int
    line: str


def refusal_of(words: str, capfd) -> Refusal:
    """What ``ernie-pair WORDS`` ends with; ``capfd`` is pytest's fixture of that name."""
    capfd.readouterr()
    code = exit_code_of(lambda: _run(shlex.split(words)))
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    return Refusal(code, line.removeprefix("error: "))
