"""The requirements in pyproject.toml, against the tested versions, the imports and the install page."""

import re
import subprocess
import sys
from importlib import metadata

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from places import ROOT
from test_layers import BELOW, imports_of, sources

from data_tools.files.installation import (
    CPU_BUILD,
    OF_TRAINING,
    TESTED_PADDLES,
    WITH_PRETRAINING,
    is_tested_paddle,
    series_of,
)

OURS = "ernie-pair"
PYTHONS = ("3.9", "3.10", "3.11", "3.12")
# Imported to run an exported model, and to serve it; words.py and lac.py say how to install theirs.
OF_THE_BASE = {"numpy", "packaging", "tokenizers", "tqdm", "yaml"}
OF_SERVING = {"fastapi", "prometheus_client", "pydantic", "starlette", "uvicorn"}
SAID_ELSEWHERE = {"LAC"}
# The version of Paddle's CPU build is pinned by the extra, not by the constraints.
PADDLE_OF = {"cpu": "2.6.2", "cpu3": "3.1.1"}


def pins(pattern=r"[\w.-]+"):
    """Return the exact pins of pyproject.toml, read as text, as Python 3.9 has no tomllib."""
    return re.findall(rf'"({pattern}==[\w.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def constraints():
    return (ROOT / "constraints.txt").read_text(encoding="utf-8").split("\n")


def asked_by_extra():
    """Return the requirements of each extra as pyproject.toml lists them, the base as the extra ""."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    base = text.split("\ndependencies = [\n")[1].split("\n]")[0]
    extras = text.split("[project.optional-dependencies]\n")[1].split("\n\n[")[0]
    lists = {"": base, **dict(re.findall(r"^(\w+) = \[(.*?)\]$", extras, re.M | re.S))}
    # An extra in brackets ends with its own bracket: the lists are cut at the end of a line.
    return {name: [Requirement(one) for one in re.findall(r'"([^"]+)"', lists[name])] for name in lists}


def with_own_extras(name):
    """Return the requirements that installing with the extra ``name`` asks for, the base's included."""
    by_extra, names, found = asked_by_extra(), ["", name], {}
    for one in names:
        for requirement in by_extra[one]:
            if requirement.name == OURS:
                names.extend(requirement.extras)
            else:
                found[canonicalize_name(requirement.name)] = requirement
    return found


def brought_by(requirements):
    """Return the names of all packages that ``requirements`` bring in here, directly or indirectly."""
    names = list(requirements)
    for name in names:
        try:
            asked = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # only for the other device or another Python
        for requirement in map(Requirement, asked):
            other = canonicalize_name(requirement.name)
            if other not in names and (not requirement.marker or requirement.marker.evaluate({"extra": ""})):
                names.append(other)
    return set(names)


EXTRAS = [name for name in asked_by_extra() if name]


def test_the_extras_are_read_from_pyproject_toml():
    assert {"predict", "train", "cpu", "gpu", "audit", "onnx", "ray", "serve", "test", "dev"} <= set(EXTRAS)
    assert {"paddlenlp", "numpy", "paddlepaddle"} <= set(with_own_extras("cpu"))
    assert "paddlenlp" not in with_own_extras("predict")


def test_a_requirement_of_several_extras_has_one_range():
    ranges = {}
    for requirements in asked_by_extra().values():
        for one in requirements:
            if one.name not in (OURS, CPU_BUILD):
                ranges.setdefault(canonicalize_name(one.name), set()).add(str(one.specifier))
    assert {name: found for name, found in ranges.items() if len(found) > 1} == {}


@pytest.mark.parametrize("name", EXTRAS)
def test_installing_one_extra_after_another_never_downgrades(name):
    """A package with an upper bound in any extra has that bound wherever another package brings it in."""
    capped = {
        other: str(requirement.specifier)
        for extra in EXTRAS
        for other, requirement in with_own_extras(extra).items()
        if re.search("<|==", str(requirement.specifier))
    }
    asked = with_own_extras(name)
    unbounded = (brought_by(asked) & set(capped)) - set(asked)
    assert {other: capped[other] for other in unbounded} == {}


@pytest.mark.parametrize("python", PYTHONS)
def test_each_range_contains_the_tested_version(python):
    lines = [line.partition(" ; ") for line in constraints() if line and not line.startswith("#")]
    tested = {}
    for pin, _, marker in lines:
        if not marker or Marker(marker).evaluate({"python_version": python}):
            name, _, version = pin.partition("==")
            assert canonicalize_name(name) == name and name not in tested, pin
            tested[name] = version
    assert CPU_BUILD not in tested  # of which there are two
    for name in EXTRAS:
        for other, requirement in with_own_extras(name).items():
            version = PADDLE_OF.get(name) if other == CPU_BUILD else tested[other]
            assert requirement.specifier.contains(version), f"{requirement} in [{name}]"


@pytest.mark.skipif(sys.version_info < (3, 10), reason="Python 3.9 does not list its own modules")
def test_each_imported_library_is_provided_by_an_extra():
    """An import outside OF_TRAINING would raise a traceback where only exported models are used."""
    files = [path for room in BELOW for path in sources(room)]
    imported = {module.partition(".")[0] for path in files for module in imports_of(path)}
    own = {"data_tools", "ernie_pair"}
    foreign = {name for name in imported - own if name not in sys.stdlib_module_names}
    assert foreign | {"zstandard"} == OF_THE_BASE | OF_SERVING | SAID_ELSEWHERE | OF_TRAINING


def test_exact_pins_match_the_tested_constraints():
    assert len(pins()) > 10
    of_paddle = {f"{CPU_BUILD}=={version}" for version in PADDLE_OF.values()}
    assert {pin.lower() for pin in pins()} - set(constraints()) == of_paddle


def test_every_extra_with_paddle_has_a_tested_version():
    asked = {name: with_own_extras(name).get(CPU_BUILD) for name in EXTRAS}
    assert {name for name, requirement in asked.items() if requirement} == set(PADDLE_OF)
    assert all(map(is_tested_paddle, PADDLE_OF.values()))


def test_the_install_page_states_what_each_paddle_supports():
    """The table on the page lists the same version series as the code."""
    page = (ROOT / "docs" / "en" / "install.md").read_text(encoding="utf-8")
    table = page.split("| Paddle | pairs: train, evaluate, predict |")[1].split("\n\n")[0]
    told = {}
    for line in table.splitlines()[2:]:
        versions, pairs, pretraining = (cell.strip() for cell in line.strip("|").split("|"))
        assert pairs == "yes"
        told.update({series_of(version): pretraining.split(",")[0] for version in versions.split(", ")})
    assert set(told) == set(TESTED_PADDLES)
    assert {series for series, answer in told.items() if answer == "yes"} == set(WITH_PRETRAINING)


def test_gpu_build_cuda_libraries_are_complete_and_tested():
    pins_of_cuda = pins(r"nvidia-[\w-]+")
    assert pins_of_cuda == [line for line in constraints() if line.startswith("nvidia-")]
    libraries = "cublas cuda-nvrtc cuda-runtime cudnn cufft curand cusolver cusparse nccl"
    assert [re.match(r"nvidia-(.+)-cu11==", pin)[1] for pin in pins_of_cuda] == libraries.split()


def test_a_convolution_does_not_abort_the_process():
    """Even on a CPU the GPU build loads cuDNN for it, which loads nvrtc."""
    program = "import paddle; paddle.set_device('cpu'); paddle.nn.Conv1D(2, 2, 1)(paddle.ones([1, 2, 3]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
