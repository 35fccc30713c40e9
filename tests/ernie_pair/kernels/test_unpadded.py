"""The fused kernels compute no padding, and what is computed without it equals what is computed with it."""

from ctypes import byref

import numpy as np
import paddle
import pytest
from fused_cases import SHAPES, batch_of, build, loss_and_gradients
from levels import BF16, needs_fused
from tiny_pair import write_model
from tiny_pair_job import run, tiny_job, weights, write_files

from ernie_pair.kernels import encoder_layer
from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.kernels.library import open_kernels
from ernie_pair.models.networks import encoders
from ernie_pair.models.networks.classifier import PairClassifier
from ernie_pair.models.networks.encoders import PaddingLeftOut
from ernie_pair.models.networks.kernel_path import choose_path
from ernie_pair.models.networks.text_encoder import POOLINGS, build_text_encoder
from ernie_pair.models.source import open_model
from ernie_pair.runtime.cpu import LEVEL_ASKED

pytestmark = needs_fused
CLOSE = {"fp32": 1e-6, "bf16": 2e-3}  # to the largest number; sums in another order are rounded otherwise
MIXED = [[5, 3, 9, 7, 2, 8, 4], [6, 3, 0, 0, 0, 0, 0], [5, 8, 8, 1, 0, 0, 0]]


def fused(folder, precision="fp32", **changes):
    model = build(folder, **changes)
    assert choose_path(model, KernelFlags(kernels="fused", precision=precision), "cpu").is_fused
    return model


def asked(model, ids):
    model.eval()
    with paddle.no_grad():
        return model(paddle.to_tensor(ids), paddle.zeros(np.shape(ids), "int64")).numpy()


@pytest.fixture
def keep_padding(monkeypatch):
    """A function after which padding is computed."""
    kept = lambda encoder, layers, *rest: PaddingLeftOut(encoder, None, *rest)  # noqa: E731
    return lambda: monkeypatch.setattr(encoders, "PaddingLeftOut", kept)


@pytest.fixture
def computed(monkeypatch):
    """The shapes of the states that the kernels of the layers were given."""
    shapes, forward = [], encoder_layer.LayerPass.forward
    spy = lambda self, x, *rest: shapes.append(x.shape) or forward(self, x, *rest)  # noqa: E731
    monkeypatch.setattr(encoder_layer.LayerPass, "forward", spy)
    return shapes


