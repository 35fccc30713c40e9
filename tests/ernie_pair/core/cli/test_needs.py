"""What a command or a value needs is checked with its options: before anything is read or written."""

import re
from dataclasses import dataclass
from typing import Literal

import pytest

from ernie_pair.commands import COMMANDS, config_class_of
from ernie_pair.core.cli.cli import parse_config
from ernie_pair.core.cli.options import ANY, Options, option
from ernie_pair.core.errors import InputError
from ernie_pair.core.installation import extra_here, install_command


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
