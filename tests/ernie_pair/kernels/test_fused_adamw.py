"""The fused AdamW updates weights and state as Paddle's does; either can resume from the other's state."""

import numpy as np
import paddle
import pytest
from levels import needs_fused
from paddle import nn
from tiny_pair_job import run, tiny_job, write_files

from ernie_pair.kernels import adamw
from ernie_pair.kernels.adamw import FusedAdamW, sum_of_squares

pytestmark = needs_fused
AdamW = paddle.optimizer.AdamW
RATES = (1e-2, 3e-3, 1e-3, 2e-3, 5e-3, 1e-3)


def build():
    paddle.seed(1)
    model = nn.Sequential(nn.Linear(5, 70), nn.ReLU(), nn.Linear(70, 600), nn.ReLU(), nn.Linear(600, 3))
    model[2].weight.optimize_attr["learning_rate"] = 0.5
    return model


def optimizer_of(kind, model, clip):
    decayed = {parameter.name for parameter in model.parameters() if parameter.ndim > 1}
    return kind(
        0.0,
        parameters=model.parameters(),
        weight_decay=0.1,
        apply_decay_param_fun=decayed.__contains__,
        grad_clip=None if clip is None else nn.ClipGradByGlobalNorm(clip),
        name=paddle.utils.unique_name.generate("adamw"),
    )


def step(model, optimizer, number, without=()):
    rng = np.random.default_rng(number)
    inputs = paddle.to_tensor(rng.normal(size=(4, 5)).astype("float32"))
    model(inputs).square().sum().backward()
    for index in without:
        model[index].weight.clear_gradient(False)
        model[index].bias.clear_gradient(False)
    optimizer.set_lr(RATES[number])
    optimizer.step()
    optimizer.clear_grad(False)


def state_of(model, optimizer):
    """All weights and optimizer state, in parameter order, regardless of their names."""
    held = {name: value for name, value in optimizer.state_dict().items() if hasattr(value, "numpy")}
    slots = ("moment1", "moment2", "beta1_pow_acc", "beta2_pow_acc")
    found = [
        held[name].numpy()
        for parameter in model.parameters()
        for slot in slots
        for name in held
        if name.startswith(f"{parameter.name}_") and f"_{slot}_" in f"{name}_"
    ]
    return [parameter.numpy() for parameter in model.parameters()] + found


def assert_close(first, second):
    assert len(first) == len(second)
    for one, other in zip(first, second):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-7)


def ends_of(clip=0.5, steps=3, prepare=None, skips=()):
    """The weights and the state after some steps of Paddle's AdamW, and of the fused one."""
    found = []
    for kind in (AdamW, FusedAdamW):
        model = build()
        if prepare:
            prepare(model)
        optimizer = optimizer_of(kind, model, clip)
        for number in range(steps):
            step(model, optimizer, number, without=(2,) if number in skips else ())
        found.append(state_of(model, optimizer))
    return found


@pytest.mark.parametrize("clip", [None, 0.5, 1e6])
def test_steps_match_paddles_adamw(clip):
    found = ends_of(clip, steps=5)
    assert len(found[0]) == 6 + 6 * 4
    assert_close(*found)


@pytest.mark.parametrize("kinds", [(AdamW, FusedAdamW), (FusedAdamW, AdamW)])
def test_each_optimizer_resumes_from_the_others_state(kinds):
    model = build()
    first = optimizer_of(kinds[0], model, 0.5)
    for number in range(3):
        step(model, first, number)
    weights = {name: parameter.numpy() for name, parameter in model.named_parameters()}
    state = {name: value.numpy() for name, value in first.state_dict().items() if hasattr(value, "numpy")}
    (called,) = {name.rpartition("adamw_")[2].partition("_")[0] for name in state}
    found = []
    for kind in (kinds[0], kinds[1]):
        model.set_state_dict(weights)
        later = optimizer_of(kind, model, 0.5)
        step(model, later, 0)  # creates its own slot names
        (own,) = {
            name.rpartition("adamw_")[2].partition("_")[0] for name in later.state_dict() if "adamw_" in name
        }
        model.set_state_dict(weights)
        renamed = {name.replace(f"adamw_{called}_", f"adamw_{own}_"): value for name, value in state.items()}
        later.set_state_dict(renamed)
        for number in (3, 4):
            step(model, later, number)
        found.append(state_of(model, later))
    assert_close(*found)


