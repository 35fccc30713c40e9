"""Frozen parts keep their weights, get no gradient and have no dropout; recompute changes no bit."""

import json
from dataclasses import replace

import numpy as np
import paddle
import pytest
from asked import evaluated
from tiny_pair import train_config, write_model, write_new
from tiny_pair_job import resumed, run, same, tiny_config, tiny_job, weights, write_files

from ernie_pair.core.errors import InputError
from ernie_pair.evaluation.inference_model import InferenceModel
from ernie_pair.models.families import FAMILIES
from ernie_pair.models.networks.classifier import build_classifier
from ernie_pair.models.source import open_model
from ernie_pair.pairs.config.ask_config import PredictConfig
from ernie_pair.pairs.config.pair_config import PairConfig
from ernie_pair.pairs.train.train_pair import train_pair
from ernie_pair.runtime.device import quiet_libraries
from ernie_pair.training.optimizer import new_optimizer, optimizer_arrays
from ernie_pair.training.recompute import freeze, recompute_layers

quiet_libraries()
IDS = paddle.to_tensor([[1, 5, 6, 2, 7, 8, 2], [1, 9, 2, 4, 2, 0, 0]])
TYPES = paddle.to_tensor([[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 0, 0]])
FREEZINGS = [
    ({"freeze": "embeddings"}, 0),
    ({"freeze_layers": 1}, 1),
    ({"freeze": "embeddings", "freeze_layers": 2}, 2),
    ({"freeze": "encoder"}, 3),
]


@pytest.fixture
def make(tmp_path):
    """make(family, **flags) -> a model of 3 layers x 16, frozen as the flags say, and the line about it."""
    write_model(tmp_path / "m", hidden_size=16, intermediate_size=32, num_hidden_layers=3)

    def fresh(family="ernie", dropout=0.1, pooling="cls", **flags):
        config = flags_of(family, dropout=dropout, pooling=pooling, **flags)
        source = open_model(str(tmp_path / "m"), model_type=family, from_scratch=True)
        model = build_classifier(source, 7, dropout, pooling)
        said = freeze(model, config)
        recompute_layers(model, config.use_recompute)
        return model, said

    return fresh


def flags_of(family="ernie", **flags):
    return PairConfig("out", model_type=family, **flags)


def gradients(model, seed=3):
    paddle.seed(seed)
    model.train()
    model(IDS, TYPES).square().sum().backward()
    return {n: None if p.grad is None else p.grad.numpy() for n, p in model.named_parameters()}


def is_below(name, layers):
    if ".embeddings." in name:
        return True
    return ".layers." in name and int(name.split(".layers.")[1].split(".")[0]) < layers


@pytest.mark.parametrize("family", ["ernie", "ernie_gram", "bert"])
@pytest.mark.parametrize("flags, layers", FREEZINGS)
def test_exactly_the_unfrozen_parameters_get_gradients(make, family, flags, layers):
    model, _ = make(family, **flags)
    for name, gradient in gradients(model).items():
        assert (gradient is None) == is_below(name, layers), name


@pytest.mark.parametrize("flags, layers", FREEZINGS)
def test_frozen_weights_do_not_change_and_have_no_state(make, flags, layers):
    model, _ = make(**flags)
    optimizer = new_optimizer(model, flags_of(**flags))
    before = {name: p.numpy() for name, p in model.named_parameters()}
    for _ in range(3):
        optimizer.set_lr(1e-2)
        model.train()
        model(IDS, TYPES).square().sum().backward()
        optimizer.step()
        optimizer.clear_grad()
    for name, parameter in model.named_parameters():
        assert np.array_equal(parameter.numpy(), before[name]) == is_below(name, layers), name
    owners = {name.rsplit(".", 1)[0] for name in optimizer_arrays(model, optimizer)}
    assert owners == {name for name in before if not is_below(name, layers)}
    assert len(optimizer.state_dict()) == 4 * len(owners)


@pytest.mark.parametrize("flags, layers", FREEZINGS)
def test_dropout_is_off_only_in_the_frozen_part(make, flags, layers):
    model, _ = make(dropout=0.5, **flags)
    model.train()
    first_trained = [*model.layers()[layers:], model.dropout][0]
    given = []
    first_trained.register_forward_pre_hook(lambda layer, inputs: given.append(inputs[0].numpy()))
    answers = [model(IDS, TYPES).numpy() for _ in range(2)]
    if layers < 3:
        assert np.array_equal(*given)  # the output of the frozen part
    else:
        states = [model.encoder(IDS, token_type_ids=TYPES)[0].numpy() for _ in range(2)]
        assert np.array_equal(*states)
    assert not np.array_equal(*answers)


def test_a_model_is_unfrozen_when_no_flag_freezes_it(make):
    model, _ = make(freeze="encoder", use_recompute=True)
    freeze(model, flags_of())
    recompute_layers(model, False)
    assert not model.frozen_modules and all("forward" not in vars(layer) for layer in model.layers())
    assert all(gradient is not None for gradient in gradients(model).values())


