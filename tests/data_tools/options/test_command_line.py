import os
import subprocess
import sys
from dataclasses import dataclass
from typing import List, Literal, Optional

import pytest

from data_tools.files.errors import CheckpointError, InputError, NumbersError
from data_tools.options.cli import exit_code_of, parse_config
from data_tools.options.options import Options, option


@dataclass(frozen=True)
class Config(Options):
    """An example."""

    input_dir: str = option(help="a folder")
    no_merge: bool = option(False, help="a switch")
    use_amp: bool = option(False, help="another")
    steps: int = option(3, help="a number")
    rate: float = option(0.1, help="a rate")
    device: Literal["cpu", "gpu"] = option("cpu", help="a choice")


def test_flags_are_parsed_in_the_style_of_the_recipe():
    config = parse_config(Config, "--input_dir a --use_amp true --no-merge --rate 1e-4".split())
    assert config == Config(input_dir="a", use_amp=True, no_merge=True, rate=1e-4)


@dataclass(frozen=True)
class Positional(Options):
    """An example."""

    prefix: str = option(help="a file", positional=True)
    steps: int = option(3, help="a number")


def test_a_positional_argument_needs_no_flag():
    assert parse_config(Positional, "--steps 4 data/a".split()) == Positional("data/a", 4)
    assert parse_config(Positional, ["data/a"]) == Positional("data/a")


@pytest.mark.parametrize(
    "words, message", [("", "PREFIX is missing"), ("a b", "b"), ("a --step 3", r"did you mean steps\?")]
)
def test_missing_or_extra_positional_arguments_are_reported(words, message):
    with pytest.raises(InputError, match=message):
        parse_config(Positional, words.split())


def test_false_is_parsed_as_false():
    assert parse_config(Config, "--input_dir a --use_amp False".split()).use_amp is False


@dataclass(frozen=True)
class Asking(Options):
    """Ask for two texts, or for none."""

    pair: Optional[List[str]] = option(None, help="two texts", values=2)


@pytest.mark.parametrize("value, pair", [("[a, 7]", ["a", "7"]), ("null", None), ("", None)])
def test_an_optional_list_is_read_from_a_yaml_file(tmp_path, value, pair):
    (tmp_path / "asking.yaml").write_text(f"pair: {value}\n")
    assert parse_config(Asking, [f"--config={tmp_path}/asking.yaml"]).pair == pair


def test_flags_override_the_yaml_file(tmp_path):
    (tmp_path / "run.yaml").write_text("input_dir: a\nsteps: 7\nrate: 0.5\n")
    config = parse_config(Config, ["--config", str(tmp_path / "run.yaml"), "--steps", "9"])
    assert (config.input_dir, config.steps, config.rate) == ("a", 9, 0.5)


@pytest.mark.parametrize(
    "words, message",
    [
        ("", r"input_dir is missing"),
        ("--input_dir a --use_amp Flase", r"use_amp takes true or false"),
        ("--input_dir a --steps 1.5", r"steps takes a whole number"),
        ("--input_dir a --device tpu", r"device takes one of cpu, gpu"),
        ("--inputdir a", r"did you mean input_dir\?"),
        ("--input_dir a --speed 3", r"speed"),
    ],
)
def test_a_bad_flag_is_reported_with_what_it_takes(words, message):
    with pytest.raises(InputError, match=message):
        parse_config(Config, words.split())


def raiser(error):
    def action():
        raise error

    return action


@pytest.mark.parametrize(
    "error, code", [(InputError("x"), 2), (CheckpointError("x"), 3), (NumbersError("x"), 4)]
)
def test_a_user_error_gives_one_line_and_an_exit_code(error, code, capsys):
    assert exit_code_of(raiser(error)) == code
    assert capsys.readouterr().err == "error: x\n"


def test_a_full_disk_gives_exit_code_5(capsys):
    assert exit_code_of(raiser(OSError(28, "No space left on device", "/out/x"))) == 5
    assert capsys.readouterr().err.startswith("error: No space left on device at /out/x")


def test_terminal_escapes_in_a_message_are_not_sent_raw(capsys):
    exit_code_of(raiser(InputError("bad \x1b[2J name")))
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize("length", [1, 500, 600, 601, 10**6])
def test_a_long_message_keeps_its_location_and_remedy(length, capsys):
    message = f"some/file.tsv:17: {'x' * length} is no number; write one"
    assert exit_code_of(raiser(InputError(message))) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: some/file.tsv:17: x") and line.endswith("x is no number; write one")
    assert len(line) <= len("error: ") + 600
    assert ("[...]" in line) == (len(message) > 600)


def test_a_bug_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        exit_code_of(lambda: 1 // 0)


@pytest.mark.parametrize("words", [["--help"], ["help", "train"], ["train", "--help"]], ids="-".join)
def test_a_closed_pipe_ends_quietly_with_exit_code_141(words):
    """As when piped into `head`."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "ernie_pair", *words]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
