"""What may change between a pretraining run and its resume, and what that needs."""

import json
import subprocess
import sys

import pytest
from places import ROOT
from tiny_pretrain import events, flags, write_corpus, write_model

from data_tools.base.errors import InputError
from ernie_pair.checkpoint.train_state import TrainState
from ernie_pair.engine.run import check_position

SCRIPT = ROOT / "scripts" / "run_pretrain_static.py"


@pytest.mark.parametrize("size", [8, 16, 32])
def test_a_larger_batch_that_divides_the_samples_seen_may_go_on(size):
    check_position(TrainState(4, 32), size)


@pytest.mark.parametrize("size", [4, 12, 64])
def test_a_batch_that_does_not_fit_the_samples_seen_may_not(size):
    with pytest.raises(InputError, match=f"global_batch_size={size} cannot go on after 32 samples"):
        check_position(TrainState(4, 32), size)


def test_a_run_may_go_on_with_another_batch_size_and_rate(tmp_path):
    write_corpus(tmp_path / "data", write_model(tmp_path / "model"))

    def pretrain(**changes):
        words = flags(
            tmp_path / "model", tmp_path / "data", tmp_path / "out", decay_steps=6, warmup_rate=0, **changes
        )
        return subprocess.run(
            [sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=300
        )

    assert pretrain(max_steps=4).returncode == 0
    other = {"max_steps": 6, "global_batch_size": 8, "max_lr": 0.005}
    refused = pretrain(**other)
    assert refused.returncode == 2
    assert "global_batch_size was 4 and is now 8" in refused.stderr
    assert "--allow_change global_batch_size,max_lr to go on" in refused.stderr
    allowed = pretrain(**other, allow_change="global_batch_size,max_lr")
    assert allowed.returncode == 0, allowed.stderr
    assert "--allow_change: max_lr was 0.01, is now 0.005" in allowed.stderr
    train = [event for event in events(tmp_path / "out") if event["split"] == "train"]
    assert [event["consumed_samples"] for event in train] == [4, 8, 12, 16, 24, 32]
    manifest = json.loads((tmp_path / "out" / "model_last" / "MANIFEST.json").read_text())
    assert [change["key"] for change in manifest["changes"]] == ["global_batch_size", "max_lr"]


def test_a_finished_run_may_go_on_for_more_steps(tmp_path):
    write_corpus(tmp_path / "data", write_model(tmp_path / "model"))

    def pretrain(**changes):
        words = flags(tmp_path / "model", tmp_path / "data", tmp_path / "out", test_iters=1, **changes)
        return subprocess.run(
            [sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=300
        )

    assert pretrain(max_steps=2).returncode == 0
    refused = pretrain(max_steps=10)
    assert refused.returncode == 2 and "--decay_steps (0: --max_steps) was 2 and is now 10" in refused.stderr
    allowed = pretrain(max_steps=10, allow_change="max_steps")
    assert allowed.returncode == 0, allowed.stderr
    assert "peak 1e-2 at step 1, 1e-5 at the end, step 10, 7.78e-3 at the next step" in allowed.stderr
    assert [event["step"] for event in events(tmp_path / "out") if event["split"] == "test"] == [2, 10]
