"""What ONNX Runtime's operators for cards are documented to compute, in numpy, for onnx's evaluator.

github.com/microsoft/onnxruntime, docs/ContribOperators.md. B rows, S longest, T tokens of all rows, N heads.
"""

import math

import numpy as np
from onnx.reference.op_run import OpRun

FUSED = "com.microsoft"


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


class RemovePadding(OpRun):
    op_domain = FUSED

    def _run(self, input, sequence_token_count):
        longest = input.shape[1]
        is_token = np.arange(longest) < sequence_token_count[:, None]
        places = np.arange(is_token.size, dtype=np.int32).reshape(is_token.shape)
        offset = np.concatenate([places[is_token], places[~is_token]]).reshape(is_token.shape)
        starts = np.concatenate([[0], np.cumsum(sequence_token_count)]).astype(np.int32)
        return input[is_token], offset, starts, np.array([sequence_token_count.max()], np.int32)


class RestorePadding(OpRun):
    op_domain = FUSED

    def _run(self, input, token_offset):
        restored = np.zeros((token_offset.size, input.shape[1]), input.dtype)
        restored[token_offset.ravel()[: len(input)]] = input
        return (restored.reshape(*token_offset.shape, -1),)


class PackedMultiHeadAttention(OpRun):
    op_domain = FUSED

    def _run(self, query, key, value, bias, token_offset, cumulative_sequence_length, num_heads=None):
        assert key is None and value is None and bias is None and query.shape[1:3] == (num_heads, 3)
        rows = []
        for begin, end in zip(cumulative_sequence_length, cumulative_sequence_length[1:]):
            q, k, v = query[begin:end].transpose(2, 1, 0, 3)
            rows.append((softmax(q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1])) @ v).swapaxes(0, 1))
        return (np.concatenate(rows).reshape(len(query), -1).astype(query.dtype),)


class Attention(OpRun):
    op_domain = FUSED

    def _run(self, input, weights, bias, mask_index, num_heads=None, **unused):
        parts = (input @ weights + bias).reshape(*input.shape[:2], 3, num_heads, -1)
        q, k, v = parts.transpose(2, 0, 3, 1, 4)
        scores = q @ k.swapaxes(2, 3) / math.sqrt(q.shape[-1])
        is_token = np.arange(input.shape[1]) < mask_index[:, None]
        scores = np.where(is_token[:, None, None], scores, np.float32(-1e4))
        return ((softmax(scores) @ v).swapaxes(1, 2).reshape(input.shape).astype(input.dtype),)


class SkipLayerNormalization(OpRun):
    op_domain = FUSED

    def _run(self, input, skip, gamma, beta, bias, epsilon=None):
        states = (input + skip + bias).astype(np.float32)
        states = states - states.mean(axis=-1, keepdims=True)
        scale = np.sqrt((states * states).mean(axis=-1, keepdims=True) + epsilon)
        return ((states / scale * gamma + beta).astype(input.dtype),)


class BiasGelu(OpRun):
    op_domain = FUSED

    def _run(self, A, B):
        states = A + B
        return ((0.5 * states * (1 + np.vectorize(math.erf)(states / math.sqrt(2)))).astype(A.dtype),)


class FastGelu(OpRun):
    op_domain = FUSED

    def _run(self, X, bias):
        states = X + bias
        inner = math.sqrt(2 / math.pi) * (states + 0.044715 * states**3)
        return ((0.5 * states * (1 + np.tanh(inner))).astype(X.dtype),)


OPERATORS = [
    Attention, BiasGelu, FastGelu, PackedMultiHeadAttention, RemovePadding, RestorePadding,
    SkipLayerNormalization,
]  # fmt: skip
