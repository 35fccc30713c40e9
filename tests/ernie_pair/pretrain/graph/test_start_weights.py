"""Random start weights are the same in every version of Paddle, so a seed determines a run."""

import json
import os
import subprocess
import sys

import pytest
from places import ROOT, SUPPORT

PROGRAM = """
import json
from gpu_program import build, start
with start(1):
    program = build(1, device="cpu")
    program.start(1234)
    weights = program.weights()
table = weights["embedding_0.w_0"].ravel()
size = sum(float(abs(array.astype("float64")).sum()) for array in weights.values())
print("\\n" + json.dumps([len(weights), size, float(abs(table).max()), *map(float, table[:5])]))
"""
# Number of weights, sum of absolute values, the embedding's maximum and first values, from Paddle 2.6.2.
KNOWN = [46, 30504.525211666143, 0.03987697511911392]
KNOWN += [0.00740954, -0.00553122, -0.01480218, -0.0164937, -0.00641244]


def test_start_weights_are_the_same_in_every_paddle_version():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, SUPPORT)))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == pytest.approx(KNOWN, rel=1e-6)
