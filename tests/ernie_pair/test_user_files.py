"""User files in a run's folder are kept, and earlier results are not lost, in pairs and pretraining."""

import json
import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import tiny_pretrain
from tiny_pair import train_config
from visualdl import LogReader

from ernie_pair.checkpoint.checkpoints import Checkpoints
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.checkpoint.run_folder import ranked_models
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import CheckpointError
from ernie_pair.pairs.train.train_pair import PairTask, train_pair
from ernie_pair.runtime.processes.world import World
from ernie_pair.training.best_model import BestModel

OF_ANY_RUN = """
    metrics.tmp metrics.jsonl.draft .metrics.jsonl-0123456789abcdef01234567.draft run.json.draft
    .model_last .model_last-0123456789abcdef01234567 vdl/mine vdl/run/vdlrecords.1.log
    ranks/mine log/mine checkpoints/.tmp-mine checkpoints/.trash-mine checkpoints/mine
    checkpoints/.tmp-step_00000002-0123456789abcdef checkpoints/.tmp-step_00000002-0123456789abcdef01234567
""".split()
OF_PAIRS = """
    best-notes.txt best-mine best-accuracy-1 .tmp-best-mine .trash-best-mine cache/mine
    .tmp-best-accuracy-0.5000-0123456789abcdef01234567
""".split()
OF_PRETRAINING = ["model_3", "model_mine", ".tmp-model_3", ".trash-model_3", "model_6/mine"]
KINDS = ("file", "folder", "link to a file", "link to a folder")


def plant(output: Path, names, kind: str) -> None:
    """Put something of ``kind`` under each of ``names``; links lead to ``output``.precious/."""
    precious = output.with_name(f"{output.name}.precious")
    (precious / "folder").mkdir(parents=True, exist_ok=True)
    for path in (
        precious / "file",
        precious / "folder" / "vdlrecords.2.log",
        precious / "folder" / "config.json",
    ):
        path.write_text("precious")
    for name in names:
        path = output / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "file":
            path.write_text(f"mine: {name}")
        elif kind == "folder":
            (path / "deep").mkdir(parents=True)
            (path / "deep" / "config.json").write_text(f"mine: {name}")
        else:
            path.symlink_to(precious / kind.rpartition(" ")[2])


def content(output: Path, names):
    """{path: what is there} of all that was planted, and of what the links lead to."""
    places = [output.with_name(f"{output.name}.precious"), *(output / name for name in names)]
    return {str(path): _what(path) for place in places for path in (place, *sorted(place.rglob("*")))}


def _what(path: Path):
    if path.is_symlink():
        return "link", os.readlink(path)
    return ("file", path.read_bytes()) if path.is_file() else ("folder", path.is_dir())


class Killed(BaseException):
    """Stands in for a kill: none of our code catches it."""


@pytest.fixture
def config(tmp_path):
    return train_config(tmp_path, epochs=2, learning_rate=5e-3, eval_freq=3, checkpoint_steps=4)


def kill_at(monkeypatch, step, config):
    step_of = PairTask.step

    def until_killed(self, batches, number, stop):
        if number > step:
            raise Killed
        return step_of(self, batches, number, stop)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(PairTask, "step", until_killed)
        train_pair(config)


def find_best(output):
    ((folder, _),) = ranked_models(Path(output))
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_pair_training_keeps_user_files_in_its_folder(tmp_path, config, monkeypatch, kind):
    train_pair(config)
    model = find_best(config.output_dir)
    own = replace(config, output_dir=str(tmp_path / "shared"))
    names = (*OF_ANY_RUN, *OF_PAIRS, model.name)  # including the name of the best model
    plant(tmp_path / "shared", names, kind)
    before = content(tmp_path / "shared", names)
    kill_at(monkeypatch, 9, own)
    train_pair(own)
    assert content(tmp_path / "shared", names) == before
    published = find_best(own.output_dir)
    assert published.name == f"{model.name}-2"
    for name in ("model_state.pdparams", "config.json"):
        assert (published / name).read_bytes() == (model / name).read_bytes()


