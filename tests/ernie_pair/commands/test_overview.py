"""The list of commands, versions, and what is said of a word that is no command."""

import platform
import re
from importlib import metadata

import pytest

from data_tools.base.cli import exit_code_of
from ernie_pair.__main__ import COMMANDS, COMPLETION, FORMS, GROUPS, HELP, LAUNCH, _run
from ernie_pair.commands import versions as versions_module
from ernie_pair.commands.other_names import OTHER_NAMES
from ernie_pair.version import __version__

ALL = [*COMMANDS, LAUNCH[0], HELP[0], COMPLETION[0]]


def run(*words):
    try:
        return exit_code_of(lambda: _run(list(words)))
    except SystemExit as left:
        return left.code


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"], ["help", "help"], ["help", "--help"]])
def test_each_command_stands_once_under_its_subject(words, capsys):
    assert run(*words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert [line[:-1] for line in lines if line.endswith(":")] == list(GROUPS)
    for name in [*ALL, *(f"{command} --{flag} {value}" for command, flag, value in FORMS)]:
        assert sum(line.startswith(f"  {name}  ") for line in lines) == 1, name


def test_each_purpose_is_an_order_in_one_line():
    for purpose in [entry[3] for entry in COMMANDS.values()] + [LAUNCH[1], HELP[1], COMPLETION[1]]:
        assert re.fullmatch(r"[A-Z][a-z-]+ .{10,75}[^.]", purpose), purpose


@pytest.mark.parametrize("words", [["--version"], ["-V"]])
def test_versions_are_those_that_are_installed(words, capsys):
    assert run(*words) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"ernie-pair {__version__}",
        f"paddle {metadata.version('paddlepaddle')}",
        f"paddlenlp {metadata.version('paddlenlp')}",
        f"python {platform.python_version()}",
    ]


def test_what_is_not_installed_is_said(monkeypatch, capsys):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(versions_module, "version", absent)
    monkeypatch.setattr(versions_module, "paddle_version", lambda: "")
    assert run("--version") == 0
    assert capsys.readouterr().out.splitlines()[1:3] == [
        "paddle is not installed",
        "paddlenlp is not installed",
    ]


def test_help_of_a_command_is_that_of_its_flag(capsys):
    assert run("help", "train") == run("train", "--help") == 0
    both = capsys.readouterr().out
    assert both[: len(both) // 2] == both[len(both) // 2 :] and "usage: ernie-pair train --" in both
    assert run("help", "convert", "--to", "hf") == 0
    assert "usage: ernie-pair convert --to hf --model_path PATH" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("trian", "did you mean train? "),
        ("evalute", "did you mean evaluate? "),
        ("pre", "did you mean prepare, predict or pretrain? "),
        ("finetune", "did you mean train? "),
        ("run_pretrain", "did you mean pretrain? "),
        ("infer", "did you mean predict or run? "),
        ("xyzzy", ""),
    ],
)
def test_a_word_that_is_no_command_brings_the_nearest(word, meant, capsys):
    for words in ([word], ["help", word]):
        assert run(*words) == 2
        assert capsys.readouterr().err == (
            f"error: {word} is no command of ernie-pair; {meant}ernie-pair --help lists the commands\n"
        )


def test_other_names_lead_to_commands():
    for word, commands in OTHER_NAMES.items():
        assert word not in ALL and word == word.lower() and "_" not in word
        assert set(commands) <= {*ALL, "--version"}, word
