"""Buffers return to the pool when dropped, no two holders share one; and how fast products are."""

from types import SimpleNamespace

import paddle
import pytest

from ernie_pair.core.errors import MachineError
from ernie_pair.kernels import library as workspaces
from ernie_pair.kernels import product_rate
from ernie_pair.kernels.library import WorkspacePool, rounded_size
from ernie_pair.kernels.product_rate import measure_product_rate


@pytest.fixture
def pool(monkeypatch):
    """A pool that keeps no more than a quarter above what was in use."""
    monkeypatch.setattr(workspaces, "FREE_AT_LEAST", 0)
    return WorkspacePool()


def test_sizes_are_rounded_up_by_a_quarter_at_most():
    for size in (1, 4096, 4097, 5000, 1 << 20, (1 << 20) + 1, 3_000_000):
        assert size <= rounded_size(size) <= max(4096, size * 1.25)


def test_buffers_are_aligned_reused_and_free_when_dropped(pool):
    first = pool.take(5000)
    address = first.address
    assert address % 64 == 0 and pool.in_use == first.size == rounded_size(5000)
    first.release()
    first.release()
    assert pool.in_use == 0 and pool.take(5000).address == address
    taken = pool.take(5000)
    del taken
    assert pool.in_use == 0 and pool.free_bytes == rounded_size(5000)


def test_free_buffers_of_many_sizes_are_released(pool):
    """Buffers of all sizes together are about four times the peak in use, so most must be released."""
    sizes = [4096 * (1 << power) * part // 4 for power in range(4, 6) for part in (4, 5, 6, 7)]
    for size in sizes * 3:
        pool.take(size).release()
        assert pool.free_bytes + pool.in_use <= 1.25 * max(sizes)
    assert sum(map(rounded_size, sizes)) > 3 * max(sizes)


def test_a_quarter_above_the_peak_of_use_stays(pool):
    peak, quarter = 4 << 16, 1 << 16
    pool.take(quarter).release()
    pool.take(peak).release()
    assert pool.free_bytes == peak + quarter
    pool.take(peak + quarter).release()
    assert pool.free_bytes <= 1.25 * (peak + quarter)


class Interrupted(list):
    """A list of free buffers that calls ``meanwhile`` once, when the first buffer is popped."""

    def __init__(self, buffers, meanwhile):
        super().__init__(buffers)
        self.meanwhile = meanwhile

    def pop(self, index):
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return super().pop(index)


def test_a_buffer_dropped_during_take_is_counted_once(pool):
    """Garbage collection may drop a workspace at any line of the pool's code."""
    held = [pool.take(1 << 14)]
    pool.take(1 << 16).release()
    pool._free = Interrupted(pool._free, held.clear)
    taken = pool.take(40_000)  # which releases a free buffer
    assert not held and pool.in_use == taken.size
    assert pool.free_bytes == sum(buffer.size for buffer in pool._free)


# --- the rate of products, which is measured once


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(product_rate, "SHAPES", {"cpu": ((64, 64, 64),)})
    measure_product_rate.cache_clear()
    yield
    measure_product_rate.cache_clear()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("level", ["none", "avx512_bf16", "amx_bf16"])
@pytest.mark.parametrize("is_static", [False, True])
def test_product_rate_is_measured_in_both_modes(is_static, level, dtype, monkeypatch):
    """With the fused kernels, at whatever level this processor supports, and without them."""
    monkeypatch.setenv("ERNIE_PAIR_KERNELS_LEVEL", level)
    (paddle.enable_static if is_static else paddle.disable_static)()
    try:
        assert measure_product_rate(dtype, "cpu", 1) > 1e6
        assert paddle.in_dynamic_mode() is not is_static
    finally:
        paddle.disable_static()


@pytest.mark.skipif(workspaces.open_kernels().library is None, reason="no kernels here")
def test_a_product_that_onednn_refuses_has_no_rate(monkeypatch):
    monkeypatch.setattr(workspaces.open_kernels().functions, "fused_product", lambda *given: 1)
    with pytest.raises(MachineError, match="oneDNN refused a product; pass kernels plain"):
        measure_product_rate("float32", "cpu", 1)


@pytest.mark.parametrize("device, use_amp, amp_dtype, precision, dtype", [
    ("cpu", False, "float16", "fp32", "float32"),
    ("cpu", False, "float16", "bf16", "bfloat16"),
    ("gpu", True, "float16", "bf16", "float16"),
    ("cpu", True, "float32", "fp32", "float32"),
])  # fmt: skip
def test_the_rate_is_measured_in_the_precision_of_the_flags(
    monkeypatch, device, use_amp, amp_dtype, precision, dtype
):
    """On a CPU, --use_amp true comes with --amp_dtype float32, and --precision sets the product dtype."""
    monkeypatch.setattr(product_rate, "measure_product_rate", lambda *given: given)
    flags = SimpleNamespace(use_amp=use_amp, amp_dtype=amp_dtype, precision=precision)
    assert product_rate.product_rate(flags, device, 2) == (dtype, device, 2)