@pytest.fixture
def job(tmp_path):
    """job(**flags) -> a job on the toy task with the layers that the flags freeze, and its updates."""
    folder = write_files(tmp_path)

    def build(consumed=0, **flags):
        config = tiny_config(folder, **flags)
        return tiny_job(folder, prepare=lambda model: freeze(model, config), consumed=consumed, **flags)

    return build


@pytest.mark.parametrize("flags", [{"freeze": "encoder"}, {"freeze_layers": 1, "layer_decay": 0.8}])
def test_a_resumed_frozen_job_has_bit_identical_weights(tmp_path, job, flags):
    whole, half, rest = job(**flags), job(**flags), job(consumed=32, **flags)
    run(whole, 5)
    run(half, 2)
    run(resumed(half.job, 2, rest, tmp_path / "out"), 5, first=3)
    assert same(weights(rest.job), weights(whole.job))


@pytest.mark.parametrize("flags", [{}, {"freeze": "embeddings"}, {"freeze_layers": 1}, {"pooling": "mean"}])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_recomputed_gradients_are_bit_identical(make, flags, dropout):
    plain, recomputed = (gradients(make(dropout=dropout, use_recompute=u, **flags)[0]) for u in (False, True))
    for name, gradient in plain.items():
        assert (gradient is None) == (recomputed[name] is None), name
        assert gradient is None or np.array_equal(gradient, recomputed[name]), name


def test_recompute_leaves_later_random_numbers_unchanged(make):
    drawn = []
    for use_recompute in (False, True):
        gradients(make(dropout=0.3, use_recompute=use_recompute)[0])
        drawn.append(paddle.rand([4]).numpy())
    assert np.array_equal(*drawn)


def test_runs_with_and_without_recompute_are_bit_identical(job):
    twice, again, once = (job(use_recompute=use) for use in (True, True, False))
    for tiny in (twice, again, once):
        run(tiny, 4)
    assert same(weights(twice.job), weights(again.job)) and same(weights(twice.job), weights(once.job))


def test_recompute_runs_trained_layers_twice_per_update(make):
    model, _ = make(freeze_layers=1, use_recompute=True)
    seen = []
    for number, layer in enumerate(model.layers()):
        # The hook is on the attention, so it runs inside of what recompute repeats.
        layer.self_attn.register_forward_pre_hook(lambda *given, number=number: seen.append(number))
    gradients(model)
    assert sorted(seen) == [0, 1, 2, 2]  # frozen; input without a gradient; recomputed
    model.eval()
    with paddle.no_grad():
        model(IDS, TYPES)
    assert sorted(seen) == [0, 0, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_freezes_decays_and_recomputes(tmp_path, family):
    folder = write_new(tmp_path / "m", family, max_position_embeddings=32)
    source = open_model(str(folder), model_type=family, from_scratch=True)

    def model_with(use_recompute=False, **flags):
        model = build_classifier(source, 7, 0.2)
        freeze(model, flags_of(family, **flags))
        recompute_layers(model, use_recompute)
        return model

    plain, recomputed = (gradients(model_with(use)) for use in (False, True))
    assert all(g is None or np.array_equal(g, recomputed[name]) for name, g in plain.items())
    model = model_with(freeze="encoder")
    depths = {name: model.depth_of(name) for name, _ in model.named_parameters()}
    num_layers = len(model.layers())
    assert set(depths.values()) == set(range(num_layers + 2))
    trained = {name for name, gradient in gradients(model).items() if gradient is not None}
    assert trained == {name for name, depth in depths.items() if depth > num_layers}
    assert all("pooler" in name or "classifier" in name for name in trained)
    decays = new_optimizer(model, flags_of(family))._apply_decay_param_fun
    assert not any(decays(p.name) for p in model.parameters() if len(p.shape) == 1)


def test_a_run_applies_the_flags_and_refuses_to_change_them(tmp_path, capfd):
    flags = {"pooling": "mean", "freeze_layers": 1, "layer_decay": 0.9, "use_recompute": True}
    config = replace(train_config(tmp_path, max_steps=4, max_seq_len=12, **flags), model_type="bert")
    train_pair(config)
    log = capfd.readouterr().err
    assert "parameters are trained (" in log and "the embeddings and 1 of 2 layers are frozen" in log
    (best,) = (tmp_path / "out").glob("best-*")
    assert json.loads((best / "config.json").read_text())["pooling"] == "mean"
    assert best.name == f"best-accuracy-{evaluated(best, config.dev_file)['accuracy']:.4f}"
    asked = InferenceModel(PredictConfig(str(best), config.dev_file, str(tmp_path / "p.tsv"), device="cpu"))
    assert asked.max_seq_len == 12 and asked.model.pooling == "mean"
    for change in ({"pooling": "cls"}, {"freeze_layers": 2}, {"layer_decay": 0.8}):
        with pytest.raises(InputError, match=next(iter(change))):
            train_pair(replace(config, **change))
    train_pair(replace(config, use_recompute=False))  # changes no number
