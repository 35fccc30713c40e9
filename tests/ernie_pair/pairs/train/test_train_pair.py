"""Whole runs of pair training, evaluation and prediction on a tiny model, in this process."""

import json
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from asked import evaluated
from run_files import events, files_of, killed_after
from tiny_pair import toy_rows, train_config, write_model, write_pairs, write_rows
from visualdl import LogReader

from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import CheckpointError, InputError, Stopped
from ernie_pair.deployment.export_pair import ExportConfig, export_pair
from ernie_pair.inference.exported_model import read_exported
from ernie_pair.models.model_card import learned_nothing_in
from ernie_pair.pairs.targets.metrics import METRICS
from ernie_pair.pairs.train.train_pair import train_pair
from ernie_pair.service.serve import ServeConfig, serve


@pytest.fixture
def config(tmp_path):
    return train_config(tmp_path, **FLAGS)


def trained(folder, **changes):
    config = train_config(folder, **{**FLAGS, **changes})
    train_pair(config)
    return SimpleNamespace(out=folder / "out", config=config)


FLAGS = {"epochs": 2, "learning_rate": 5e-3, "eval_freq": 5, "checkpoint_steps": 4}


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """Two epochs."""
    return trained(tmp_path_factory.mktemp("short"))


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """Long enough to learn the task, in which nothing matches."""
    return trained(
        tmp_path_factory.mktemp("long"),
        max_steps=60,
        eval_freq=20,
        checkpoint_steps=60,
        match_embeddings=False,
    )


@pytest.fixture(scope="module")
def best(long):
    (folder,) = long.out.glob("best-*")
    return str(folder)


def test_a_run_learns_and_saves_its_best_model_and_its_curves(long, best, capfd):
    train_pair(long.config)  # nothing is left to do but print the last line again
    valid = events(long.out, "valid")
    highest = max(event["accuracy"] for event in valid[1:])
    assert Path(best).name == f"best-accuracy-{highest:.4f}" and highest > 0.9
    losses = [event["loss"] for event in events(long.out, "train")]
    assert len(losses) == 60 and losses[0] > 0.6 and losses[-1] < 0.2
    (records,) = (long.out / "vdl").glob("*/*")
    curves = LogReader(file_path=str(records)).get_data("pr_curve", "valid/class 1")
    zeros, ones = valid[-1]["probability_counts"]
    assert sum(zeros[:50] + ones[50:]) / sum(zeros + ones) == pytest.approx(valid[-1]["accuracy"])
    assert [curve.id for curve in curves] == [event["step"] for event in valid]
    assert (long.out / "model_last").resolve() == long.out / "checkpoints" / "step_00000060"
    assert capfd.readouterr().err.rstrip().endswith(f"best accuracy {highest:.4f}: {best}")


def test_evaluations_run_at_intervals_epoch_ends_and_the_end(short):
    assert [event["step"] for event in events(short.out, "valid")] == [0, 5, 6, 10, 12]
    kept = sorted(path.name[-2:] for path in (short.out / "checkpoints").iterdir())
    assert kept == ["04", "08", "12"]


def test_restarting_a_finished_run_does_nothing(short):
    before, logged = files_of(short.out / "model_last", without=()), events(short.out)
    train_pair(short.config)
    assert files_of(short.out / "model_last", without=()) == before and events(short.out) == logged


@pytest.mark.parametrize("killed_at, logging_freq", [(3, 1), (9, 5)])
def test_a_killed_run_resumes_bit_identically(tmp_path, short, killed_at, logging_freq):
    """With a log line every five steps, the checkpoints every four steps split its means in two."""
    whole, cut = short.out, replace(short.config, output_dir=str(tmp_path), logging_freq=logging_freq)
    if logging_freq == 5:
        whole = tmp_path / "whole"
        train_pair(replace(cut, output_dir=str(whole)))
    with killed_after(killed_at):
        train_pair(cut)
    train_pair(cut)
    last = "checkpoints/step_00000012"
    assert files_of(tmp_path / last) == files_of(whole / last) and events(tmp_path) == events(whole)
    (one,), (again,) = whole.glob("best-*"), tmp_path.glob("best-*")
    assert one.name == again.name and files_of(one) == files_of(again)


@pytest.fixture
def idle(config):
    """No evaluation is better than that of step 0, so that the run ends at the third."""
    return replace(config, learning_rate=1e-12, eval_freq=2, early_stopping_patience=2)


