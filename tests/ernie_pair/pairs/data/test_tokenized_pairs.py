"""Rows of token ids: read as what the tokenizer makes of their texts, or refused."""

import numpy as np
import pytest
from tiny_pair import VOCAB, toy_rows
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from data_tools.text.folder_tokenizer import FolderTokenizer
from data_tools.text.wordpiece import WordPiece
from ernie_pair.core.errors import InputError
from ernie_pair.inference.token_rows import encode_texts
from ernie_pair.models.labels import Labels
from ernie_pair.pairs.data.in_memory_pairs import GivenPairs, TokenForm, TokenizedPairs
from ernie_pair.pairs.data.pair_records import Columns, RowRules

ROWS = list(toy_rows(30, seed=3))
WORDS = {"<unk>": 0, "<pad>": 1, "<s>": 2, "</s>": 3, "a": 4, "b": 5}
FORM = TokenForm(WordPiece(VOCAB), 128, 2)
ROW = {"input_ids": [1, 5, 6, 2, 7, 2], "token_type_ids": [0, 0, 0, 0, 1, 1], "labels": 1}


def source(examples, labels=None, columns=None, rules=None, form=FORM):
    usual = Labels.numbered(2) if labels is None else labels
    return TokenizedPairs("x", examples, usual, columns or Columns(), rules or RowRules(), form=form)


def encoded(form=FORM, rows=ROWS):
    left, right, labels = zip(*rows)
    return encode_texts(left, right, np.array(labels), form.tokenizer, form.max_seq_len)