def test_a_parameter_without_a_gradient_is_skipped():
    assert_close(*ends_of(steps=6, skips=(0, 3)))


def test_sum_of_squares_is_identical_for_any_thread_count():
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=size).astype("float32") for size in (1, 17, 100_003)]
    tensors = [paddle.to_tensor(array) for array in arrays]
    expected = sum(float((array.astype("float64") ** 2).sum()) for array in arrays)
    one, two = (sum_of_squares(tensors, threads) for threads in (1, 2))
    assert one == two == pytest.approx(expected, rel=1e-6)


def test_nan_gradients_turn_weights_into_nan_as_in_paddle():
    broken = np.full((600, 3), np.nan, dtype="float32")
    ends = ends_of(steps=1, prepare=lambda model: model[4].weight.set_value(broken))
    theirs, ours = ([np.isnan(array) for array in end[:6]] for end in ends)
    assert all(map(np.array_equal, theirs, ours)) and theirs[0].all()


@pytest.mark.parametrize(
    "name, value", [("need_clip", False), ("regularizer", paddle.regularizer.L2Decay(10.0))]
)
def test_per_parameter_need_clip_and_regularizer_match_paddle(name, value):
    """With need_clip=False or a regularizer on one parameter, Paddle updates all of them."""
    assert_close(*ends_of(0.05, prepare=lambda model: setattr(model[0].weight, name, value)))


def test_gradients_of_another_dtype_are_left_to_paddle():
    found = []
    for kind in (AdamW, FusedAdamW):
        model = build()
        model.to(dtype="float64")
        optimizer = optimizer_of(kind, model, 0.5)
        loss = model(paddle.ones([4, 5], "float64")).square().sum()
        loss.backward()
        norm = float(sum((parameter.grad**2).sum() for parameter in model.parameters()))
        if kind is FusedAdamW:
            assert optimizer.squares() == pytest.approx(norm, rel=1e-6)
        optimizer.set_lr(0.01)
        optimizer.step()
        found.append([parameter.numpy() for parameter in model.parameters()])
    assert_close(*found)


def test_squares_of_gradients_of_two_dtypes_are_summed():
    model = nn.LayerList([nn.Linear(4, 3), nn.Linear(4, 3)])
    model[1].to(dtype="float64")
    for layer, dtype in zip(model, ("float32", "float64")):
        layer(paddle.ones([4, 4], dtype)).square().sum().backward()
    norm = sum((parameter.grad.numpy() ** 2).sum() for parameter in model.parameters())
    assert optimizer_of(FusedAdamW, model, 0.5).squares() == pytest.approx(norm, rel=1e-6)


def test_state_of_another_dtype_raises_paddles_error():
    """The weights were float64 for one step and are float32 again, but their moments are still float64."""
    model = build()
    model.to(dtype="float64")
    optimizer = optimizer_of(FusedAdamW, model, None)
    loss = model(paddle.ones([4, 5], "float64")).square().sum()
    loss.backward()
    optimizer.set_lr(0.01)
    optimizer.step()
    optimizer.clear_grad(False)
    model.to(dtype="float32")
    with pytest.raises(ValueError, match="(?s)float"):
        step(model, optimizer, 1)


def test_a_known_norm_is_not_computed_again(monkeypatch):
    model = build()
    optimizer = optimizer_of(FusedAdamW, model, 0.5)
    counted = []

    def counting(*given):
        counted.append(given)
        return sum_of_squares(*given)

    monkeypatch.setattr(adamw, "sum_of_squares", counting)
    for number in range(2):
        step(model, optimizer, number)
    assert len(counted) == 2  # the norm was not known
    optimizer.known_norm = 1.0
    step(model, optimizer, 2)
    assert len(counted) == 2
    step(model, optimizer, 3)
    assert len(counted) == 3  # a known norm is valid for one step


def test_a_training_step_computes_the_gradient_norm_once(tmp_path, monkeypatch):
    write_files(tmp_path)
    tiny = tiny_job(tmp_path, grad_clip=0.05)
    counted = []
    monkeypatch.setattr(adamw, "sum_of_squares", lambda *given: counted.append(1) or sum_of_squares(*given))
    run(tiny, 3)
    assert len(counted) == 3
