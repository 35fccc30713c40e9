"""The FLOPs of a step by formula, against the matrix products that a PaddleNLP model computes."""

import numpy as np
import paddle
import pytest
from paddle.nn.layer import transformer
from paddlenlp.transformers import ErnieConfig, ErnieForPretraining, ErnieModel

from ernie_pair.training.step_metrics import (
    EncoderSize,
    StepWork,
    count_classifier,
    count_encoder,
    count_pretraining,
    take_work,
)

SIZE, HEADS, VOCAB_SIZE = EncoderSize(layers=2, hidden=16, inner=40), 2, 50
BATCH, LENGTH, MASKED = 3, 7, 8


@pytest.fixture
def products(monkeypatch):
    """The FLOPs of each matrix product in this test so far, in a list that grows."""
    paddle.disable_static()
    found, multiply, apply = [], paddle.matmul, paddle.nn.functional.linear

    def matmul(x, y, transpose_x=False, transpose_y=False, name=None):
        answer = multiply(x, y, transpose_x, transpose_y)
        found.append(2 * answer.size * x.shape[-2 if transpose_x else -1])
        return answer

    def linear(x, weight, bias=None, name=None):
        answer = apply(x, weight, bias)
        found.append(2 * answer.size * weight.shape[0])
        return answer

    for module in (paddle, transformer.tensor):  # Paddle's attention uses both
        monkeypatch.setattr(module, "matmul", matmul)
    monkeypatch.setattr(paddle.nn.functional, "linear", linear)
    return found


def config():
    return ErnieConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=SIZE.hidden,
        num_hidden_layers=SIZE.layers,
        num_attention_heads=HEADS,
        intermediate_size=SIZE.inner,
        max_position_embeddings=LENGTH,
    )


def ids():
    return paddle.to_tensor(np.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) + 1)


def test_encoder_flops_match_its_matrix_products(products):
    ErnieModel(config())(ids())
    pooler = 2 * BATCH * SIZE.hidden**2
    assert sum(products) == count_encoder(SIZE, BATCH, LENGTH) + pooler
    assert count_classifier(SIZE, BATCH, 2) == pooler + 2 * BATCH * SIZE.hidden * 2


def test_pretraining_flops_match_the_matrix_products(products):
    ErnieForPretraining(config())(ids(), masked_positions=paddle.arange(MASKED))
    needed = count_pretraining(SIZE, BATCH, LENGTH, MASKED, VOCAB_SIZE)
    # PaddleNLP computes all rows of the last layer, but the heads read only some of them.
    unread = count_encoder(SIZE, BATCH, LENGTH) - count_encoder(SIZE, BATCH, LENGTH, BATCH + MASKED)
    assert unread > 0 and sum(products) == needed + unread


def test_a_last_layer_for_only_the_first_token_costs_less():
    """Keys and values are computed for all tokens; query, attention, output and feed-forward for one."""
    width, inner = SIZE.hidden, SIZE.inner
    per_sequence = LENGTH * 2 * width**2 + 2 * width**2 + 2 * LENGTH * width + 2 * width * inner
    whole = count_encoder(SIZE, BATCH, LENGTH)
    assert count_encoder(SIZE, BATCH, LENGTH, rows_read=BATCH) == whole // 2 + 2 * BATCH * per_sequence
    assert count_encoder(SIZE._replace(layers=0), BATCH, LENGTH, rows_read=BATCH) == 0


def test_work_counts_are_removed_from_the_metrics():
    metrics = {"loss": 1.0, "tokens": 6.0, "padded_tokens": 8.0, "flops": 4e12}
    work = take_work(metrics, samples=2).plus(StepWork(samples=2, tokens=2, padded_tokens=8))
    assert metrics == {"loss": 1.0}
    assert work.speeds(seconds=2.0, product_rate=8e12) == {
        "samples_per_second": 2.0,
        "tokens_per_second": 8.0,
        "real_tokens_per_second": 4.0,
        "tera_flops_per_second": 2.0,
        "product_share": 0.25,
    }
