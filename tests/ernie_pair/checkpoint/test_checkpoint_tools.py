"""checkpoint show and checkpoint diff, on checkpoints of a fake job."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from ernie_pair.__main__ import main
from ernie_pair.checkpoint import commands
from ernie_pair.checkpoint.checkpoints import Checkpoints
from ernie_pair.checkpoint.commands import DiffConfig, ShowConfig, diff_checkpoints, distance, show_checkpoint
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.checkpoint.run_folder import find_best, ranked_models
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.core.files.atomic_folder import MADE, MAKER
from ernie_pair.runtime.processes.world import World


def arrays(**changes):
    return {"embedding": np.ones((4, 3), np.float32), "bias": np.zeros(3, np.float32), **changes}


def save(output, step=1, files=(), **changes):
    checkpoints = Checkpoints(output, World(), np.asarray)
    state = TrainState(step=step, consumed_samples=8 * step)
    parts = [(f"optimizer-{i:05d}-of-{len(files):05d}.safetensors", part) for i, part in enumerate(files)]
    contents = [("model.safetensors", arrays(**changes)), ("config.json", b"{}"), *parts]
    checkpoints.save(state, {"seed": 1}, contents, {"processes": 1})
    checkpoints.close()
    return output / "checkpoints" / f"step_{step:08d}"


def diff(first, second, **flags):
    return diff_checkpoints(DiffConfig(str(first), str(second), **flags))


def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["ernie-pair", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code


def test_show_checkpoint_describes_a_checkpoint(tmp_path, capsys):
    save(tmp_path, step=3, files=[{"bias.moment1": np.zeros(3, np.float32)}])
    show_checkpoint(ShowConfig(str(tmp_path / "model_last")))
    shown = capsys.readouterr().out
    for line in (
        "step        3",
        "samples     24 consumed",
        "topology    processes 1",
        "parameters  2 arrays, 15 numbers, float32",
        "            embedding [4, 3]",
        "optimizer-00000-of-00001.safetensors: ",
        "valid       yes",
    ):
        assert line in shown


def test_show_prints_a_line_for_each_and_code_3_for_damage(tmp_path, capsys):
    folders = [save(tmp_path, step) for step in (1, 2)]
    (folders[0] / "model.safetensors").write_bytes(b"damaged")
    show_checkpoint(ShowConfig(str(tmp_path)))
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("step_00000001  not valid: ") and "does not match MANIFEST.json" in first
    assert second.startswith("step_00000002  valid  16 samples  3 files  ")
    assert exit_code_of(lambda: show_checkpoint(ShowConfig(str(folders[0])))) == 3
    shown = capsys.readouterr()
    assert "step        1" in shown.out and "valid" not in shown.out
    assert "does not match MANIFEST.json" in shown.err


@pytest.mark.parametrize("name", ["absent", "empty", "run"])
def test_a_path_that_is_not_a_checkpoint_is_refused(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    fault = "no checkpoint" if name == "run" else "neither a checkpoint nor a run: .*; give the output folder"
    with pytest.raises(InputError, match=fault) as caught:
        show_checkpoint(ShowConfig(str(tmp_path / name)))
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="is not a checkpoint; give OUT/model_last"):
        diff(tmp_path / name, tmp_path / name)


def test_diff_ignores_how_the_optimizer_state_is_sharded(tmp_path, capsys):
    moments = {"a": np.ones(2, np.float32), "b": np.ones(2, np.float32)}
    whole = save(tmp_path / "one", files=[moments])
    cut = save(tmp_path / "two", files=[{"a": moments["a"]}, {"b": moments["b"]}])
    assert diff(whole, cut) == 0
    assert capsys.readouterr().out.startswith("equal")


def test_diff_reports_every_difference_the_largest_first(tmp_path, capsys, monkeypatch):
    more = {"embedding": np.ones((2, 3), np.float32), "extra": np.ones(1, np.float32)}
    first = save(tmp_path / "one")
    second = save(tmp_path / "two", step=2, bias=np.array([0, 0.5, 0], np.float32), **more)
    assert diff(first, second) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"only in {second}: extra [1]",
        "shape: embedding [4, 3] and [2, 3]",
        "differs by 0.5: bias",
        "largest difference 0.5; 1 of 1 arrays differ",
        "state.json: consumed_samples 8 and 16",
        "state.json: step 1 and 2",
    ]
    monkeypatch.setattr(commands, "MAX_LINES", 1)
    moved = {"bias": np.full(3, 0.25, np.float32), "embedding": np.full((4, 3), 3, np.float32)}
    assert diff(first, save(tmp_path / "three", **moved)) == 1
    assert capsys.readouterr().out == "differs by 2: embedding\nlargest difference 2; 2 of 2 arrays differ\n"


def test_diff_refuses_a_damaged_checkpoint(tmp_path):
    first, second = save(tmp_path / "one"), save(tmp_path / "two")
    path = Path(second, "model.safetensors")
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(CheckpointError, match="does not match MANIFEST.json"):
        diff(first, second)


def test_distance_handles_bfloat16_nan_and_empty_arrays():
    ones = np.full(2, 0x3F80, np.uint16)  # bfloat16
    assert distance(ones, ones) == 0 and distance(ones, np.zeros(2, np.float32)) == 1
    assert distance(np.array([np.nan], np.float32), np.zeros(1, np.float32)) == float("inf")
    assert distance(np.zeros(0, np.float32), np.zeros(0, np.float16)) == 0


def test_the_commands_return_their_exit_codes(tmp_path, monkeypatch, capsys):
    first, second = save(tmp_path / "one"), save(tmp_path / "two", bias=np.ones(3, np.float32))
    assert run(monkeypatch, "checkpoint", "show", first) == 0
    assert run(monkeypatch, "checkpoint", "diff", first, first) == 0
    assert run(monkeypatch, "checkpoint", "diff", first, second) == 1
    assert run(monkeypatch, "checkpoint", "diff", first, tmp_path / "absent") == 2
    assert run(monkeypatch, "checkpoint", "diff", first) == 2
    assert "error: SECOND is missing" in capsys.readouterr().err


@pytest.mark.parametrize("metric, says, ranked", [
    ("accuracy", {}, [0.9, 0.8, 0.1]), ("loss", {"lower_is_better": False}, [0.9, 0.8, 0.1]),
    ("loss", {}, [0.1, 0.8, 0.9]), ("mse", {"lower_is_better": True}, [0.1, 0.8, 0.9]),
])  # fmt: skip
def test_the_best_models_of_a_run_are_ranked(tmp_path, metric, says, ranked):
    notes = [{"run_id": "", "metric": metric, "value": value, **says} for value in (0.8, 0.1, 0.9)]
    notes += [{**notes[0], "run_id": "another"}, {**notes[0], "value": ""}, {**notes[0], "metric": "f1"}]
    for number, note in enumerate(notes):
        (tmp_path / f"best-{number}").mkdir()
        made = {"made_by": MAKER, "name": f"best-{number}", "files": [], **note}
        (tmp_path / f"best-{number}" / MADE).write_text(json.dumps(made))
    assert [note["value"] for _, note in ranked_models(tmp_path, metric)] == ranked
    assert len(ranked_models(tmp_path)) == 4
    assert find_best(tmp_path) == ranked_models(tmp_path)[0][0]
