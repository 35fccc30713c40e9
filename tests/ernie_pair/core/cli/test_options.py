"""An option is defined once: its checks from Python, both forms of its errors, and its place in the help."""

import math
import os
import pickle
import pydoc
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import List, Literal, Optional

import numpy as np
import pytest
from command_configs import CONFIGS
from places import ROOT

from data_tools.audit_text import AuditConfig
from ernie_pair.commands import COMMANDS, config_class_of
from ernie_pair.core.cli.cli import MAX_SHORT_HELP, exit_code_of, help_text, parse_config
from ernie_pair.core.cli.options import ANY, GROUPS, Options, check_names, hints_of, kind_of, names_in, option
from ernie_pair.core.errors import CheckpointError, ErniePairError, InputError, NumbersError
from ernie_pair.core.installation import extra_here, install_command
from ernie_pair.launch.launch import LaunchConfig


@dataclass(frozen=True)
class Shape(Options):
    """Cut 100 % of it."""

    EXAMPLE = "in.txt --size 3"

    files: List[str] = option(help="what is cut", positional=True, group="data")
    output: str = option(help="a folder", group="checkpoints", writes="PATH")
    size: int = option(4, help="how large", group="model", unit="rows", at_least=1, at_most=9)
    rate: float = option(0.5, help="how fast, 10 % for example", group="optimisation", above=0, below=1)
    exact: bool = option(False, help="to the letter?", group="precision")
    cut: Optional[float] = option(None, help="where", group="evaluation", at_least=0)
    device: Literal["cpu", "gpu"] = option("cpu", help="where to run", group="devices", affects="speed")


SHAPE = Shape(["a"], "out")
UNCOERCED = {"PYTHONCOERCECLOCALE": "0"}  # Python does not take UTF-8 in place of the locale C


@pytest.mark.parametrize("value, kind", [
    *(({"size": wrong}, "a whole number") for wrong in ("3", True, 1.0, None, math.nan, [1])),
    *(({"rate": wrong}, "a number") for wrong in ("5e-5", False, None, math.nan, math.inf, 10**400)),
    *(({"exact": wrong}, "true or false") for wrong in ("true", 1, 0, None)),
    *(({"cut": wrong}, "a number") for wrong in ("none", True)),
    *(({"output": wrong}, "a text") for wrong in (1, None, b"x")),
    *(({"device": wrong}, "one of cpu, gpu") for wrong in ("tpu", 0, None)),
    *(({"files": wrong}, "a list, each item a text") for wrong in ([], "a", None)),
    ({"files": [1]}, "a text"),
], ids=str)  # fmt: skip
def test_a_value_of_the_wrong_type_is_refused_from_python_too(value, kind):
    (name,) = value
    with pytest.raises(InputError, match=rf"^{name} takes {kind}, not .*; correct it$"):
        replace(SHAPE, **value)


def test_values_of_compatible_types_are_converted():
    shape = Shape((Path("a"), "b"), Path("out"), np.int64(3), np.float32(0.25), cut=Fraction(1, 2))
    assert shape == Shape(["a", "b"], "out", 3, 0.25, cut=0.5)
    assert type(shape.size) is int and type(shape.rate) is type(shape.cut) is float
    assert type(replace(shape, cut=1).cut) is float


@pytest.mark.parametrize("words, fault", [
    ("--size 0", "--size 0 is below 1; use 1 or more"),
    ("--size 10", "--size 10 is above 9; use 9 or less"),
    ("--rate 0", "--rate 0.0 is not above 0; use 0.5, for example"),
    ("--rate 1", "--rate 1.0 is not below 1; use 0.5, for example"),
    ("--cut -1e-4", "--cut -0.0001 is below 0; use 0 or more"),
])  # fmt: skip
def test_an_out_of_range_value_is_refused_from_any_source(tmp_path, words, fault):
    name, value = words.lstrip("-").split()
    with pytest.raises(InputError) as caught:
        parse_config(Shape, ["a", "--output=out", *words.split()])
    assert caught.value.message == fault
    (tmp_path / "flags.yaml").write_text(f"{name}: {value}\n")
    with pytest.raises(InputError) as caught:
        parse_config(Shape, ["a", "--output=out", "--config", str(tmp_path / "flags.yaml")])
    assert caught.value.message == fault
    with pytest.raises(InputError) as caught:
        replace(SHAPE, **{name: int(value) if name == "size" else float(value)})
    assert caught.value.message == fault and str(caught.value).startswith(f"{name}=")


