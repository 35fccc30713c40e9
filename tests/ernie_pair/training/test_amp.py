"""Loss scaling in pair training, actually run on the CPU, and flags that mixed precision refuses."""

from dataclasses import replace

import numpy as np
import paddle
import pytest
from run_files import events
from tiny_pair import train_config
from tiny_pair_job import STEPS, resumed, run, same, tiny_job, weights, write_files

from ernie_pair.core.errors import InputError, NumbersError
from ernie_pair.models.networks.encoders import widen_tensors
from ernie_pair.pairs.train.train_pair import PairTask, train_pair
from ernie_pair.runtime.amp_flags import AmpFlags
from ernie_pair.training.optimizer import LossScale
from ernie_pair.training.step_metrics import MAX_SKIPPED_IN_A_ROW
from ernie_pair.weights.weight_files import read_weights

# Scaling by powers of two is exact.
SCALED = {"use_amp": True, "amp_dtype": "float32", "init_loss_scaling": 8.0, "incr_every_n_steps": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("tiny"))


def run_poisoned(tiny, infinite, last, first=1):
    """The metrics of each update and the weights after it; gradients are infinite in ``infinite``."""
    forward, seen = tiny.job.parallel.forward, []
    for step in range(first, last + 1):
        tiny.job.parallel.forward = with_infinite_gradient(forward) if step in infinite else forward
        (metrics,) = run(tiny, step, first=step)
        seen.append({**metrics, "weights": weights(tiny.job)})
    return seen


def with_infinite_gradient(forward):
    def poisoned(*given):
        logits = forward(*given)
        logits.register_hook(lambda gradient: gradient * float("inf"))
        return logits

    return poisoned


def column(seen, name):
    return [metrics[name] for metrics in seen]


