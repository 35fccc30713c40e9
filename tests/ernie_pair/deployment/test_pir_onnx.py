"""Every operator that is translated to ONNX computes there what it computes in Paddle."""

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.nn import functional as F

from ernie_pair.deployment.pir_onnx import OF_GRAPH, SAME, TRANSLATIONS, UntranslatedError, onnx_of_program

onnxruntime = pytest.importorskip("onnxruntime")
IDS = np.array([[3, 0, 7, 2], [5, 1, 0, 0], [9, 4, 4, 8]])
TYPES = np.array([[0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 1, 1]])
WIDE = np.arange(10 * 6, dtype=np.float32).reshape(10, 6) % 7 / 7 - 0.4


def numbers(ids):
    """Float32 [B, S], of both signs."""
    return ids.astype("float32") * 0.37 - 1.1


def table():
    """Float32 [10, 6]."""
    return paddle.to_tensor(WIDE)


def compared(ids, types):
    x, y = numbers(ids), numbers(types)
    tests = [x > y, x >= y, x < y, x <= y, ids == types, ids != types]
    tests += [paddle.logical_and(x > 0, y > 0), paddle.logical_or(x > 0, y > 0), paddle.logical_not(x > 0)]
    return paddle.concat([test.astype("int64") for test in tests], axis=1)


# {name: what makes the answer of ids a and token types b, int64 [B, S]}
CASES = {
    "arithmetic": lambda a, b: numbers(a) * 2 + numbers(b) / (b + 1.5) - numbers(a),
    "scaled after": lambda a, b: paddle.scale(numbers(a), 3.0, 0.5, bias_after_scale=False),
    "not scaled": lambda a, b: paddle.assign(paddle.scale(numbers(a), 1.0, 0.0)),
    "comparisons": compared,
    "choice": lambda a, b: paddle.where(b > 0, numbers(a), -numbers(a)),
    "roots": lambda a, b: paddle.sqrt(a + 1.0) + paddle.rsqrt(a + 1.0) + paddle.square(numbers(a)),
    "curves": lambda a, b: paddle.sin(numbers(a)) + paddle.cos(numbers(a)) + paddle.exp(b * 0.1),
    "mark": lambda a, b: paddle.asinh(numbers(a)),
    "logarithm": lambda a, b: paddle.log(a + 1.0) + paddle.abs(numbers(a)) + paddle.erf(b * 0.1),
    "powers": lambda a, b: paddle.pow(a + 1.0, numbers(b)),
    "rounding": lambda a, b: paddle.floor(numbers(a)) + paddle.ceil(numbers(a)),
    "bounds": lambda a, b: paddle.maximum(numbers(a), numbers(b)) - paddle.minimum(a, b).astype("float32"),
    "whole quotients": lambda a, b: (a - 5) // (b + 2),
    "activations": lambda a, b: F.relu(numbers(a)) + F.gelu(numbers(a)) + F.silu(numbers(a)),
    "curved": lambda a, b: paddle.tanh(numbers(a)) + F.sigmoid(numbers(b)),
    "sums": lambda a, b: numbers(a).sum() + numbers((b > 0).sum(axis=1, keepdim=True) + a.sum(axis=1)),
    "means": lambda a, b: numbers(a).mean(axis=1, keepdim=True) + numbers(b).mean(),
    "ends": lambda a, b: numbers(a.max(axis=1)) + numbers(a).min(axis=1, keepdim=True) + numbers(b.max()),
    "any": lambda ids, types: (ids > 4).any(axis=1, keepdim=True).astype("int64")
    + (types > 0).any().astype("int64"),
    "running sums": lambda a, b: numbers(paddle.cumsum(a, axis=1)) + paddle.cumsum(numbers(a), axis=0),
    "norms": lambda a, b: F.normalize(numbers(a), axis=1),
    "softmax": lambda a, b: F.softmax(numbers(a), axis=0),
    "dropout": lambda a, b: F.dropout(numbers(a), 0.5, training=False),
    "words": lambda a, b: F.embedding(a, table()),
    "rows": lambda a, b: paddle.gather(table(), a[:, 1]) + numbers(paddle.gather(a, b[0, :1], 1)),
    "norm": lambda a, b: F.layer_norm(F.embedding(a, table()), [6], table()[1], table()[2], 1e-5),
    "products": lambda a, b: paddle.matmul(table(), F.embedding(a, table()), transpose_y=True),
    "turned": lambda a, b: paddle.matmul(numbers(a), numbers(b), transpose_x=True),
    "filled": lambda a, b: paddle.full_like(a, 3) + paddle.ones([paddle.shape(a)[1]], "int64"),
    "shapes": lambda a, b: a.reshape([0, -1, 2]).flatten(1).transpose([1, 0]).unsqueeze([0, 2]),
    "squeezed": lambda a, b: a.unsqueeze(1).squeeze(1).reshape([paddle.shape(a)[1], -1]),
    "flattened": lambda a, b: F.embedding(a, table()).flatten(1, 2) + a.sum().astype("float32"),
    "parts": lambda a, b: a[:, 1] + a[:, -1] + a[:, ::2].sum(axis=1) + a[: paddle.shape(a)[0], 0],
    "joined": lambda a, b: paddle.concat([paddle.stack([a, b], 1), a.unsqueeze(1)], axis=1),
    "repeated": lambda a, b: paddle.expand(a.unsqueeze(1), [-1, 2, -1]),
    "padded": lambda a, b: F.pad(F.embedding(a, table()), [0, 0, 0, 1, 0, 0], value=2.0),
    "windows": lambda a, b: F.conv2d(
        F.embedding(a, table()).unsqueeze(1),
        paddle.to_tensor(WIDE[:4, :4].reshape([2, 1, 2, 4])),
        padding=[1, 0],
    ),
}


