"""A real run of check --gpu as far as it needs no GPU: every check on the CPU, with shorter runs."""

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
    rows = {f"{row['group']}, {row['name']}": row for row in report["checks"]}
    assert {row["verdict"] for row in rows.values()} == {"passed", "needs"} and report["passed"]
    assert all("GPU" in row["said"] for row in rows.values() if row["verdict"] == "needs")
    made = {row["group"] for row in rows.values() if row["verdict"] == "passed"}
    assert made == {"libraries", "losses", "resume", "processes", "models", "speed"}
    assert rows["speed, narrow model, CPU"]["figures"]["tokens_per_second"] > 0
    for name in (output, output.with_suffix(".html")):
        text = name.read_text(encoding="utf-8")
        assert str(tmp_path) not in text and str(ROOT) not in text
    assert list(temporary.iterdir()) == []
