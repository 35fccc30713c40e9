"""No process that is started imports from the working folder, which may hold a stranger's random.py."""

import ast
import os
import subprocess
import sys

import pytest
from places import ROOT

from data_tools.make_sample import SampleConfig, make_sample
from data_tools.prepare import PrepareConfig, prepare
from ernie_pair.core.run_module import RUN_MODULE, python_words

# Each writes down that it was imported, and ends what has imported it.
STRANGER = "open({mark!r}, 'a').write(f'{{__name__}}\\n')\nraise RuntimeError(__name__)\n"
STRANGERS = "numpy random yaml socket tempfile threading".split()
ENVIRONMENT = {**os.environ, "COLD": "1"}  # a warm process has imported Python's own already
ERNIE_PAIR = [*python_words(), "-m", "ernie_pair"]
# The working folder comes in front once it runs, as in a kernel.
NOTEBOOK = """
import random, sys
from ernie_pair import notebook_launcher
sys.path.insert(0, "")

def draw():
    import random, numpy, beside
    return beside.NUMBER + random.Random(1).randint(2, 2)

print(notebook_launcher(draw))
"""


@pytest.fixture
def stranger(tmp_path):
    """A folder with modules of common names; none of them may have been imported at the end."""
    mark, folder = tmp_path / "imported", tmp_path / "downloaded"
    folder.mkdir()
    for name in STRANGERS:
        (folder / f"{name}.py").write_text(STRANGER.format(mark=str(mark)))
    yield folder
    assert not mark.exists(), mark.read_text()


@pytest.fixture(scope="module")
def sample(module_path):
    make_sample(SampleConfig(output_dir=str(module_path), documents=60, pairs=90))
    letters = sorted({*(module_path / "corpus.txt").read_text(encoding="utf-8")} - {*"\n "})
    lines = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", *letters]
    (module_path / "vocab.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    places = {"input_path": f"{module_path}/corpus.txt", "vocab_file": f"{module_path}/vocab.txt"}
    prepare(PrepareConfig(**places, output_prefix=f"{module_path}/ids", chinese=True))
    return module_path


def ran(words, folder):
    done = subprocess.run(
        list(map(str, words)), cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_module_that_is_run_by_name(stranger):
    assert ran([sys.executable, "-m", "ernie_pair", "--version"], stranger).startswith("ernie-pair")
    assert "--output_file" in ran([sys.executable, "-m", "data_tools.build_vocab", "--help"], stranger)


def test_a_started_module_is_found_where_this_one_is(stranger):
    program = "import sys, ernie_pair, numpy; print(sys.argv[1:], ernie_pair.__file__)"
    assert ran([*python_words("-u"), "-c", program, "a", "-b"], stranger) == (
        f"['a', '-b'] {ROOT}/ernie_pair/__init__.py\n"
    )
    (stranger / "ernie_pair").mkdir()
    (stranger / "ernie_pair" / "__init__.py").write_text("raise RuntimeError('another copy')")
    assert ran([*ERNIE_PAIR, "--version"], stranger).startswith("ernie-pair")


@pytest.mark.parametrize("words", [
    "build vocab --vocab_size 200 --input_path corpus.txt --output_file",
    "prepare --vocab_file vocab.txt --input_path corpus.txt --engine ray --output_prefix",
])  # fmt: skip
def test_the_workers_of_a_tool(words, sample, stranger, tmp_path):
    if "ray" in words:
        pytest.importorskip("ray")
    given = [sample / word if word in ("vocab.txt", "corpus.txt", "ids") else word for word in words.split()]
    ran([*ERNIE_PAIR, *given, tmp_path / "out", "--workers", "2"], stranger)


def test_launch_of_a_script_finds_what_lies_beside_it(stranger, tmp_path):
    (tmp_path / "beside.py").write_text("NUMBER = 5")
    (tmp_path / "mine.py").write_text("import numpy, beside; open('said', 'w').write(str(beside.NUMBER))")
    ran([*ERNIE_PAIR, "launch", "--processes", "2", tmp_path / "mine.py"], stranger)
    assert (stranger / "said").read_text() == "5"


def test_notebook_launcher_looks_in_the_working_folder_last(stranger):
    (stranger / "beside.py").write_text("NUMBER = 5")
    assert ran([*python_words(), "-c", NOTEBOOK], stranger) == "7\n"


def starts_of_python(path):
    """Yield what a file says of Python as a program: its path, and ways of multiprocessing."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable":
            yield "sys.executable"
        elif isinstance(node, ast.Constant) and node.value in ("spawn", "forkserver"):
            yield node.value


def test_python_is_started_in_one_way():
    found = {}
    for folder in ("data_tools", "ernie_pair"):
        for path in (ROOT / folder).rglob("*.py"):
            found.setdefault(str(path.relative_to(ROOT)), set()).update(starts_of_python(path))
    assert {path: starts for path, starts in found.items() if starts} == {
        os.path.relpath(RUN_MODULE, ROOT): {"sys.executable"},
        "ernie_pair/core/process_pool.py": {"spawn"},
        "ernie_pair/checks/doctor.py": {"sys.executable"},  # shown
        "ernie_pair/core/files/hub.py": {"sys.executable"},  # programs beside it
        "ernie_pair/launch/launch.py": {"sys.executable"},  # of a person's script, and of the words above
    }
