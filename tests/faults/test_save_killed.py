"""kill -9 before every file system change that a save, a resume or an export makes."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from fake_ranks import on_ranks
from forked import in_child, kill_before, killed_everywhere
from run_files import publish_folder

from ernie_pair.checkpoint.checkpoint_folder import Checkpoint, DamagedError
from ernie_pair.checkpoint.checkpoints import Checkpoints
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.core.files.atomic_files import own_name
from ernie_pair.core.files.atomic_folder import MADE, is_as_made
from ernie_pair.runtime.processes.world import World


def alone(values):
    return values


def files(step, rank=0):
    yield f"part-{rank}.safetensors", {"w": np.full(9, step, np.float32)}
    yield f"more-{rank}.bin", str(step).encode()


def save(folder, *steps):
    checkpoints = Checkpoints(folder, World(), alone)
    checkpoints.newest()
    for step in steps:
        checkpoints.save(TrainState(step), {}, files(step), {})
    checkpoints.close()


def save_by_two(folder, step):
    def one(world, add):
        checkpoints = Checkpoints(folder, world, add)
        checkpoints.newest()
        checkpoints.save(TrainState(step), {}, files(step, world.rank), {})
        checkpoints.close()

    assert on_ranks(2, one) == [None, None]


def sound_steps(folder):
    """The steps of the checkpoints under a final name, each of which must be complete."""
    steps = []
    for path in sorted((folder / "checkpoints").glob("step_*")):
        checkpoint = Checkpoint(path)
        checkpoint.verify()
        assert checkpoint.read("more-0.bin") == str(checkpoint.step).encode()
        steps.append(checkpoint.step)
    return steps


def hidden(folder):
    names = [path.name for path in (folder / "checkpoints").iterdir()]
    return [name for name in names if name.startswith((".tmp", ".trash"))]


@pytest.fixture
def start_over(tmp_path):
    """A function that restores OUT to its state at the time of the first call."""
    kept = tmp_path / "kept"

    def back():
        if not kept.exists():
            shutil.copytree(tmp_path / "out", kept, symlinks=True)
        shutil.rmtree(tmp_path / "out")
        shutil.copytree(kept, tmp_path / "out", symlinks=True)

    return back


@pytest.mark.parametrize("how", [save, save_by_two])
def test_a_save_killed_at_any_point_leaves_valid_checkpoints(tmp_path, start_over, how):
    out, seen = tmp_path / "out", set()
    save(out, 5, 10, 15)

    def after(change):
        steps = sound_steps(out)
        seen.add(tuple(steps))
        assert steps in ([5, 10, 15], [5, 10, 15, 20], [10, 15, 20]), f"change {change}"
        save(out, 25)
        assert sound_steps(out) == [steps[-2], steps[-1], 25] and hidden(out) == []
        assert (out / "model_last").resolve().name == "step_00000025"

    assert killed_everywhere(lambda: how(out, 20), start_over, after) >= 25
    assert len(seen) == 3


def test_a_first_save_killed_at_any_point_is_all_or_nothing(tmp_path):
    out = tmp_path / "out"

    def after(change):
        assert sound_steps(out) in ([], [5]) if (out / "checkpoints").exists() else True
        save(out, 6)
        assert sound_steps(out)[-1] == 6

    killed_everywhere(lambda: save(out, 5), lambda: shutil.rmtree(out, ignore_errors=True), after)


def test_a_resume_killed_at_any_point_finds_the_same_checkpoint(tmp_path, start_over):
    out = tmp_path / "out"
    save(out, 5, 10, 15)
    (out / "checkpoints" / "step_00000015" / "more-0.bin").write_bytes(b"15!")
    (out / "checkpoints" / "step_00000010" / "MANIFEST.json").unlink()
    (out / "checkpoints" / own_name(".tmp-step_00000020")).mkdir()
    (out / "model_last").unlink()

    def resume():
        checkpoints = Checkpoints(out, World(), alone)
        assert checkpoints.newest().step == 5
        checkpoints.close()

    def after(change):
        in_child(resume, lambda: kill_before(change))  # killed a second time
        resume()
        assert sound_steps(out) == [5] and hidden(out) == []
        set_aside = sorted(path.name[:18] for path in (out / "checkpoints").glob(".bad-*"))
        assert set_aside == [".bad-step_00000010", ".bad-step_00000015"]
        with pytest.raises(DamagedError):
            next(Checkpoint(path).verify() for path in (out / "checkpoints").glob(".bad-*"))

    assert killed_everywhere(resume, start_over, after) > 5


def test_an_export_killed_at_any_point_is_complete_or_absent(tmp_path):
    out, content = tmp_path / "model_5", {"a": "new", "b": "new too"}

    def fill(draft: Path):
        for name, text in content.items():
            (draft / name).write_text(text)

    def filled():
        return {path.name: path.read_text() for path in out.iterdir() if path.name != MADE}

    def before():
        shutil.rmtree(tmp_path, ignore_errors=True)
        publish_folder(out, lambda draft: (draft / "a").write_text("old"))

    def after(change):
        if out.exists():
            assert filled() in ({"a": "old"}, content) and is_as_made(out)
        publish_folder(out, fill)
        assert filled() == content and is_as_made(out)
        assert [path.name for path in tmp_path.iterdir()] == ["model_5"]

    assert killed_everywhere(lambda: publish_folder(out, fill), before, after) > 5