def assert_close(found, expected, precision="fp32"):
    np.testing.assert_allclose(found, expected, atol=CLOSE[precision] * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("precision", ["fp32", BF16])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("shape", SHAPES)
def test_loss_and_gradients_equal_those_with_padding(tmp_path, keep_padding, shape, pooling, precision):
    model = fused(tmp_path / "m", precision, shape=shape, pooling=pooling)
    loss, gradients = loss_and_gradients(model, batch_of(shape))
    keep_padding()
    padded_loss, padded = loss_and_gradients(model, batch_of(shape))
    assert_close(loss, padded_loss, precision)
    largest = max(np.abs(gradient).max() for gradient in padded.values())
    for name, gradient in padded.items():
        spread = CLOSE[precision] * max(1, largest) * (1 if precision == "fp32" else 10)
        np.testing.assert_allclose(gradients[name], gradient, atol=spread, err_msg=name)


@pytest.mark.parametrize("precision", ["fp32", BF16])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_pass_without_gradients_gives_the_same_bits(
    tmp_path, monkeypatch, keep_padding, shape, padded, precision
):
    """It keeps nothing, and its blocks share memory; also of relu, and on two threads."""
    kept, forward = [], encoder_layer.LayerPass.forward
    size_of = lambda call: open_kernels().functions.fused_saved_bytes(byref(call)) > 0  # noqa: E731
    spy = lambda self, *rest: kept.append(size_of(self.call)) or forward(self, *rest)  # noqa: E731
    monkeypatch.setattr(encoder_layer.LayerPass, "forward", spy)
    for act in ("gelu", "relu"):
        model = fused(tmp_path / act, precision, shape=shape, hidden_act=act)
        if padded:
            keep_padding()
        model.eval()
        given = [paddle.to_tensor(part) for part in batch_of(shape)[:2]]
        expected, layers = model(*given).numpy(), len(kept)
        for model.fused_state.threads in (1, 2):
            with paddle.no_grad():
                found = model(*given).numpy()
            np.testing.assert_array_equal(found, expected)
        assert kept == [True] * layers + [False] * 2 * layers
        kept.clear()


@pytest.mark.parametrize("level", ["avx2", "avx512"])
def test_lower_levels_leave_padding_out(tmp_path, monkeypatch, keep_padding, level):
    monkeypatch.setenv(LEVEL_ASKED, level)
    if open_kernels().level != level:
        pytest.skip(f"this processor has no {level}")
    model = fused(tmp_path / "m", shape="width of 26", pooling="mean")
    loss = loss_and_gradients(model, batch_of("width of 26"))[0]
    keep_padding()
    assert_close(loss, loss_and_gradients(model, batch_of("width of 26"))[0])


@pytest.mark.parametrize("family", ["ernie", "bert", "roberta", "electra"])
def test_the_layers_are_given_the_tokens_alone(tmp_path, computed, keep_padding, family):
    model = fused(tmp_path / "m", family=family)
    found = asked(model, MIXED)
    assert computed == [[1, 13, 32]] * 2
    keep_padding()
    assert_close(found, asked(model, MIXED))
    assert computed[2:] == [[3, 7, 32]] * 2


@pytest.mark.parametrize("pooling", [*POOLINGS, "cls+mean+max"])
def test_vectors_of_every_pooling_equal_those_with_padding(tmp_path, keep_padding, pooling):
    write_model(tmp_path / "m", hidden_act="gelu", initializer_range=0.3)
    source = open_model(str(tmp_path / "m"), model_type="ernie", from_scratch=True)
    model = build_text_encoder(source, 7, 0.0, pooling)
    assert choose_path(model, KernelFlags(kernels="fused"), "cpu").is_fused
    found = asked(model, MIXED)
    keep_padding()
    assert_close(found, asked(model, MIXED))


def test_padding_between_tokens_keeps_their_positions(tmp_path, keep_padding):
    model, ids = fused(tmp_path / "m", pooling="mean"), [[5, 0, 3, 7], [6, 0, 0, 2]]
    found = asked(model, ids)
    keep_padding()
    assert_close(found, asked(model, ids))


@pytest.mark.parametrize("ids", [[[5, 3], [6, 2]], [[5, 3], [0, 0]]], ids=["no padding", "empty row"])
def test_such_a_batch_is_computed_as_ever(tmp_path, computed, ids):
    asked(fused(tmp_path / "m"), ids)
    assert computed == [[2, 2, 32]] * 2


def test_a_layer_that_is_left_to_paddle_gets_all_rows(tmp_path, computed, keep_padding):
    """One that was changed afterwards, between two of the kernels."""
    model = fused(tmp_path / "m", pooling="mean", num_hidden_layers=3)
    model.layers()[1].linear2.register_forward_post_hook(lambda layer, given, output: output * 2)
    found = asked(model, MIXED)
    assert computed == [[1, 13, 32]] * 2
    keep_padding()
    assert_close(found, asked(model, MIXED))


class LargestState(PairClassifier):
    """It reads the states of padding too."""

    def _pooled(self, states_BSD, pooled_BD, input_ids):
        return states_BSD.max(axis=1)


@pytest.mark.parametrize("reader", ["hook of a layer", "hook of the encoder", "subclass"])
def test_who_may_read_padding_gets_it_computed(tmp_path, computed, reader):
    model, seen = fused(tmp_path / "m", pooling="mean"), []
    if reader == "subclass":
        model.__class__ = LargestState
    else:
        of = model.encoder.encoder if reader == "hook of the encoder" else model.layers()[0]
        of.register_forward_post_hook(lambda layer, given, output: seen.append(output.shape))
    asked(model, MIXED)
    assert computed == [[3, 7, 32]] * 2 and seen in ([], [[3, 7, 32]])


@pytest.mark.parametrize("bucket", [True, False])
def test_training_steps_equal_those_with_padding(tmp_path, keep_padding, bucket):
    write_files(tmp_path)
    write_model(tmp_path / "model", hidden_act="gelu", initializer_range=0.08)
    found = []
    for change in (lambda: None, keep_padding):
        change()
        tiny = tiny_job(tmp_path, dropout=0.0, learning_rate=1e-4, kernels="fused", bucket=bucket)
        found.append(([m["loss"] for m in run(tiny, 5)], weights(tiny.job), tiny.job.evaluate("valid")))
    (losses, after, answered), (padded, expected, padded_answered) = found
    np.testing.assert_allclose(losses, padded, rtol=1e-6)
    assert answered["loss"] == pytest.approx(padded_answered["loss"], rel=1e-6)
    for name in expected:
        if not name.endswith("k_proj.bias"):  # whose true gradient is zero
            np.testing.assert_allclose(after[name], expected[name], atol=2e-6, err_msg=name)