class Answer(nn.Layer):
    """Answers what ``function`` makes of its inputs, both of which a program is to use."""

    def __init__(self, function):
        super().__init__()
        self.function, self.zero = function, self.create_parameter([1], is_bias=True)

    def forward(self, ids, types):
        made, zero = self.function(ids, types), (ids.sum() + types.sum()).astype("float32") * self.zero
        return made + zero.astype(made.dtype)


def saved(function, folder):
    layer = Answer(function)
    layer.eval()
    shapes = [paddle.static.InputSpec([None, None], "int64", name) for name in ("ids", "types")]
    paddle.jit.save(paddle.jit.to_static(layer, input_spec=shapes, full_graph=True), str(folder / "model"))
    return folder / "model"


@pytest.mark.parametrize("name", CASES)
def test_onnx_computes_what_paddle_computes(tmp_path, name):
    import onnx

    model = onnx_of_program(saved(CASES[name], tmp_path), 17)
    onnx.checker.check_model(model, full_check=True)
    given = {name for node in model.graph.node for name in node.input}
    assert {tensor.name for tensor in model.graph.initializer} <= given
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for rows, length in ((3, 4), (2, 4), (1, 2)):
        ids, types = IDS[:rows, :length], TYPES[:rows, :length]
        expected = CASES[name](paddle.to_tensor(ids), paddle.to_tensor(types)).numpy()
        (found,) = session.run(None, {"ids": ids, "types": types})
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_every_translation_is_tested(tmp_path):
    used = set()
    for number, name in enumerate(CASES):
        (tmp_path / str(number)).mkdir()
        layer = paddle.jit.load(str(saved(CASES[name], tmp_path / str(number))))
        program = layer.program()
        used |= {op.name().rpartition("pd_op.")[2] for op in program.global_block().ops}
    assert {*SAME, *TRANSLATIONS, *OF_GRAPH} <= used


@pytest.mark.parametrize("function, named", [
    (lambda ids, types: paddle.tril(numbers(ids)) + paddle.triu(numbers(ids)), "tril, triu"),
    (lambda ids, types: F.gelu(numbers(ids), approximate=True), "gelu approximate"),
    (lambda ids, types: F.layer_norm(F.embedding(ids, table()), [6]), "layer_norm without weight"),
    (lambda ids, types: F.embedding(ids, table(), padding_idx=1), "embedding with a padding_idx"),
    (lambda ids, types: paddle.cumsum(ids), "cumsum of a flattened tensor"),
])  # fmt: skip
def test_what_has_no_translation_is_named(tmp_path, function, named):
    with pytest.raises(UntranslatedError, match=named):
        onnx_of_program(saved(function, tmp_path), 17)
