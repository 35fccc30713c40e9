"""Faults planted in a project of two files, and the list of those that change nothing."""

import subprocess
import sys

import plant_faults
import yaml
from fault_kinds import faults_in
from places import ROOT, SCRIPTS

SOURCE = """
def reduced(value):
    if value > 10:
        value -= 3
    return value
"""
TESTS = """
from room.reduced import reduced

def test_reduced():
    assert [reduced(9), reduced(10), reduced(12)] == [9, 10, 9]
"""
PROGRAM = """
import pathlib, sys, plant_faults
plant_faults.ROOT, plant_faults.PRELOADED = pathlib.Path.cwd(), ()
plant_faults.EQUAL = pathlib.Path("equal.yaml")
plant_faults.BASELINES = pathlib.Path("baselines")
plant_faults.main()
"""


def test_faults_are_found_equal_or_survive(tmp_path):
    for name, text in (("room/reduced.py", SOURCE), ("tests/room/test_reduced.py", TESTS)):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    equal = {"value -= 3 -> value -= 4": "says this test"}
    (tmp_path / "equal.yaml").write_text(yaml.safe_dump(equal))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "--room", "room"], cwd=tmp_path, env={"PYTHONPATH": str(SCRIPTS)},
        capture_output=True, text=True,
    )  # fmt: skip
    *lines, _, table = done.stdout.splitlines()
    outcomes = {line[9:].split("  ")[0]: line[:9].strip() for line in lines}
    at = "room/reduced.py:"
    assert outcomes == {
        f"{at}3: if value > 10: -> if value >= 10:": "found",
        f"{at}3: if value > 10: -> if value > 11:": "survived",
        f"{at}4: value -= 3 -> pass": "found",
        f"{at}4: value -= 3 -> value += 3": "found",
        f"{at}4: value -= 3 -> value -= 4": "equal",
    }
    assert table.split() == ["room", "5", "3", "1", "1"] and done.returncode == 1
    assert (tmp_path / "room/reduced.py").read_text() == SOURCE


def test_equal_faults_can_still_be_planted():
    """A listed line that has changed since is to be looked at again; its file may have another name."""
    equal = yaml.safe_load(plant_faults.EQUAL.read_text(encoding="utf-8"))
    lines, planted = {key.split(" -> ")[0].encode() for key in equal}, set()
    for path in (path for folder in ("data_tools", "ernie_pair") for path in (ROOT / folder).rglob("*.py")):
        if any(line in path.read_bytes() for line in lines):
            planted |= {fault.key for fault in faults_in(path.name, path.read_bytes())}
    assert equal.keys() <= planted and all(equal.values())


def test_texts_stay_as_they_are():
    source = b'a = "x" + b\nraise Error(f"{a + 1} of {b}")\nsay(1)\nc[:n] = max(d, axis=1)\n'
    names = {fault.name.split(" -> ")[1] for fault in faults_in("a.py", source)}
    wanted = {
        "pass",
        "c[:n + 1] = max(d, axis=1)",
        "c[:n] = min(d, axis=1)",
        "c[:n] = max(d, axis=1 - abs(1))",
    }
    assert names == wanted