def test_a_run_whose_time_is_over_is_saved_and_resumes(tmp_path, capfd):
    whole = train_config(tmp_path, max_steps=6)
    train_pair(whole)
    short = replace(whole, output_dir=str(tmp_path / "short"), max_minutes=1e-6)
    with pytest.raises(
        Stopped, match="stopped by --max_minutes after step 1, saved; run the same command"
    ) as stop:
        train_pair(short)
    assert stop.value.exit_code == 143 and "max_minutes are over" in capfd.readouterr().err
    train_pair(replace(short, max_minutes=9))
    name = "checkpoints/step_00000006/model.safetensors"
    assert (tmp_path / "short" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


def test_a_run_without_improvement_is_saved_and_stops_early(tmp_path, idle, capfd):
    out, last = tmp_path / "out", tmp_path / "out" / "checkpoints" / "step_00000004"
    reason = "stop  step  4/12   33.3%  epoch  0.71  early: 2 evaluations in a row without a better accuracy"
    train_pair(idle)
    assert [event["step"] for event in events(out, "valid")] == [0, 2, 4]
    assert (out / "model_last").resolve() == last and reason in capfd.readouterr().err
    before = files_of(last, without=())
    train_pair(idle)
    assert files_of(last, without=()) == before and len(events(out, "train")) == 4
    assert reason in capfd.readouterr().err
    train_pair(replace(idle, early_stopping_patience=3))
    assert [event["step"] for event in events(out, "valid")] == [0, 2, 4, 6]


def test_a_resumed_run_stops_early_at_the_same_step(tmp_path, idle):
    train_pair(replace(idle, output_dir=str(tmp_path / "whole")))
    idle = replace(idle, checkpoint_steps=3)
    with killed_after(3):
        train_pair(idle)
    train_pair(idle)
    states = [tmp_path / folder / "model_last" / "state.json" for folder in ("out", "whole")]
    assert states[0].read_bytes() == states[1].read_bytes()
    assert json.loads(states[0].read_text())["stale_evaluations"] == 2


def test_a_run_without_improvement_keeps_the_initial_model(tmp_path, idle, capfd):
    train_pair(replace(idle, early_stopping_patience=0, max_steps=4))
    out = tmp_path / "out"
    (kept,) = out.glob("best-*")
    start = events(out, "valid")[0]["accuracy"]
    assert kept.name == f"best-accuracy-{start:.4f}"
    line = f"the best accuracy, {start:.4f}, is that of step 0: training did not improve on the initial model"
    assert f"{line}; it is kept in {kept}" in capfd.readouterr().err.splitlines()[-1]
    assert json.loads((out / "model_last" / "state.json").read_text())["best_step"] == 0


def test_a_model_below_shared_characters_says_so_everywhere(tmp_path, idle, capfd, monkeypatch):
    """Here, pairs whose texts share all characters are those of class 1."""
    rows = [(a, a if label else b, label) for a, b, label in toy_rows(40, seed=2)]
    dev = write_rows(tmp_path / "shared.tsv", rows)
    train_pair(replace(idle, dev_file=str(dev), learning_rate=1e-4, max_steps=4, early_stopping_patience=0))
    best = tmp_path / "out" / "best"
    (reason,) = re.findall(r"the best accuracy, .*?(?=; it is kept in)", capfd.readouterr().err)
    known = "is that of step 0: training|is not above the 1.0000 of counting shared characters: the model"
    assert re.search(known, reason)
    assert f"- caution: {reason}\n" in (best / "README.md").read_text()
    copied = shutil.copytree(best, tmp_path / "copied")
    assert learned_nothing_in(best) == learned_nothing_in(copied) == reason
    export_pair(ExportConfig(str(copied), str(tmp_path / "ship"), "paddle"))
    assert read_exported(tmp_path / "ship").learned_nothing == reason
    assert f"- caution: {reason}\n" in (tmp_path / "ship" / "README.md").read_text()
    server = SimpleNamespace(run=lambda sockets: None, stop=None)
    monkeypatch.setattr("ernie_pair.service.connections.PatientServer", lambda *words: server)
    before = signal.getsignal(signal.SIGTERM)
    serve(ServeConfig(str(tmp_path / "ship"), port=0))
    signal.signal(signal.SIGTERM, before)
    assert f"{tmp_path}/ship: {reason}" in capfd.readouterr().err


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 5}, {"batch_size": 8}, {"max_seq_len": 32}, {"learning_rate": 1e-3}, {"warmup_rate": 0.2},
        {"weight_decay": 0.0}, {"dropout": 0.0}, {"epochs": 3}, {"model_type": "ernie_gram"},
        {"bucket": False}, {"streaming": True, "max_steps": 8}, {"label_map": "no,yes"},
    ],
)  # fmt: skip
def test_resuming_with_a_changed_flag_is_refused(short, change):
    with pytest.raises(InputError, match="is a checkpoint of another run: .* was .* and is now"):
        train_pair(replace(short.config, **change))


