"""The steps of contrastive training, and their loss against the formula in numpy."""

from itertools import islice

import numpy as np
import paddle
import pytest
from tiny_pair import VOCAB

from data_tools.text.wordpiece import WordPiece
from ernie_pair.core.errors import InputError
from ernie_pair.embeddings.train import contrastive
from ernie_pair.embeddings.train.embedding_config import EmbeddingConfig
from ernie_pair.inference.token_rows import encode_single_texts
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.runtime.processes.world import World

ROWS = [
    ("我", "你", 1),
    ("我", "他", 1),
    ("我", "她", 0),
    ("天", "气", 1),
    ("今", "你", 1),
    ("我", "你", 0),  # contradicts the first row: not a negative
    ("明", "昨", 0),  # its text has no match
    ("上", "下", 1),
]


def pairs_of(rows):
    left, right, labels = zip(*rows)
    return Pairs(list(left), list(right), np.array(labels), "", path="negatives.tsv")


def texts_of(rows=ROWS, negatives=None):
    return contrastive.texts_of_pairs(pairs_of(rows), negatives and pairs_of(negatives), "train.tsv")


def negatives_in(texts):
    return {texts.texts[text]: [texts.texts[one] for one in found] for text, found in texts.negatives.items()}


def test_label_1_rows_are_positives_others_are_hard_negatives():
    texts = texts_of()
    found = [(texts.texts[a], texts.texts[b]) for a, b in zip(texts.anchors, texts.positives)]
    assert found == [(left, right) for left, right, label in ROWS if label == 1]
    assert negatives_in(texts) == {"我": ["她"]}


def test_a_negatives_file_adds_to_the_label_0_negatives():
    texts = texts_of(
        negatives=[("我", "太", None), ("我", "他", None), ("谁", "好", None), ("天", "地", None)]
    )
    assert negatives_in(texts) == {"我": ["她", "太"], "天": ["地"]}


@pytest.mark.parametrize("rows", [[("谁", "我", None)], [("我", "他", None), ("谁", "我", None)]])
def test_negatives_of_no_use_are_refused(rows):
    with pytest.raises(InputError, match="negatives.tsv: none of its rows is a negative: "):
        texts_of(negatives=rows)


def test_pairs_that_never_have_a_negative_are_refused():
    for rows in ([("a", "b"), ("a", "c")], [("a", "b"), ("c", "b")], [("a", "b"), ("a", "b")]):
        matches = [(left, right, 1) for left, right in rows]
        with pytest.raises(InputError, match="all 2 pairs of label 1 share a text, .*; add pairs of other"):
            texts_of(matches)
        assert texts_of(matches, negatives=[("a", "x", None)]).negatives


def test_a_step_without_negatives_is_known():
    texts = texts_of([("a", "b", 1), ("a", "d", 1), ("c", "e", 1)])
    none = [np.zeros(0, np.int64)] * 2
    for rows, expected in (([0, 1], False), ([0, 0], False), ([0, 2], True)):
        assert contrastive.describe_step(texts, np.array(rows), none).has_negatives is expected
    assert contrastive.describe_step(texts, np.array([0, 1]), [none[0], np.array([4])]).has_negatives


def test_epochs_rotate_through_the_hard_negatives():
    texts = texts_of([("我", "你", 1), *(("我", other, 0) for other in "他她它")])
    taken = [[texts.texts[one] for one in texts.negatives_of(0, epoch, 2)] for epoch in range(3)]
    assert taken == [["他", "她"], ["它", "他"], ["她", "它"]]
    assert texts.negatives_of(0, 0, 0).size == 0


@pytest.mark.parametrize("seed", range(5))
def test_matches_of_anchor_and_positive_are_no_negatives(seed):
    """Both texts of a pair of label 1 are matches of the other; 今 that shares one with 我 is near it too."""
    rng = np.random.default_rng(seed)
    rows = [
        (*rng.choice(list("我你他她天气今明昨"), 2, replace=False), int(rng.integers(2))) for _ in range(16)
    ]
    texts = texts_of([*rows, ("上", "下", 1), ("上", "谁", 0), ("我", "她", 0)])
    matches = {frozenset(row[:2]) for row in rows if row[2]} | {frozenset("上下")}
    pairs = np.arange(len(texts))
    step = contrastive.describe_step(texts, pairs, [texts.negatives_of(pair, 0, 2) for pair in pairs])
    read = [texts.texts[number] for number in step.numbers]
    for row, hidden in enumerate(step.is_hidden):
        own = {read[row], read[len(pairs) + row]}
        near = own | {text for text in read for one in own if frozenset((one, text)) in matches}
        wanted = [text in near and place != row for place, text in enumerate(read[len(pairs) :])]
        assert hidden.tolist() == wanted


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("".join(f"{token}\n" for token in VOCAB), encoding="utf-8")
    return WordPiece.from_file(path, True)


