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


# {name: what makes the answer of ids and token types, int64 [B, S]}
CASES = {
    "arithmetic": lambda ids, types: numbers(ids) * 2 + numbers(types) / (types + 1.5) - numbers(ids),
    "scaled after": lambda ids, types: paddle.scale(numbers(ids), 3.0, 0.5, bias_after_scale=False),
    "not scaled": lambda ids, types: paddle.assign(paddle.scale(numbers(ids), 1.0, 0.0)),
    "comparisons": compared,
    "choice": lambda ids, types: paddle.where(types > 0, numbers(ids), -numbers(ids)),
    "roots": lambda ids, types: paddle.sqrt(ids + 1.0)
    + paddle.rsqrt(ids + 1.0)
    + paddle.square(numbers(ids)),
    "curves": lambda ids, types: paddle.sin(numbers(ids))
    + paddle.cos(numbers(ids))
    + paddle.exp(types * 0.1),
    "logarithm": lambda ids, types: paddle.log(ids + 1.0)
    + paddle.abs(numbers(ids))
    + paddle.erf(types * 0.1),
    "powers": lambda ids, types: paddle.pow(ids + 1.0, numbers(types)),
    "rounding": lambda ids, types: paddle.floor(numbers(ids)) + paddle.ceil(numbers(ids)),
    "bounds": lambda ids, types: paddle.maximum(numbers(ids), numbers(types))
    - paddle.minimum(ids, types).astype("float32"),
    "whole quotients": lambda ids, types: (ids - 5) // (types + 2),
    "activations": lambda ids, types: F.relu(numbers(ids)) + F.gelu(numbers(ids)) + F.silu(numbers(ids)),
    "curved": lambda ids, types: paddle.tanh(numbers(ids)) + F.sigmoid(numbers(types)),
    "sums": lambda ids, types: numbers(ids).sum()
    + numbers((types > 0).sum(axis=1, keepdim=True) + ids.sum(axis=1)),
    "means": lambda ids, types: numbers(ids).mean(axis=1, keepdim=True) + numbers(types).mean(),
    "ends": lambda ids, types: numbers(ids.max(axis=1))
    + numbers(ids).min(axis=1, keepdim=True)
    + numbers(types.max()),
    "running sums": lambda ids, types: numbers(paddle.cumsum(ids, axis=1))
    + paddle.cumsum(numbers(ids), axis=0),
    "norms": lambda ids, types: F.normalize(numbers(ids), axis=1),
    "softmax": lambda ids, types: F.softmax(numbers(ids), axis=0),
    "dropout": lambda ids, types: F.dropout(numbers(ids), 0.5, training=False),
    "words": lambda ids, types: F.embedding(ids, table()),
    "rows": lambda ids, types: paddle.gather(table(), ids[:, 1])
    + numbers(paddle.gather(ids, types[0, :1], 1)),
    "norm": lambda ids, types: F.layer_norm(F.embedding(ids, table()), [6], table()[1], table()[2], 1e-5),
    "products": lambda ids, types: paddle.matmul(table(), F.embedding(ids, table()), transpose_y=True),
    "turned": lambda ids, types: paddle.matmul(numbers(ids), numbers(types), transpose_x=True),
    "filled": lambda ids, types: paddle.full_like(ids, 3) + paddle.ones([paddle.shape(ids)[1]], "int64"),
    "shapes": lambda ids, types: ids.reshape([0, -1, 2]).flatten(1).transpose([1, 0]).unsqueeze([0, 2]),
    "squeezed": lambda ids, types: ids.unsqueeze(1).squeeze(1).reshape([paddle.shape(ids)[1], -1]),
    "flattened": lambda ids, types: F.embedding(ids, table()).flatten(1, 2) + ids.sum().astype("float32"),
    "parts": lambda ids, types: ids[:, 1]
    + ids[:, -1]
    + ids[:, ::2].sum(axis=1)
    + ids[: paddle.shape(ids)[0], 0],
    "joined": lambda ids, types: paddle.concat([paddle.stack([ids, types], 1), ids.unsqueeze(1)], axis=1),
    "repeated": lambda ids, types: paddle.expand(ids.unsqueeze(1), [-1, 2, -1]),
    "padded": lambda ids, types: F.pad(F.embedding(ids, table()), [0, 0, 0, 1, 0, 0], value=2.0),
    "windows": lambda ids, types: F.conv2d(
        F.embedding(ids, table()).unsqueeze(1),
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
    """The program of ``function``, written into ``folder``."""
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


@pytest.mark.parametrize(
    "function, named",
    [
        (lambda ids, types: paddle.tril(numbers(ids)) + paddle.triu(numbers(ids)), "tril, triu"),
        (lambda ids, types: F.gelu(numbers(ids), approximate=True), "gelu approximate"),
        (lambda ids, types: F.layer_norm(F.embedding(ids, table()), [6]), "layer_norm without weight"),
        (lambda ids, types: F.embedding(ids, table(), padding_idx=1), "embedding with a padding_idx"),
        (lambda ids, types: paddle.cumsum(ids), "cumsum of a flattened tensor"),
    ],
)
def test_what_has_no_translation_is_named(tmp_path, function, named):
    with pytest.raises(UntranslatedError, match=named):
        onnx_of_program(saved(function, tmp_path), 17)
