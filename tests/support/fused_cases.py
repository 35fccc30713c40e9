"""Classifiers of many shapes that the fused kernels compute, compared with how Paddle computes them."""

import numpy as np
import paddle
import pytest
from paddle import nn
from tiny_pair import write_model

from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.kernels.encoder_layer import FusedLayer, ModelState
from ernie_pair.models.networks.classifier import build_classifier
from ernie_pair.models.networks.kernel_path import choose_path, seed_dropout
from ernie_pair.models.source import open_model

FUSED, PLAIN = KernelFlags(kernels="fused"), KernelFlags(kernels="plain")
# Of one with large weights, in which every rounding shows; and of the gradients' norms.
LARGE_LOSS, LARGE_GRADIENT = {"fp32": 1e-5, "bf16": 2e-2}, {"fp32": 5e-5, "bf16": 0.25}
SHAPES = {  # hidden, heads, layers, inner; rows, length
    "small": ((32, 2, 2, 64), (3, 7)),
    "width of 26": ((52, 2, 2, 100), (5, 17)),
    "width of 64": ((128, 2, 2, 600), (2, 40)),  # inside, strips of 256 and a rest
    "one row": ((32, 2, 1, 64), (1, 5)),
    "one block more": ((32, 4, 2, 64), (37, 19)),
    "long": ((32, 2, 1, 64), (2, 120)),
    "longer than a block": ((32, 2, 2, 64), (2, 301)),
    "narrow inside": ((64, 4, 2, 24), (3, 9)),
}


def build(folder, family="ernie_gram", shape="small", dropout=0.0, pooling="cls", **changes):
    hidden, heads, layers, inner = SHAPES[shape][0]
    sizes = {"hidden_size": hidden, "num_attention_heads": heads, "num_hidden_layers": layers}
    more = {"intermediate_size": inner, "hidden_act": "gelu", "max_position_embeddings": 512}
    write_model(folder, **{**sizes, **more, **changes})
    source = open_model(str(folder), model_type=family, from_scratch=True)
    model = build_classifier(source, 7, dropout, pooling)
    rng = np.random.default_rng(0)
    for name, parameter in model.named_parameters():  # nothing stays at 0 or 1, but the row of the padding
        spread = 0.3 if "norm" in name or parameter.ndim == 1 else 1.0 / np.sqrt(parameter.shape[0])
        value = parameter.numpy() * 0.5 + rng.normal(0, spread, parameter.shape).astype("float32")
        if "word_embeddings" in name:
            value[0] = 0
        parameter.set_value(value)
    return model


def build_fused(folder, family="ernie_gram", flags=FUSED, **shape):
    model = build(folder, family, **shape)
    choose_path(model, flags, "cpu")
    return model


def batch_of(shape="small", seed=0):
    rows, length = SHAPES[shape][1]
    rng = np.random.default_rng(seed)
    ids = rng.integers(1, 30, (rows, length))
    kept = rng.integers(2, length + 1, rows)
    kept[0] = length
    ids[np.arange(length) >= kept[:, None]] = 0
    types = (np.arange(length) > length // 2).astype("int64")[None].repeat(rows, 0)
    return ids, types, rng.integers(0, 2, rows)


def loss_and_gradients(model, batch, seed=5):
    ids, types, labels = map(paddle.to_tensor, batch)
    model.train()
    seed_dropout(model, seed)
    loss = paddle.nn.functional.cross_entropy(model(ids, types), labels)
    loss.backward()
    gradients = {n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}
    model.clear_gradients()
    return float(loss), gradients


def assert_equal_to_plain(model, batch, precision="fp32"):
    choose_path(model, PLAIN, "cpu")
    loss, gradients = loss_and_gradients(model, batch)
    assert choose_path(model, KernelFlags(kernels="fused", precision=precision), "cpu").is_fused
    fused_loss, fused = loss_and_gradients(model, batch)
    assert fused_loss == pytest.approx(loss, rel=LARGE_LOSS[precision])
    assert fused.keys() == gradients.keys()
    largest = max(float(np.linalg.norm(gradient)) for gradient in gradients.values())
    for name in gradients:
        if not name.endswith("k_proj.bias"):  # whose true gradient is zero
            scale = max(float(np.linalg.norm(gradients[name])), 0.01 * largest)
            apart = float(np.linalg.norm(fused[name] - gradients[name])) / scale
            assert apart < LARGE_GRADIENT[precision], (name, apart)


def fused_layer(precision="fp32", **changes):
    """A layer by itself without dropout, and what computes it by the kernels."""
    paddle.seed(3)
    sizes = {"dropout": 0.0, "activation": "gelu", "normalize_before": False, **changes}
    layer = nn.TransformerEncoderLayer(32, 2, 64, **sizes)
    return layer, FusedLayer(layer, 0, ModelState(precision, 1))


def inputs(*shape, seed=0):
    rng = np.random.default_rng(seed)
    return paddle.to_tensor(rng.normal(size=shape or (3, 5, 32)).astype("float32"))
