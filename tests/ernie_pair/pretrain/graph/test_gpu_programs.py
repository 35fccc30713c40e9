"""The GPU programs, built without a GPU, have the op counts recorded at the last review.

A change of the counts may be intended. In that case, review the program and regenerate the counts:
PYTHONPATH=.:tests/support python tests/ernie_pair/pretrain/graph/build_gpu_programs.py 1 (and 2)
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import paddle
import pytest
from places import ROOT, SUPPORT

HERE = Path(__file__).parent
KNOWN = json.loads((HERE / "gpu_programs.json").read_text())


@pytest.fixture(scope="module", params=["1", "2"])
def programs(request):
    built = subprocess.run(
        [sys.executable, str(HERE / "build_gpu_programs.py"), request.param],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, SUPPORT)))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert built.returncode == 0, built.stderr[-3000:]
    return request.param, json.loads(built.stdout.splitlines()[-1])


def test_op_counts_match_the_recorded_programs(programs):
    processes, found = programs
    plain = {name: counts for name, counts in found.items() if "fused" not in name}
    if paddle.__version__ > "3":  # 2.6 merges the overflow checks of half and other gradients
        for counts in (counts for name, counts in plain.items() if "O2" in name):
            counts["all"] += len(("concat", "reduce_any"))
    assert plain == KNOWN[f"{processes} process(es)"]


def test_each_strategy_adds_its_expected_ops(programs):
    processes, found = programs
    plain = found["float32"]
    for name, counts in found.items():
        assert (counts["cast"] > 50) == ("float16" in name)
        assert counts.get("conditional_block", 0) == ("gradient merge" in name)
        assert (counts["dropout"] > plain["dropout"]) == ("recompute" in name)
        assert ("check_finite_and_unscale" in counts) == (" float16" in f" {name}" or "skip" in name)
        assert "seed" not in counts, "recompute's seed ops cannot be repeated"
        assert ("c_broadcast" in counts) == (processes != "1")
        moves = counts["lamb" if "lamb" in name else "adamw"]
        assert moves < 46 if processes != "1" else moves == 46
        assert ("lamb" in counts) != ("adamw" in counts)
        assert counts.get("check_finite_and_unscale", 0) <= 1, name


def test_half_precision_includes_softmax_norms_and_gelu(programs):
    _, found = programs
    assert found["float16 O1"]["cast"] < found["float16 O1, more in float32"]["cast"] - 20