def steps_of(tokenizer, texts, world, batch_size, accumulation_steps=1, consumed=0, **flags):
    rows = encode_single_texts(texts.texts, tokenizer, 16)
    sizes = {"batch_size": batch_size, "gradient_accumulation_steps": accumulation_steps}
    config = EmbeddingConfig("output", **{"seed": 7, "hard_negatives": 2, **sizes, **flags})
    return contrastive.ContrastiveSteps(texts, rows, config, contrastive.describe_step).of_rank(
        world, consumed
    )


def rows_of_step(batches):
    """{place in the step: ids without padding}, over the micro-batches of all ranks."""
    found = {}
    for batch in batches:
        for place, ids in zip(batch.places.tolist(), batch.input_ids):
            found[place] = [int(one) for one in ids if one]
    return found


@pytest.mark.parametrize("bucket", [True, False])
def test_every_layout_gives_the_same_steps(tokenizer, bucket):
    rng = np.random.default_rng(0)
    left, right = (
        ["".join(rng.choice(list(used), 3)) for _ in range(40)] for used in ("我你他她", "天气今明")
    )
    rows = [(*texts, 1) for texts in zip(left, right)]
    rows += [(left, "昨", 0) for left, _, _ in rows[::3]]
    texts = texts_of(rows)
    whole = islice(steps_of(tokenizer, texts, World(), 8, bucket=bucket), 12)
    ranks = [steps_of(tokenizer, texts, World(rank, 2), 2, 2, bucket=bucket) for rank in (0, 1)]
    for (one,) in whole:
        batches = [batch for rank in ranks for batch in next(rank)]
        assert len(batches) == 4
        assert rows_of_step(batches) == rows_of_step([one])
        assert sorted(rows_of_step([one])) == list(range(len(one.step.numbers)))
        assert all(np.array_equal(batch.step.is_hidden, one.step.is_hidden) for batch in batches)


def test_a_step_of_two_epochs_has_the_negatives_of_each(tokenizer):
    pairs = list(zip("我你他她它们", "天气今明昨真"))
    texts = texts_of([*((a, b, 1) for a, b in pairs), *((a, other, 0) for a, _ in pairs for other in "上下")])
    found = {}
    for (batch,) in islice(steps_of(tokenizer, texts, World(), 4, hard_negatives=1), 3):  # twice six pairs
        for anchor, negative in zip(batch.step.numbers[:4], batch.step.numbers[8:]):
            found.setdefault(texts.texts[anchor], set()).add(texts.texts[negative])
    assert found == {anchor: set("上下") for anchor, _ in pairs}


def test_first_texts_ask_with_the_prompt_of_queries(tokenizer):
    """The rows of a model with two prompts are all texts as passages, and then all as queries."""
    texts = texts_of([*((a, b, 1) for a, b in zip("我你他她它们", "天气今明昨真")), ("我", "不", 0)])
    encoded = [[int(one) for one in tokenizer.encode(text)] for text in texts.texts]
    read = [*texts.texts, *(f"好{text}" for text in texts.texts)]
    config = EmbeddingConfig("output", seed=7, batch_size=4)
    rows = encode_single_texts(read, tokenizer, 16)
    steps = contrastive.ContrastiveSteps(texts, rows, config, contrastive.describe_step).of_rank(World(), 0)
    query = tokenizer.encode("好")
    for (batch,) in islice(steps, 4):
        for place, ids in rows_of_step([batch]).items():
            own = encoded[batch.step.numbers[place]]
            assert ids[1:-1] == ([*query, *own] if place < 4 else own)


