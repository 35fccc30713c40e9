"""Help and flag errors come without heavy libraries; warnings that nobody can act on are hidden."""

import re

import pytest
from children import python
from places import ROOT

from ernie_pair.commands import COMMANDS

# A program that runs each line of its first argument as a command, and prints the outcome.
RUN = """
import contextlib, io, sys
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.__main__ import _run

for line in sys.argv[1].splitlines():
    said, code = io.StringIO(), 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = exit_code_of(lambda: _run(line.split()))
        except SystemExit as left:
            code = left.code
    heavy = [name for name in HEAVY if name in sys.modules]
    print(line, code or 0, ",".join(heavy) or "light", "usage:" in said.getvalue(), sep="|")
"""
HEAVY = (
    "paddle", "paddlenlp", "jieba", "rjieba", "faiss", "sklearn", "pandas", "ray", "scipy", "matplotlib",
    "datasets", "pyarrow", "visualdl", "onnx", "onnxruntime", "fastapi", "optuna", "torch", "transformers",
    "pkg_resources", "huggingface_hub", "PIL", "requests",
)  # fmt: skip


def run(*lines):
    done = python("-c", f"HEAVY = {HEAVY}\n{RUN}", "\n".join(lines))
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return [line.split("|") for line in done.stdout.splitlines()]


def test_help_loads_no_heavy_library():
    """All in one process: a library loaded by one of them would show up in all that follow."""
    helps = [f"{command} --help" for command in [*COMMANDS, "launch", "completion"]]
    lines = ["--help", "--version", "help train", "launch train --help", *helps]
    found = run(*lines)
    assert [one[0] for one in found] == lines
    for line, code, heavy, has_usage in found:
        assert (code, heavy) == ("0", "light"), line
        assert has_usage == str(line != "--version"), line


def test_wrong_flags_load_no_heavy_library():
    lines = [f"{command} --xyzzy 3" for command in COMMANDS]
    lines += ["train --epochs three", "train --device tpu", "xyzzy", "launch train --xyzzy", "launch xyzzy"]
    lines += ["predict --model_path x --input_file x --output_file x --batch_size 0"]
    for line, code, heavy, _ in run(*lines):
        assert (code, heavy) == ("2", "light"), line


# The beginning of a program in an environment of `pip install ernie-pair` alone, without any extra: what the
# base does not require is neither found nor installed.
WITHOUT_EXTRAS = """
import importlib.metadata as metadata, re, sys
from importlib.machinery import PathFinder

def name_of(requirement):
    return re.match("[A-Za-z0-9._-]+", requirement)[0].replace("_", "-").replace(".", "-").lower()

waiting, base = list(BASE), set()
while waiting:
    name = waiting.pop()
    if name not in base and (base.add(name) or True):
        try:
            required = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # for another system
            continue
        waiting += [name_of(each) for each in required if "extra ==" not in each]
modules = metadata.packages_distributions()
absent = {module for module, owners in modules.items() if not base & set(map(name_of, owners))}
absent -= {"ernie_pair", "data_tools"}

class BaseAlone:
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in absent else PathFinder.find_spec(name, path, target)

sys.meta_path = [BaseAlone() if finder is PathFinder else finder for finder in sys.meta_path]
find = metadata.Distribution.from_name.__func__

def from_name(cls, name):
    if name_of(name) in base:
        return find(cls, name)
    raise metadata.PackageNotFoundError(name)

metadata.Distribution.from_name = classmethod(from_name)
"""


def test_every_help_works_without_any_extra():
    with open(ROOT / "pyproject.toml", encoding="utf-8") as file:
        listed = re.search(r"^dependencies = \[(.*?)^\]", file.read(), re.S | re.M)[1]
    base = re.findall(r'"([A-Za-z0-9-]+)', listed)
    helps = [f"{command} --help" for command in [*COMMANDS, "launch", "completion"]]
    program = f"BASE = {base}\nHEAVY = ()\n{WITHOUT_EXTRAS}{RUN}assert 'paddle' in absent"
    done = python("-c", program, "\n".join(["--help", "--version", *helps]))
    assert done.returncode == 0, done.stderr
    codes = dict(line.split("|")[:2] for line in done.stdout.splitlines())
    assert codes == dict.fromkeys(["--help", "--version", *helps], "0")


# --- warnings of libraries that users can do nothing about are hidden


JIEBA = """
import warnings
import data_tools
import jieba
warnings.warn("a remark of the user's own code")
"""
STATIC = """
import warnings
import ernie_pair
import paddle
paddle.enable_static()
a = paddle.static.data("a", [-1, 3])
b = paddle.static.data("b", [-1, 3])
a + b
warnings.warn("a remark of the user's own code")
"""


REMARKS = (
    "Setuptools is replacing",
    "pkg_resources is deprecated as an API",
    "has been unified with elementw",
    "No ccache found",
)


def run_shown(program, *flags):
    return python(*flags, "-c", program, without=["PYTHONWARNINGS"])


@pytest.mark.parametrize("program", [JIEBA, STATIC], ids=["jieba", "a static program"])
def test_known_warnings_are_hidden_and_others_are_shown(program):
    done = run_shown(program, "-W", "always")
    assert done.returncode == 0 and "UserWarning: a remark of the user's own code" in done.stderr
    assert not [remark for remark in REMARKS if remark in done.stderr]
    by_default = run_shown(program).stderr
    assert [line.partition(": ")[2] for line in by_default.splitlines() if "Warning" in line] == [
        "UserWarning: a remark of the user's own code"
    ]