def assert_same(found, expected):
    for name in ("ids", "starts", "heads", "labels", "lengths", "separators", "pad_id"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name


@pytest.mark.parametrize("pair", ["<s> $A </s> $B:1 </s>:1", "<s> $A </s> </s> $B </s>"])
@pytest.mark.parametrize("with_types", [True, False])
def test_rows_are_those_of_the_texts_for_any_tokenizer(pair, with_types):
    made = Tokenizer(models.WordLevel(WORDS, "<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = [("<s>", 2), ("</s>", 3)]
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair=pair, special_tokens=special
    )
    tokenizer = FolderTokenizer(made, {}, "here")
    form = TokenForm(tokenizer, 20, 1 if "</s> </s>" in pair else 2)
    rows = [("a " * a, "b " * b, (a + b) % 2) for a in range(9) for b in range(9)]
    expected = encoded(form, rows)
    given = expected.features(np.arange(len(rows)))
    if not with_types:
        given = [{"input_ids": row["input_ids"], "label": row["labels"]} for row in given]
    assert_same(source(given, form=form).read(), expected)


@pytest.mark.parametrize("label", [1, [1], np.array([1]), np.int32(1), "1", 1.0, np.array(1)], ids=repr)
def test_a_label_is_one_value_in_any_wrapping(label):
    assert source([(ROW["input_ids"], ROW["token_type_ids"], label)]).read().labels.tolist() == [1]


def test_scores_are_read_as_numbers():
    labels = (
        source([{**ROW, "labels": np.array([0.5])}, {**ROW, "labels": 2}], Labels.scores((0, 5)))
        .read()
        .labels
    )
    assert labels.dtype == np.float64 and labels.tolist() == [0.5, 2]


def test_padding_at_the_end_is_cut_off():
    padded = {
        "input_ids": np.array([*ROW["input_ids"], 0, 0]),
        "token_type_ids": [*ROW["token_type_ids"], 0, 0],
        "attention_mask": [1] * 6 + [0] * 2,
        "label": 1,
    }
    expected = source([ROW])
    for row in (padded, {**padded, "attention_mask": None}):
        assert_same(source([row]).read(), expected.read())
        assert source([row]).sha256() == expected.sha256()


def test_the_label_is_in_the_column_that_is_named():
    row = {**ROW, "label": 0, "mine": 1}
    with pytest.raises(InputError, match=r"x\[0\]: both columns labels, label may be label; name one"):
        source([row]).read()
    assert source([row], columns=Columns(label="mine")).read().labels.tolist() == [1]


def test_the_hash_is_of_ids_segments_and_labels_alone():
    given = encoded().features(np.arange(len(ROWS)))
    hashes = {source(rows).sha256() for rows in (given, iter(given), [{**row, "idx": 4} for row in given])}
    as_tuples = [(np.array(r["input_ids"]), r["token_type_ids"], r["labels"]) for r in given]
    assert (
        hashes | {source(as_tuples).sha256(), source(given).sha256_of_ends()} == hashes and len(hashes) == 1
    )
    others = [given[1:], given[::-1], [{**given[0], "labels": 1}, *given[1:]]]
    other = {source(rows).sha256() for rows in others} | {GivenPairs("x", ROWS, Labels.numbered(2)).sha256()}
    assert len(other) == 4 and not other & hashes


BAD = [
    ({"input_ids": [1, 5, 6, 2, 99, 2]}, r"x\[1\]: the id 99 is outside of the vocabulary, of 35 tokens"),
    ({"input_ids": [1, 5, 6, 2, -1, 2]}, "the id -1 is outside of the vocabulary"),
    ({"input_ids": [6, 5, 6, 2, 7, 2]}, r"the ids are not those of a pair, \[CLS\] a \[SEP\] b \[SEP\]"),
    ({"input_ids": [1, 5, 6, 2, 7, 8]}, "the ids are not those of a pair"),
    ({"input_ids": [1, 5, 2, 6, 7, 2]}, "the ids are not those of a pair"),  # segments change elsewhere
    ({"token_type_ids": [0] * 6}, "token_type_ids are not 0 of a first text and 1 of a second"),
    ({"token_type_ids": [0, 1, 0, 0, 1, 1]}, "token_type_ids are not 0 of a first text and 1 of a second"),
    ({"token_type_ids": [0, 1]}, "2 token_type_ids for 6 input_ids; give one for each"),
    ({"token_type_ids": None, "input_ids": [1, 5, 2, 2, 7, 2]}, "2 separators between the texts and no"),
    ({"token_type_ids": None, "input_ids": [1, 5, 6, 5, 7, 2]}, "0 separators between the texts and no"),
    ({"attention_mask": [1, 0, 1, 1, 1, 1]}, "attention_mask is not 1 of tokens and then 0 of padding"),
    ({"position_ids": [0, 1, 2, 3, 5, 4]}, "position_ids are not 0, 1, 2"),
    ({"input_ids": [[1, 5, 6, 2, 7, 2]]}, r"input_ids has the shape \[1, 6\]; give the ids of one row"),
    ({"input_ids": "今天"}, "input_ids is '今天', and no list, array or tensor of whole numbers"),
    ({"input_ids": [0.5] * 6}, "and no list, array or tensor of whole numbers"),
    ({"input_ids": [0] * 6}, "token_type_ids are not 0 of a first text"),
    ({"labels": 7}, r"x\[1\]: label 7 is not one of 0, 1"),
    ({"labels": None}, r"x\[1\]: no label; each row needs one of 0, 1"),
    ({"labels": [0, 1]}, r"x\[1\]: label \[0, 1\] is no single value"),
]


@pytest.mark.parametrize("change, reason", BAD, ids=range(len(BAD)))
def test_a_row_that_is_no_pair_of_the_model_is_refused(change, reason):
    rows = [ROW, {**ROW, **change}, ROW]
    with pytest.raises(InputError, match=reason):
        source(rows).read()
    left_out = []
    assert len(list(source(rows, rules=RowRules(skips=True)).rows(left_out.append))) == 2
    assert [row.place for row in left_out] == [1]


@pytest.mark.parametrize(
    "other", [("今天", "明天", 1), {"text_a": "今", "text_b": "天", "label": 1}], ids=repr
)
def test_texts_among_rows_of_ids_are_refused(other):
    with pytest.raises(InputError, match=r"x\[1\]: .* is no row of token ids, as the first one is"):
        source([ROW, other]).read()
    with pytest.raises(InputError, match=r"x\[1\]: token ids, and x is read as pairs of texts; give"):
        GivenPairs("x", [other, ROW], Labels.numbered(2)).read()


def test_a_model_of_one_token_type_takes_any_of_them():
    rows = [{**ROW, "token_type_ids": [0] * 6}, {"input_ids": ROW["input_ids"], "labels": 1}]
    assert source(rows, form=FORM._replace(token_types=1)).read().heads.tolist() == [4, 4]
