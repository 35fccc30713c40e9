"""What the kernels cannot compute is left to Paddle; the edges of a layer; bfloat16 at each level."""

import logging
from types import SimpleNamespace

import numpy as np
import paddle
import pytest
from fused_cases import (
    FUSED,
    PLAIN,
    SHAPES,
    assert_equal_to_plain,
    batch_of,
    build,
    build_fused,
    fused_layer,
    inputs,
    loss_and_gradients,
)
from levels import needs_bf16, needs_fused
from paddle import nn

from ernie_pair.core.errors import InputError
from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.kernels.encoder_layer import EmbeddingPass, FusedEmbeddings, LayerPass
from ernie_pair.kernels.library import PRECISIONS, Kernels, WorkspacePool, open_kernels
from ernie_pair.models.networks.kernel_path import choose_path
from ernie_pair.runtime.cpu import LEVEL_ASKED, LEVELS, has_bf16
from ernie_pair.runtime.paddle_patches.layers import own_forward

pytestmark = needs_fused


class Doubled(nn.Linear):
    """A linear layer with extra computation, like LoRALinear."""

    def forward(self, x):
        return super().forward(x) * 2


class Alone(nn.Layer):
    """An attention of somebody's own, without heads of its own."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, query, *others):
        return self.attention(query, *others) * 2


def doubled(layer, given, output):
    return output * 2


def subclass(model):
    layer = model.layers()[0]
    other = Doubled(*layer.linear1.weight.shape)
    other.set_state_dict(layer.linear1.state_dict())
    layer.linear1 = other


def own_function(model):
    norm = model.layers()[0].norm1
    norm.forward = lambda x: nn.LayerNorm.forward(norm, x) * 2


def weight_norm(model):
    linear = nn.utils.weight_norm(model.layers()[0].linear1)
    linear.weight_g.set_value(linear.weight_g * 2)


def hook(find, before=False):
    """A change that doubles what a part of the model answers, or what it is given."""
    if before:
        return lambda model: find(model).register_forward_pre_hook(lambda layer, given: (given[0] * 2,))
    return lambda model: find(model).register_forward_post_hook(doubled)


CHANGES = {  # to the layers
    "subclass": subclass,
    "forward of its own": own_function,
    "hook after": hook(lambda model: model.layers()[1].linear2),
    "hook before": hook(lambda model: model.layers()[0].self_attn.q_proj, before=True),
    "hook of the attention": hook(lambda model: model.layers()[0].self_attn),
    "hook of the dropout": hook(lambda model: model.layers()[0].dropout1),
    "weight norm": weight_norm,
    "two epsilons": lambda model: setattr(model.layers()[0].norm2, "_epsilon", 1e-3),
    "other attention": lambda model: setattr(
        model.layers()[0], "self_attn", Alone(model.layers()[0].self_attn)
    ),
    "other activation": lambda model: setattr(model.layers()[0], "activation", nn.functional.tanh),
}
OF_EMBEDDINGS = {
    "hook of words": hook(lambda model: model.embeddings()[0].word_embeddings),
    "hook of the norm": hook(lambda model: model.embeddings()[0].layer_norm),
    "hook of the dropout": hook(lambda model: model.embeddings()[0].dropout),
}


def states(model, **given):
    """The encoder's states for a batch, with any further inputs passed on."""
    ids, types, _ = map(paddle.to_tensor, batch_of())
    model.eval()
    with paddle.no_grad():
        return model.encoder(ids, **{"token_type_ids": types, **given})[0].numpy()


def fused_and_plain(model, **given):
    answers = []
    for flags in (FUSED, PLAIN):
        choose_path(model, flags, "cpu")
        answers.append(states(model, **given))
    return answers


@pytest.mark.parametrize(
    "change", [*CHANGES.values(), *OF_EMBEDDINGS.values()], ids=[*CHANGES, *OF_EMBEDDINGS]
)
def test_a_module_changed_after_kernel_choice_takes_effect(tmp_path, caplog, change):
    model = build_fused(tmp_path / "m")
    before = states(model)
    change(model)
    caplog.set_level(logging.WARNING)
    found = [states(model) for _ in range(2)][1]
    assert len([record for record in caplog.records if "left to the plain kernels" in record.message]) == 1
    choose_path(model, PLAIN, "cpu")
    np.testing.assert_allclose(found, states(model), atol=2e-5)
    assert np.abs(found - before).max() > 1e-4


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_modified_layer_gets_no_fused_kernels(tmp_path, change):
    model = build(tmp_path / "m")
    change(model)
    assert not choose_path(model, KernelFlags(), "cpu").is_fused
    with pytest.raises(InputError, match="the fused kernels"):
        choose_path(model, FUSED, "cpu")


