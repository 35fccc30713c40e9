"""The requirements in pyproject.toml, against the tested versions, the imports and the install page."""

import json
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

from ernie_pair.checks.doctor import what_works
from ernie_pair.core import installation

OURS = "ernie-pair"
TESTED_SET, PYTHONS = "constraints.txt", ("3.10", "3.11", "3.12", "3.13")
# Imported to run an exported model, and to serve it; words.py and lac.py say how to install theirs, and who
# evaluates with mteb has it.
OF_THE_BASE = {"huggingface_hub", "numpy", "packaging", "tokenizers", "tqdm", "yaml"}
OF_PREDICTING = {"fastapi", "google", "jinja2", "prometheus_client", "pydantic", "starlette", "uvicorn"}
SAID_ELSEWHERE = {"LAC", "mteb"}


def pins(pattern=r"[\w.-]+"):
    """Return the exact pins of pyproject.toml, read as text, as Python 3.10 has no tomllib."""
    return re.findall(rf'"({pattern}==[\w.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def constraints():
    return (ROOT / TESTED_SET).read_text(encoding="utf-8").split("\n")


def asked_by_extra():
    """Return the requirements of each extra as pyproject.toml lists them, the base as the extra ""."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    base = text.split("\ndependencies = [\n")[1].split("\n]")[0]
    extras = text.split("[project.optional-dependencies]\n")[1].split("\n\n[")[0]
    lists = {"": base, **dict(re.findall(r"^(\w+) = \[(.*?)\]$", extras, re.M | re.S))}
    # An extra in brackets ends with its own bracket: the lists are cut at the end of a line.
    return {name: [Requirement(one) for one in re.findall(r'"([^"]+)"', lists[name])] for name in lists}


def with_own_extras(name):
    """Return the requirements that installing with the extra ``name`` asks for, the base's included.

    Several ranges of a package are one that lies in all of them.
    """
    by_extra, names, found = asked_by_extra(), ["", name], {}
    for one in names:
        for requirement in by_extra[one]:
            if requirement.name == OURS:
                names.extend(requirement.extras)
            else:
                known = found.setdefault(canonicalize_name(requirement.name), requirement)
                known.specifier &= requirement.specifier
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


def test_a_requirement_of_several_extras_has_one_range():
    ranges = {}
    for requirements in asked_by_extra().values():
        for one in requirements:
            if one.name != OURS:
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
    for name in EXTRAS:
        for other, requirement in with_own_extras(name).items():
            assert requirement.specifier.contains(tested[other]), f"{requirement} in [{name}]"


def test_each_imported_library_is_provided_by_an_extra():
    """An import outside OF_TRAINING would raise a traceback where only exported models are used."""
    files = [path for room in BELOW for path in sources(room)]
    imported = {module.partition(".")[0] for path in files for module in imports_of(path)}
    own = {"data_tools", "ernie_pair"}
    foreign = {name for name in imported - own if name not in sys.stdlib_module_names}
    known = OF_THE_BASE | OF_PREDICTING | SAID_ELSEWHERE | installation.OF_TRAINING
    assert foreign | {"datasketch", "zstandard"} == known


def test_exact_pins_match_the_tested_constraints():
    assert len(pins()) > 4
    assert {pin.lower() for pin in pins()} <= set(constraints())


def test_the_tested_paddle_is_in_the_range_of_its_extra():
    assert {name for name in EXTRAS if installation.CPU_BUILD in with_own_extras(name)} == {"cpu"}
    (version,) = (
        line.partition("==")[2] for line in constraints() if line.startswith(f"{installation.CPU_BUILD}==")
    )
    assert with_own_extras("cpu")[installation.CPU_BUILD].specifier.contains(
        version
    ) and installation.is_tested_paddle(version)


# --- PaddleNLP without its requirements


def test_where_no_extra_installs_paddlenlp_a_step_does():
    """The pages, the scripts and the errors name one version, that of the tested set."""
    assert not [name for name in installation.WITHOUT_PADDLENLP if "paddlenlp" in with_own_extras(name)]
    assert f"paddlenlp=={installation.PADDLENLP_VERSION}" in constraints()
    for page in ("README.md", "README_cn.md", "docs/en/install.md", "docs/zh/install.md"):
        assert installation.PADDLENLP_COMMAND in (ROOT / page).read_text(encoding="utf-8"), page
    assert "--no-deps paddlenlp\n" in (ROOT / "scripts" / "environment.sh").read_text(encoding="utf-8")


# What libraries import where they find it.
IF_PRESENT = (
    "backports-tarfile",
    "outcome",
    "platformdirs",
    "pysocks",
    "sniffio",
    "sortedcontainers",
    "trio",
)
IMPORTED = """
import json, sys
from importlib.metadata import packages_distributions
import paddle
before = set(sys.modules)
import paddlenlp, paddlenlp.taskflow, paddlenlp.trainer
known = packages_distributions()
tops = {name.partition(".")[0] for name in set(sys.modules) - before}
print("\\n" + json.dumps(sorted({one.lower() for top in tops for one in known.get(top, ())[:1]})))
"""


def test_the_training_extra_brings_what_paddlenlp_imports():
    words = [sys.executable, "-W", "ignore", "-c", IMPORTED]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    imported = set(map(canonicalize_name, json.loads(done.stdout.splitlines()[-1])))
    brought = brought_by([*with_own_extras("train"), installation.CPU_BUILD])
    assert len(imported) > 20 and imported - brought - {"paddlenlp", *IF_PRESENT} == set()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_install_page_has_the_table_of_doctor(language):
    page = (ROOT / "docs" / language / "install.md").read_text(encoding="utf-8")
    table = page.split("| Paddle 3.3 |\n")[1].split("\n\n")[0]
    assert len(table.splitlines()) == 1 + len(what_works())
    if language == "en":
        assert [line.split("|")[1].strip() for line in table.splitlines()[1:]] == list(what_works())


def test_the_cpu_and_gpu_extras_differ_in_paddle_alone():
    cpu, gpu = ({*map(str, with_own_extras(name).values())} for name in ("cpu", "gpu"))
    assert {one.replace("-gpu", "") for one in gpu} == cpu and len(gpu - cpu) == 1
