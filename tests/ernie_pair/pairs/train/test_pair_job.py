"""Updates, evaluation and state of the pair job, on a tiny model; one process."""

import math
from itertools import product
from types import SimpleNamespace

import numpy as np
import paddle
import pytest
from levels import needs_bf16
from tiny_pair_job import STEPS, difference, resumed, run, same, tiny_job, weights

from ernie_pair.core.errors import CheckpointError, InputError, NumbersError
from ernie_pair.kernels.library import open_kernels
from ernie_pair.models.networks.encoders import predict_logits
from ernie_pair.pairs.train.train_pair import PairTask
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.training import training_step
from ernie_pair.training.process_group import ProcessGroup

# Rounding of float32, magnified by AdamW's division in the first updates.
BOUND = 2e-6


@pytest.fixture
def make(folder):
    return lambda **flags: tiny_job(folder, **flags)


@pytest.fixture
def resume(tmp_path, make):
    """resume(job, step, **flags): the job that goes on from the checkpoint of ``job`` at ``step``."""
    return lambda job, step, to=None, **flags: resumed(
        job, step, to or make(consumed=step * 16, **flags), tmp_path / "out"
    )


def state(job):
    files = [content for _, content in job.state_files() if not isinstance(content, bytes)]
    return {name: array for arrays in files for name, array in arrays.items()}


def test_the_toy_task_is_learned(make):
    tiny = make()
    metrics = run(tiny, STEPS)
    assert metrics[0]["loss"] > 0.6 and metrics[-1]["loss"] < 0.1
    valid = tiny.job.evaluate("valid")
    assert valid["accuracy"] > 0.95 and valid["f1"] > 0.95 and valid["loss"] < 0.2


def test_an_update_reports_loss_and_gradient_before_the_step(make):
    tiny = make(dropout=0.0)
    (batch,) = batches = next(tiny.updates)
    model = tiny.job.model
    model.eval()
    logits = model(paddle.to_tensor(batch.input_ids), paddle.to_tensor(batch.token_type_ids))
    loss = paddle.nn.functional.cross_entropy(logits, paddle.to_tensor(batch.labels))
    loss.backward()
    norm = math.sqrt(sum(np.square(p.grad.numpy(), dtype=np.float64).sum() for p in model.parameters()))
    model.clear_gradients()
    metrics = tiny.job.step(batches, 1, StopSignals())
    assert metrics["loss"] == float(loss)
    assert metrics["accuracy"] == np.mean(logits.numpy().argmax(1) == batch.labels)
    assert metrics["learning_rate"] == pytest.approx(5e-3 / 6)
    assert metrics["gradient_norm"] == pytest.approx(norm, rel=1e-5) and norm > 0.01


@pytest.mark.parametrize(
    "layout",
    [
        {"batch_size": 8, "gradient_accumulation_steps": 2},
        {"batch_size": 4, "gradient_accumulation_steps": 4},
        {"batch_size": 1, "gradient_accumulation_steps": 16},
    ],
)
@pytest.mark.parametrize(
    "flags", [{}, {"class_weights": "1,2.5"}, {"fgm_epsilon": 0.5}, {"grad_clip": 0.05}, {"bucket": False}]
)
def test_gradient_accumulation_matches_a_single_pass(make, layout, flags):
    one, several = make(dropout=0.0, **flags), make(dropout=0.0, **layout, **flags)
    found, wanted = run(several, 5), run(one, 5)
    for name in wanted[0].keys() - {"padding_share", "padded_tokens"}:
        np.testing.assert_allclose([m[name] for m in found], [m[name] for m in wanted], rtol=2e-5)
    assert difference(weights(several.job), weights(one.job)) < BOUND
    assert difference(weights(one.job), weights(make(dropout=0.0).job)) > 1000 * BOUND


def test_each_step_has_its_own_dropout_mask(make):
    """With the same rows and the same weights, only the dropout of the step can change the loss."""
    batches = next(make().updates)
    losses = {step: make().job.step(batches, step, StopSignals())["loss"] for step in (1, 2, 3)}
    assert len(set(losses.values())) == 3 and make().job.step(batches, 2, StopSignals())["loss"] == losses[2]
    assert len({make(dropout=0.0).job.step(batches, step, StopSignals())["loss"] for step in (1, 2, 3)}) == 1


def test_each_pass_of_an_update_has_its_own_dropout_mask(make):
    once, twice = make(), make(gradient_accumulation_steps=2)
    (batch,) = next(once.updates)
    first, both = (
        tiny.job.step(rows, 1, StopSignals()) for tiny, rows in ((once, [batch]), (twice, [batch, batch]))
    )
    assert both["loss"] != first["loss"] and both["loss"] == pytest.approx(first["loss"], rel=0.1)


