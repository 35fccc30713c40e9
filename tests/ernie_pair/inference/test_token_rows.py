import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from data_tools.text.folder_tokenizer import FolderTokenizer
from data_tools.text.wordpiece import WordPiece
from ernie_pair.inference.token_rows import (
    SEPARATOR,
    encode_single_texts,
    encode_texts,
    exchange_texts,
    kept_lengths,
)

PAIRS = [("a " * left, "b " * right) for left in range(12) for right in range(12)]


def library(pair):
    """A tokenizer of the library with the words a and b, and ``pair`` as its template."""
    made = Tokenizer(models.WordLevel({"<unk>": 0, "<pad>": 1, "<s>": 2, "</s>": 3, "a": 4, "b": 5}, "<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair=pair, special_tokens=[("<s>", 2), ("</s>", 3)]
    )
    return made


def rows_of(encoded):
    return [encoded.ids[begin:end].tolist() for begin, end in zip(encoded.starts, encoded.starts[1:])]


@pytest.mark.parametrize("pair", ["<s> $A </s> $B:1 </s>:1", "<s> $A </s> </s> $B </s>"])
@pytest.mark.parametrize("length", range(6, 20))
def test_pairs_are_truncated_as_the_library_truncates_them(pair, length):
    theirs, ours = library(pair), FolderTokenizer(library(pair), {}, "here")
    theirs.enable_truncation(length, strategy="longest_first")
    left, right = zip(*PAIRS)
    encoded = encode_texts(left, right, None, ours, length)
    expected = [theirs.encode(*both).ids for both in PAIRS]
    assert rows_of(encoded) == expected
    full = [len(a.split()) + len(b.split()) + 3 + len(ours.pair_specials[1]) - 1 for a, b in PAIRS]
    assert encoded.num_cut == sum(size > length for size in full)


def test_ties_are_cut_on_the_other_side_by_ernies_own_rule():
    assert kept_lengths(9, 9, 7) == (4, 3)
    assert kept_lengths(9, 9, 7, is_fast=True) == (3, 4)
    assert kept_lengths(10, 9, 7, is_fast=True) == (4, 3)


@pytest.mark.parametrize("pair", ["<s> $A </s> $B:1 </s>:1", "<s> $A </s> </s> $B </s>"])
def test_exchanged_rows_are_those_of_the_exchanged_texts(pair):
    ours = FolderTokenizer(library(pair), {}, "here")
    left, right = zip(*PAIRS)
    rows, columns = encode_texts(left, right, None, ours, 64), np.arange(len(PAIRS))
    exchanged = encode_texts(right, left, None, ours, 64).batch(columns)
    batch = exchange_texts(rows.batch(columns))
    assert np.array_equal(batch.input_ids, exchanged.input_ids)
    assert np.array_equal(batch.token_type_ids, exchanged.token_type_ids)
    assert (batch.token_type_ids == SEPARATOR).sum() == (len(PAIRS) if "</s> </s>" in pair else 0)
    assert np.array_equal(exchange_texts(batch).input_ids, rows.batch(columns).input_ids)


def test_a_text_without_tokens_is_unknown_to_ernie_alone():
    ours = WordPiece(["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]"])
    theirs = FolderTokenizer(library("<s> $A </s> $B:1 </s>:1"), {}, "here")
    assert rows_of(encode_single_texts([""], ours, 8)) == [[1, 4, 2]]
    assert rows_of(encode_single_texts([""], theirs, 8)) == [[2, 3]]
    assert rows_of(encode_texts([""], [""], None, theirs, 8)) == [[2, 3, 3]]
