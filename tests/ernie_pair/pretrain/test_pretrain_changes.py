"""What may change between a pretraining run and its resume, and what that needs."""

import json
from functools import partial
from pathlib import Path

import pytest
from children import json_of
from tiny_pretrain import events, pretrain, write_corpus, write_model

from data_tools.files.errors import InputError
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.train.run import check_position


def test_a_batch_size_must_divide_the_samples_seen():
    for size in (8, 16, 32):
        check_position(TrainState(4, 32), size)
    for size in (4, 12, 64):
        with pytest.raises(InputError, match=f"global_batch_size={size} cannot continue after 32 samples"):
            check_position(TrainState(4, 32), size)


def test_a_run_may_resume_with_another_batch_size_and_rate(tmp_path):
    write_corpus(tmp_path / "data", write_model(tmp_path / "model"))
    run = partial(pretrain, tmp_path, tmp_path / "out", decay_steps=6, warmup_rate=0)
    run(max_steps=4)
    other = {"max_steps": 6, "global_batch_size": 8, "max_lr": 0.005}
    refused = run(code=2, **other)
    assert "global_batch_size was 4 and is now 8" in refused
    assert "--allow_change global_batch_size,max_lr to continue" in refused
    allowed = run(**other, allow_change="global_batch_size,max_lr")
    assert "--allow_change: max_lr was 0.01, is now 0.005" in allowed
    train = [event for event in events(tmp_path / "out") if event["split"] == "train"]
    assert [event["consumed_samples"] for event in train] == [4, 8, 12, 16, 24, 32]
    manifest = json.loads((tmp_path / "out" / "model_last" / "MANIFEST.json").read_text())
    assert [change["key"] for change in manifest["changes"]] == ["global_batch_size", "max_lr"]


RESUMED = """
import json, sys
from pathlib import Path

import numpy as np
from read_late import open_job

from ernie_pair.checkpoint.checkpoint_folder import Checkpoint
from ernie_pair.train.hooks import NoStop
from ernie_pair.pretrain.graph.step_monitors import SKIPPED_UPDATES

class After(Checkpoint):
    def state(self):
        state = super().state()
        state.skipped_updates = 2
        return state

folder, found = Path(sys.argv[1]), {}
for on_nan in ("skip", "stop"):
    job, data = open_job(folder, on_nan=on_nan, decay_steps=6, warmup_rate=0)
    job.restore(After(folder / "out" / "model_last"))
    rates = [job._learning_rate(step) for step in (3, 4)]
    metrics = dict(job.step(next(data.updates(2)), 3, NoStop()))
    found[on_nan] = [*rates, metrics["learning_rate"], metrics.get("skipped_updates")]
print("\\n" + json.dumps(found))
"""


@pytest.mark.parametrize("before", ["skip", "stop"])
def test_skipped_steps_stay_counted_with_another_on_nan(tmp_path, before):
    """The checkpoint's own state says two; the file of the optimizer has another number, or none."""
    write_corpus(tmp_path / "data", write_model(tmp_path / "model"))
    pretrain(tmp_path, tmp_path / "out", max_steps=2, on_nan=before)
    found = json_of("-c", RESUMED, tmp_path, cwd=Path(__file__).parent / "graph")
    assert found["skip"][:3] == found["stop"][:3]
    assert found["skip"][0] == found["skip"][2] > found["skip"][1]
    assert found["skip"][3] == 2 and found["stop"][3] is None


def test_a_finished_run_may_resume_for_more_steps(tmp_path):
    write_corpus(tmp_path / "data", write_model(tmp_path / "model"))
    run = partial(pretrain, tmp_path, tmp_path / "out", test_iters=1)
    run(max_steps=2)
    assert "--decay_steps (0: --max_steps) was 2 and is now 10" in run(code=2, max_steps=10)
    allowed = run(max_steps=10, allow_change="max_steps")
    assert "starts at 1e-2, is 1e-5 at the last step, 10, is 7.78e-3 at the next step" in allowed
    assert [event["step"] for event in events(tmp_path / "out") if event["split"] == "test"] == [2, 10]
