"""The list of commands, the versions, the error for an unknown command, and what the package offers."""

import ast
import platform
import re
from importlib import metadata

import pytest
from places import ROOT

import ernie_pair
from ernie_pair import __main__ as versions_module
from ernie_pair.__main__ import _run
from ernie_pair.commands import COMMANDS, WORDS, form_of, python_names
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.version import __version__

ALL = {**COMMANDS, **WORDS}


def run(*words):
    try:
        return exit_code_of(lambda: _run(list(words)))
    except SystemExit as left:
        return left.code


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"], ["help", "help"], ["help", "--help"]])
def test_help_lists_each_command_once_under_its_group(words, capsys):
    assert run(*words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert [line[:-1] for line in lines if line.endswith(":")] == list(
        dict.fromkeys(one.group for one in ALL.values())
    )
    for name in ALL:
        assert sum(line.startswith(f"  {name}  ") for line in lines) == 1, name


def test_each_command_summary_is_one_imperative_line():
    for command in ALL.values():
        assert re.fullmatch(r"[A-Z][a-z-]+ .{10,75}[^.]", command.purpose), command.purpose


@pytest.mark.parametrize("word", ["--version", "-V"])
def test_version_prints_what_is_and_what_is_not_installed(word, monkeypatch, capsys):
    assert run(word) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"ernie-pair {__version__}",
        f"paddle {metadata.version('paddlepaddle')}",
        f"paddlenlp {metadata.version('paddlenlp')}",
        f"python {platform.python_version()}",
    ]

    monkeypatch.setattr(versions_module, "version_of", lambda name: "")
    monkeypatch.setattr(versions_module, "paddle_version", lambda: "")
    assert run(word) == 0
    missing = ["paddle is not installed", "paddlenlp is not installed"]
    assert capsys.readouterr().out.splitlines()[1:3] == missing


def test_help_command_prints_the_same_as_the_help_flag(capsys):
    assert run("help", "train") == run("train", "--help") == 0
    both = capsys.readouterr().out
    assert both[: len(both) // 2] == both[len(both) // 2 :] and "usage: ernie-pair train --" in both
    assert run("help", "convert", "--to", "hf") == 0
    assert "usage: ernie-pair convert --to hf --model_path MODEL" in capsys.readouterr().out


@pytest.mark.parametrize(("word", "meant"), [
    ("trian", "did you mean train? "),
    ("evalute", "did you mean evaluate? "),
    ("pre", "did you mean prepare, predict or pretrain? "),
    ("finetune", "did you mean train? "),
    ("run_pretrain", "did you mean pretrain? "),
    ("infer", "did you mean predict? "),
    ("xyzzy", ""),
])  # fmt: skip
def test_an_unknown_command_error_suggests_the_nearest_ones(word, meant, capsys):
    for words in ([word], ["help", word]):
        assert run(*words) == 2
        assert capsys.readouterr().err == (
            f"error: {word} is not a command of ernie-pair; {meant}ernie-pair --help lists the commands\n"
        )


@pytest.mark.parametrize("words, message", [
    ("checkpoint", "write checkpoint show, checkpoint diff or checkpoint average; "),
    ("audit pair x.tsv", "write audit text, audit pairs, audit duplicates or audit labels; "),
    ("convert --to paddle", "--to takes hf alone; write convert --to hf"),
])  # fmt: skip
def test_a_command_of_several_forms_names_them(words, message, capsys):
    assert run(*words.split()) == 2
    assert message in capsys.readouterr().err


def test_forms_of_a_command_are_listed_and_leave_flags_as_typed(capsys):
    assert run("checkpoint", "--help") == 0
    lines = capsys.readouterr().out.splitlines()
    forms = [line.split()[1] for line in lines if line.startswith("  checkpoint ")]
    assert forms == ["show", "diff", "average"]
    assert run("help", "checkpoint", "diff") == 0
    assert "usage: ernie-pair checkpoint diff FIRST SECOND" in capsys.readouterr().out
    words = ["audit", "text", "in.txt", "--output_dir=--odd"]
    assert form_of(words, ["audit text", "audit pairs"]) == ("audit text", ["in.txt", "--output_dir=--odd"])


# --- what `import ernie_pair` offers, at run time and to type checkers


SOURCE = ast.parse((ROOT / "ernie_pair" / "__init__.py").read_text(encoding="utf-8"))


def test_dunder_all_lists_the_offered_names_and_they_exist():
    assert ernie_pair.__all__ == sorted([*ernie_pair._offered(), *python_names(), "__version__"])
    for name in ernie_pair.__all__:
        assert getattr(ernie_pair, name) is not None and name in dir(ernie_pair)
    names: dict = {}
    exec("from ernie_pair import *", names)
    assert set(ernie_pair.__all__) <= set(names)


def test_names_are_imported_lazily_and_seen_by_type_checkers():
    (guarded,) = (node for node in SOURCE.body if isinstance(node, ast.If))
    assert ast.unparse(guarded.test) == "TYPE_CHECKING"
    found = [node.module for node in SOURCE.body if isinstance(node, ast.ImportFrom)]
    ours = [module for module in found if module.startswith("ernie_pair")]
    assert ours == [
        "ernie_pair.commands",
        "ernie_pair.core.installation",
        "ernie_pair.runtime.cpu",
        "ernie_pair.version",
    ]
