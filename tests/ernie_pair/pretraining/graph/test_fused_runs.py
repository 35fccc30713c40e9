"""Pretraining runs on the fused kernels: resume, threads, evaluation, and fallbacks."""

import os
import subprocess
import sys

import pytest
from places import ROOT
from tiny_pretrain import events, flags, has_bf16, needs_kernels

from ernie_pair.runtime.cpu import LEVEL_ASKED

SCRIPT = ROOT / "scripts" / "run_pretrain_static.py"
FUSED, PLAIN, BF16 = (
    {"warmup_rate": 0, **path} for path in ({"kernels": "fused"}, {"kernels": "plain"}, {"precision": "bf16"})
)
SHORT = {"max_steps": 1, "eval_freq": 1000, "split": "1,0,0"}
FOUR = {"max_steps": 4, "decay_steps": 6}
# name: (flags, environment)
RUNS = {
    "fused": (FUSED, {"OMP_NUM_THREADS": "2"}),
    "cut": ({**FUSED, **FOUR}, {"OMP_NUM_THREADS": "1"}),
    "other path": ({**PLAIN, **FOUR}, {}),
    "no compiler": (SHORT, {"CXX": "/absent/c++"}),
    "refused": ({**SHORT, **FUSED}, {"CXX": "/absent/c++"}),
    "no bf16": ({**SHORT, **BF16}, {LEVEL_ASKED: "avx2"}),
}
OF_BF16 = {"bf16": (BF16, {}), "bf16 cut": ({**BF16, **FOUR}, {})}
AGAIN = {"cut": RUNS["fused"], "other path": (FUSED, {}), "bf16 cut": (BF16, {})}


def run_all(world, runs):
    """Start the runs two at a time; {name: (exit code, stderr)}."""
    said, waiting = {}, list(runs.items())
    of_own = {"XDG_CACHE_HOME": str(world / "cache")}  # an operator that is already built needs no compiler
    while waiting:
        now, waiting = waiting[:2], waiting[2:]
        running = {
            name: subprocess.Popen(
                [sys.executable, SCRIPT, *flags(world / "model", world / "data", world / name, **changes)],
                env={**os.environ, **environment, **(of_own if "CXX" in environment else {})},
                stderr=subprocess.PIPE,
                text=True,
            )
            for name, (changes, environment) in now
        }
        for name, process in running.items():
            text = process.communicate(timeout=300)[1]
            said[name] = process.returncode, text
    return said


@pytest.fixture(scope="module")
def said(world):
    return run_all(world, {**RUNS, **(OF_BF16 if has_bf16() else {})})


@pytest.fixture(scope="module")
def again(world, said):
    return run_all(world, {name: run for name, run in AGAIN.items() if name in said})


def weights(world, name):
    return (world / name / "model_last" / "static_vars.safetensors").read_bytes()


def path_of(said, name):
    """The log line of a run that says which kernels it uses."""
    code, text = said[name]
    assert code == 0, text
    (line,) = (
        line for line in text.splitlines() if "kernels of Paddle: " in line or "fused kernels, " in line
    )
    return line


@needs_kernels
def test_a_run_logs_which_kernels_it_uses(said):
    assert "fused kernels, " in path_of(said, "fused") and "products in fp32" in path_of(said, "fused")
    assert path_of(said, "fused").endswith("; embeddings by Paddle")
    assert "plain kernels of Paddle: --kernels plain" in path_of(said, "other path")
    assert "there is no compiler /absent/c++; install g++" in path_of(said, "no compiler")


@needs_kernels
def test_requiring_missing_kernels_gives_a_one_line_error(said):
    for name, words in (
        ("refused", "error: --kernels fused: the operator for the static graph is not available: "),
        ("no bf16", "error: --precision bf16 needs a processor with AVX512-BF16 ("),
    ):
        code, text = said[name]
        assert code == 2 and words in text.splitlines()[-1] and "Traceback" not in text


@needs_kernels
def test_evaluation_has_no_dropout_and_matches_plain_kernels(world, said):
    """Before the first step both runs have the same weights; in training, dropout makes them differ."""
    fused, plain = (events(world / name) for name in ("fused", "other path"))
    assert fused[0]["split"] == plain[0]["split"] == "valid"
    assert fused[0]["lm_loss"] == pytest.approx(plain[0]["lm_loss"], rel=1e-5)
    names = ("lm_loss", "gradient_norm")  # of four samples: one of the two may hardly move
    assert any(fused[1][name] != pytest.approx(plain[1][name], rel=1e-5) for name in names)


@needs_kernels
def test_a_resumed_run_is_bit_identical(world, said, again):
    """Its first steps ran on one thread, those of the uninterrupted run on two."""
    assert again["cut"][0] == 0, again["cut"][1]
    assert weights(world, "cut") == weights(world, "fused")
    if has_bf16():
        assert again["bf16 cut"][0] == 0 and weights(world, "bf16 cut") == weights(world, "bf16")
        assert weights(world, "bf16") != weights(world, "fused")


@needs_kernels
def test_a_plain_kernel_checkpoint_resumes_with_fused_kernels(world, said, again):
    code, text = again["other path"]
    assert code == 0, text
    assert "continues with kernels fused" in text and "(was plain)" in text


@needs_kernels
def test_resuming_with_another_precision_is_refused(world, said, again):
    if not has_bf16():
        pytest.skip("no bf16 here")
    code, text = run_all(world, {"cut": ({**BF16, "max_steps": 7, "decay_steps": 6}, {})})["cut"]
    assert code == 2 and "--precision was 'fp32' and is now 'bf16'" in text
