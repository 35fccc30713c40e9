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
    asked = []

    def measured(*given):
        asked.append(given)
        return product_rate.ProductRate(1e9, 2e9)

    monkeypatch.setattr(product_rate, "measure_product_rate", measured)
    flags = SimpleNamespace(use_amp=False, amp_dtype="float16", precision="fp32")
    assert [product_rate.product_rate(flags, "cpu", 2) for _ in range(3)] == [1e9] * 3
    assert asked == [("float32", "cpu", 2)]
    flags.precision = "bf16"
    product_rate.product_rate(flags, "cpu", 2)
    assert asked[1:] == [("bfloat16", "cpu", 2)]
    flags.use_amp = True
    product_rate.product_rate(flags, "gpu", 2)
    assert asked[2:] == [("float16", "gpu", 2)]


def test_cpu_loss_scaling_does_not_change_the_product_dtype(monkeypatch):
    """On a CPU, --use_amp true comes with --amp_dtype float32, and --precision sets the product dtype."""
    asked = []
    measured = product_rate.ProductRate(1e9, 2e9)
    monkeypatch.setattr(product_rate, "measure_product_rate", lambda *given: asked.append(given) or measured)
    product_rate.product_rate(SimpleNamespace(use_amp=True, amp_dtype="float32", precision="bf16"), "cpu", 2)
    assert asked == [("bfloat16", "cpu", 2)]
