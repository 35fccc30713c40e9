"""Gradients are summed over the processes in float32 in every layout, unless half sums are requested."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT, SUPPORT

SCRIPT = Path(__file__).with_name("build_collectives.py")


def collectives(*words):
    """{"layout; precision; sums; fused": {"c_allreduce_sum float32": how many}}."""
    built = subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, SUPPORT)))},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert built.returncode == 0, built.stderr[-3000:]
    return json.loads(built.stdout.splitlines()[-1])


EVERY = pytest.param("all", marks=pytest.mark.slow)  # those too that float16 stands for


@pytest.fixture(scope="module", params=["few", EVERY])
def of_two(request):
    return collectives("2", request.param)


@pytest.mark.parametrize("which, count", [("few", 7), pytest.param("all", 18, marks=pytest.mark.slow)])
def test_one_process_has_no_collectives(which, count):
    found = collectives("1", which)
    assert len(found) == count and not any(found.values())


def test_gradients_are_summed_in_float32_in_every_layout(of_two, request):
    seen = set()
    for name, found in of_two.items():
        layout, precision, sums, _ = name.split("; ")
        added = {kind.split()[1] for kind in found if kind.startswith("c_allreduce_sum")}
        if sums == "float32":
            assert added - {"float64"} == {"float32"}, name  # float64: the ranks' label counts
            seen.add((layout, precision))
    is_every = "all" in request.node.name
    assert len(seen) == (7 + 7 if is_every else 7 + 4) + 4  # with half-precision weights no gradient merge


def test_requested_half_sums_are_in_half_precision(of_two):
    for name, found in of_two.items():
        _, precision, sums, _ = name.split("; ")
        if sums == "half":
            half = precision.split()[0]
            assert found[f"c_allreduce_sum {half}"] > found.get("c_allreduce_sum float32", 0) > 0, name


def test_broadcasts_have_the_dtype_of_the_weights(of_two):
    for name, found in of_two.items():
        layout, precision, _, _ = name.split("; ")
        sent = {kind.split()[1] for kind in found if kind.startswith("c_broadcast")}
        narrow = {precision.split()[0]} if "O2" in precision else set()
        assert sent == ({"float32"} | narrow if "sharding" in layout else set()), name


def test_fusing_reduces_collectives_and_keeps_their_dtypes(of_two):
    for layout in ("sharding", "sharding, merge"):
        fused, plain = (of_two[f"{layout}; float16 O1; float32; {fused}"] for fused in ("auto", "none"))
        assert fused.keys() == plain.keys()
        assert plain["c_broadcast float32"] == 46 and fused["c_broadcast float32"] == 2  # one for each owner
    assert plain["c_allreduce_sum float32"] == 46 and fused["c_allreduce_sum float32"] == 1
