"""Names of weights as Paddle generates them, and as ERNIE's programs and others have them."""

from typing import NamedTuple

import numpy as np
import pytest
from foreign_weights import ernies_names
from tiny_pretrain import write_model

from ernie_pair.core.errors import CheckpointError
from ernie_pair.models.spec import read_spec
from ernie_pair.pretraining.graph.model import CLASSES, ernie_config
from ernie_pair.weights.parameter_names import (
    DECODER_BIAS,
    NGRAM_HEAD,
    ORDER_HEAD,
    RETRO_DECODER,
    TOKEN_HEAD,
    match_parameters,
    structured_names,
    without_training_heads,
)

TASKS = {"use_task_id": True, "task_type_vocab_size": 3}


class Model(NamedTuple):
    """Parameters of Paddle's {structured name: parameter}, and an array for each first name of one."""

    parameters: dict
    arrays: dict


@pytest.fixture(scope="module", params=[("ernie", TASKS), ("ernie_gram", {"rel_pos_size": 4})])
def model(request, tmp_path_factory):
    family, more = request.param
    folder = write_model(tmp_path_factory.mktemp("names") / "model", model_type=family, **more)
    spec = read_spec(folder / "config.json", folder / "vocab.txt")
    parameters, rng, first = CLASSES[family][1](ernie_config(spec)).state_dict(), np.random.default_rng(0), {}
    for name, parameter in parameters.items():
        first.setdefault(parameter.name, (name, rng.normal(size=parameter.shape)))
    return Model(parameters, dict(first.values()))


def layers_of(model, leaves_out=()):
    """{(kind, number): {w or b: array}}, and what the file is to give, for names that begin otherwise."""
    layers, wanted = {}, {}
    for name, array in model.arrays.items():
        if not (leaves_out and name.startswith(leaves_out)):
            stem, part = model.parameters[name].name.rsplit(".", 1)
            kind, number = stem.rsplit("_", 1)
            layers.setdefault((kind, int(number)), {})[part[0]] = array
            is_bias = model.parameters[name].name == model.parameters[DECODER_BIAS].name
            wanted[DECODER_BIAS if is_bias else name] = array
    return layers, wanted


def stored(layers, rng):
    """{generated name: array} in any order, with gaps in the numbers, beside the state of an optimizer."""
    found, numbers = {"learning_rate_0": np.ones(1)}, {}
    for (kind, _), parts in sorted(layers.items(), key=lambda layer: layer[0]):
        numbers[kind] = numbers.get(kind, 6) + int(rng.integers(1, 5))
        for part, array in parts.items():
            found[f"{kind}_{numbers[kind]}.{part}_0"] = array
            found[f"{kind}_{numbers[kind]}.{part}_0_moment1_0"] = array * 0
    return {name: found[name] for name in rng.permutation(list(found)).tolist()}


