"""What is fused on a GPU: the choice by flags and hardware, and the program's ops before and after fusion."""

import json
import os
import subprocess
import sys
from pathlib import Path

import paddle
import pytest
from places import ROOT, SUPPORT

from data_tools.files.errors import InputError
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig
from ernie_pair.pretrain.graph import fusion as fused_ops
from ernie_pair.pretrain.graph.fusion import FLASH, NOTHING_FUSED, SOFTMAX_MASK, choose_fused

SCRIPT = Path(__file__).parents[1] / "graph" / "build_gpu_programs.py"
PATHS = {name: "unused" for name in ("model_name_or_path", "input_dir", "output_dir")}
HALF = {"use_amp": True, "amp_dtype": "float16"}
LAYERS = 2


@pytest.fixture
def gpu_build(monkeypatch):
    """Make Paddle report that it is a GPU build."""
    monkeypatch.setattr(fused_ops.paddle, "is_compiled_with_cuda", lambda: True)


def choose(capability=(8, 0), head_size=64, **flags):
    return choose_fused(PretrainConfig(**PATHS, **{"device": "gpu", **flags}), head_size, capability)


def test_auto_selects_what_the_gpu_and_precision_support(gpu_build):
    assert choose(**HALF)[:3] == (FLASH, True, False)
    assert choose(**HALF, dp_degree=2)[:3] == (FLASH, True, True)
    assert choose(dp_degree=2)[:3] == (SOFTMAX_MASK, False, True)
    assert choose(**HALF, capability=(7, 5))[:3] == (SOFTMAX_MASK, True, False)
    assert choose(**HALF, head_size=4)[:3] == (SOFTMAX_MASK, True, False)
    assert choose(**{**HALF, "amp_dtype": "bfloat16"}, head_size=4)[:3] == ("", True, False)
    assert choose(**HALF, capability=(7, 5), max_seq_len=30)[:3] == ("", True, False)
    assert choose(**HALF, fused_ops="none")[:3] == NOTHING_FUSED[:3]
    assert choose(**HALF, fused_ops="gemm_epilogue")[:3] == ("", True, False)
    assert choose(device="cpu", dp_degree=2) == NOTHING_FUSED


def test_the_description_says_why_ops_are_not_fused(gpu_build):
    told = choose(**HALF, capability=(7, 5), max_seq_len=500).describe()
    assert told.startswith("fused ops: gemm_epilogue (not attention: flash attention needs compute")
    assert "this GPU has 7.5, and" in told and "not --max_seq_len 500" in told and "\n" not in told
    all_of_them = "fused ops: attention (flash), gemm_epilogue, collectives"
    assert choose(**HALF, dp_degree=2).describe() == all_of_them


@pytest.mark.parametrize(
    "flags, capability, message",
    [
        ({"fused_ops": "gemm_epilogue"}, (8, 0), "gemm_epilogue: it needs half precision, and .* false"),
        ({"fused_ops": "attention", "max_seq_len": 20}, (8, 0), "half precision, .* not max_seq_len=20"),
        (
            {**HALF, "fused_ops": "attention", "max_seq_len": 20},
            None,
            "GPU does not report its .*, and the fused soft",
        ),
        ({"fused_ops": "collectives"}, (8, 0), "collectives: a single process has none; leave it out"),
        ({"fused_ops": "gemm_epilogue", "device": "cpu"}, None, "there is no such op on a CPU; leave"),
        ({"fused_ops": "adamw"}, (8, 0), "adamw: there is no such op; use auto, none, or some of attention"),
    ],
)
def test_unavailable_fused_ops_give_a_one_line_error(gpu_build, flags, capability, message):
    with pytest.raises(InputError, match=message) as caught:
        choose(capability, **flags)
    assert "\n" not in str(caught.value)


def test_a_cpu_build_of_paddle_has_no_gemm_epilogue():
    if paddle.is_compiled_with_cuda():
        pytest.skip("a build for GPUs")
    assert choose(**HALF)[:3] == (SOFTMAX_MASK, False, False)
    with pytest.raises(InputError, match="gemm_epilogue: this Paddle is a CPU build; leave it out"):
        choose(**HALF, fused_ops="gemm_epilogue")


@pytest.fixture(scope="module")
def programs():
    built = subprocess.run(
        [sys.executable, str(SCRIPT), "1"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, SUPPORT)))},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert built.returncode == 0, built.stderr[-3000:]
    return json.loads(built.stdout.splitlines()[-1])


@pytest.mark.gpu_wheel
@pytest.mark.skipif(not paddle.is_compiled_with_cuda(), reason="Paddle's build for CPUs has no such ops")
@pytest.mark.parametrize(
    "name, passes", [("float16 O1", 1), ("float16 O2", 1), ("bfloat16 O1, recompute", 2)]
)
def test_fused_ops_replace_the_plain_ones(programs, name, passes):
    plain, fused = programs[name], programs[f"{name}, fused"]
    assert fused["flash_attn"] == LAYERS * passes and fused["flash_attn_grad"] == LAYERS
    assert "softmax" not in fused and plain["softmax"] == LAYERS * passes
    assert fused["dropout"] == plain["dropout"] - LAYERS * passes
    assert fused["fused_gemm_epilogue"] > 6 * LAYERS and "matmul_v2" not in fused and "matmul_v2" in plain
    assert fused["all"] < 0.9 * plain["all"]


def test_softmax_and_mask_are_fused_into_one_op(programs):
    """An older GPU has no flash attention; the mask is expanded to a square once for all layers."""
    plain, fused = programs["float16 O1"], programs["float16 O1, 7.5, fused"]
    assert fused["fused_softmax_mask"] == LAYERS and "softmax" not in fused
    assert fused["dropout"] == plain["dropout"]
    assert fused["all"] < plain["all"]