@pytest.mark.parametrize("change", OF_EMBEDDINGS.values(), ids=OF_EMBEDDINGS)
def test_modified_embeddings_get_no_fused_kernels(tmp_path, change):
    model = build(tmp_path / "m")
    change(model)
    np.testing.assert_allclose(*fused_and_plain(model), atol=1e-4)
    choose_path(model, FUSED, "cpu")
    assert own_forward(model.embeddings()[0]) is None


@pytest.mark.parametrize("family", ["ernie", "ernie_gram", "bert", "roberta"])
@pytest.mark.parametrize("shape", [[1, 7], [7], [1, 1], [3, 1], [3, 7]], ids=str)
def test_given_position_and_type_ids_are_broadcast(tmp_path, family, shape):
    model = build(tmp_path / "m", family)
    positions = paddle.to_tensor(np.arange(100, 100 + np.prod(shape)).reshape(shape))
    types = paddle.to_tensor(np.arange(np.prod(shape)).reshape(shape) % 2)
    np.testing.assert_allclose(*fused_and_plain(model, position_ids=positions), atol=1e-4)
    np.testing.assert_allclose(*fused_and_plain(model, token_type_ids=types), atol=1e-4)


def test_more_position_rows_than_id_rows_are_left_to_paddle(tmp_path):
    model, answers = build(tmp_path / "m", "ernie"), []
    positions = paddle.to_tensor([[0, 1, 2], [3, 4, 5]])
    for flags in (FUSED, PLAIN):
        choose_path(model, flags, "cpu")
        model.eval()
        answers.append(model.embeddings()[0](paddle.to_tensor([[5, 6, 7]]), position_ids=positions).numpy())
    assert answers[0].shape == (2, 3, 32)
    np.testing.assert_allclose(*answers, atol=1e-5)


@pytest.mark.parametrize("task_id", [3, 16, -1])
def test_an_out_of_range_task_id_is_rejected(tmp_path, task_id):
    sizes = {"use_task_id": True, "task_type_vocab_size": 3}
    with pytest.raises(
        InputError, match=f"config.json: task_id is {task_id}, .* below task_type_vocab_size 3"
    ):
        build(tmp_path / "m", "ernie", task_id=task_id, **sizes)
    model = build(tmp_path / "m", "ernie", task_id=2, **sizes)
    np.testing.assert_allclose(*fused_and_plain(model), atol=1e-4)
    choose_path(model, FUSED, "cpu")
    model.embeddings()[0].task_id = task_id
    with pytest.raises(InputError, match=f"the task_id {task_id} is not one of the model's 3"):
        states(model)


def test_empty_ids_and_unused_task_ids_are_left_to_paddle(tmp_path):
    build(tmp_path / "m", "ernie", task_id=16, use_task_id=False)
    model = build_fused(tmp_path / "m", "ernie")
    assert isinstance(model.embeddings()[0].fused, FusedEmbeddings)
    assert model.embeddings()[0](paddle.zeros([0, 5], dtype="int64")).shape == [0, 5, 32]


@pytest.mark.parametrize("dtype", ["bool", "int32", "int64", "float64"])
def test_masks_of_other_dtypes_act_as_in_paddle(dtype):
    layer, fused = fused_layer()
    mask = paddle.to_tensor(np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]]).astype(dtype))
    mask = mask.reshape([3, 1, 1, 5])
    np.testing.assert_allclose(fused(inputs(), mask).numpy(), layer(inputs(), mask).numpy(), atol=1e-5)


