"""Whole runs on other data: cached, streamed, with named classes and columns; in this process."""

from dataclasses import replace
from pathlib import Path

import pytest
from run_files import events, killed_after
from tiny_pair import train_config

from ernie_pair.checkpoint.checkpoint_folder import MANIFEST
from ernie_pair.core.errors import InputError
from ernie_pair.models.source import open_model
from ernie_pair.pairs.audit import findings
from ernie_pair.pairs.data import row_cache
from ernie_pair.pairs.train.datasets import open_pair_data
from ernie_pair.pairs.train.train_pair import train_pair
from ernie_pair.runtime.processes.world import World


@pytest.fixture
def config(tmp_path):
    return train_config(tmp_path, max_steps=12, learning_rate=5e-3, eval_freq=6, checkpoint_steps=4)


def losses(folder):
    return [event["loss"] for event in events(folder, "train")]


def last_state(folder, step=12):
    step = Path(folder) / "checkpoints" / f"step_{step:08d}"
    return {path.name: path.read_bytes() for path in step.iterdir() if path.name != MANIFEST}


def test_a_second_run_takes_rows_and_warnings_from_the_cache(tmp_path, config, monkeypatch, capfd):
    (tmp_path / "train.tsv").write_text("今\t天\t1\n" * 2 + Path(config.train_file).read_text())
    warned = []
    for name in ("one", "two"):
        train_pair(replace(config, output_dir=str(tmp_path / name), cache_dir=str(tmp_path / "cache")))
        warned.append([line[9:] for line in capfd.readouterr().err.splitlines() if "train: " in line])
        monkeypatch.setattr(row_cache, "encode_pairs", None)
        monkeypatch.setattr(findings, "audit_of", None)
    repeats = "train: 1 row (1.09 %) repeating an earlier pair and its label"
    assert warned[0] == warned[1] == [f"{repeats} (1 exactly, 0 only when normalised)"]
    assert last_state(tmp_path / "one") == last_state(tmp_path / "two")
    assert not (tmp_path / "one" / "cache").exists()


def test_only_the_first_process_audits(config):
    source = open_model(config.model_name_or_path, model_type="ernie", from_scratch=True)
    for rank, num_audits in ((1, 0), (0, 1)):
        open_pair_data(config, source, World(rank, 2))
        assert len(list(Path(config.output_dir, "cache").glob("audit-*.json"))) == num_audits


HALVES = {"batch_size": 4, "gradient_accumulation_steps": 4, "max_steps": 9}


@pytest.mark.parametrize("killed_at, flags", [
    (9, {"streaming": True, "shuffle_buffer": 32}), (7, HALVES), (3, {**HALVES, "streaming": True}),
])  # fmt: skip
def test_a_killed_run_of_parts_or_a_stream_resumes_unchanged(tmp_path, config, killed_at, flags):
    whole, cut = (replace(config, output_dir=str(tmp_path / name), **flags) for name in ("whole", "cut"))
    train_pair(whole)
    with killed_after(killed_at):
        train_pair(cut)
    train_pair(cut)
    ours, theirs = (last_state(config.output_dir, whole.max_steps) for config in (cut, whole))
    assert ours == theirs and losses(cut.output_dir) == losses(whole.output_dir)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_run_resumes_with_another_split_of_its_global_batch(tmp_path, config, streaming):
    plain = replace(config, dropout=0.0, streaming=streaming)
    whole, cut = (replace(plain, output_dir=str(tmp_path / name)) for name in ("whole", "cut"))
    train_pair(whole)
    with killed_after(9):
        train_pair(cut)
    reason = "batch_size x gradient_accumulation_steps x processes was 16 and is now 8"
    with pytest.raises(InputError, match=reason):
        train_pair(replace(cut, batch_size=4, gradient_accumulation_steps=2))
    train_pair(replace(cut, batch_size=4, gradient_accumulation_steps=4))
    ours, theirs = losses(cut.output_dir), losses(whole.output_dir)
    assert ours == pytest.approx(theirs, rel=1e-4) and ours[:8] == theirs[:8]


def test_class_weights_are_computed_logged_and_saved(tmp_path, config, capfd):
    lines = Path(config.train_file).read_text().splitlines()
    Path(config.train_file).write_text("\n".join(line for line in lines if line[-1] == "1" or "今" in line))
    train_pair(replace(config, max_steps=2, class_weights="balanced"))
    count = sum(line[-1] == "0" and "今" in line for line in lines)
    rows = count + 45
    told = f"class weights: {rows / 2 / count:.4g} of class 0, {rows / 2 / 45:.4g} of class 1"
    assert told in capfd.readouterr().err and count < 40
    with pytest.raises(InputError, match="class_weights was 'balanced' and is now '1,2'"):
        train_pair(replace(config, max_steps=2, class_weights="1,2"))


ONE_CLASS = "左\t右\t1\n上\t下\t1\n"
LATE_ERRORS = {
    "a file without pairs": ({"train_file": "text_a\ttext_b\tlabel\n"}, "other.tsv: it holds no pairs"),
    "a bad dev file": ({"dev_file": "左\t右\t7\n"}, "label '7' is not one of"),
    "no value of the best metric": ({"dev_file": ONE_CLASS, "best_metric": "auc"}, "auc is undefined on it"),
    "a class without rows": ({"train_file": ONE_CLASS, "class_weights": "balanced"}, "no pair of class 0"),
    "weights of other classes": ({"class_weights": "1,2,3"}, "names 3 class.es., and there are 2"),
    "layers that are not there": ({"freeze_layers": 99}, "freeze_layers=99 is more than the"),
    "positions that are not there": ({"max_seq_len": 4096}, "is more than the model's"),
}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("changes, reason", LATE_ERRORS.values(), ids=LATE_ERRORS)
def test_errors_are_found_before_anything_is_written(tmp_path, config, changes, reason, streaming):
    if streaming and changes.get("class_weights") == "balanced":
        pytest.skip("refused by the flags alone")
    for name in ("train_file", "dev_file"):
        if name in changes:
            (tmp_path / "other.tsv").write_text(changes[name], encoding="utf-8")
            changes = {**changes, name: str(tmp_path / "other.tsv")}
    settings = {"output_dir": str(tmp_path / "none"), "cache_dir": "", "streaming": streaming, "max_steps": 2}
    with pytest.raises(InputError, match=reason):
        train_pair(replace(config, **settings, **changes))
    assert not (tmp_path / "none").exists()
