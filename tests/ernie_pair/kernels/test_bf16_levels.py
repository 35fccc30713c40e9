"""bfloat16 products at each level that supports them: rounded inputs, float32 accumulation, any shape."""

from types import SimpleNamespace

import numpy as np
import paddle
import pytest
from fused_cases import (
    SHAPES,
    assert_equal_to_plain,
    batch_of,
    build,
    fused_layer,
    inputs,
)

from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.kernels.library import PRECISIONS, Kernels, WorkspacePool, open_kernels
from ernie_pair.runtime.cpu import LEVEL_ASKED, LEVELS, has_bf16

WITH_BF16 = [level for level in LEVELS if has_bf16(level)]
MORE_ROWS = "more rows than a turned product takes at once"
BF16 = KernelFlags("fused", "bf16")
pytestmark = pytest.mark.skipif(bool(open_kernels().reason), reason=open_kernels().reason or "never")


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
