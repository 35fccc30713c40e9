"""What may change between a pretraining run and its resume, and what a step asks of its program."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import paddle
import pytest
from children import json_of
from tiny_pretrain import events, pretrain, write_corpus, write_model

from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.core.cli.cli import parse_config
from ernie_pair.core.errors import InputError
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.pretraining.graph.program_state import PASS_SEED
from ernie_pair.pretraining.pretrain_job import PretrainJob
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.runtime.processes.world import World
from ernie_pair.training.trainer import check_position


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
    refused, changed = run(code=2, **other), "global_batch_size,max_lr"
    assert "global_batch_size was 4 and is now 8" in refused
    assert f"--allow_change {changed} to continue" in refused
    allowed = run(**other, allow_change=changed)
    assert "--allow_change: max_lr was 0.01, is now 0.005" in allowed
    train = [event for event in events(tmp_path / "out") if event["split"] == "train"]
    assert [event["consumed_samples"] for event in train] == [4, 8, 12, 16, 24, 32]
    manifest = json.loads((tmp_path / "out" / "model_last" / "MANIFEST.json").read_text())
    assert [change["key"] for change in manifest["changes"]] == ["global_batch_size", "max_lr"]
    rates = {"max_steps": 9, "max_lr": 1e38, "min_lr": 1e38}
    broken = run(code=4, **{**other, **rates}, allow_change=f"{changed},max_steps,min_lr")
    assert "lower --max_lr" in broken and "the checkpoints before are intact" in broken
    assert "there is no such key" in pretrain(tmp_path, tmp_path / "new", code=2, allow_change="max_step")
    assert not (tmp_path / "new").exists()


RESUMED = """
import json, sys
from pathlib import Path

import numpy as np
from read_late import open_job

from ernie_pair.checkpoint.checkpoint_folder import Checkpoint
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.training.schedule import learning_rate
from ernie_pair.pretraining.graph.program_state import SKIPPED_UPDATES

class After(Checkpoint):
    def state(self):
        state = super().state()
        state.skipped_updates = 2
        return state

folder, found = Path(sys.argv[1]), {}
for on_nan in ("skip", "stop"):
    job, data = open_job(folder, on_nan=on_nan, decay_steps=6, warmup_rate=0)
    job.restore(After(folder / "out" / "model_last"))
    rates = [learning_rate(step - job._skipped, **job.config.rates) for step in (3, 4)]
    metrics = dict(job.step(next(data.updates(2)), 3, StopSignals()))
    found[on_nan] = [*rates, metrics["learning_rate"], metrics.get("skipped_updates")]
print("\\n" + json.dumps(found))
"""


@pytest.mark.parametrize("before", ["skip", "stop"])
def test_skipped_steps_stay_counted_with_another_on_nan(tmp_path, before):
    """The checkpoint's own state says two; the file of the optimizer has another number, or none."""
    write_corpus(tmp_path / "data", write_model(tmp_path / "model"))
    pretrain(tmp_path, tmp_path / "out", max_steps=2, on_nan=before)
    found = json_of("-c", RESUMED, tmp_path, cwd=Path(__file__).parent / "graph", WARM="1")
    assert found["skip"][:3] == found["stop"][:3]
    assert found["skip"][0] == found["skip"][2] > found["skip"][1]
    assert found["skip"][3] == 2 and found["stop"][3] is None


def test_a_finished_run_may_resume_for_more_steps(tmp_path):
    write_corpus(tmp_path / "data", write_model(tmp_path / "model"))
    run = partial(pretrain, tmp_path, tmp_path / "out", eval_iters=1)
    run(max_steps=2)
    assert "--decay_steps (0: --max_steps) was 2 and is now 10" in run(code=2, max_steps=10)
    allowed = run(max_steps=10, allow_change="max_steps")
    assert "starts at 1e-2, is 1e-5 at the last step, 10, is 7.78e-3 at the next step" in allowed
    assert [event["step"] for event in events(tmp_path / "out") if event["split"] == "test"] == [2, 10]


# --- what a step asks of its program, which only records the calls here


BATCH = {
    "input_ids": np.ones((2, 8), np.int64),
    "masked_positions": np.array([3, 0], np.int64),
    "masked_lm_labels": np.array([5, -1], np.int64),
    "next_sentence_labels": np.array([0, 1], np.int64),
}


class Listener:
    """Stands in for `PretrainProgram`: records the seeds of each pass, Paddle's own and the one fed."""

    main, skips, recorded_passes = None, False, 2

    def __init__(self):
        self.seeds, self.rates = [], []

    def rate(self, rate):
        self.rates.append(rate)

    def merge(self, passes):
        assert passes == 2

    def run(self, program, feed):
        assert program is self.main
        self.seeds.append((paddle.get_rng_state()[0].current_seed(), int(feed[PASS_SEED][0])))

    def records(self, passes):
        return np.ones((passes, 4), np.float32)

    def monitored(self):
        return {}


class Alone:
    """Stands in for `RankSums`: the other ranks contribute nothing to the sums."""

    def __call__(self, values):
        return np.asarray(values)

    def meet(self):
        pass


def seeds_of(rank, step, *words):
    needed = ["--model_name_or_path", "m", "--input_dir", "d", "--output_dir", "o", "--device", "cpu"]
    config, world, program = parse_config(PretrainConfig, [*needed, *words]), World(rank, 2), Listener()
    data = SimpleNamespace(tokenizer=SimpleNamespace(pad_id=0), ngrams=None)
    spec = SimpleNamespace(num_layers=1, hidden_size=4, intermediate_size=8, vocab_size=10)
    job = PretrainJob(config, world, world, program, data, Alone(), SimpleNamespace(spec=spec))
    job.step([BATCH, BATCH], step, StopSignals())
    return program.seeds


@pytest.mark.parametrize("which", [0, 1], ids=["Paddle's generator", "the seed that is fed"])
def test_every_rank_step_and_pass_has_its_own_dropout_seed(which):
    seeds = [seed[which] for rank in (0, 1) for step in (1, 2, 3) for seed in seeds_of(rank, step)]
    assert len(set(seeds)) == 2 * 3 * 2


def test_step_seeds_depend_only_on_run_rank_step_and_pass():
    assert seeds_of(1, 7) == seeds_of(1, 7, "--max_lr", "0.5") != seeds_of(1, 7, "--seed", "5")
