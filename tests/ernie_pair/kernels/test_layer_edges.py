"""Edge cases of a layer: one token, all padding, NaN; and its accuracy compared with float64."""

import numpy as np
import paddle
import pytest
from fused_cases import fused_layer, inputs
from paddle import nn

from ernie_pair.kernels.library import open_kernels

pytestmark = pytest.mark.skipif(bool(open_kernels().reason), reason=open_kernels().reason or "never")


def answers(forward, x, mask=None):
    """The states, and the gradient of the input when the loss is the sum of each state's first element."""
    x = paddle.to_tensor(x.numpy(), stop_gradient=False)
    y = forward(x, mask)
    y[:, :, 0].sum().backward()
    return y.numpy(), x.grad.numpy()


def assert_alike(x, mask=None, atol=1e-5):
    """NaNs are in the same places in both; the rest is equal."""
    layer, fused = fused_layer()
    for one, other in zip(answers(fused, x, mask), answers(layer, x, mask)):
        np.testing.assert_allclose(one, other, atol=atol, rtol=1e-4)


@pytest.mark.parametrize("shape", [(1, 1, 32), (3, 1, 32), (300, 1, 32), (1, 257, 32), (2, 511, 32)], ids=str)
def test_one_token_and_multi_block_inputs_match_paddle(shape):
    assert_alike(inputs(*shape))


@pytest.mark.parametrize("hidden", [-1e4, -1e9, -1e30, -np.inf])
def test_hidden_positions_match_paddle(hidden):
    """Also a row of padding alone, but for minus infinity, whose softmax over no positions is NaN."""
    mask = np.zeros((3, 1, 1, 5), np.float32)
    mask[1, ..., 3 if np.isinf(hidden) else 0 :] = hidden
    mask[2, ..., 2:] = hidden
    assert_alike(inputs(), paddle.to_tensor(mask))


def test_a_fully_masked_row_is_nan_and_leaves_others_intact():
    """A softmax over no positions is NaN; the other rows are unaffected."""
    mask = np.zeros((3, 1, 1, 5), np.float32)
    mask[1] = -np.inf
    layer, fused = fused_layer()
    found, expected = (forward(inputs(), paddle.to_tensor(mask)).numpy() for forward in (fused, layer))
    assert np.isnan(expected[1]).all() and np.isnan(found[1]).all()
    np.testing.assert_allclose(found[[0, 2]], expected[[0, 2]], atol=1e-5)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_nan_or_infinity_affects_only_its_own_sequence(number):
    x = inputs().numpy()
    x[1, 2, 7] = number
    layer, fused = fused_layer()
    found, expected = (forward(paddle.to_tensor(x)).numpy() for forward in (fused, layer))
    assert np.array_equal(np.isnan(found), np.isnan(expected)) and np.isnan(found[1]).any()
    np.testing.assert_allclose(found[[0, 2]], expected[[0, 2]], atol=1e-5)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("scale", [1, 4, 30])
def test_rounding_errors_are_those_of_float32(activation, scale):
    """Compared with float64, the kernels' errors are like those of Paddle's float32, even in the tails."""
    layer, fused = fused_layer(activation=activation)
    for part in (layer.linear1, layer.self_attn.q_proj):  # for what goes into gelu and into softmax
        part.weight.set_value(part.weight * float(scale))
    exact = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, activation=activation)
    exact.set_state_dict(layer.state_dict())
    exact.to(dtype="float64")
    x = inputs(40, 9, 32)
    truth = answers(exact, x.astype("float64"))
    errors = [
        [float(np.abs(one - other).max()) for one, other in zip(answers(forward, x), truth)]
        for forward in (fused, layer)
    ]
    for ours, theirs, true in zip(*errors, truth):
        assert ours <= 3 * theirs + 2e-6 * float(np.abs(true).max())
