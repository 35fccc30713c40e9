"""Whatever the kernels cannot compute, or no longer can, is left to Paddle; no read is out of bounds."""

import logging

import numpy as np
import paddle
import pytest
from fused_cases import (
    FUSED,
    PLAIN,
    assert_equal_to_plain,
    batch_of,
    build,
    fused_layer,
    inputs,
    loss_and_gradients,
)
from paddle import nn

from data_tools.files.errors import InputError
from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.kernels.embeddings import FusedEmbeddings
from ernie_pair.kernels.library import open_kernels
from ernie_pair.models.networks.kernel_path import choose_path
from ernie_pair.runtime.paddle_patches.layers import own_forward

pytestmark = pytest.mark.skipif(bool(open_kernels().reason), reason=open_kernels().reason or "never")


class Doubled(nn.Linear):
    """A linear layer with extra computation, like LoRALinear."""

    def forward(self, x):
        return super().forward(x) * 2


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


CHANGES = {  # to the layers
    "subclass": subclass,
    "forward of its own": own_function,
    "hook after": lambda model: model.layers()[1].linear2.register_forward_post_hook(doubled),
    "hook before": lambda model: model.layers()[0].self_attn.q_proj.register_forward_pre_hook(
        lambda layer, given: (given[0] * 2,)
    ),
    "hook of the attention": lambda model: model.layers()[0].self_attn.register_forward_post_hook(doubled),
    "hook of the dropout": lambda model: model.layers()[0].dropout1.register_forward_post_hook(doubled),
    "weight norm": weight_norm,
    "two epsilons": lambda model: setattr(model.layers()[0].norm2, "_epsilon", 1e-3),
    "other activation": lambda model: setattr(model.layers()[0], "activation", nn.functional.tanh),
}
OF_EMBEDDINGS = {
    "hook of words": lambda model: model.embeddings()[0].word_embeddings.register_forward_post_hook(doubled),
    "hook of the norm": lambda model: model.embeddings()[0].layer_norm.register_forward_post_hook(doubled),
    "hook of the dropout": lambda model: model.embeddings()[0].dropout.register_forward_post_hook(doubled),
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
    model = build(tmp_path / "m")
    choose_path(model, FUSED, "cpu")
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
    model = build(tmp_path / "m", "ernie")
    ids = paddle.to_tensor([[5, 6, 7]])
    positions = paddle.to_tensor([[0, 1, 2], [3, 4, 5]])
    answers = []
    for flags in (FUSED, PLAIN):
        choose_path(model, flags, "cpu")
        model.eval()
        answers.append(model.embeddings()[0](ids, position_ids=positions).numpy())
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
    model = build(tmp_path / "m", "ernie")
    choose_path(model, FUSED, "cpu")
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
    model = build(tmp_path / "m")
    choose_path(model, FUSED, "cpu")
    expected = states(model)
    model.to(dtype=dtype)
    if dtype == "float64":
        np.testing.assert_allclose(states(model), expected, atol=1e-4)
    else:  # Paddle lacks bfloat16 on some CPUs, where it raises its own error
        layer = own_forward(model.layers()[0])
        assert not layer.checked.are_fit(model.layers()[0].parameters(), lambda tensors: [])
        assert not own_forward(model.embeddings()[0]).__self__.fused._fit_parameters()
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


@pytest.mark.parametrize("shape", [(0, 5, 32), (3, 0, 32)])
def test_an_empty_batch_raises_paddles_error(shape):
    layer, fused = fused_layer()
    # Messages of Paddle 2.6 and 3; a later Paddle may accept an empty batch.
    with pytest.raises(ValueError, match="must not be equal 0|Broadcast dimension mismatch"):
        fused(paddle.zeros(shape))


def test_second_derivatives_are_rejected(tmp_path):
    x = inputs()
    x.stop_gradient = False
    y = fused_layer()[1](x).sum()
    with pytest.raises(OSError, match="no second derivatives; pass --kernels plain"):
        paddle.grad(y, x, create_graph=True)
    model = build(tmp_path / "m")
    choose_path(model, FUSED, "cpu")
    words = model.embeddings()[0].word_embeddings.weight
    embedded = model.embeddings()[0](paddle.to_tensor(batch_of()[0])).sum()
    with pytest.raises(OSError, match="no second derivatives; pass --kernels plain"):
        paddle.grad(embedded, words, create_graph=True)


def test_embeddings_can_be_frozen_between_forward_and_backward(tmp_path):
    """As in Paddle, the forward pass decides which parameters get a gradient."""
    model = build(tmp_path / "m")
    choose_path(model, FUSED, "cpu")
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
