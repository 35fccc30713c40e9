"""The batch that is made of what a collator returns."""

from types import SimpleNamespace

import numpy as np
import pytest
from tiny_pair import VOCAB, toy_rows

from data_tools.text.wordpiece import WordPiece
from ernie_pair.inference.token_rows import encode_texts
from ernie_pair.pairs.data.encoded_pairs import UserCollator

PICKED = np.array([4, 0, 7])


@pytest.fixture
def rows():
    left, right, labels = zip(*toy_rows(9, seed=0))
    return encode_texts(left, right, np.array(labels), WordPiece(VOCAB), 16)


def batch_of(rows, token_types, **returned):
    spec = SimpleNamespace(token_types=token_types, vocab_size=len(VOCAB), max_positions=64, has_match=False)
    rows.collator = UserCollator(lambda features: returned, spec)
    return rows.batch(PICKED)


@pytest.mark.parametrize("token_types", [0, 1, 2])
def test_ids_alone_keep_the_segments_and_labels_of_the_rows(rows, token_types):
    own = rows.padded(PICKED, 20)
    found = batch_of(rows, token_types, input_ids=own.input_ids.astype(np.int32))
    for ours, theirs in zip(found, own):
        assert np.array_equal(ours, theirs) and (ours is None or ours.dtype == np.int64)


def test_a_model_of_one_type_keeps_the_segments_for_symmetric(rows):
    own = rows.padded(PICKED)
    found = batch_of(rows, 1, input_ids=own.input_ids, token_type_ids=own.token_type_ids * 0)
    assert np.array_equal(found.token_type_ids, own.token_type_ids)
    others = np.minimum(own.input_ids, 9)
    found = batch_of(rows, 1, input_ids=others, token_type_ids=own.token_type_ids)
    assert np.array_equal(found.input_ids, others) and found.token_type_ids.any()


def test_a_collator_is_given_the_rows_in_their_order(rows):
    seen = []
    spec = SimpleNamespace(token_types=2, vocab_size=len(VOCAB), max_positions=64, has_match=False)
    rows.collator = UserCollator(
        lambda features: seen.extend(features) or {"input_ids": rows.padded(PICKED).input_ids}, spec
    )
    batch = rows.batch(PICKED)
    for row, ids, types, label in zip(seen, batch.input_ids, batch.token_type_ids, batch.labels):
        length = len(row["input_ids"])
        assert row == {
            "input_ids": ids[:length].tolist(),
            "token_type_ids": types[:length].tolist(),
            "labels": int(label),
        }
        assert not ids[length:].any()
