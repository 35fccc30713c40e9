"""The matrix-product rate is measured in Paddle's dynamic and static modes, without changing the mode."""

from types import SimpleNamespace

import paddle
import pytest

from ernie_pair.kernels import product_rate
from ernie_pair.kernels.product_rate import measure_product_rate


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(product_rate, "SHAPES", {"cpu": ((64, 64, 64),)})
    product_rate._measured_once.cache_clear()
    yield
    product_rate._measured_once.cache_clear()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("level", ["none", "avx512_bf16", "amx_bf16"])
@pytest.mark.parametrize("is_static", [False, True])
def test_product_rate_is_measured_in_both_modes(is_static, level, dtype, monkeypatch):
    """With the fused kernels, at whatever level this processor supports, and without them."""
    monkeypatch.setenv("ERNIE_PAIR_KERNELS_LEVEL", level)
    (paddle.enable_static if is_static else paddle.disable_static)()
    try:
        rate = measure_product_rate(dtype, "cpu", 1)
        assert rate.flops_per_second > 1e6 and rate.flops_per_cpu_second > 1e6
        assert paddle.in_dynamic_mode() is not is_static
    finally:
        paddle.disable_static()


def test_a_process_measures_each_product_rate_once(monkeypatch):
    """On a CPU, --use_amp true comes with --amp_dtype float32, and --precision sets the product dtype."""
    asked = []
    measured = product_rate.ProductRate(1e9, 2e9)
    monkeypatch.setattr(product_rate, "measure_product_rate", lambda *given: asked.append(given) or measured)
    cases = {
        ("cpu", False, "float16", "fp32"): "float32",
        ("cpu", False, "float16", "bf16"): "bfloat16",
        ("gpu", True, "float16", "bf16"): "float16",
        ("cpu", True, "float32", "fp32"): "float32",
    }
    for (device, use_amp, amp_dtype, precision), _ in cases.items():
        flags = SimpleNamespace(use_amp=use_amp, amp_dtype=amp_dtype, precision=precision)
        assert [product_rate.product_rate(flags, device, 2) for _ in range(3)] == [1e9] * 3
    dtypes = [(dtype, device, 2) for (device, *_), dtype in cases.items()]
    assert asked == list(dict.fromkeys(dtypes))