def same(found, wanted):
    return found.keys() == wanted.keys() and all(np.array_equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("decoder", ["linear", "own", "weight alone", "nothing"])
@pytest.mark.parametrize("has_order", [True, False])
def test_generated_names_are_told_by_the_order_of_layers(model, decoder, has_order):
    """The decoder as versions of PaddleNLP make it, or its weight, which is tied, or none of its head."""
    rng, words = np.random.default_rng(1), next(iter(model.arrays.values()))
    leaves_out = [TOKEN_HEAD] * (decoder in ("weight alone", "nothing")) + [ORDER_HEAD] * (not has_order)
    layers, wanted = layers_of(model, tuple(leaves_out))
    stem = model.parameters[DECODER_BIAS].name.split(".")[0].rsplit("_", 1)
    place = stem[0], int(stem[1])
    if decoder == "linear":
        layers[place]["w"] = words
    elif decoder == "own":
        layers["ernie_lm_prediction_head", 0] = layers.pop(place)
    elif decoder == "weight alone":
        layers[place] = {"w": words}
    assert same(structured_names(stored(layers, rng), model.parameters, "w"), wanted)


@pytest.mark.parametrize("kind", ["embedding", "linear", "layer_norm"])
def test_a_layer_too_many_or_too_few_is_refused(model, kind):
    """Of the linear ones the last, for the order, may be missing, and the decoder is none of them."""
    layers, _ = layers_of(model)
    of_kind = [place for place in layers if place[0] == kind]
    few = {place: parts for place, parts in layers.items() if place not in of_kind[1:3]}
    many = {**layers, (kind, 10**6): {"w": np.ones(3), "b": np.ones(7)}}  # no layer has this number
    is_linear = kind == "linear"
    for changed, count, made in ((few, -2, -is_linear), (many, 1, 0)):
        count, made = (len(of_kind) - is_linear + each for each in (count, made))
        listed = rf"\({kind}_\d+\.[wb]_0 to {kind}_\d+\.[wb]_0\)"
        message = f"w holds {count} layers of the kind {kind} {listed}, but config.json makes {made};"
        with pytest.raises(CheckpointError, match=message):
            structured_names(stored(changed, np.random.default_rng(2)), model.parameters, "w")


def test_names_of_ernies_programs_and_of_encoders_are_known(model):
    family, arrays = next(iter(model.parameters)).split(".")[0], model.arrays
    bare = {
        name.replace(f"{family}.", ""): array for name, array in arrays.items() if not name.startswith("cls.")
    }
    heads = {"cls.predictions.transform.weight": np.ones(2), "classifier.weight": np.ones(3)}
    wanted = {f"{family}.{name}": array for name, array in bare.items()}
    assert same(structured_names({**bare, **heads}, model.parameters, "w"), {**wanted, **heads})
    if family == "ernie":
        names = ernies_names()
        of_program = {names[name]: array for name, array in arrays.items()}
        state = {f"{name}_moment2_0": array for name, array in of_program.items()}
        assert names["ernie.encoder.layers.1.linear1.weight"] == "encoder_layer_1_ffn_fc_0.w_0"
        for name, array in structured_names({**of_program, **state}, model.parameters, "w").items():
            assert np.array_equal(array, arrays[name.replace("decoder.bias", "decoder_bias")])
        strange = dict.fromkeys(("word_embedding", "encoder_layer_1_x.w_0", "ffn_fc_0.w_0"), np.ones(1))
        assert list(structured_names(strange, model.parameters, "w"))[1:] == list(strange)[1:]
    assert same(structured_names({"cls.predictions.decoder_weight": np.ones(1)}, model.parameters, "w"),
                {"cls.predictions.decoder.weight": np.ones(1)})  # fmt: skip


def test_parameters_are_matched_all_or_none(model):
    """Either name of a tied parameter will do; both must hold the same."""
    parameters, arrays = model
    wanted = {parameters[name].name: array for name, array in arrays.items()}
    aliases = {name: parameters[name].name for name in parameters if name not in arrays}
    assert same(match_parameters(parameters, arrays, "w"), wanted) and aliases
    for alias, generated in aliases.items():
        first = next(name for name in arrays if parameters[name].name == generated)
        others = {name: array for name, array in arrays.items() if name != first}
        assert same(match_parameters(parameters, {**others, alias: arrays[first]}, "w"), wanted)
        with pytest.raises(CheckpointError, match=f"w: {alias} is tied to another name but differs from it"):
            match_parameters(parameters, {**arrays, alias: arrays[first] + 1}, "w")
    more = {f"{NGRAM_HEAD}x": np.ones(1), "cls.other": np.ones(1)}
    for gone in arrays:
        rest = {name: array for name, array in arrays.items() if name != gone}
        with pytest.raises(CheckpointError, match=f"1 missing: {gone};"):
            match_parameters(parameters, rest, "w", may_miss="ernie.other")
        with pytest.raises(CheckpointError, match=f"1 missing: {gone}; 2 unknown: {NGRAM_HEAD}x, cls.other;"):
            match_parameters(parameters, {**rest, **more}, "w")
        found = match_parameters(parameters, {**rest, **more}, "w", may_miss=gone, may_have="cls.")
        assert same(found, {name: array for name, array in wanted.items() if name != parameters[gone].name})
        with pytest.raises(CheckpointError, match=rf"1 of another shape: {gone} \(1, 2\) instead"):
            match_parameters(parameters, {**rest, gone: np.ones((1, 2))}, "w", may_miss=gone)
    trained = {**arrays, **more, f"{RETRO_DECODER}x": np.ones(1)}
    assert same(without_training_heads(trained), {**arrays, "cls.other": more["cls.other"]})
