"""The fused kernels match Paddle: logits, gradients and steps, under every training option."""

import copy
import os
import subprocess
import sys

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
    loss_and_gradients,
)
from levels import BF16, needs_fused
from places import ROOT
from tiny_pair import write_model
from tiny_pair_job import run, same, tiny_job, weights, write_files

from ernie_pair.core.errors import InputError
from ernie_pair.kernels import encoder_layer, library
from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.kernels.encoder_layer import FusedLayer
from ernie_pair.kernels.library import POOL, WorkspacePool, open_kernels, rounded_size
from ernie_pair.models.networks.encoders import constant_weights
from ernie_pair.models.networks.kernel_path import choose_path, seed_dropout
from ernie_pair.runtime.cpu import LEVEL_ASKED
from ernie_pair.runtime.paddle_patches.layers import own_forward
from ernie_pair.training.recompute import freeze, recompute_layers

pytestmark = needs_fused
LOSS = {"fp32": 1e-5, "bf16": 2e-4}  # for a freshly initialised model


@pytest.mark.parametrize("precision", ["fp32", BF16])
@pytest.mark.parametrize("shape", SHAPES)
def test_loss_and_gradients_of_every_shape(tmp_path, shape, precision):
    assert_equal_to_plain(build(tmp_path / "m", shape=shape), batch_of(shape), precision)


@pytest.mark.parametrize("precision", ["fp32", BF16])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("family", ["ernie", "bert", "roberta", "electra", "skep"])
def test_loss_and_gradients_of_every_family(tmp_path, family, pooling, precision):
    model = build(tmp_path / "m", family, pooling=pooling)
    assert_equal_to_plain(model, batch_of(), precision)
    assert all(isinstance(own_forward(layer), FusedLayer) for layer in model.layers())


@pytest.mark.parametrize(
    "changes", [{"hidden_act": "relu"}, {"use_task_id": True, "task_type_vocab_size": 3}]
)
def test_relu_and_task_embeddings(tmp_path, changes):
    assert_equal_to_plain(build(tmp_path / "m", "ernie", **changes), batch_of())


@pytest.mark.parametrize("level", ["avx2", "avx512"])
def test_lower_levels_match_paddle(tmp_path, monkeypatch, level):
    monkeypatch.setenv(LEVEL_ASKED, level)
    if open_kernels().level != level:
        pytest.skip(f"this processor has no {level}")
    assert_equal_to_plain(build(tmp_path / "m", shape="width of 26"), batch_of("width of 26"))