def test_a_resumed_run_continues_with_the_next_step_of_its_seed(tokenizer):
    texts = texts_of([(a, b, 1) for a, b in zip("我你他她它们", "天气今明昨真")])
    (fourth,) = next(islice(steps_of(tokenizer, texts, World(), 4), 3, None))
    (resumed,) = next(steps_of(tokenizer, texts, World(), 4, consumed=12))
    assert np.array_equal(fourth.input_ids, resumed.input_ids)
    (other,) = next(steps_of(tokenizer, texts, World(), 4, consumed=12, seed=8))
    assert not np.array_equal(fourth.step.numbers, other.step.numbers)


def test_unpaired_texts_are_deduplicated_and_self_matched():
    texts = contrastive.texts_alone(["我", "你", "我"], "texts.txt")
    assert texts.is_augmented and len(texts) == 2
    step = contrastive.describe_step(texts, np.arange(2), [np.zeros(0, int)] * 2)
    assert not step.is_hidden.any()
    with pytest.raises(InputError, match="texts.txt has 1 text"):
        contrastive.texts_alone(["我"], "texts.txt")


TEMPERATURE = 0.2


def step_of(num_pairs=5, num_hard=3, hidden=()):
    is_hidden = np.zeros((num_pairs, num_pairs + num_hard), dtype=bool)
    for place in hidden:
        is_hidden[place] = True
    return contrastive.StepTexts(num_pairs, np.arange(2 * num_pairs + num_hard), is_hidden)


def expected(vectors, step, dim):
    rows = vectors[:, :dim].astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    scores = rows[: step.num_pairs] @ rows[step.num_pairs :].T / TEMPERATURE
    weights = np.where(step.is_hidden, 0, np.exp(scores))
    own = np.arange(step.num_pairs)
    return float(-np.log(weights[own, own] / weights.sum(axis=1)).mean())


def vectors_of(seed=0, rows=13, dim=8):
    return np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32)


@pytest.mark.parametrize("hidden", [(), ((0, 1), (2, 5), (4, 7))])
@pytest.mark.parametrize("dims", [(8,), (2, 4, 8)])
def test_the_loss_matches_the_formula(hidden, dims):
    vectors, step = vectors_of(), step_of(hidden=hidden)
    found = contrastive.step_loss(paddle.to_tensor(vectors), step, dims, TEMPERATURE)
    wanted = np.mean([expected(vectors, step, dim) for dim in dims])
    assert float(found[0]) == pytest.approx(wanted, rel=1e-5)


def test_a_masked_candidate_has_no_gradient():
    step = step_of(hidden=[(row, 6) for row in range(5)])
    vectors = paddle.to_tensor(vectors_of(), stop_gradient=False)
    contrastive.step_loss(vectors, step, (8,), TEMPERATURE)[0].backward()
    gradient = vectors.grad.numpy()
    assert np.abs(gradient[5 + 6]).max() < 1e-20 and gradient[5 + 5].any()


def test_the_gradient_matches_finite_differences():
    step, vectors = step_of(hidden=((1, 3),)), vectors_of(1)
    tensor = paddle.to_tensor(vectors, stop_gradient=False)
    contrastive.step_loss(tensor, step, (4, 8), TEMPERATURE)[0].backward()
    for place in ((0, 0), (7, 3), (12, 6)):
        moved = [vectors.astype(np.float64).copy() for _ in "ab"]
        moved[0][place] += 1e-5
        moved[1][place] -= 1e-5
        up, down = (np.mean([expected(one, step, dim) for dim in (4, 8)]) for one in moved)
        assert tensor.grad.numpy()[place] == pytest.approx((up - down) / 2e-5, rel=1e-3, abs=1e-6)


def test_right_counts_anchors_whose_positive_ranks_first():
    vectors = np.concatenate([np.eye(5, 8), np.eye(5, 8), np.zeros((3, 8))]).astype(np.float32)
    vectors[10:, 7] = 1
    assert float(contrastive.step_loss(paddle.to_tensor(vectors), step_of(), (8,), TEMPERATURE)[1]) == 5
    vectors[[5, 6]] = vectors[[6, 5]]
    assert float(contrastive.step_loss(paddle.to_tensor(vectors), step_of(), (8,), TEMPERATURE)[1]) == 3