def test_every_seed_rank_step_and_pass_has_its_own_dropout_seed(make, monkeypatch):
    seeds = []
    monkeypatch.setattr(training_step, "seed_dropout", lambda model, seed: seeds.append(seed))
    flags = {"fgm_epsilon": 0.5, "batch_size": 8, "gradient_accumulation_steps": 2}  # four passes in a step
    for seed, rank, step in product((1, 2), (0, 1), (1, 2)):
        tiny = make(seed=seed, **flags)
        tiny.job.process_group.rank = rank
        tiny.job.step(next(tiny.updates), step, StopSignals())
    assert len(seeds) == len(set(seeds)) == 8 * 4


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"gradient_accumulation_steps": 4, "batch_size": 4},
        {"rdrop_alpha": 1.0, "fgm_epsilon": 0.5, "class_weights": "balanced", "grad_clip": 0.1},
        {"kernels": "plain"},
        pytest.param({"precision": "bf16", "use_recompute": True}, marks=needs_bf16),
    ],
)
@pytest.mark.parametrize("cut", [1, 4, 7])
def test_a_resumed_job_ends_with_bit_identical_weights(make, resume, cut, flags):
    tiny, half = make(**flags), make(**flags)
    whole, before = run(tiny, 9), run(half, cut)
    rest = resume(half.job, cut, **flags)
    assert same(state(rest.job), state(half.job))  # as where a run is stopped right after it was resumed
    assert before + run(rest, 9, first=cut + 1) == whole
    assert same(state(rest.job), state(tiny.job))


no_kernels = pytest.mark.skipif(bool(open_kernels().reason), reason=open_kernels().reason or "never")


@pytest.mark.parametrize("before, after", [
    pytest.param({"kernels": "plain"}, {"kernels": "fused"}, marks=no_kernels),
    pytest.param({"kernels": "fused"}, {"kernels": "plain"}, marks=no_kernels),
    ({}, {"batch_size": 4, "gradient_accumulation_steps": 4}),
])  # fmt: skip
def test_a_run_resumes_with_other_kernels_or_micro_batches(make, resume, before, after):
    whole, half = (make(dropout=0.0, **before) for _ in "ab")
    run(whole, 8)
    run(half, 4)
    rest = resume(half.job, 4, dropout=0.0, **after)
    run(rest, 8, first=5)
    assert difference(weights(rest.job), weights(whole.job)) < BOUND


def test_a_second_job_on_the_same_model_continues_the_first(make, resume):
    """As in a notebook that trains again; Paddle distinguishes the states of two optimizers by name."""
    whole, tiny = make(), make()
    run(whole, 6)
    run(tiny, 4)
    old = tiny.job
    again = PairTask(old.config, old.initial, old.data)
    again.prepare(STEPS, ProcessGroup())
    run(resume(old, 4, to=tiny._replace(job=again)), 6, first=5)
    assert same(state(again), state(whole.job))


def test_an_evaluation_does_not_affect_training(make):
    quiet, asked = make(), make()
    run(quiet, 4)
    for step in range(1, 5):
        asked.job.evaluate("valid")
        run(asked, step, first=step)
    assert same(weights(quiet.job), weights(asked.job))


def test_a_mismatched_state_is_refused_and_changes_nothing(make, resume):
    tiny, other = make(), make(seed=5)
    run(tiny, 1)
    files, before = dict(tiny.job.state_files()), weights(other.job)
    files["optimizer.safetensors"] = files["model.safetensors"]
    damaged = SimpleNamespace(state_files=files.items)
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors holds another model"):
        resume(damaged, 1, to=other)
    assert same(weights(other.job), before)


def test_gradients_are_clipped_to_the_requested_norm(make):
    free, clipped, wide = (make(dropout=0.0, grad_clip=clip) for clip in (0.0, 0.05, 1e6))
    moments = []
    for tiny in (free, clipped, wide):
        (metrics,) = run(tiny, 1)
        assert metrics["gradient_norm"] == pytest.approx(run(make(dropout=0.0), 1)[0]["gradient_norm"])
        moments.append({n: a for n, a in state(tiny.job).items() if n.endswith("moment1")})
    share = 0.05 / metrics["gradient_norm"]
    assert share < 0.9
    for name, moment in moments[0].items():
        np.testing.assert_allclose(moments[1][name], moment * share, rtol=1e-4, atol=1e-10)
    assert same(weights(free.job), weights(wide.job))


def test_no_update_has_a_learning_rate_of_zero(make):
    job = make(warmup_rate=0.1).job
    rates = [job.learning_rate(step) for step in range(1, STEPS + 1)]
    assert rates[0] == pytest.approx(5e-3 / 6) and rates[5] == 5e-3
    assert rates[-1] == pytest.approx(5e-3 / (STEPS + 1 - 6))
    assert make(warmup_rate=0.0).job.learning_rate(1) < 5e-3
    job = make(warmup_steps=12, lr_scheduler_type="constant").job
    assert [job.learning_rate(step) for step in (6, 12, STEPS)] == [2.5e-3, 5e-3, 5e-3]
    job = make(lr_scheduler_type="cosine", warmup_steps=0).job
    assert job.learning_rate(31) < 5e-3 / 2 < job.learning_rate(30)
    with pytest.raises(InputError, match=f"warmup_steps=60 covers all {STEPS} steps"):
        make(warmup_steps=STEPS)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_distributed_evaluation_is_bit_identical(make, size):
    job, rows, _ = make()

    class Share(ProcessGroup):
        def __init__(self, rank):
            self.rank, self.size = rank, size

        def all_reduce(self, array):
            return array

        all_reduce_now = all_reduce

    alone = predict_logits(job.model, rows, 7, ProcessGroup())
    shares = [predict_logits(job.model, rows, 7, Share(rank)) for rank in range(size)]
    assert np.array_equal(sum(shares), alone)


def test_nan_logits_stop_the_run(make):
    job = make().job
    job.model.classifier.bias.set_value(np.array([0, np.nan], dtype=np.float32))
    reason = r"the logits of row 0 are \[.*nan\].*; the weights are damaged, train again"
    with pytest.raises(NumbersError, match=reason):
        job.evaluate("valid")
