"""A real run of check --gpu as far as it needs no GPU: every step on the CPU, with the shorter cases."""

import json
import os
import subprocess
import sys

import pytest
from places import ROOT

pytestmark = [pytest.mark.recipes, pytest.mark.slow, pytest.mark.timeout(1200)]


def test_a_quick_check_of_the_cpu_passes(tmp_path):
    temporary, output = tmp_path / "tmp", tmp_path / "check.json"
    temporary.mkdir()
    words = ["check", "--gpu", "--device", "cpu", "--quick", "--output_file", str(output)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    done = subprocess.run(
        [sys.executable, "-m", "ernie_pair", *words], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(output.read_text(encoding="utf-8"))
    verdicts = {step["number"]: step["verdict"] for step in report["steps"]}
    assert verdicts == {**dict.fromkeys(range(9), "passed"), 5: "needs"}
    cases = {case["name"]: case for step in report["steps"] for case in step["cases"]}
    assert {case["said"] for case in cases.values() if case["verdict"] == "needs"} >= {"needs a GPU"}
    figures = cases["48 tokens x 16, narrow model, Paddle's kernels"]["figures"]
    assert figures["tokens/s"] > 0 and 0 < figures["share of the rate of products"] < 2
    assert cases["pretraining, gradient merge"]["figures"]["steps"] >= 20
    assert cases["a lost process ends the run, on the CPU"]["figures"]["seconds until it ended"] > 0
    for name in (output, output.with_suffix(".html")):
        text = name.read_text(encoding="utf-8")
        assert str(tmp_path) not in text and str(ROOT) not in text
    assert list(temporary.iterdir()) == []
