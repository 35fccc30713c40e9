"""--dry_run prints the plan of a run, refuses what a real run refuses, and writes nothing."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_pretrain
import yaml
from children import command
from tiny_embedding import write_matches
from tiny_pair import distill_config, train_config, write_model

from ernie_pair import EmbeddingTrainer, PairTrainer, distill
from ernie_pair.checkpoint.run_folder import LOCK, RunLock
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.atomic_files import keep_no_results, keep_results, keeps
from ernie_pair.core.files.keyed_cache import KeyedCache
from ernie_pair.embeddings.train.embedding_config import TrainEmbeddingConfig
from ernie_pair.embeddings.train.train_embedding import train_embedding
from ernie_pair.pairs.distill.distill import distill_pair
from ernie_pair.pairs.train.train_pair import train_pair


def tree(folder):
    paths = Path(folder).rglob("*")
    return {str(path): (path.lstat().st_mtime_ns, path.is_file() and sha256(path)) for path in paths}


def plan_in(capsys):
    """The flags that were printed, and the plan among them."""
    content = yaml.safe_load(capsys.readouterr().out)
    return content, content["about"]["plan"]


def pairs(folder, **changes):
    return train_config(folder, **{"eval_freq": 2, "checkpoint_steps": 4, "dry_run": True, **changes})


def test_a_dry_run_writes_nothing_and_plans_what_the_run_does(tmp_path, capsys):
    config = pairs(tmp_path, epochs=2)
    before, out = tree(tmp_path), tmp_path / "out"
    train_pair(config)
    assert tree(tmp_path) == before and not out.exists()
    flags, plan = plan_in(capsys)
    assert flags["dry_run"] is False and flags["epochs"] == 2  # the printed flags start the run
    assert (plan["steps"], plan["steps_done"], plan["samples_per_step"]) == (12, 0, 16)
    assert (plan["samples"], plan["samples_per_epoch"], plan["epochs"]) == (192, 90, 2.133)
    assert (plan["evaluations"], plan["checkpoints"], plan["processes"]) == (7, 3, 1)
    assert plan["memory_gb"] > 0.05 and plan["disk_free_gb"] > 0
    assert plan["seconds_per_step"] > 0 and "3 that were taken" in plan["time_is_of"]
    train_pair(replace(config, dry_run=False))
    lines = (out / "metrics.jsonl").read_text().splitlines()
    assert plan["evaluations"] == sum('"valid"' in line for line in lines)
    folders = list((out / "checkpoints").glob("step_*"))
    assert plan["checkpoints"] == len(folders)
    size = sum(path.stat().st_size for path in folders[0].iterdir())
    assert plan["checkpoint_gb"] == pytest.approx(size / 1e9, rel=0.2)


def test_the_printed_config_starts_the_run(tmp_path, capsys):
    train_pair(pairs(tmp_path, max_steps=2))
    printed = tmp_path / "run.yaml"
    printed.write_text(capsys.readouterr().out, encoding="utf-8")
    done = command("train", "--config", printed)
    assert done.code == 0, done.told
    assert (tmp_path / "out" / "model_last").exists()


def test_a_dry_run_leaves_an_existing_run_unchanged(tmp_path, capsys):
    config = pairs(tmp_path, max_steps=4, dry_run=False)
    train_pair(config)
    before, dry = tree(tmp_path), replace(config, dry_run=True)
    train_pair(dry)
    plan = plan_in(capsys)[1]
    assert (plan["steps"], plan["steps_done"], plan["time"]) == (4, 4, "0:00:00")
    train_pair(replace(dry, fresh_start=True, seed=3))
    assert plan_in(capsys)[1]["steps_done"] == 0
    train_pair(replace(dry, max_steps=8, allow_change="max_steps"))
    plan = plan_in(capsys)[1]
    assert (plan["steps_done"], plan["steps"], plan["checkpoints"], plan["samples"]) == (4, 8, 1, 128)
    for changes, reason in (
        ({"seed": 3}, r"step_00000004 is a checkpoint of another run: seed was 1234"),
        ({"allow_change": "sed"}, "allow_change sed: there is no such key"),
        ({"max_steps": 8}, "is a checkpoint of another run: steps in all"),
    ):
        with pytest.raises(InputError, match=reason):
            train_pair(replace(dry, **changes))
    assert tree(tmp_path) == before


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_run_or_its_plan_is_refused_while_another_runs(tmp_path, dry_run):
    config = pairs(tmp_path, dry_run=dry_run)
    Path(config.output_dir).mkdir()
    lock = RunLock(Path(config.output_dir) / LOCK)
    try:
        with pytest.raises(InputError, match=r"is locked by another run \(pid \d+ on "):
            train_pair(config)
    finally:
        lock.release()


@pytest.mark.parametrize("flags, reason", [
    ({"train_file": "none.tsv"}, "none.tsv"),
    ({"model_name_or_path": "no-such-model"}, "no-such-model"),
    ({"freeze_layers": 9}, "freeze_layers=9 is more than the 2 layers"),
])  # fmt: skip
def test_a_dry_run_refuses_what_a_real_run_refuses(tmp_path, flags, reason):
    config = replace(pairs(tmp_path), **flags)
    before, messages = tree(tmp_path), set()
    for dry_run in (True, False):
        with pytest.raises(InputError, match=reason) as caught:
            train_pair(replace(config, dry_run=dry_run))
        messages.add(caught.value.message)
        assert not dry_run or tree(tmp_path) == before
    assert len(messages) == 1


def test_a_dry_run_from_python_leaves_the_model_unchanged(tmp_path, capsys):
    config = pairs(tmp_path, max_steps=5)
    trainer = PairTrainer(config.model_name_or_path, config, config.train_file, config.dev_file)
    before = {name: value.numpy() for name, value in trainer.model.state_dict().items()}
    disk = tree(tmp_path)
    result = trainer.train()
    assert (result.step, result.best_model, result.is_done) == (0, None, False)
    assert plan_in(capsys)[1]["steps"] == 5
    for name, value in trainer.model.state_dict().items():
        assert value.numpy().dtype == before[name].dtype and np.array_equal(before[name], value.numpy()), name
    assert tree(tmp_path) == disk
    assert keeps()  # the next run of this process writes again


def test_a_dry_run_plans_distillation(tmp_path, capsys):
    teacher = train_config(tmp_path, max_steps=2, eval_freq=2)
    train_pair(teacher)
    config = distill_config(tmp_path, Path(teacher.output_dir), layers=1, dry_run=True)
    before = tree(tmp_path)
    distill_pair(config)
    assert distill(config).step == 0
    told = capsys.readouterr()
    assert told.out.count("command: distill") == 2
    assert "the teacher scores 90 pairs before the first step" in told.err
    assert tree(tmp_path) == before


def test_a_dry_run_plans_embedding_training(tmp_path, capsys):
    files = [str(write_matches(tmp_path / f"{name}.tsv", 40, seed)) for seed, name in enumerate(("a", "b"))]
    config = TrainEmbeddingConfig(
        model_name_or_path=str(write_model(tmp_path / "model")), output_dir=str(tmp_path / "out"),
        train_file=files[0], dev_file=files[1], model_type="ernie", from_scratch=True,
        device="cpu", batch_size=16, dry_run=True,
    )  # fmt: skip
    before = tree(tmp_path)
    train_embedding(config)
    assert EmbeddingTrainer(config.model_name_or_path, config, *files).train().step == 0
    assert capsys.readouterr().out.count("command: train-embedding") == 2
    assert tree(tmp_path) == before


def test_a_dry_run_plans_pretraining_phase_by_phase(tmp_path):
    model = tiny_pretrain.write_model(tmp_path / "model")
    data = tiny_pretrain.write_corpus(tmp_path / "data", model)
    phases = {"phases": "16:4,32:8", "max_steps": 12, "num_workers": 1}
    words = tiny_pretrain.flags(model, data, tmp_path / "out", **phases)
    before = tree(tmp_path)
    done = command("pretrain", *words, "--dry_run")
    assert done.code == 0, done.told
    plan = yaml.safe_load(done.said)["about"]["plan"]
    assert (plan["steps"], plan["samples_per_step"], plan["samples"]) == (12, 4, 48)
    assert len(plan["seconds_per_step"]) == 2 and "in each phase" in plan["time_is_of"]
    assert plan["evaluations"] == 5 + 1 and plan["checkpoints"] == 6  # and one of the test split, at the end
    assert tree(tmp_path) == before


def test_a_dry_run_reads_a_cache_but_does_not_write_it(tmp_path):
    cache = KeyedCache(
        tmp_path,
        {"of": 1},
        lambda result, draft: draft.write_text(str(result)) and {"sha256": sha256(draft)},
        lambda note, path: int(path.read_text()),
        ending=".txt",
    )
    with keep_no_results():
        assert cache.get(lambda: 5, 1) == 5 and not os.listdir(tmp_path)
        with keep_results():
            assert cache.get(lambda: 6, 1) == 6 and len(os.listdir(tmp_path)) == 3
        assert cache.get(lambda: 7, 1) == 6
    with keep_no_results(False):
        assert keeps()


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()
