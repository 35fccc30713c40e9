"""Run each kernel that a training step needs once, and compare it with numpy in float64.

H rows, W columns, V vocabulary; B batch, S sequence, N heads, D per head.
"""

import math
from typing import Callable, Dict, List, Tuple

import numpy as np
import paddle

# The largest difference from numpy, relative to the largest number. For sums of some hundred products, in
# float32 without TF32 (which would exceed its limit), and in half precision.
LIMITS = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}
MIN_CAPABILITY = {"float32": 0, "float16": 0, "bfloat16": 8}  # major
FLASH_CAPABILITY = 8
H, W, V, B, S, N, D = 64, 96, 50, 2, 32, 2, 64


def compare_kernels(capability=None) -> Dict[str, Tuple[float, str]]:
    """Run every kernel on Paddle's current device, in each type that it has, and compare with numpy.

    Returns {kernel and type: (largest difference over the largest number, what is wrong or '')}.
    ``capability``: (major, minor) of the GPU; None: a CPU, which only computes in float32. Call it in
    dynamic mode, TF32 off.
    """
    major = 0 if capability is None else capability[0]
    results = {}
    for dtype in LIMITS if capability is not None else ("float32",):
        kernels: List[Callable] = [matmul, softmax, layer_norm, embedding_gradient, gather_gradient]
        if dtype == "float32":
            kernels.append(adamw)
        if dtype == "float32" or major >= FLASH_CAPABILITY:
            kernels.append(attention)
        for kernel in kernels if major >= MIN_CAPABILITY[dtype] else ():
            results[f"{kernel.__name__} {dtype}"] = _compare(kernel, dtype)
    return results


def _compare(kernel: Callable, dtype: str) -> Tuple[float, str]:
    name, limit = f"{kernel.__name__} in {dtype}", LIMITS[dtype]
    try:
        found, wanted = kernel(np.random.default_rng(7), dtype)
    except Exception as error:  # whatever Paddle raises is the finding
        return math.inf, f"{name}: {type(error).__name__}: {' '.join(str(error).split())[-300:]}"
    difference = np.abs(found.astype("float32").numpy().astype(np.float64) - wanted).max()
    relative = float(difference / np.abs(wanted).max())
    is_right = relative <= limit
    return relative, "" if is_right else f"{name}: differs from numpy by {relative:.1e}, above {limit:.0e}"


def _draw(rng, dtype: str, *shape: int):
    """Return normal random numbers that the type can hold: a tensor and the same as float64."""
    tensor = paddle.to_tensor(rng.standard_normal(shape).astype(np.float32)).astype(dtype)
    return tensor, tensor.astype("float32").numpy().astype(np.float64)


def matmul(rng, dtype: str):
    """Multiply [H, W] by [W, H]."""
    left, left_64 = _draw(rng, dtype, H, W)
    right, right_64 = _draw(rng, dtype, W, H)
    return left @ right, left_64 @ right_64


def softmax(rng, dtype: str):
    """Take the softmax of the rows of [H, W]."""
    scores, scores_64 = _draw(rng, dtype, H, W)
    return paddle.nn.functional.softmax(scores), _softmax(scores_64)


def layer_norm(rng, dtype: str):
    """Normalise the rows of [H, W], with a weight and a bias in float32, as Paddle keeps them."""
    rows, rows_64 = _draw(rng, dtype, H, W)
    (weight, weight_64), (bias, bias_64) = (_draw(rng, "float32", W) for _ in range(2))
    mean, variance = rows_64.mean(1, keepdims=True), rows_64.var(1, keepdims=True)
    wanted = (rows_64 - mean) / np.sqrt(variance + 1e-5) * weight_64 + bias_64
    with paddle.amp.auto_cast(enable=dtype != "float32", dtype=dtype if dtype != "float32" else "float16"):
        return paddle.nn.functional.layer_norm(rows, [W], weight, bias, 1e-5), wanted


def embedding_gradient(rng, dtype: str):
    """Sum the gradients of B x S looked-up rows of W in a table [V, W]."""
    return _gradient_of_rows(rng, dtype, V, rng.integers(0, V, (B, S)), paddle.nn.functional.embedding)


def gather_gradient(rng, dtype: str):
    """Sum the gradients of gathered rows, one gathered twice, in [H, W]."""
    picked = np.append(rng.integers(0, H, 9), [3, 3])
    return _gradient_of_rows(rng, dtype, H, picked, lambda ids, rows: paddle.gather(rows, ids))


def _gradient_of_rows(rng, dtype: str, count: int, ids: np.ndarray, pick: Callable):
    rows, _ = _draw(rng, dtype, count, W)
    rows.stop_gradient = False
    gradient, gradient_64 = _draw(rng, dtype, *ids.shape, W)
    pick(paddle.to_tensor(ids), rows).backward(gradient)
    wanted = np.zeros((count, W))
    np.add.at(wanted, ids, gradient_64)
    return rows.grad, wanted


def adamw(rng, dtype: str):
    """Update a weight [H, W] once by AdamW."""
    drawn, before = _draw(rng, dtype, H, W)
    weight = paddle.create_parameter([H, W], dtype)
    weight.set_value(drawn)
    gradient, gradient_64 = _draw(rng, dtype, H, W)
    optimizer = paddle.optimizer.AdamW(0.1, parameters=[weight], weight_decay=0.01)
    (weight * gradient).sum().backward()
    optimizer.step()
    # After one step both moments, corrected, are the gradient and its square.
    return weight, before * (1 - 0.1 * 0.01) - 0.1 * gradient_64 / (np.abs(gradient_64) + 1e-8)


def attention(rng, dtype: str):
    """Attend over [B, S, N, D] without the last quarter; in half precision that is flash attention."""
    (query, query_64), (key, key_64), (value, value_64) = (_draw(rng, dtype, B, S, N, D) for _ in range(3))
    padding = np.where(np.arange(S) < S - S // 4, 0, -1e4)
    scores = _softmax(np.einsum("bsnd,btnd->bnst", query_64, key_64) / math.sqrt(D) + padding)
    mask = paddle.to_tensor(padding, dtype).expand([B, 1, S, S])
    found = paddle.nn.functional.scaled_dot_product_attention(query, key, value, mask)
    return found, np.einsum("bnst,btnd->bsnd", scores, value_64)


def _softmax(scores: np.ndarray) -> np.ndarray:
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)
