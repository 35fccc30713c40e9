"""A pretraining step reads nothing back from the device until its metrics are needed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT, SUPPORT
from tiny_pretrain import write_corpus, write_model


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("late")
    write_corpus(folder / "data", write_model(folder / "model"))
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("read_late.py")), str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, SUPPORT)))},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


WAYS = ("plain", "merge", "skip", "no clipping", "recompute", "many passes")


@pytest.mark.parametrize("way", WAYS)
def test_a_step_fetches_nothing_and_does_not_scan_ops(seen, way):
    assert seen[way]["fetches"] == 0 and seen[way]["looks at all ops"] == 0
    # With "skip" the next learning rate depends on skipped steps; 132 passes fill the records every step.
    each = {"skip": 6, "many passes": 2}
    assert seen[way]["reads"] == each.get(way, 0)


@pytest.mark.parametrize("way", WAYS)
def test_metrics_read_together_match_those_read_one_by_one(seen, way):
    assert seen[way]["same metrics"] and seen[way]["same evaluation"] and seen[way]["same weights"]


def test_a_held_program_gives_the_same_losses_as_the_executor(seen):
    assert seen["held as run"] and seen["merge"]["passes"] == 3
