"""The files at the top level, and whether the pages for contributors match the repository."""

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from packaging.version import Version
from places import ROOT

import ernie_pair

FIXED = {"setup.py", "README.md", "ernie_pair", "data_tools", "scripts", "tests"}
# Customary names beside them.
CUSTOMARY = {"docs", "notebooks", "mkdocs.yml", "README_cn.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md"}
CUSTOMARY |= {"pyproject.toml", "constraints.txt"}
LONGEST_TEST_NAME = 59
HIDDEN = {".ci", ".gitignore", ".editorconfig", ".pre-commit-config.yaml"}
PLACE = re.compile(r"`((?:data_tools|ernie_pair|scripts|tests|\.ci)/[\w./]+?)(?::(\w+))?`")


def page(name):
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tracked():
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a clone")
    return [Path(name) for name in done.stdout.splitlines()]


def test_the_top_level_holds_only_fixed_and_customary_names(tracked):
    top = {path.parts[0] for path in tracked}
    assert top >= FIXED | CUSTOMARY
    assert top <= FIXED | CUSTOMARY | HIDDEN


def test_non_python_package_files_go_into_the_wheel(tracked):
    data = page("pyproject.toml").split("[tool.setuptools.package-data]\n")[1].split("\n\n")[0]
    listed = {
        (package.strip('"').replace(".", "/"), name)
        for package, names in re.findall(r"^(\S+) = \[(.*)\]$", data, re.M)
        for name in re.findall(r'"([^"]+)"', names)
    }
    found = {str(path.relative_to(ROOT)) for folder, name in listed for path in (ROOT / folder).glob(name)}
    ours = [path for path in tracked if path.parts[0] in ("data_tools", "ernie_pair")]
    assert found == {str(path) for path in ours if path.suffix != ".py"}
    assert {("data_tools", "py.typed"), ("ernie_pair", "py.typed")} <= listed


def test_the_sdist_contains_exactly_the_tracked_files(tracked, tmp_path):
    """Including the tests and the constraints, but no generated files."""
    made = list(
        map(Path, ("tests/__pycache__/test_x.cpython-311.pyc", "output/made.txt", ".venv/pyvenv.cfg"))
    )
    for path in [*tracked, *made]:
        (tmp_path / "clone" / path).parent.mkdir(parents=True, exist_ok=True)
    for path in tracked:
        shutil.copy(ROOT / path, tmp_path / "clone" / path)
    for path in made:
        (tmp_path / "clone" / path).write_text("")
    program = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    words = [sys.executable, "-W", "error::DeprecationWarning:setuptools", "-c", program]
    done = subprocess.run(words, cwd=tmp_path / "clone", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        held = {Path(*Path(member.name).parts[1:]) for member in opened if member.isfile()}
    generated = {path for path in held if "egg-info" in str(path)} | {Path("PKG-INFO"), Path("setup.cfg")}
    assert held - generated == set(tracked)


@pytest.mark.parametrize("read, least", [("CONTRIBUTING.md", 25), ("docs/en/extending.md", 15)])
def test_paths_and_names_for_contributors_exist(read, least):
    places = PLACE.findall(page(read))
    assert len(places) > least
    for path, name in places:
        assert (ROOT / path).exists(), path
        if name:
            assert re.search(rf"^(?:class|def) {name}\b", page(path), re.M), f"{path}:{name}"


def test_the_newest_release_in_the_changelog_is_the_version():
    released = re.findall(r"^## \[(\d[\d.]*)\]", page("CHANGELOG.md"), re.M)
    assert released == [Version(ernie_pair.__version__).base_version]


def test_the_version_is_written_once():
    text = page("pyproject.toml")
    assert 'dynamic = ["version"]' in text and "ernie_pair.version.__version__" in text
    assert "version" not in page("setup.py")


def test_pre_commit_hooks_run_the_tools_of_the_lint_script():
    asked = re.findall(r'^"\$PY" -m (ruff \w+(?: --check)?|mypy)', page("scripts/lint.sh"), re.M)
    assert asked == ["ruff check", "ruff format --check", "mypy"]
    assert re.findall(r"entry: \.venv/bin/python -m (.+)", page(".pre-commit-config.yaml")) == asked


def test_test_names_fit_a_line_of_the_report(tracked):
    files = [path for path in tracked if path.parts[0] == "tests" and path.suffix == ".py"]
    names = [name for path in files for name in re.findall(r"def (test_\w+)", page(path))]
    assert len(names) > 1000
    assert [name for name in names if len(name) > LONGEST_TEST_NAME] == []
