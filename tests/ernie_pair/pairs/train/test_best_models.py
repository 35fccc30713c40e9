"""The best models of a run: which stay, what their notes say, and when a run stops early."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from asked import evaluated
from run_files import events
from tiny_pair import train_config, write_pairs

from ernie_pair import PairConfig, PairTrainer
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.checkpoint.run_folder import find_best, point_best
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.atomic_files import own_name
from ernie_pair.core.files.atomic_folder import list_content
from ernie_pair.models.model_card import measured_in
from ernie_pair.models.model_folder import list_model_files, resolve_model_folder
from ernie_pair.models.networks.classifier import load_classifier
from ernie_pair.pairs.train.train_pair import train_pair
from ernie_pair.training.best_model import BestModel
from ernie_pair.weights.weight_files import from_safetensors


def judged(folder, *values, write=lambda draft: (draft / "weights").write_text("w"), **settings):
    """The BestModel of a run whose evaluations gave ``values``."""
    best, state = BestModel(folder, **settings), TrainState()
    for value in values:
        if best.improves(state, {best.metric: value}):
            with best.published(state, {}) as draft:
                write(draft)
    return best


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != "run.json")


def test_the_first_of_equal_best_models_is_kept(tmp_path):
    drafts = []
    best = judged(tmp_path, 0.5, 0.5, 0.4, 0.7, 0.7, write=drafts.append)
    assert len(drafts) == 2 and best.folder() == tmp_path / "best-accuracy-0.7000"


def test_a_failed_best_model_write_leaves_the_earlier_one(tmp_path):
    def full_disk(draft):
        (draft / "weights").write_text("w")
        raise OSError(28, "No space left on device")

    (tmp_path / own_name(".tmp-best-accuracy-0.4000")).mkdir()  # of a write that was killed
    judged(tmp_path, 0.5)
    with pytest.raises(OSError, match="No space left on device"):
        judged(tmp_path, 0.6, write=full_disk)
    assert names(tmp_path) == ["best", "best-accuracy-0.5000"]


def test_a_metric_that_says_nothing_hides_no_best_model(tmp_path):
    """Of dev pairs of one class: their AUC is NaN, which no JSON has."""
    config = train_config(tmp_path, max_steps=2, eval_freq=1)
    rows = Path(config.dev_file).read_text("utf-8").splitlines(True)
    Path(config.dev_file).write_text("".join(row for row in rows if row.endswith("1\n")), "utf-8")
    best = train_pair(config).best_model
    assert best is not None and Path(best).is_dir() and best == find_best(tmp_path / "out")
    on, metrics = measured_in(Path(best))
    assert on and "accuracy" in metrics and "auc" not in metrics


@pytest.mark.parametrize("metric, kept", [("f1", ["0.2000", "0.3000", "0.4000"]), ("loss", None)])
def test_the_requested_number_of_best_models_is_kept(tmp_path, metric, kept):
    values = (0.1, 0.2, 0.3, 0.25, 0.4) if kept else (0.9, 0.8, 0.7, 0.75, 0.6)
    best = judged(tmp_path, *values, metric=metric, lower_is_better=not kept, keep=3)
    kept = kept or ["0.6000", "0.7000", "0.8000"]
    assert names(tmp_path) == ["best", *(f"best-{metric}-{value}" for value in kept)]
    assert best.folder() == find_best(tmp_path) == (tmp_path / "best").resolve()
    assert best.folder().name == f"best-{metric}-{values[-1]:.4f}"
    (tmp_path / "best").unlink()
    assert find_best(tmp_path) == best.folder()
    best.restore_link()
    assert (tmp_path / "best").resolve() == best.folder()


@pytest.mark.parametrize("kind", ["file", "folder", "link", "link to a copy"])
def test_a_user_file_named_best_is_moved_aside_not_deleted(tmp_path, kind, caplog):
    precious, mine = tmp_path / "best-mine", tmp_path / "best"
    precious.mkdir()
    (precious / "notes.txt").write_text("mine")
    if kind == "file":
        mine.write_text("mine")
    elif kind == "folder":
        shutil.copytree(precious, mine)
    else:
        mine.symlink_to(precious if kind == "link" else "best-mine")
    judged(tmp_path, 0.5)
    (aside,) = tmp_path.glob(".bad-best-*")
    assert (precious / "notes.txt").read_text() == "mine"
    assert (aside if kind == "file" else aside / "notes.txt").read_text() == "mine"
    assert (tmp_path / "best").resolve().name == "best-accuracy-0.5000"
    assert "pointed elsewhere or was not a link" in caplog.text


def test_the_best_link_is_replaced_atomically(tmp_path, monkeypatch):
    """After a kill just before the rename, the old link is intact."""
    for name in ("best-accuracy-0.5000", "best-accuracy-0.6000"):
        (tmp_path / name).mkdir()
    point_best(tmp_path / "best-accuracy-0.5000")
    monkeypatch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(OSError(5, "killed")))
    with pytest.raises(OSError, match="killed"):
        point_best(tmp_path / "best-accuracy-0.6000")
    assert os.readlink(tmp_path / "best") == "best-accuracy-0.5000"
    monkeypatch.undo()
    point_best(tmp_path / "best-accuracy-0.6000")
    assert os.readlink(tmp_path / "best") == "best-accuracy-0.6000"
    assert names(tmp_path) == ["best", "best-accuracy-0.5000", "best-accuracy-0.6000"]


@pytest.fixture(scope="module")
def run(module_path):
    """A run of 12 steps whose best model is not its last."""
    flags = {"learning_rate": 5e-3, "eval_freq": 4, "checkpoint_steps": 2, "keep_every": 4, "keep_best": 2}
    train_pair(train_config(module_path, max_steps=12, keep_checkpoints=2, **flags))
    return module_path


def test_flags_set_which_checkpoints_and_models_are_kept(run):
    kept = sorted(path.name for path in (run / "out" / "checkpoints").iterdir())
    assert kept == [f"step_{step:08d}" for step in (4, 8, 10, 12)]
    values = [event["accuracy"] for event in events(run / "out", "valid")]
    assert len(list((run / "out").glob("best-*"))) == min(2, len(set(np.maximum.accumulate(values))))
    assert (run / "out" / "best").resolve().name == f"best-accuracy-{max(values):.4f}"


PLACES = {
    "out": "best",
    "out/best": "best",
    "out/model_last": "checkpoints/step_00000012",
    "out/checkpoints/step_00000008": "checkpoints/step_00000008",
}


@pytest.mark.parametrize("given", PLACES)
def test_every_path_in_a_run_can_be_used_as_a_model(run, given, tmp_path):
    folder = (run / "out" / PLACES[given]).resolve()
    assert resolve_model_folder(run / given).resolve() == folder
    assert [path.resolve() for path in list_model_files(str(run / given))] == list_content(str(folder))
    if "step" in folder.name:
        model, _ = load_classifier(str(run / given))
        stored = from_safetensors((folder / "model.safetensors").read_bytes(), "model")
        assert all(np.array_equal(p.numpy(), stored[name]) for name, p in model.named_parameters())
    pairs = str(write_pairs(tmp_path / "test.tsv", 21, seed=3))
    measured = evaluated(run / given, pairs)
    assert measured["loss"] == evaluated(folder, pairs)["loss"]
    config = PairConfig(str(tmp_path / "unused"), max_seq_len=128, device="cpu")
    assert PairTrainer(str(run / given), config).evaluate(pairs)["accuracy"] == measured["accuracy"]


def test_a_folder_without_a_model_is_refused(tmp_path):
    (tmp_path / "out" / "checkpoints").mkdir(parents=True)
    for given in (tmp_path / "out", tmp_path / "absent", tmp_path / "out" / "best"):
        with pytest.raises(InputError) as caught:
            load_classifier(str(given))
        assert "\n" not in str(caught.value)