def test_none_is_not_bounded_and_bounds_are_inclusive():
    assert parse_config(Shape, "a --output out --cut none --size 9".split()) == replace(SHAPE, size=9)
    assert replace(SHAPE, cut=0, size=1).cut == 0


def test_missing_options_are_reported_from_python_too():
    for give, missing in (
        (Shape, "files and output are missing; give them: Shape(files=..., output=...)"),
        (lambda: Shape(output="out"), "files is missing: what is cut; give it: Shape(files=...)"),
        (lambda: Shape(["a"]), "output is missing; give it: Shape(output=...)"),
    ):
        with pytest.raises(InputError) as caught:
            give()
        assert str(caught.value) == caught.value.message == missing


def test_a_missing_argument_error_shows_an_example_command():
    for words, missing in (
        ([], "FILES and --output are missing; for example: ernie-pair cut in.txt --size 3"),
        (["--output=o"], "FILES is missing: what is cut; for example: ernie-pair cut in.txt --size 3"),
        (["a"], "--output is missing; --help says what it means"),
    ):
        with pytest.raises(InputError) as caught:
            parse_config(Shape, words, "ernie-pair cut")
        assert caught.value.message == missing


def test_an_option_must_be_in_a_known_help_group():
    with pytest.raises(ValueError, match="colours is not a group of options"):
        option(1, help="x", group="colours")


@pytest.mark.parametrize("message, as_python", [
    ("--seed 3 is above 2; use 2", "seed=3 is above 2; use 2"),
    ("pass --use_amp true, or --rate 1e-05.", "pass use_amp=True, or rate=1e-05."),
    ("--use_amp false --amp_dtype float16 (--level O1)", "use_amp=False amp_dtype float16 (level O1)"),
    ("--rate -0.5 and --top nan", "rate=-0.5 and top=nan"),
    ("--gpus 0,1 and --master 10.0.0.1:80 stay", "gpus 0,1 and master 10.0.0.1:80 stay"),
    ("a.tsv:3: leave --label out", "a.tsv:3: leave label out"),
    ("--a 1: run ernie-pair evaluate --b true; --b", "a=1: run ernie-pair evaluate --b true; b"),
    ("--cut: pip install --no-deps lac", "cut: pip install --no-deps lac"),
    ("/tmp/--x/a--b -- and ---c stay, 5 --", "/tmp/--x/a--b -- and ---c stay, 5 --"),
])  # fmt: skip
def test_errors_have_a_python_form_and_a_command_line_form(message, as_python, capsys):
    error = pickle.loads(pickle.dumps(CheckpointError(message)))
    assert (str(error), error.message) == (as_python, message)
    assert isinstance(error, ErniePairError)
    assert exit_code_of(raised(error)) == 3 and capsys.readouterr().err == f"error: {message}\n"