pretrain = partial(tiny_pretrain.pretrain, decay_steps=6, save_steps=3, warmup_rate=0)


@pytest.fixture(scope="module")
def world(module_path):
    tiny_pretrain.write_corpus(module_path / "data", tiny_pretrain.write_model(module_path / "model"))
    return module_path


@pytest.mark.parametrize("kind", KINDS[:2])
def test_pretraining_keeps_user_files_in_its_folder(world, kind):
    output = world / kind
    names = (*OF_ANY_RUN, *OF_PRETRAINING)
    plant(output, names, kind)
    before = content(output, names)
    for steps in (3, 6):
        pretrain(world, output, max_steps=steps)
    assert content(output, names) == before
    assert sorted(path.name for path in output.glob("model_[36]-2")) == ["model_3-2", "model_6-2"]


def judged(folder, *values):
    best, state = BestModel(folder), TrainState()
    for value in values:
        if best.improves(state, {"accuracy": value}):
            with best.published(state, {}) as draft:
                (draft / "weights").write_text("w")
    return best.folder()


def test_user_files_and_copies_of_best_models_are_kept(tmp_path):
    (judged(tmp_path, 0.5) / "notes.txt").write_text("mine")
    assert judged(tmp_path, 0.7) == tmp_path / "best-accuracy-0.7000"
    (aside,) = tmp_path.glob(".bad-best-accuracy-0.5000-*")
    assert (aside / "notes.txt").read_text() == "mine" and (aside / "weights").is_file()
    place = tmp_path / "other"
    first = judged(place, 0.5)
    copies = [place / name for name in ("best-copy", "best-accuracy-0.9000")]
    for copy in copies:
        shutil.copytree(first, copy)
    assert judged(place, 0.7) == place / "best-accuracy-0.7000" and not first.exists()
    assert judged(place, 0.9) == place / "best-accuracy-0.9000-2"
    assert all((copy / "weights").is_file() for copy in copies)


def test_curves_are_written_once_in_a_folder_of_the_run(tmp_path, config, monkeypatch):
    kill_at(monkeypatch, 9, config)
    train_pair(config)
    run_id = json.loads((tmp_path / "out" / "run.json").read_text())["run_id"]
    (folder,) = (tmp_path / "out" / "vdl").iterdir()
    (record,) = folder.iterdir()
    points = LogReader(file_path=str(record)).get_data("scalar", "train/loss")
    assert folder.name == run_id and [point.id for point in points] == list(range(1, 13))


# --- folders used by an earlier run


def alone(values):
    return values


def used_pairs(tmp_path, config):
    """A finished run: its output folder, and a function that starts it again."""
    train_pair(config)
    return tmp_path / "out", lambda **flags: exit_code_of(lambda: train_pair(replace(config, **flags)))


def left(output, *but):
    """{path: bytes} of the files that a refused run must not touch."""
    paths = (path for path in output.rglob("*") if path.is_file() and path.name not in but)
    return {str(path.relative_to(output)): path.read_bytes() for path in paths}


def forget_checkpoints(output):
    for path in (output / "checkpoints").iterdir():
        path.rename(output.with_name(f"kept-{path.name}"))
    (output / "checkpoints").rmdir()


@pytest.mark.parametrize("without", [(), ("model_last",), ("run.json", "model_last")])
def test_a_used_folder_without_checkpoints_is_refused(tmp_path, config, without, capfd):
    output, again = used_pairs(tmp_path, config)
    forget_checkpoints(output)
    for name in without:
        (output / name).unlink()
    before = left(output, "run.lock")
    for _ in range(2):
        assert again() == 3
        assert "--fresh_start true" in capfd.readouterr().err.splitlines()[-1]
    assert left(output, "run.lock") == before


