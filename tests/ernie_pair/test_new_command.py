"""A command is one row: the list of commands, help, completion, Python and doctor have it from there."""

import sys

import pytest

import ernie_pair
from ernie_pair.__main__ import _run
from ernie_pair.commands import COMMANDS, Command
from ernie_pair.core.cli.cli import exit_code_of

MODULE = '''
from dataclasses import dataclass
from pathlib import Path

from ernie_pair.core.cli.options import Options, data_option

@dataclass(frozen=True)
class ReverseConfig(Options):
    """Reverse the lines of a text."""

    input_file: str = data_option(help="a text", reads="FILE")
    output_file: str = data_option(help="file to write", writes="FILE")
    skip: int = data_option(0, help="lines to leave out", at_least=0)

def reverse_lines(config):
    """Reverse the lines of a text."""
    lines = Path(config.input_file).read_text().splitlines()[config.skip :]
    Path(config.output_file).write_text("".join(f"{line}\\n" for line in reversed(lines)))
'''
ROW = Command(
    "data",
    "Reverse the lines of a text",
    "text_reverser:reverse_lines",
    "ReverseConfig",
    python="reverse_lines",
    returns="output_file",
    also="backwards",
)


@pytest.fixture(autouse=True)
def command(tmp_path, monkeypatch):
    (tmp_path / "text_reverser.py").write_text(MODULE)
    (tmp_path / "in.txt").write_text("a\nb\nc\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(COMMANDS, "reverse-lines", ROW)
    yield
    sys.modules.pop("text_reverser", None)


@pytest.mark.parametrize("words, code, told", [
    ("--help", 0, "\n  reverse-lines       Reverse the lines of a text\n"),
    ("help reverse-lines", 0, "--skip N "),
    ("backwards", 2, "did you mean reverse-lines?"),
    ("reverse-lines --skp 1", 2, "did you mean --skip?"),
    ("reverse-lines --input_file a --output_file b --skip -1", 2, "--skip -1 is below 0"),
    ("reverse-lines --input_file in.txt --output_file out.txt --skip 1", 0, ""),
])  # fmt: skip
def test_a_row_makes_a_command(words, code, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    try:
        found = exit_code_of(lambda: _run(words.split()))
    except SystemExit as left:
        found = left.code
    shown = capsys.readouterr()
    assert found == code and told in shown.out + shown.err
    assert not told or not (tmp_path / "out.txt").exists()
    assert told or (tmp_path / "out.txt").read_text() == "c\nb\n"


def test_a_row_makes_a_function_of_python(tmp_path):
    out = ernie_pair.reverse_lines(input_file=tmp_path / "in.txt", output_file=tmp_path / "out.txt")
    assert out == tmp_path / "out.txt" and out.read_text() == "c\nb\na\n"
    assert (
        "reverse_lines" in dir(ernie_pair) and "ReverseConfig, whose help" in ernie_pair.reverse_lines.__doc__
    )
    with pytest.raises(ernie_pair.InputError, match="reverse_lines has no option skp; did you mean skip"):
        ernie_pair.reverse_lines(skp=1)


def test_a_row_completes_its_flags(capsys):
    pytest.importorskip("shtab")
    _run(["completion", "bash"])
    script = capsys.readouterr().out
    assert "reverse_lines_option_strings=(-h --help --input_file --output_file --skip" in script
