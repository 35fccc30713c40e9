"""In pair training, gradients of half-precision weights are summed over the processes in float32."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT, SUPPORT

pytestmark = pytest.mark.ranks

SCRIPT = Path(__file__).with_name("sum_half_gradients.py")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sums")
    done = subprocess.run(
        [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2"]
        + ["--log_dir", str(folder / "log"), str(SCRIPT), str(folder / "out")],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{SUPPORT}:{ROOT}"},
    )
    logs = [log.read_text()[-1500:] for log in sorted((folder / "log").glob("workerlog.*"))]
    assert done.returncode == 0, "\n".join(logs) or done.stderr
    return [json.loads((folder / f"out.{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("dtype, digit", [("float16", 2.0**-10), ("bfloat16", 2.0**-7)])
def test_data_parallelism_averages_in_float32(told, dtype, digit):
    for rank in told:
        assert rank[dtype]["summed"] == ["paddle.float32"]
        assert rank[dtype]["dtypes"] == ["paddle.float32", "paddle.float32"]
        assert rank[dtype]["means"] == [1 + digit / 2] * 3  # not representable in half precision


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_group_sharding_sums_in_place_on_the_owner_only(told, dtype):
    first, owner = (rank[dtype] for rank in told)
    assert owner["sums"] == [3.0] * 4 and owner["in place"]
    assert first["sums"] == [1.0] * 4
