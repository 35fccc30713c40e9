"""Pair training that is stopped by a signal, meets non-finite numbers, or resumes with changed flags."""

import json
import os
import signal
from dataclasses import replace

import pytest
from run_files import events
from tiny_pair import train_config
from tiny_pair_job import same

from ernie_pair.core.errors import InputError, NumbersError, Stopped
from ernie_pair.pairs.train import loss as module
from ernie_pair.pairs.train.train_pair import PairTask, train_pair
from ernie_pair.weights.weight_files import from_safetensors


@pytest.fixture
def config(tmp_path):
    return train_config(tmp_path, max_steps=12, eval_freq=5, checkpoint_steps=4)


@pytest.fixture
def poison(monkeypatch):
    """Makes the loss of the named updates, or only its gradient, infinite."""

    def install(*steps, gradient_only=False):
        step_of, entropy, now = PairTask.step, module.F.cross_entropy, []

        def noted(self, batches, step, stop):
            now[:] = [step]
            return step_of(self, batches, step, stop)

        def poisoned(logits, labels, **settings):
            loss = entropy(logits, labels, **settings)
            if now[0] not in steps:
                return loss
            return loss + (logits.sum() * 0).sqrt() if gradient_only else loss * float("inf")

        monkeypatch.setattr(PairTask, "step", noted)
        monkeypatch.setattr(module.F, "cross_entropy", poisoned)

    return install


def weights(folder, step):
    path = folder / "checkpoints" / f"step_{step:08d}" / "model.safetensors"
    return from_safetensors(path.read_bytes(), str(path))


@pytest.mark.parametrize("step", [3, 4, 8])
def test_a_stopped_run_resumes_as_if_never_interrupted(tmp_path, config, monkeypatch, step):
    whole, cut = (replace(config, output_dir=str(tmp_path / name)) for name in ("whole", "cut"))
    train_pair(whole)
    step_of = PairTask.step

    def signalled(self, batches, now, stop):
        if now == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return step_of(self, batches, now, stop)

    with monkeypatch.context() as patch, pytest.raises(Stopped, match=f"after step {step}, saved"):
        patch.setattr(PairTask, "step", signalled)
        train_pair(cut)
    train_pair(cut)
    assert events(tmp_path / "cut") == events(tmp_path / "whole")
    assert same(weights(tmp_path / "cut", 12), weights(tmp_path / "whole", 12))
    (best,), (again,) = (list((tmp_path / name).glob("best-*")) for name in ("whole", "cut"))
    assert best.name == again.name


@pytest.mark.parametrize("step", [4, 6])
def test_a_non_finite_loss_stops_the_run_and_is_not_saved(tmp_path, config, poison, step):
    poison(step)
    with pytest.raises(NumbersError, match=f"the loss of step {step} .samples {16 * step - 16} to") as raised:
        train_pair(replace(config, eval_freq=1))
    assert "lower --learning_rate, or look at these samples" in raised.value.message
    assert ("; the checkpoints before are intact" in raised.value.message) == (step > 4)
    out = tmp_path / "out"
    kept = [int(path.name[5:]) for path in (out / "checkpoints").iterdir()]
    assert kept == [4][: step > 4]
    assert max(event["step"] for event in events(out)) == step - 1


def test_weights_made_non_finite_by_a_gradient_are_not_saved(tmp_path, config, poison):
    poison(4, gradient_only=True)
    with pytest.raises(
        NumbersError, match="holds values that are not finite: model.safetensors is not saved"
    ):
        train_pair(config)
    assert list((tmp_path / "out" / "checkpoints").iterdir()) == []


@pytest.mark.parametrize("gradient_only", [False, True])
def test_a_skipped_update_changes_no_weight_and_is_counted(tmp_path, config, poison, gradient_only):
    poison(4, 7, gradient_only=gradient_only)
    flags = {"on_nan": "skip", "checkpoint_steps": 1, "keep_checkpoints": 12, "weight_decay": 0.5}
    train_pair(replace(config, **flags))
    out, logged = tmp_path / "out", events(tmp_path / "out", "train")
    assert [event["skipped_updates"] for event in logged] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2]
    assert gradient_only or logged[3]["loss"] == "inf"
    for step in (4, 7):
        assert same(weights(out, step - 1), weights(out, step)) and not same(weights(out, 1), weights(out, 2))
    assert json.loads((out / "model_last" / "state.json").read_text())["skipped_updates"] == 2
    train_pair(replace(config, **flags, max_steps=13, allow_change="max_steps"))
    assert events(out, "train")[-1]["skipped_updates"] == 2


def test_an_allowed_flag_change_is_recorded_in_checkpoints(tmp_path, config):
    train_pair(replace(config, max_steps=4))
    faster = replace(config, max_steps=4, learning_rate=1e-3)
    reason = "learning_rate was 5e-05 and is now 0.001.*allow_change learning_rate"
    with pytest.raises(InputError, match=reason):
        train_pair(faster)
    train_pair(replace(faster, max_steps=8, allow_change="learning_rate, max_steps"))
    manifest = json.loads((tmp_path / "out" / "model_last" / "MANIFEST.json").read_text())
    changed = [(change["key"].split()[0], change["step"]) for change in manifest["changes"]]
    assert changed == [("learning_rate", 4), ("steps", 4)]


def test_a_changed_vocabulary_is_never_allowed(tmp_path, config):
    train_pair(replace(config, max_steps=1))
    path = tmp_path / "model" / "vocab.txt"
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[5], lines[6] = lines[6], lines[5]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    with pytest.raises(InputError, match="vocabulary .sha256, of model_name_or_path. was") as caught:
        train_pair(replace(config, max_steps=1, allow_change="vocabulary"))
    assert "allow_change" not in str(caught.value)