def test_the_model_family_is_read_from_the_model_folder(tmp_path, config):
    config = replace(config, max_steps=1, model_type=None)
    with pytest.raises(InputError, match="neither model_type nor architectures .*; pass model_type, or"):
        train_pair(config)
    write_model(tmp_path / "model", model_type="bert")
    train_pair(config)
    assert json.loads((tmp_path / "out" / "best" / "config.json").read_text())["model_type"] == "bert"
    with pytest.raises(CheckpointError, match="model_type ernie: .* holds bert weights; leave model_type"):
        train_pair(replace(config, model_type="ernie"))
    train_pair(replace(config, model_type="bert"))  # the same run, with the family given explicitly


def test_resuming_with_other_pairs_or_another_model_is_refused(tmp_path, config):
    train_pair(replace(config, max_steps=1))
    write_pairs(tmp_path / "train.tsv", 90, seed=9)
    with pytest.raises(InputError, match="train_file .sha256. was"):
        train_pair(replace(config, max_steps=1))
    write_pairs(tmp_path / "train.tsv", 90, seed=0)
    write_model(tmp_path / "model", hidden_size=64)
    with pytest.raises(InputError, match="config.json .sha256, of model_name_or_path. was"):
        train_pair(replace(config, max_steps=1))


def test_new_frequencies_or_a_moved_file_change_nothing(tmp_path, short):
    last = short.out / "model_last"
    before, moved = files_of(last, without=()), shutil.copy(short.config.train_file, tmp_path / "moved.tsv")
    train_pair(replace(short.config, train_file=str(moved), eval_freq=1, logging_freq=9))
    assert files_of(last, without=()) == before


def test_evaluating_the_best_model_gives_the_accuracy_it_names(long, best, capsys):
    metrics = evaluated(best, long.config.dev_file, batch_size=16)
    assert metrics["rows"] == 41 and best.endswith(f"-{metrics['accuracy']:.4f}")
    assert json.loads(capsys.readouterr().out) == {
        name: metrics[name] for name in (*METRICS, "rows", "threshold")
    }
    logged = [{name: event[name] for name in METRICS} for event in events(long.out, "valid")]
    assert {name: metrics[name] for name in METRICS} in logged


def test_a_trained_model_can_be_the_start_of_another_run(tmp_path, long, best, capfd):
    start = {"model_name_or_path": best, "from_scratch": False, "output_dir": str(tmp_path)}
    train_pair(replace(long.config, **start, max_steps=1))
    log = capfd.readouterr().err
    assert "with its classifier" in log and "to tell the classes apart" not in log
    assert best.endswith(f"-{events(tmp_path, 'valid')[0]['accuracy']:.4f}")


BAD_TRAINING = [
    ({"from_scratch": False}, 2, "holds no weights"),
    ({"model_name_or_path": "absent/model"}, 2, "absent/model is not a folder"),
    ({"model_name_or_path": "no-such-model"}, 2, "is neither a folder nor a built-in ernie model"),
    ({"max_seq_len": 129}, 2, "--max_seq_len 129 is more than the model's 128 positions; use 128"),
    ({"model_name_or_path": "broken", "from_scratch": False}, 3, "model_state.pdparams is damaged"),
]


@pytest.fixture
def bad_files(tmp_path, monkeypatch):
    """Files with errors, and the folder of a model without weights, in the working folder."""
    (tmp_path / "empty.tsv").write_text("")
    (tmp_path / "gbk.tsv").write_bytes("今\t天\t1\n".encode() + "啊\t波\t1\n".encode("gb18030"))
    (write_model(tmp_path / "broken") / "model_state.pdparams").write_bytes(b"\x80\x04nonsense")
    write_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("changes, code, reason", BAD_TRAINING)
def test_bad_input_gives_a_one_line_error_and_no_output(
    tmp_path, config, bad_files, capfd, changes, code, reason
):
    assert exit_code_of(lambda: train_pair(replace(config, **changes))) == code
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and reason in error
    assert not (tmp_path / "out").exists()