@pytest.mark.parametrize("passes", [1, 2])
def test_loss_scaling_is_bit_identical_to_no_scaling(folder, passes):
    flags = {"gradient_accumulation_steps": passes, "batch_size": 16 // passes}
    plain, scaled = tiny_job(folder, **flags), tiny_job(folder, **flags, **SCALED)
    wanted, found = run(plain, 7), run(scaled, 7)
    assert [{name: metrics[name] for name in wanted[0]} for metrics in found] == wanted
    assert same(weights(scaled.job), weights(plain.job))
    assert column(found, "loss_scale") == [8, 8, 16, 16, 16, 32, 32]


@pytest.mark.parametrize("flags", [{}, {"on_nan": "skip"}, {"fgm_epsilon": 0.5, "grad_clip": 0.1}])
def test_an_infinite_gradient_skips_only_its_own_update(folder, flags):
    """All other updates equal those of a run that never saw its rows."""
    scaled = tiny_job(folder, dropout=0.0, **SCALED, **flags)
    seen = run_poisoned(scaled, [2], 9)
    assert column(seen, "skipped_updates") == [0, 1, 1, 1, 1, 1, 1, 1, 1]
    assert column(seen, "loss_scale") == [8, 4, 4, 4, 8, 8, 8, 16, 16]
    assert not np.isfinite(seen[1]["gradient_norm"]) and np.isfinite(seen[1]["loss"])
    after = column(seen, "weights")
    assert same(after[0], after[1]) and not same(after[1], after[2])
    plain = tiny_job(folder, dropout=0.0, **flags)
    left_out = (batches for number, batches in enumerate(plain.updates, start=1) if number != 2)
    wanted = run_poisoned(plain._replace(updates=left_out), [], 8)
    for name in ("loss", "learning_rate", "gradient_norm"):
        assert [metrics[name] for metrics in seen[:1] + seen[2:]] == column(wanted, name)
    assert same(after[-1], wanted[-1]["weights"])


def test_unscaled_skipped_updates_do_not_advance_the_schedule(folder):
    seen = run_poisoned(tiny_job(folder, on_nan="skip"), [2], 4)
    rates = column(seen, "learning_rate")
    assert rates[2] == rates[1] < rates[3] and column(seen, "skipped_updates") == [0, 1, 1, 1]


@pytest.mark.parametrize("cut", [2, 3, 5])
def test_a_resumed_run_restores_its_loss_scale(tmp_path, folder, cut, monkeypatch):
    monkeypatch.setattr(AmpFlags, "decr_every_n_nan_or_inf", 2)
    flags = SCALED
    whole = run_poisoned(tiny_job(folder, **flags), [2, 3, 6], 9)
    assert column(whole, "loss_scale") == [8, 8, 4, 4, 4, 4, 4, 4, 8]
    half = tiny_job(folder, **flags)
    run_poisoned(half, [2, 3, 6], cut)
    rest = resumed(half.job, cut, tiny_job(folder, consumed=cut * 16, **flags), tmp_path / "out")
    seen = run_poisoned(rest, [2, 3, 6], 9, first=cut + 1)
    for one, other in zip(seen, whole[cut:]):
        assert same(one.pop("weights"), other.pop("weights")) and str(one) == str(other)  # nan != nan


def test_the_scale_follows_its_flags():
    scale = LossScale(AmpFlags(use_amp=True, init_loss_scaling=64.0, incr_every_n_steps=2))
    values = []
    for is_finite in (True, True, False, False, True, False, True, True):
        scale.judge(is_finite)
        values.append(scale.value)
    assert values == [64, 128, 64, 32, 32, 16, 16, 32]


@pytest.mark.parametrize("is_finite, value", [(True, 128), (False, 32)])
def test_a_restored_scale_goes_on_counting(is_finite, value):
    flags = AmpFlags(use_amp=True, init_loss_scaling=64.0, incr_every_n_steps=3)
    scale, restored = LossScale(flags), LossScale(flags)
    for _ in range(2):
        scale.judge(is_finite=True)
    restored.restore(scale.arrays())
    assert restored.value == 64
    restored.judge(is_finite)
    assert restored.value == value


@pytest.fixture
def config(tmp_path):
    return train_config(tmp_path, max_steps=4, eval_freq=4, checkpoint_steps=2)


def test_a_run_logs_its_loss_scale_and_refuses_another(tmp_path, config):
    train_pair(replace(config, **SCALED))
    assert [event["loss_scale"] for event in events(tmp_path / "out", "train")] == [8, 8, 16, 16]
    with pytest.raises(InputError, match="init_loss_scaling was 8.0 and is now 4.0"):
        train_pair(replace(config, **{**SCALED, "init_loss_scaling": 4.0}))


def test_a_run_whose_gradients_are_never_finite_is_aborted(config, monkeypatch):
    prepare = PairTask.prepare

    def poisoned(self, *given):
        prepare(self, *given)
        self.parallel.forward = with_infinite_gradient(self.parallel.forward)

    monkeypatch.setattr(PairTask, "prepare", poisoned)
    with pytest.raises(NumbersError, match=f"^{MAX_SKIPPED_IN_A_ROW} steps in a row were skipped"):
        train_pair(replace(config, max_steps=60, checkpoint_steps=60, eval_freq=60, **SCALED))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_weights_are_read_and_saved_as_float32(tmp_path, folder, dtype):
    model = tiny_job(folder).job.model
    wide = {name: parameter.numpy() for name, parameter in model.named_parameters()}
    model.to(dtype=dtype)
    narrow = widen_tensors(dict(model.named_parameters()))
    digits = {"float16": 2.0**-9, "bfloat16": 2.0**-7}[dtype]  # Paddle truncates instead of rounding
    for name, array in narrow.items():
        assert array.dtype == np.float32
        np.testing.assert_allclose(array, wide[name], rtol=digits, atol=1e-7)
    assert not same(narrow, wide)
    model.set({parameter.name: wide[name] * 0 for name, parameter in model.named_parameters()})
    assert not any(array.any() for array in widen_tensors(dict(model.named_parameters())).values())
    model.set({parameter.name: wide[name] for name, parameter in model.named_parameters()})
    model.write(tmp_path, folder / "model" / "vocab.txt")
    assert same(read_weights(tmp_path / "model_state.pdparams"), narrow)


@pytest.mark.gpu
@pytest.mark.skipif(not paddle.device.cuda.device_count(), reason="no GPU")
@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_learns_the_toy_task(tmp_path, folder, dtype, level):
    paddle.set_device("gpu")
    tiny = tiny_job(folder, device="gpu", use_amp=True, amp_dtype=dtype, amp_level=level, grad_clip=1.0)
    metrics = run(tiny, STEPS)
    assert metrics[0]["loss"] > 0.6 and metrics[-1]["loss"] < 0.2
    assert tiny.job.evaluate("valid")["accuracy"] > 0.9
    held = tiny.job.model.classifier.weight.dtype
    assert held == (paddle.float32 if level == "O1" else getattr(paddle, dtype))
    again = tiny_job(folder, device="gpu", use_amp=True, amp_dtype=dtype, amp_level=level)
    resumed(tiny.job, STEPS, again, tmp_path / "out")
    assert same(weights(again.job), weights(tiny.job))
