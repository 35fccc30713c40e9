"""The pair classifier's optimizer: its learning rates by layer, and its state under structured names."""

from types import SimpleNamespace

import numpy as np
import paddle
import pytest
from tiny_pair import write_model

from ernie_pair.core.errors import CheckpointError
from ernie_pair.models.networks.classifier import build_classifier
from ernie_pair.models.source import open_model
from ernie_pair.pairs.config.pair_config import PairConfig
from ernie_pair.runtime.device import quiet_libraries
from ernie_pair.training.optimizer import (
    BETAS,
    decays,
    new_optimizer,
    optimizer_arrays,
    rate_factors,
    restore_optimizer,
    state_shapes,
)

quiet_libraries()
IDS = paddle.to_tensor([[1, 5, 6, 2, 7, 8, 2], [1, 9, 2, 4, 2, 0, 0]])
TYPES = paddle.to_tensor([[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 0, 0]])
SIZES = {"hidden_size": 16, "intermediate_size": 32}


@pytest.fixture
def make(tmp_path):
    folder = write_model(tmp_path / "m", **SIZES)

    def fresh(family="ernie", seed=7):
        source = open_model(str(folder), model_type=family, from_scratch=True)
        return build_classifier(source, seed, 0.0)

    return fresh


def flags(**changes):
    return PairConfig("out", model_type="ernie", **changes)


def learn(model, optimizer, updates=1, rate=1e-2):
    model.train()
    for _ in range(updates):
        optimizer.set_lr(rate)
        model(IDS, TYPES).square().sum().backward()
        optimizer.step()
        optimizer.clear_grad()


def weights(model):
    return {name: parameter.numpy() for name, parameter in model.named_parameters()}


def same(first, second):
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def test_without_layer_decay_updates_equal_plain_adamw(make):
    ours, theirs = make(), make()
    decayed = {p.name for name, p in theirs.named_parameters() if not ("bias" in name or "norm" in name)}
    plain = paddle.optimizer.AdamW(
        learning_rate=0.0,
        parameters=theirs.parameters(),
        weight_decay=0.01,
        apply_decay_param_fun=decayed.__contains__,
    )
    learn(ours, new_optimizer(ours, flags()), updates=3)
    learn(theirs, plain, updates=3)
    assert same(weights(ours), weights(theirs))


def test_the_learning_rate_decays_by_layer_below_the_head(make):
    factors = rate_factors(make(), 0.5)
    assert factors["classifier.weight"] == factors["ernie.pooler.dense.bias"] == 1
    assert factors["ernie.encoder.layers.1.linear1.weight"] == 0.5
    assert factors["ernie.encoder.layers.0.norm1.bias"] == 0.25
    embeddings = [name for name in factors if ".embeddings." in name]
    assert len(embeddings) == 5 and all(factors[name] == 0.125 for name in embeddings)
    assert len(factors) == len(make().parameters()) and min(factors.values()) == 0.125


def test_the_first_update_moves_each_weight_by_its_own_rate(make):
    model = make()
    optimizer = new_optimizer(model, flags(layer_decay=0.5, weight_decay=0.0))
    before, factors = weights(model), rate_factors(model, 0.5)
    optimizer.set_lr(1e-2)
    (model(IDS, TYPES).sum() * 1e3).backward()
    optimizer.step()
    moved = 0
    for name, parameter in model.named_parameters():
        has_gradient = np.abs(parameter.grad.numpy()) > 1e-3
        steps = np.abs(parameter.numpy() - before[name])[has_gradient]
        moved += len(steps) > 0
        # Adam's first step has the size of the rate, whatever the gradient.
        assert np.allclose(steps, 1e-2 * factors[name], rtol=1e-3), name
    assert moved > 30


@pytest.mark.parametrize("layer_decay", [1.0, 0.5])
def test_weight_decay_skips_biases_and_norms(make, layer_decay):
    model = make()
    optimizer = new_optimizer(model, flags(weight_decay=0.5, layer_decay=layer_decay))
    optimizer.set_lr(0.1)
    before, factors = weights(model), rate_factors(model, layer_decay)
    for parameter in model.parameters():
        parameter.sum().backward()
        parameter.clear_gradient(set_to_zero=True)
    optimizer.step()
    for name, after in weights(model).items():
        kept = "bias" in name or "norm" in name
        factor = 1 if kept else 1 - 0.05 * factors[name]
        assert np.allclose(after, before[name] * factor, rtol=1e-6), name


@pytest.mark.parametrize("name", ["a.layer_norm.weight", "bert.embeddings.LayerNorm.weight", "x.Bias"])
def test_norm_parameters_are_recognised_in_any_spelling(name):
    assert not decays(name) and decays("bert.encoder.layers.0.linear1.weight")