def test_onednn_limited_to_avx2_matches_paddle():
    """oneDNN selects its code by the processor, so the limit must be set before it is loaded."""
    name = f"{__file__}::test_loss_and_gradients_of_every_shape"
    environment = {**os.environ, LEVEL_ASKED: "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
    done = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.parametrize("freezing", [{"freeze": "embeddings"}, {"freeze_layers": 1}, {"freeze": "encoder"}])
def test_frozen_parameters_get_no_gradient(tmp_path, freezing):
    write_files(tmp_path)
    config = tiny_job(tmp_path, **freezing).job.config
    model = build(tmp_path / "m")
    freeze(model, config)
    assert_equal_to_plain(model, batch_of())
    model.layers()[-1].linear1.weight.stop_gradient = True  # only one weight of its layer
    assert_equal_to_plain(model, batch_of())


@pytest.mark.parametrize("precision", ["fp32", BF16])
@pytest.mark.parametrize("change", ["recompute", "threads"])
def test_recompute_and_threads_do_not_change_a_bit(tmp_path, change, precision):
    model = build_fused(
        tmp_path / "m",
        shape="one block more",
        dropout=0.2,
        flags=KernelFlags(kernels="fused", precision=precision),
    )
    found = []
    for more in (0, 1):
        recompute_layers(model, change == "recompute" and bool(more))
        model.fused_state.threads = 1 + more * (change == "threads")
        found.append(loss_and_gradients(model, batch_of("one block more")))
    assert found[0][0] == found[1][0] and same(found[0][1], found[1][1])


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("precision", ["fp32", BF16])
def test_only_the_rows_that_are_read_are_computed(tmp_path, precision, recomputes):
    """Those and the gradients are the same as when all are; the others are 0."""
    layer = build_fused(tmp_path / "m", flags=KernelFlags(kernels="fused", precision=precision)).layers()[0]
    fused, found = own_forward(layer), []
    fused.is_recomputed, rows = recomputes, np.array([0, 3, 7, 14, 20], np.int32)
    weights, states = paddle.randn([5, 32]), paddle.randn([3, 7, 32])
    states.stop_gradient = False
    for fused.rows in (None, rows):
        output = layer(states).reshape([21, 32])
        (paddle.gather(output, paddle.to_tensor(rows)) * weights).sum().backward()
        of_parameters = [parameter.grad.numpy() for parameter in layer.parameters()]
        found.append([output.numpy()[rows], states.grad.numpy(), *of_parameters])
        states.clear_gradient()
        layer.clear_gradients()
    for whole, of_rows in zip(*found):
        np.testing.assert_allclose(of_rows, whole, rtol=1e-5, atol=1e-5)
    assert not np.delete(output.numpy(), rows, axis=0).any() and output.numpy()[rows].any()


def test_dropout_depends_only_on_the_seed(tmp_path):
    model = build_fused(tmp_path / "m", dropout=0.2)
    first, again, other = (loss_and_gradients(model, batch_of(), seed) for seed in (5, 5, 6))
    assert first[0] == again[0] and same(first[1], again[1]) and first[0] != other[0]
    ids, types, _ = map(paddle.to_tensor, batch_of())
    model.dropout.p = 0.0  # the head's dropout is Paddle's
    seed_dropout(model, 5)
    passes = [model(ids, types).numpy() for _ in range(2)]
    assert not np.array_equal(*passes)  # no seed was set between the passes


def test_each_seed_pass_layer_and_row_has_dropout_of_its_own(tmp_path):
    model = build_fused(tmp_path / "m", dropout=0.2)
    model.train()
    embeddings, first = (own_forward(part) for part in (model.embeddings()[0], model.layers()[0]))
    second = FusedLayer(first.layer, 1, first.state)  # of the same weights
    ids, states, found = paddle.ones([2, 4], "int64"), paddle.ones([2, 4, 32]), []
    for seed in (5, 6):
        seed_dropout(model, seed)
        for _ in range(3):  # the embeddings begin a pass
            found += [
                part(given).numpy() for part, given in ((embeddings, ids), (first, states), (second, states))
            ]
    assert len({one.tobytes() for one in found}) == 2 * 3 * 3
    assert all(len({row.tobytes() for row in one.reshape(8, 32)}) == 8 for one in found)


def test_dropout_has_the_mean_and_spread_of_paddles(tmp_path):
    """Over many rows the logits have the same mean and spread as with Paddle's dropout."""
    model = build(tmp_path / "m", dropout=0.1)
    model.dropout.p = 0.0
    ids, types, _ = batch_of()
    many = [paddle.to_tensor(np.tile(array, (400, 1))) for array in (ids, types)]
    means, spreads = [], []
    for flags in (PLAIN, FUSED):
        choose_path(model, flags, "cpu")
        model.train()
        seed_dropout(model, 5)
        with paddle.no_grad():
            logits = model(*many).numpy().reshape(400, *ids.shape[:1], 2)
        means.append(logits.mean(axis=0))
        spreads.append(logits.std(axis=0))
    assert np.all(np.abs(means[0] - means[1]) < 5 * (spreads[0] + spreads[1]) / np.sqrt(400))
    np.testing.assert_allclose(spreads[0], spreads[1], rtol=0.25)
    embedded = own_forward(model.embeddings()[0])(*many).numpy()
    assert np.mean(embedded == 0) == pytest.approx(0.1, abs=0.005)


def test_two_forward_passes_before_their_backward_passes(tmp_path):
    model = build_fused(tmp_path / "m", dropout=0.1)
    alone = [loss_and_gradients(model, batch_of(seed=seed), seed)[1] for seed in (1, 2)]
    losses = []
    for seed in (1, 2):
        ids, types, labels = map(paddle.to_tensor, batch_of(seed=seed))
        seed_dropout(model, seed)
        losses.append(paddle.nn.functional.cross_entropy(model(ids, types), labels))
    sum(losses).backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            expected = alone[0][name] + alone[1][name]
            np.testing.assert_allclose(parameter.grad.numpy(), expected, atol=1e-6 * np.abs(expected).max())


def test_memory_does_not_grow_over_many_shapes(tmp_path, monkeypatch):
    """Keeping buffers for all lengths would take several times the peak in use."""
    monkeypatch.setattr(library, "FREE_AT_LEAST", 0)
    pool, sizes = WorkspacePool(), set()
    monkeypatch.setattr(encoder_layer, "POOL", pool)
    take = pool.take
    monkeypatch.setattr(pool, "take", lambda size: sizes.add(rounded_size(size)) or take(size))
    model = build_fused(tmp_path / "m")
    most = []
    for length in (*range(3, 100, 8), *range(99, 3, -8)):
        ids = np.ones((8, length), dtype="int64")
        loss_and_gradients(model, (ids, np.zeros_like(ids), np.zeros(8, dtype="int64")))
        most.append(pool.in_use + pool.free_bytes)
    assert max(most) <= 1.25 * pool.peak_bytes < sum(sizes) and pool.in_use == 0


def test_a_discarded_forward_pass_frees_its_memory(tmp_path):
    model = build_fused(tmp_path / "m")
    ids, types, _ = map(paddle.to_tensor, batch_of())
    before = POOL.in_use
    logits = model(ids, types)
    assert POOL.in_use > before
    del logits
    assert POOL.in_use == before


@pytest.mark.parametrize("precision", ["fp32", BF16])
def test_changed_weights_take_effect_immediately(tmp_path, precision):
    model = build_fused(tmp_path / "m", flags=KernelFlags(kernels="fused", precision=precision))
    model.eval()
    ids, types, _ = map(paddle.to_tensor, batch_of())
    with paddle.no_grad(), constant_weights(model):
        before = model(ids, types).numpy()
        assert np.array_equal(model(ids, types).numpy(), before)
    weight = model.layers()[0].linear1.weight
    weight.set_value(weight.numpy() * 1.5)
    with paddle.no_grad(), constant_weights(model):
        assert not np.array_equal(model(ids, types).numpy(), before)


def test_a_deep_copied_model_is_independent(tmp_path):
    model = build_fused(tmp_path / "m")
    batch = batch_of()
    loss, _ = loss_and_gradients(model, batch)
    other = copy.deepcopy(model)
    for parameter in model.parameters():
        parameter.set_value(parameter * 0)
    assert loss_and_gradients(other, batch)[0] == loss


def test_unsupported_inputs_fall_back_to_paddle(tmp_path):
    model = build_fused(tmp_path / "m", "ernie")
    model.eval()
    ids, types, _ = map(paddle.to_tensor, batch_of())
    with paddle.no_grad():
        states = model.encoder(ids, token_type_ids=types)[0]
        words = model.encoder.embeddings.word_embeddings(ids)
        mask = paddle.zeros([3, 1, 7, 7])  # a separate mask for every query
        asked = model.encoder(ids, token_type_ids=types, attention_mask=mask)[0]
        attentions = model.encoder(ids, token_type_ids=types, output_attentions=True)
        given = model.encoder(
            None, token_type_ids=types, inputs_embeds=words, attention_mask=(ids != 0).astype("float32")
        )
    assert states.shape == asked.shape == given[0].shape == [3, 7, 32]
    assert len(attentions) > 2
    np.testing.assert_allclose(given[0].numpy(), states.numpy(), atol=1e-4)


def test_a_fused_model_can_be_saved_with_to_static(tmp_path):
    model = build_fused(tmp_path / "m")
    model.eval()
    inputs = [paddle.to_tensor(array) for array in batch_of()[:2]]
    with paddle.no_grad():
        expected = model(*inputs).numpy()
    shapes = [paddle.static.InputSpec([None, None], "int64", name) for name in ("ids", "types")]
    traced = paddle.jit.to_static(model, input_spec=shapes, full_graph=True)
    paddle.jit.save(traced, str(tmp_path / "static"))
    answer = paddle.jit.load(str(tmp_path / "static"))(*inputs).numpy()
    np.testing.assert_allclose(answer, expected, atol=1e-4)


@pytest.mark.parametrize("name, wrong", [("ids", 99), ("ids", -1), ("types", 2)])
def test_an_out_of_range_id_is_rejected(tmp_path, name, wrong):
    model = build_fused(tmp_path / "m")
    ids, types, _ = batch_of()
    ids[0, 0], {"ids": ids, "types": types}[name][1, 2] = 0, wrong
    with pytest.raises(InputError, match=rf"the token (id|type) {wrong} is not one of the model's"):
        model(paddle.to_tensor(ids), paddle.to_tensor(types))


def test_other_models_are_computed_as_by_paddle(tmp_path):
    """Paddle returns zeros for the padding id, whatever its row holds."""
    model = build(tmp_path / "m", pooling="mean")
    table = model.encoder.embeddings.word_embeddings.weight
    table.set_value(table.numpy() + 1)
    assert_equal_to_plain(model, batch_of())


STEPS = {
    "plain step": {},
    "clipping": {"grad_clip": 0.05},
    "accumulation": {"batch_size": 4, "gradient_accumulation_steps": 4},
    "fgm": {"fgm_epsilon": 0.5},
    "layer decay": {"layer_decay": 0.5, "weight_decay": 0.1},
    "frozen": {"freeze_layers": 1},
    "recompute": {"use_recompute": True},
    "class weights": {"class_weights": "1,3"},
    "loss scale": {"use_amp": True, "amp_dtype": "float32"},
    "any length": {"bucket": False},
}


@pytest.mark.parametrize("precision", ["fp32", BF16])
@pytest.mark.parametrize("option", STEPS)
def test_first_training_steps_match_the_plain_path(tmp_path, option, precision):
    write_files(tmp_path)
    write_model(tmp_path / "model", hidden_act="gelu", initializer_range=0.08)
    found = []
    for flags in ({"kernels": "plain"}, {"kernels": "fused", "precision": precision}):
        tiny = tiny_job(tmp_path, dropout=0.0, learning_rate=1e-4, **flags, **STEPS[option])
        found.append(([m["loss"] for m in run(tiny, 5)], weights(tiny.job), tiny.job.evaluate("valid")))
    (plain, before, asked), (fused, after, answered) = found
    np.testing.assert_allclose(fused, plain, rtol=LOSS[precision])
    assert answered["loss"] == pytest.approx(asked["loss"], rel=2 * LOSS[precision])
    if precision == "fp32":
        for name in before:
            if not name.endswith("k_proj.bias"):
                np.testing.assert_allclose(after[name], before[name], atol=2e-5, err_msg=name)


def test_rdrop_draws_two_dropout_masks_per_pair(tmp_path):
    write_files(tmp_path)
    write_model(tmp_path / "model", hidden_act="gelu", initializer_range=0.3)
    metrics = run(tiny_job(tmp_path, kernels="fused", rdrop_alpha=1.0), 3)
    assert all(m["divergence"] > 1e-4 for m in metrics)
