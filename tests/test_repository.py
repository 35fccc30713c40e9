"""What stands at the top, and whether the pages for contributors tell of what is there."""

import re
import subprocess

import pytest
from places import ROOT

import ernie_pair

FIXED = {"setup.py", "README.md", "ernie_pair", "data_tools", "scripts", "tests"}
# What custom expects beside them; docs may come.
CUSTOMARY = {
    "README_cn.md",
    "LICENSE",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "pyproject.toml",
    "constraints.txt",
}
HIDDEN = {".ci", ".gitignore", ".editorconfig", ".pre-commit-config.yaml"}
PLACE = re.compile(r"`((?:data_tools|ernie_pair|scripts|tests|\.ci)/[\w./]+?)(?::(\w+))?`")


def page(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_top_level_holds_only_the_six_names_and_what_custom_expects():
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a clone")
    top = {name.split("/")[0] for name in done.stdout.splitlines()}
    assert top >= FIXED | CUSTOMARY
    assert top - FIXED - CUSTOMARY - HIDDEN <= {"docs"}


def test_contributing_names_places_that_are_there():
    places = PLACE.findall(page("CONTRIBUTING.md"))
    assert len(places) > 30
    for path, name in places:
        assert (ROOT / path).exists(), path
        if name:
            assert re.search(rf"^(?:class|def) {name}\b", page(path), re.M), f"{path}:{name}"


def test_the_newest_release_in_the_changelog_is_the_version():
    released = re.findall(r"^## \[(\d[\d.]*)\]", page("CHANGELOG.md"), re.M)
    assert released[0] == ernie_pair.__version__
    assert "## [Unreleased]" in page("CHANGELOG.md")


def test_the_version_is_written_once():
    text = page("pyproject.toml")
    assert 'dynamic = ["version"]' in text and "ernie_pair.version.__version__" in text
    assert "version" not in page("setup.py")


def test_the_hooks_call_what_the_linter_script_calls():
    asked = re.findall(r'^"\$PY" -m (ruff \w+(?: --check)?|mypy)', page("scripts/lint.sh"), re.M)
    assert asked == ["ruff check", "ruff format --check", "mypy"]
    assert re.findall(r"entry: \.venv/bin/python -m (.+)", page(".pre-commit-config.yaml")) == asked