def test_the_help_shows_groups_units_defaults_and_an_example():
    text = help_text(Shape, "tool cut")
    assert text.startswith("usage: tool cut FILES --output PATH [flags]\n\nCut 100 % of it.\n\n")
    groups = [line[:-1] for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert groups == [*GROUPS, "example"]
    words = " ".join(text.split())
    assert "--size N how large (rows, default: 4)" in words and "--output PATH a folder (required)" in words
    assert "--exact true|false to the letter? (default: false)" in words
    assert "--device cpu|gpu where to run (default: cpu)" in words
    assert "--cut NUMBER where (default: none)" in words and "10 % for example" in words
    assert text.endswith("example:\n  tool cut in.txt --size 3\n")


def test_python_help_describes_each_option():
    text = pydoc.plain(pydoc.render_doc(Shape))
    for line in (
        "Cut 100 % of it.",
        "    files: what is cut (required)",
        "    size: how large (rows; default: 4)",
        "    exact: to the letter? (default: False)",
        "    cut: where (default: None)",
        "    device: where to run (one of cpu, gpu; default: 'cpu')",
    ):
        assert f" |  {line}\n" in text
    assert Shape.PURPOSE == "Cut 100 % of it."


@pytest.mark.parametrize("config_class", CONFIGS, ids=lambda one: one.__name__)
def test_python_help_of_every_command_lists_all_options(config_class):
    words = " ".join(config_class.__doc__.split())
    assert words.startswith(" ".join(config_class.PURPOSE.split())) and config_class.PURPOSE
    for item in fields(config_class):
        assert f" {item.name}: {' '.join(item.metadata['help'].split()).replace('--', '')[:20]}" in words


def test_the_help_names_the_program(capsys, monkeypatch):
    for program, name in (("scripts/train_pair.py", "python scripts/train_pair.py"), ("/bin/tool", "tool")):
        monkeypatch.setattr(sys, "argv", [program])
        with pytest.raises(SystemExit) as stop:
            parse_config(Shape, ["--help"])
        assert stop.value.code == 0 and capsys.readouterr().out.startswith(f"usage: {name} FILES")


def test_the_example_of_a_module_shows_how_it_was_started():
    words = [sys.executable, "-m", "data_tools.audit_text"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.stderr.startswith("error: INPUTS is missing: ") and done.returncode == 2
    assert f"; for example: python -m data_tools.audit_text {AuditConfig.EXAMPLE}\n" in done.stderr


@pytest.mark.parametrize("config_class", CONFIGS, ids=lambda one: one.__name__)
def test_every_command_has_an_example_that_parses(config_class, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.yaml").write_text("epochs: 1\n")  # compare starts requires this file
    assert config_class.EXAMPLE
    parse_config(config_class, shlex.split(config_class.EXAMPLE))
    text = help_text(config_class, "ernie-pair x")
    shown = text.partition("example:\n  ")[2].replace(" \\\n     ", "")  # a shell joins its lines
    assert shown == f"ernie-pair x {config_class.EXAMPLE}\n"
    shown = [group for group in GROUPS if f"\n{group}:\n" in text]
    assert shown == sorted(shown, key=GROUPS.index)
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("config_class", [*CONFIGS, LaunchConfig], ids=lambda one: one.__name__)
def test_positional_arguments_come_first_in_python_too(config_class):
    """Otherwise InspectConfig("data") would set an inherited option."""
    arguments = [item.metadata["positional"] for item in fields(config_class) if not item.kw_only]
    assert arguments == sorted(arguments, reverse=True)


@pytest.mark.parametrize("config_class", CONFIGS, ids=lambda one: one.__name__)
def test_the_short_help_shows_usual_flags_and_counts_the_others(config_class):
    text, whole = (help_text(config_class, "x", shows_all) for shows_all in (False, True))
    shown, all_flags = (re.findall(r"^  --(\w+)", help, re.M) for help in (text, whole))
    assert len(shown) <= MAX_SHORT_HELP + 1 and set(shown) <= set(all_flags)  # --config is one of them
    more = re.search(r"--help all shows (\d+) more flags", " ".join(text.split()))
    assert len(all_flags) - len(shown) == (int(more[1]) if more else 0)
    assert {item.name for item in fields(config_class)} < {*all_flags, *map(str.lower, whole.split())}


@pytest.mark.parametrize("config_class", CONFIGS, ids=lambda one: one.__name__)
def test_what_an_option_needs_is_another_one_with_such_a_value(config_class):
    for item in fields(config_class):
        other, _, words = item.metadata["only_with"].partition("=")
        if other:
            known = {"", "true", *kind_of(hints_of(config_class)[other]).words}
            assert known.issuperset(words.split("|")), item.name


@pytest.mark.parametrize("given, is_met", [({}, False), ({"device": "gpu"}, True), ({"size": 4}, False)])
def test_an_option_that_would_have_no_effect_is_refused(given, is_met):
    @dataclass(frozen=True)
    class Fast(Shape):
        fast: bool = option(False, help="x", only_with="device=gpu")

    assert not Fast(["a"], "out", **given).fast
    if is_met:
        assert Fast(["a"], "out", fast=True, **given).fast
        return
    with pytest.raises(InputError, match="^fast needs device gpu; add it, or leave fast out$"):
        Fast(["a"], "out", fast=True, **given)


def test_every_option_has_a_help_group():
    for config_class in CONFIGS:
        for item in fields(config_class):
            assert item.metadata["group"] != "other", (config_class, item.name)


@pytest.mark.parametrize("text", ["b,a", "b a", " b, a,b ,", "b,,a"])
def test_names_are_separated_by_commas_or_spaces(text):
    assert names_in(text) == ["b", "a"] and names_in(" ,") == []


def test_the_first_unknown_name_is_reported():
    check_names("parts", ["a", "b"], ("a", "b", "c"), " is none")
    with pytest.raises(InputError, match="^parts x is none; use a$"):
        check_names("parts", ["a", "x", "y"], ("a", "b"), " is none; use a")


# From the command line


@dataclass(frozen=True)
class Single(Options):
    """Read one file, or two texts."""

    prefix: str = option(help="a file", positional=True, reads="PATH")
    steps: int = option(3, help="a number")
    pair: Optional[List[str]] = option(None, help="two texts", values=2)


def test_a_bare_flag_means_true_and_arguments_need_no_flag():
    assert parse_config(Shape, "a --output=out --exact".split()) == replace(SHAPE, exact=True)
    assert parse_config(Single, "--steps 4 data/a".split()) == Single("data/a", 4)
    assert parse_config(Single, "data/a --pair b -".split()) == Single("data/a", pair=["b", "-"])
    assert parse_config(Shape, "a --output=out --cut 0 --rate .1 --size 9".split()).size == 9


@pytest.mark.parametrize("words, message", [
    ("", "PREFIX is missing"),
    ("a b", "unrecognized arguments: b"),
    ("a --step 3", r"did you mean steps\?"),
    ("a --pair b", "^pair: expected 2 arguments; correct it, or put texts"),
    ("a --pair=b c", "^pair: expected 2 arguments"),
    ("a --pair -5 -3", "^pair: expected 2 arguments"),
])  # fmt: skip
def test_missing_or_extra_words_are_reported(words, message):
    with pytest.raises(InputError, match=message):
        parse_config(Single, words.split())


@pytest.mark.parametrize("value, pair", [("[a, 7]", ["a", "7"]), ("null", None), ("", None)])
def test_an_optional_list_is_read_from_a_yaml_file(tmp_path, value, pair):
    (tmp_path / "single.yaml").write_text(f"pair: {value}\n")
    assert parse_config(Single, ["a", f"--config={tmp_path}/single.yaml"]).pair == pair


def raised(error):
    def action():
        raise error

    return action


@pytest.mark.parametrize("error, code, line", [
    (InputError("x"), 2, "x"),
    (CheckpointError("x"), 3, "x"),
    (NumbersError("x"), 4, "x"),
    (OSError(28, "No space left on device", "/out/x"), 5, "No space left on device at /out/x, where "),
    (MemoryError(), 5, "out of memory; "),
    (
        InputError("文本 a\x1b[2Jb\x9bc\u202ed\u2028e\udcfff"),
        2,
        "文本 a\\x1b[2Jb\\x9bc\\u202ed e\\udcfff",
    ),
])  # fmt: skip
def test_a_user_error_gives_one_line_and_an_exit_code(error, code, line, capsys):
    assert exit_code_of(raised(error)) == code
    errors = capsys.readouterr().err
    assert errors.startswith(f"error: {line}") and errors.count("\n") == 1


@pytest.mark.parametrize("length", [1, 500, 600, 601, 10**6])
def test_a_long_message_keeps_its_location_and_remedy(length, capsys):
    message = f"some/file.tsv:17: {'x' * length} is no number; write one"
    assert exit_code_of(raised(InputError(message))) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: some/file.tsv:17: x") and line.endswith("x is no number; write one")
    assert len(line) <= len("error: ") + 600
    assert ("[...]" in line) == (len(message) > 600)


def test_a_bug_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        exit_code_of(lambda: 1 // 0)


def test_a_character_that_the_output_cannot_take_is_escaped():
    program = "from ernie_pair.core.cli.cli import *; exit_code_of(lambda: print('\\u600e\\u4e48 ok'))"
    for environment in ({"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", **UNCOERCED}):
        done = subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True
        )
        assert (done.stdout, done.stderr) == (b"\\u600e\\u4e48 ok\n", b""), environment


def goes_on():
    with suppress(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)


def makes_it_another_error():
    goes_on()
    raise InputError("a library is not installed")


@pytest.mark.parametrize("action", [goes_on, makes_it_another_error])
def test_an_interrupt_stays_one_whatever_a_library_makes_of_it(action, capsys):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    assert exit_code_of(action) == 130
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler
    assert capsys.readouterr().err == "error: interrupted from the keyboard\n"


@pytest.mark.parametrize("words", [["--help"], ["help", "train"], ["train", "--help"]], ids="-".join)
def test_a_closed_pipe_ends_quietly_with_exit_code_141(words):
    """As when piped into `head`."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "ernie_pair", *words]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@dataclass(frozen=True)
class Places(Options):
    """Paths of several kinds."""

    input_file: str = option(help="what is read", group="data", stdin=(".tsv",), reads="FILE")
    output_file: str = option("", help="what is written", group="data", writes="FILE")
    models: str = option("", help="NAME=PATH", group="data", reads="NAME=PATH")
    checkpoints: Optional[List[str]] = option(None, help="several", group="data", reads="PATH")
    text: str = option("", help="no path", group="data")


def test_a_tilde_is_the_home_folder_in_every_path(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "run.yaml").write_text("output_file: ~/out\ntext: '~/x'\n")
    words = ["--input_file=~/in", "--models", "a=~/a b='~/my b' random:~/c d=x~/y", "--config=~/run.yaml"]
    found = parse_config(Places, words)
    assert found.input_file == f"{tmp_path}/in" and found.output_file == f"{tmp_path}/out"
    assert found.models == f"a={tmp_path}/a b='{tmp_path}/my b' random:{tmp_path}/c d=x~/y"
    assert found.text == "~/x" and replace(found, checkpoints=["~", "a~"]).checkpoints == [
        str(tmp_path),
        "a~",
    ]
    assert replace(found, input_file="-").input_file == "-"
    assert Places("~nobody/x").input_file == "~nobody/x"


def test_an_open_that_fails_at_a_link_names_its_target(tmp_path, capsys):
    (tmp_path / "link").symlink_to("gone")
    assert exit_code_of(lambda: open(tmp_path / "link")) == 5  # noqa: SIM115 - it fails
    assert f"link: links to {tmp_path}/gone, which does not exist" in capsys.readouterr().err


# --- what a command or a value needs, before anything is read or written


@dataclass(frozen=True)
class Needy(Options):
    """Need a library for some values."""

    NEEDS = {"json": ""}

    way: Literal["plain", "odd"] = option("plain", help="a way", needs={"odd": {"absent_of_all": "tune"}})
    names: str = option("", help="names", needs={"b": {"absent_of_all": "ray"}})
    index: str = option("", help="a folder", needs={ANY: {"absent_of_all": ""}}, reads="FOLDER")


@pytest.mark.parametrize(
    "flag, value, extra", [("way", "odd", "tune"), ("names", "a,b", "ray"), ("index", "x", "")]
)
def test_a_value_is_refused_whose_library_is_missing(flag, value, extra):
    said = re.escape(f"absent_of_all is not installed; {install_command(extra or extra_here())}")
    with pytest.raises(InputError, match=said):
        Needy(**{flag: value})
    with pytest.raises(InputError, match=said):
        parse_config(Needy, [f"--{flag}", value])
    assert Needy(names="a").way == "plain"


def test_a_command_is_refused_whose_library_is_missing(monkeypatch):
    monkeypatch.setattr(Needy, "NEEDS", {"absent_of_all": ""})
    with pytest.raises(InputError, match="absent_of_all is not installed; pip install "):
        Needy()


@pytest.mark.parametrize("name", ["pipeline", "quickstart", "check", "train", "train-embedding", "pretrain"])
def test_what_trains_needs_the_stack_before_its_first_write(name):
    assert {"paddle", "paddlenlp", "datasketch", "matplotlib"} <= config_class_of(COMMANDS[name]).NEEDS.keys()
