"""What tests of the processor's kernels need of it, or of the level that the environment asks for."""

import pytest

from ernie_pair.kernels.library import open_kernels

needs_fused = pytest.mark.skipif(bool(open_kernels().reason), reason=open_kernels().reason or "never")
needs_bf16 = pytest.mark.skipif(
    not open_kernels().has_bf16, reason="no products in bfloat16 on this processor, or at the level asked for"
)
BF16 = pytest.param("bf16", marks=needs_bf16)
