import contextlib
import json
import logging
import os

import pytest

from data_tools.errors import CheckpointError, InputError
from ernie_pair import checkpoint as module
from ernie_pair.checkpoint import MANIFEST, Checkpoints, publish_folder
from ernie_pair.loop import TrainState
from ernie_pair.world import World

FILES = {"weights.bin": b"w" * 100, "optimizer.bin": b"o" * 50}
SAME = {"seed": 1, "corpus": "abc"}


@pytest.fixture
def checkpoints(tmp_path):
    opened = Checkpoints(tmp_path, World(), barrier=lambda: None)
    yield opened
    opened.close()


def save(checkpoints, *steps):
    for step in steps:
        files = {name: data + str(step).encode() for name, data in FILES.items()}
        checkpoints.save(TrainState(step, step * 8), SAME, iter(files.items()))


def names(checkpoints):
    return sorted(path.name for path in checkpoints.folder.iterdir())


def test_what_was_saved_is_what_is_read(checkpoints):
    save(checkpoints, 5)
    newest = checkpoints.newest()
    assert newest.state() == TrainState(5, 40)
    assert newest.read("weights.bin") == FILES["weights.bin"] + b"5"


def test_there_is_none_before_the_first(checkpoints):
    assert checkpoints.newest() is None


def test_model_last_points_to_the_newest(checkpoints):
    save(checkpoints, 5, 10)
    assert os.readlink(checkpoints.output_dir / "model_last") == "checkpoints/step_00000010"


def test_the_newest_three_are_kept(checkpoints):
    save(checkpoints, 1, 2, 3, 4)
    assert names(checkpoints) == ["step_00000002", "step_00000003", "step_00000004"]


@pytest.mark.parametrize("name", [*FILES, "state.json", MANIFEST])
@pytest.mark.parametrize("damage", ["truncate", "flip", "remove"])
def test_a_damaged_checkpoint_is_set_aside_for_the_one_before(checkpoints, name, damage, caplog):
    save(checkpoints, 5, 10)
    path = checkpoints.folder / "step_00000010" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(bytes(data) if damage == "flip" else bytes(data)[:-1])
    if name == MANIFEST and damage == "flip":
        path.write_bytes(path.read_bytes().replace(b'"sha256": "', b'"sha256": "0'))
    with caplog.at_level(logging.WARNING):
        assert checkpoints.newest().state().step == 5
    assert any(name.startswith(".bad-step_00000010") for name in names(checkpoints))
    save(checkpoints, 10)
    assert checkpoints.newest().state().step == 10


def test_when_all_are_damaged_nothing_starts_afresh(checkpoints):
    save(checkpoints, 5)
    (checkpoints.folder / "step_00000005" / "weights.bin").unlink()
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        checkpoints.newest()


def test_another_run_is_refused_with_the_difference(checkpoints):
    save(checkpoints, 5)
    with pytest.raises(InputError, match="corpus was 'abc' and is now 'xyz'"):
        checkpoints.newest().refuse_other_run({**SAME, "corpus": "xyz"})


def test_two_runs_in_one_folder_are_refused(checkpoints, tmp_path):
    with pytest.raises(InputError, match="locked by another run"):
        Checkpoints(tmp_path, World(), barrier=lambda: None)


def test_a_manifest_that_names_files_elsewhere_is_refused(checkpoints):
    save(checkpoints, 5, 6)
    path = checkpoints.folder / "step_00000006" / MANIFEST
    manifest = json.loads(path.read_text())
    manifest["files"][0]["name"] = "../../secret"
    path.write_text(json.dumps(manifest))
    assert checkpoints.newest().state().step == 5


@pytest.mark.parametrize("moment", range(1, 12))
def test_a_save_that_fails_at_any_file_operation_leaves_the_checkpoint_before(
    checkpoints, moment, monkeypatch
):
    save(checkpoints, 5)
    calls = iter(range(1, 1000))
    real = os.fsync

    def failing(descriptor):
        if next(calls) == moment:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(module.os, "fsync", failing)
    with contextlib.suppress(OSError):
        save(checkpoints, 10)
    monkeypatch.undo()
    assert checkpoints.newest().state().step in (5, 10)
    assert not [name for name in names(checkpoints) if name.startswith(".tmp")]


def test_what_a_killed_save_left_behind_is_cleared_at_the_next_start(tmp_path):
    (tmp_path / "checkpoints" / ".tmp-step_00000007").mkdir(parents=True)
    opened = Checkpoints(tmp_path, World(), barrier=lambda: None)
    assert names(opened) == []
    opened.close()


def test_a_folder_is_published_whole_or_not_at_all(tmp_path):
    publish_folder(tmp_path / "best", lambda draft: (draft / "a").write_text("old"))

    def failing(draft):
        (draft / "a").write_text("new")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        publish_folder(tmp_path / "best", failing)
    assert (tmp_path / "best" / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["best"]