def test_a_mask_that_requires_a_gradient_gets_one():
    layer, fused = fused_layer()
    found = []
    for forward in (fused, layer):
        mask = inputs(3, 1, 1, 5, seed=1)
        mask.stop_gradient = False
        (forward(inputs(), mask) ** 2).sum().backward()
        found.append(mask.grad.numpy())
    np.testing.assert_allclose(*found, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_cast_weights_are_not_read_as_float32(tmp_path, dtype):
    model = build_fused(tmp_path / "m")
    expected = states(model)
    model.to(dtype=dtype)
    if dtype == "float64":
        np.testing.assert_allclose(states(model), expected, atol=1e-4)
    else:  # Paddle lacks bfloat16 on some CPUs, where it raises its own error
        layer = own_forward(model.layers()[0])
        assert not layer.checked.are_fit(model.layers()[0].parameters(), lambda tensors: [])
        part = model.embeddings()[0]
        assert not part.fused.checked.are_fit(part.parameters(), lambda tensors: [])
    model.to(dtype="float32")
    np.testing.assert_allclose(states(model), expected, atol=0.5 if dtype == "bfloat16" else 1e-4)


def test_weights_of_a_wrong_width_raise_paddles_error():
    layer, fused = fused_layer()
    fused(inputs())
    layer.linear1, layer.linear2 = nn.Linear(32, 160), nn.Linear(160, 32)
    np.testing.assert_allclose(fused(inputs()).numpy(), layer(inputs()).numpy(), atol=1e-5)
    layer, fused = fused_layer()
    fused(inputs())
    layer.linear1.weight = layer.create_parameter([32, 16])  # its bias stays as long as before
    with pytest.raises(ValueError, match="shape"):
        fused(inputs())
    layer, fused = fused_layer()
    with pytest.raises(ValueError):
        fused(inputs(3, 5, 16))


def test_casting_weights_before_backward_is_an_error():
    layer, fused = fused_layer()
    states = fused(inputs())
    layer.to(dtype="float64")
    with pytest.raises(OSError, match="cast or moved before their backward pass; use --kernels plain"):
        states.sum().backward()


@pytest.mark.parametrize("kind", [LayerPass, EmbeddingPass])
def test_gradients_are_computed_once(tmp_path, monkeypatch, kind):
    """Paddle crashes by itself in a second backward pass of any PyLayer, before it comes here."""
    calls, begin = [], kind.begin
    monkeypatch.setattr(kind, "begin", lambda call, tensors: calls.append(call) or begin(call, tensors))
    model = build_fused(tmp_path / "m")
    states = model.encoder(*map(paddle.to_tensor, batch_of()[:2]))[0]
    states.sum().backward()
    with pytest.raises(RuntimeError, match="are computed once; use --kernels plain"):
        calls[0].backward(paddle.ones_like(states))


@pytest.mark.parametrize("rate", ["hidden", "attention", "embeddings"])
def test_dropout_of_everything_is_left_to_paddle(tmp_path, rate):
    if rate == "embeddings":
        model = build_fused(tmp_path / "m")
        part = model.embeddings()[0]
        part.train()
        part.dropout.p = 1.0
        assert not part(paddle.to_tensor(batch_of()[0])).numpy().any()
        return
    layer, fused = fused_layer()
    layer.train()
    if rate == "attention":
        layer.self_attn.dropout = 1.0
    else:
        layer.dropout1.p = layer.dropout2.p = 1.0
    plain = nn.TransformerEncoderLayer.forward(layer, inputs())
    np.testing.assert_allclose(fused(inputs()).numpy(), plain.numpy(), atol=1e-5)


@needs_bf16
def test_new_weights_are_packed_beside_embeddings_of_paddle(tmp_path):
    model = build(tmp_path / "m")
    OF_EMBEDDINGS["hook of words"](model)
    found = []
    for _ in range(2):  # in the second pass with other weights, which a new choice reads too
        choose_path(model, KernelFlags(kernels="fused", precision="bf16"), "cpu")
        found.append(states(model))
        weight = model.layers()[0].linear1.weight
        weight.set_value(weight.numpy() * 2)
        found.append(states(model))
        weight.set_value(weight.numpy() / (1 if len(found) == 2 else 2))
    assert np.array_equal(found[1], found[2]) and not np.array_equal(found[0], found[1])


@pytest.mark.parametrize("shape", [(0, 5, 32), (3, 0, 32)])
def test_an_empty_batch_raises_paddles_error(shape):
    layer, fused = fused_layer()
    with pytest.raises(ValueError, match="must not be equal 0|Broadcast dimension mismatch"):
        fused(paddle.zeros(shape))


def test_second_derivatives_are_rejected(tmp_path):
    x = inputs()
    x.stop_gradient = False
    y = fused_layer()[1](x).sum()
    with pytest.raises(OSError, match="no second derivatives; pass --kernels plain"):
        paddle.grad(y, x, create_graph=True)
    model = build_fused(tmp_path / "m")
    words = model.embeddings()[0].word_embeddings.weight
    embedded = model.embeddings()[0](paddle.to_tensor(batch_of()[0])).sum()
    with pytest.raises(OSError, match="no second derivatives; pass --kernels plain"):
        paddle.grad(embedded, words, create_graph=True)


def test_embeddings_can_be_frozen_between_forward_and_backward(tmp_path):
    """As in Paddle, the forward pass decides which parameters get a gradient."""
    model = build_fused(tmp_path / "m")
    words = model.embeddings()[0].word_embeddings.weight
    ids, types, _ = map(paddle.to_tensor, batch_of())
    loss = model(ids, types).sum()
    words.stop_gradient = True
    loss.backward()
    words.stop_gradient = False
    loss_and_gradients(model, batch_of())  # the earlier pass leaves no trace


def test_a_nondefault_layer_norm_epsilon_matches_paddle(tmp_path):
    model = build(tmp_path / "m")
    for layer in model.layers():
        layer.norm1._epsilon = layer.norm2._epsilon = 1e-3
    assert_equal_to_plain(model, batch_of())


# --- edge cases of a layer, and its accuracy compared with float64


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


# --- bfloat16 products at each level that supports them


WITH_BF16 = [level for level in LEVELS if has_bf16(level)]
MORE_ROWS = "more rows than a turned product takes at once"


@pytest.fixture(params=WITH_BF16)
def level(request, monkeypatch):
    monkeypatch.setenv(LEVEL_ASKED, request.param)
    kernels = open_kernels()
    if LEVELS.index(request.param) > kernels.functions.fused_processor_level():
        pytest.skip(f"this processor has no {request.param}")
    assert kernels.level == request.param, "it was not compiled, or the system refuses it"
    return request.param


def rounded(values):
    """``values`` rounded to bfloat16, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


def product(a, b, threads=1):
    (m, k), n = a.shape, b.shape[1]
    functions, precision = open_kernels().functions, PRECISIONS["bf16"]
    work = WorkspacePool().take(functions.fused_product_work_bytes(m, n, k, precision))
    c = np.full((m, n), np.nan, np.float32)
    given = (a.ctypes.data, b.ctypes.data, precision, threads, work.address, c.ctypes.data)
    assert functions.fused_product(m, n, k, *given) == 0
    return c


@pytest.mark.parametrize(
    "m, n, k",
    [(1, 1, 1), (16, 16, 32), (17, 33, 31), (32, 32, 64), (33, 47, 70), (215, 312, 1248), (530, 100, 26)],
)
def test_products_equal_those_of_bf16_rounded_inputs(level, m, n, k):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
    expected = rounded(a).astype(np.float64) @ rounded(b).astype(np.float64)
    found = product(a, b)
    np.testing.assert_allclose(found, expected, atol=2e-6 * k**0.5 * 3)
    assert np.array_equal(found, product(a, b, threads=2))


def test_nan_in_an_input_affects_only_its_row(level):
    a, b = np.ones((40, 50), np.float32), np.ones((50, 40), np.float32)
    a[3, 49] = np.nan
    found = product(a, b)
    assert np.isnan(found[3]).all() and (np.delete(found, 3, axis=0) == 50).all()


@pytest.mark.parametrize("shape", [*SHAPES, MORE_ROWS])
def test_bf16_matches_paddle_for_every_shape(level, tmp_path, monkeypatch, shape):
    monkeypatch.setitem(SHAPES, MORE_ROWS, ((32, 2, 1, 64), (60, 19)))
    model, batch = build(tmp_path / "m", shape=shape), batch_of(shape)
    assert_equal_to_plain(model, batch, "bf16")


def states_and_gradients(precision, x):
    """A layer's states computed by the kernels, and the gradients of its input and its weights."""
    layer, fused = fused_layer(precision)
    x = paddle.to_tensor(x.numpy(), stop_gradient=False)
    y = fused(x)
    (y * paddle.sin(paddle.arange(y.size, dtype="float32")).reshape(y.shape)).sum().backward()
    found = {
        name: p.grad for name, p in layer.named_parameters() if "k_proj.bias" not in name
    }  # its gradient is zero
    return {name: tensor.numpy() for name, tensor in {"y": y, "x": x.grad, **found}.items()}


@pytest.mark.parametrize("shape", [(3, 5, 32), (2, 300, 32), (40, 9, 32)], ids=str)
def test_a_bf16_layer_is_close_to_float32(level, shape):
    """Also with two or more strips of rows, whose last columns do not fill a whole tile."""
    exact, rough = (states_and_gradients(precision, inputs(*shape)) for precision in ("fp32", "bf16"))
    for name, expected in exact.items():
        assert np.linalg.norm(rough[name] - expected) < 0.03 * np.linalg.norm(expected), name


def test_a_level_below_the_processors_gives_the_reason(monkeypatch):
    monkeypatch.delenv(LEVEL_ASKED, raising=False)
    library = SimpleNamespace(fused_processor_level=lambda: LEVELS.index("amx_bf16"))
    assert Kernels(library, "amx_bf16").why_lower == ""
    assert Kernels(library, "avx512_bf16").why_lower.startswith(
        "no amx_bf16: it was not compiled, or the sys"
    )
    monkeypatch.setenv(LEVEL_ASKED, "avx512_bf16")
    assert Kernels(library, "avx512_bf16").why_lower == ""
