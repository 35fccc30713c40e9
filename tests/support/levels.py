"""What tests of the processor's kernels need of it, or of the level that the environment asks for."""

import pytest

from ernie_pair.kernels.library import open_kernels

needs_bf16 = pytest.mark.skipif(
    not open_kernels().has_bf16, reason="no products in bfloat16 on this processor, or at the level asked for"
)