@pytest.mark.parametrize("layer_decay", [1.0, 0.5])
def test_a_restored_optimizer_continues_bit_identically(make, layer_decay):
    config = flags(layer_decay=layer_decay)
    whole, cut = make(), make()
    learn(whole, new_optimizer(whole, config), updates=4)
    first = new_optimizer(cut, config)
    learn(cut, first, updates=2)
    arrays = optimizer_arrays(cut, first)
    rest = make(seed=1)
    rest.set({p.name: weights(cut)[name] for name, p in rest.named_parameters()})
    second = new_optimizer(rest, config)
    restore_optimizer(rest, second, arrays, "here")
    assert same(optimizer_arrays(rest, second), arrays)
    learn(rest, second, updates=2)
    assert same(weights(rest), weights(whole))


def test_the_state_is_complete_before_the_first_update(make):
    model = make()
    optimizer = new_optimizer(model, flags())
    arrays = optimizer_arrays(model, optimizer)
    assert {name: array.shape for name, array in arrays.items()} == state_shapes(model, optimizer)
    assert len(arrays) == 4 * len(model.parameters())
    assert not arrays["classifier.weight.moment1"].any()
    assert arrays["classifier.weight.beta2_pow_acc"] == np.float32(0.999)
    other = make()
    fresh = new_optimizer(other, flags())
    restore_optimizer(other, fresh, arrays, "here")
    learn(model, optimizer)
    learn(other, fresh)
    assert same(weights(model), weights(other))


@pytest.mark.parametrize("change, reason", [
    (lambda arrays: arrays.pop("classifier.bias.moment2"), "1 missing: classifier.bias.moment2"),
    (lambda arrays: arrays.update(more=np.zeros(1)), "1 unknown: more"),
    (lambda arrays: arrays.update({"classifier.bias.moment1": np.zeros(3, np.float32)}),
     r"of another shape: classifier\.bias\.moment1 \(3,\) instead of \(2,\)"),
])  # fmt: skip
def test_a_mismatched_state_is_refused_and_changes_nothing(make, change, reason):
    model = make()
    optimizer = new_optimizer(model, flags())
    learn(model, optimizer)
    arrays = optimizer_arrays(model, optimizer)
    before = {name: array.copy() for name, array in arrays.items()}
    learn(model, optimizer)
    moved = optimizer_arrays(model, optimizer)
    change(before)
    with pytest.raises(CheckpointError, match=f"somewhere holds another model: .*{reason}"):
        restore_optimizer(model, optimizer, before, "somewhere")
    assert same(optimizer_arrays(model, optimizer), moved)


class NarrowModel:
    """A 16-bit parameter, which no CPU can update: its state is named as on a GPU."""

    def __init__(self):
        self.weight = paddle.ones([2, 3]).astype("float16")
        self.weight.name, self.weight.stop_gradient = "linear_0.w_0", False

    def named_parameters(self):
        return [("classifier.weight", self.weight)]


def test_fp16_master_weights_are_part_of_the_state():
    model = NarrowModel()
    kept, laid = {}, []
    powers = {
        name: SimpleNamespace(
            numpy=lambda value=value: value,
            get_tensor=lambda: SimpleNamespace(set=lambda array, place: laid.append((array, str(place)))),
        )
        for name, value in BETAS.items()
    }
    optimizer = paddle.optimizer.AdamW.__new__(paddle.optimizer.AdamW)
    vars(optimizer).update(
        _multi_precision=True,
        _accumulators_holder={},
        _master_weights={},
        _name="adamw_7",
        state_dict=lambda: {},
        set_state_dict=kept.update,
        _create_accumulators=lambda block, parameters: None,
        _get_accumulator_master=lambda name, parameter: powers[name],
    )
    arrays = optimizer_arrays(model, optimizer)
    assert arrays["classifier.weight.master"].dtype == np.float32 and len(arrays) == 5
    arrays["classifier.weight.master"] = np.full((2, 3), 1.0001, np.float32)
    restore_optimizer(model, optimizer, arrays, "here")
    assert "linear_0.w_0_fp32_master_0_adamw_7_moment1_0" in kept
    assert laid == [(value, str(paddle.CPUPlace())) for value in BETAS.values()]  # as AdamW makes them
    master = kept["master_weights"]["linear_0.w_0"]
    assert master.name == "linear_0.w_0_fp32_master_0" and float(master[0, 0]) == np.float32(1.0001)
    optimizer.state_dict = lambda: kept
    assert same(optimizer_arrays(model, optimizer), arrays)
    optimizer._multi_precision = False
    assert "classifier.weight.master" not in optimizer_arrays(model, optimizer)