def test_a_fresh_start_moves_old_results_aside_and_restarts(tmp_path, config, capfd):
    output, again = used_pairs(tmp_path, config)
    before = left(output, "run.lock")
    mine = {name: f"mine: {name}" for name in ("best-notes.txt", "notes.txt")}
    for name, text in mine.items():
        (output / name).write_text(text)
    (output / "vdl" / "mine").mkdir()
    assert again(fresh_start=True) == 0
    (aside,) = output.glob("earlier-*")
    said = capfd.readouterr().err
    assert f"now in {aside}" in said and "resumed" not in said
    kept = left(aside)
    assert {name: data for name, data in before.items() if not name.startswith("cache/")} == kept
    assert {name: (output / name).read_text() for name in mine} == mine and (output / "vdl" / "mine").is_dir()
    assert (aside / "model_last").resolve() == aside / "checkpoints" / "step_00000012"
    assert (output / "model_last").resolve() == output / "checkpoints" / "step_00000012"
    assert find_best(output).name == find_best(aside).name
    assert again() == 0 and "resumed" in capfd.readouterr().err and len(list(output.glob("earlier-*"))) == 1


def test_pretraining_refuses_a_used_folder_unless_fresh_start(world):
    output = world / "used"
    pretrain(world, output, max_steps=3)
    forget_checkpoints(output)
    before = left(output, "run.lock")
    assert "--fresh_start true" in pretrain(world, output, 3, max_steps=3).splitlines()[-1]
    assert left(output, "run.lock") == before
    assert "resumed" not in pretrain(world, output, max_steps=3, fresh_start="true")
    (aside,) = output.glob("earlier-*")
    assert left(aside) == {name: data for name, data in before.items() if not name.startswith("cache/")}
    assert (output / "model_3" / "config.json").is_file()


def test_a_run_killed_before_a_checkpoint_starts_over(tmp_path, config, monkeypatch):
    kill_at(monkeypatch, 3, config)  # the best model and metrics of step 3 are there
    assert (tmp_path / "out" / "metrics.jsonl").is_file() and ranked_models(tmp_path / "out")
    train_pair(config)
    assert (tmp_path / "out" / "model_last").resolve().name == "step_00000012"


def test_metrics_of_an_unknown_run_are_not_truncated(tmp_path, config):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "metrics.jsonl").write_text('{"mine": 1}\n')
    for _ in range(2):
        assert exit_code_of(lambda: train_pair(config)) == 3
    assert (tmp_path / "out" / "metrics.jsonl").read_text() == '{"mine": 1}\n'


@pytest.mark.parametrize("name", ["run.json", "run.lock"])
def test_a_user_run_json_or_run_lock_is_not_overwritten(tmp_path, name):
    (tmp_path / name).write_text('{"run_id": "../../mine"}')
    assert exit_code_of(lambda: Checkpoints(tmp_path, World(), alone)) == (3 if name == "run.json" else 2)
    assert (tmp_path / name).read_text() == '{"run_id": "../../mine"}'


@pytest.mark.parametrize("kind", KINDS)
def test_an_obstacle_at_the_checkpoint_path_is_renamed(tmp_path, kind):
    plant(tmp_path / "out", ["checkpoints/step_00000005"], kind)
    before = content(tmp_path / "out", [])
    opened = Checkpoints(tmp_path / "out", World(), alone)
    if kind == "folder":  # it looks like a damaged checkpoint
        with pytest.raises(CheckpointError, match="no usable checkpoint"):
            opened.newest()
    for step in (5, 6):
        opened.save(TrainState(step), {}, [("a", b"a")], {})
    assert kind == "folder" or opened.newest().step == 6
    opened.close()
    (aside,) = (tmp_path / "out" / "checkpoints").glob(".bad-step_00000005-*")
    assert content(tmp_path / "out", []) == before
    if kind == "file":
        assert aside.read_text() == "mine: checkpoints/step_00000005"
    elif kind == "folder":
        assert (aside / "deep" / "config.json").is_file()
    else:
        assert os.readlink(aside) == str(tmp_path / "out.precious" / kind.rpartition(" ")[2])
