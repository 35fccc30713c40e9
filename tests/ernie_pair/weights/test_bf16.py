"""bfloat16 stored as bits in numpy: conversion, rounding and non-finite values."""

import numpy as np
import paddle
import pytest

from ernie_pair.weights.half_tensors import narrow_array, widen_array
from ernie_pair.weights.weight_files import bfloat16_to_float32, float32_to_bfloat16, is_bfloat16_finite

EVERY = np.arange(1 << 16, dtype=np.uint16)


def test_every_bfloat16_survives_a_float32_round_trip():
    numbers = ~np.isnan(bfloat16_to_float32(EVERY))
    assert np.array_equal(float32_to_bfloat16(bfloat16_to_float32(EVERY[numbers])), EVERY[numbers])


@pytest.mark.parametrize("exact, nearest", [(1.0039, 1.0), (1.0040, 1.0078125), (1.00390625, 1.0)])
def test_rounding_is_to_nearest_with_ties_to_even(exact, nearest):
    assert bfloat16_to_float32(float32_to_bfloat16(np.array([exact, -exact], np.float32))).tolist() == [
        nearest,
        -nearest,
    ]


def test_a_tie_above_an_odd_mantissa_is_rounded_up():
    tie = np.array([1.0 + 3 * 2**-8], np.float32)
    assert bfloat16_to_float32(float32_to_bfloat16(tie)).tolist() == [1.0 + 2**-6]


def test_non_finite_values_are_detected_from_the_bits():
    wide = bfloat16_to_float32(EVERY)
    assert is_bfloat16_finite(EVERY[np.isfinite(wide)])
    for place in np.flatnonzero(~np.isfinite(wide)):
        assert not is_bfloat16_finite(EVERY[place : place + 1])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_conversions_agree_with_paddle(dtype):
    values = np.array([1.5, -2.0, 0.0078125], np.float32)
    tensor = paddle.to_tensor(values).astype(dtype)
    assert np.array_equal(narrow_array(values, tensor.dtype), tensor.numpy())
    assert np.array_equal(widen_array(tensor.numpy(), tensor.dtype), values)
