"""Masking functions of the user's own: how they are found, and what of their results is refused."""

from types import SimpleNamespace

import numpy as np
import pytest
from masking_cases import PLAIN_OF, random_case, rule

from data_tools.dataset_utils import create_masked_lm_predictions, word_spans
from data_tools.ernie_dataset import ErnieDataset
from data_tools.samples.masking import CheckedMasking, load_masking_fn, seen_by_decoder
from data_tools.samples.split_datasets import collate
from ernie_pair.core.errors import InputError


def hide_the_second(tokens, rule, rng, marks):
    ids = tokens.copy()
    ids[1] = rule.mask_id
    return ids, np.array([1]), tokens[1:2]


def without_marks(tokens, rule, rng):
    return hide_the_second(tokens, rule, rng, None)


NOT_A_FUNCTION = 7


def test_a_custom_masking_function_replaces_the_default():
    masked = load_masking_fn(f"{__name__}:hide_the_second")(np.array([1, 10, 11, 2]), rule(), None)
    assert masked.ids.tolist() == [1, 3, 11, 2] and masked.labels.tolist() == [10]
    assert load_masking_fn("") is create_masked_lm_predictions


@pytest.mark.parametrize("name, message", [
    ("hide", "is not package.module:function"),
    ("a.b:", "is not package.module:function"),
    ("no_such_module:f", "No module named 'no_such_module'"),
    (".mymask:hide", "is not package.module:function"),
    (f"{__name__}:no_such_function", "has no function no_such_function"),
    (f"{__name__}:NOT_A_FUNCTION", "has no function NOT_A_FUNCTION"),
    (f"{__name__}:without_marks", r"does not take \(tokens, rule, rng, marks\)"),
])  # fmt: skip
def test_an_invalid_masking_function_is_refused(name, message):
    with pytest.raises(InputError, match=f"masking_fn {name}: ?.*{message}|{message}"):
        load_masking_fn(name)


TOKENS, LAST = np.array([1, 10, 11, 2]), 209  # the id of the last token


@pytest.mark.parametrize("answer, fault", [
    ((TOKENS, [0, 3], [0, LAST]), ""),
    ([TOKENS.astype(np.uint8), [0], [LAST]], ""),
    ((TOKENS, [0]), "does not return three arrays"),
    ({1: TOKENS, 2: [0], 3: [0]}, "does not return three arrays"),
    *[((TOKENS * kind[0], np.array([1]) * kind[1], np.array([10]) * kind[2]), "other than whole numbers")
      for kind in ((1.0, 1, 1), (1, 1.0, 1), (1, 1, 1.0))],
    ((TOKENS[:3], [1], [10]), r"turned \(4,\) tokens into \(3,\) ids"),
    ((TOKENS, [1, 2], [10]), r"positions \(2,\) but labels \(1,\)"),
    ((TOKENS, [[1]], [[10]]), r"positions \(1, 1\)"),
    ((TOKENS, np.zeros(0, int), np.zeros(0, int)), "masked nothing"),
    *[((TOKENS, at, [10, 11]), "do not ascend within") for at in ([1, 1], [2, 1], [-1, 1], [1, 4])],
    *[((TOKENS, [1], [label]), "an id outside 0..209") for label in (-1, LAST + 1)],
    *[((np.array([1, other, 11, 2]), [1], [10]), "an id outside 0..209") for other in (-1, LAST + 1)],
])  # fmt: skip
def test_a_result_of_a_masking_function_is_checked(answer, fault):
    checked = CheckedMasking("mine", lambda *_: answer)
    if not fault:
        masked = checked(TOKENS, rule(), None)
        assert all(map(np.array_equal, masked, answer)) and {part.dtype.kind for part in masked} == {"i"}
    else:
        with pytest.raises(InputError, match=f"masking_fn mine: .*{fault}.*; return .ids, positions"):
            checked(TOKENS, rule(), None)


def test_a_local_masking_module_is_found_and_errors_located(tmp_path, monkeypatch):
    (tmp_path / "masks_of_mine.py").write_text("def hide(tokens, rule, rng, marks):\n    return 1, 2, 3\n")
    (tmp_path / "masks_with_a_fault.py").write_text("def hide(tokens\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_masking_fn("masks_of_mine:hide").name == "masks_of_mine:hide"
    with pytest.raises(InputError, match=r"masks_with_a_fault.py:1: '\(' was never closed; fix"):
        load_masking_fn("masks_with_a_fault:hide")


# --- what RetroMAE's decoder sees: itself never, [CLS] always, a share of the words

CLS, SEP, PAD = 1, 2, 0


@pytest.mark.parametrize("seed", range(40))
def test_a_row_hides_itself_and_whole_words(seed):
    tokens, options, _, _ = random_case(seed)
    tokens = np.array([CLS, *tokens, SEP])
    seen = seen_by_decoder(tokens, options, 0.5, np.random.default_rng(seed))
    special = np.isin(tokens, (CLS, SEP))
    starts, ends, _ = word_spans(tokens, options)
    for row in range(len(tokens)):
        assert seen[row, 0] and not (row and seen[row, row])
        others = np.delete(np.arange(len(tokens)), row)
        assert seen[row, others[special[others]]].all()
        for start, end in zip(starts, ends):
            rest = [at for at in range(start, end) if at != row]
            assert len(set(seen[row, rest])) <= 1


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_the_share_is_that_of_the_words_and_rows_differ(share):
    tokens = np.array([CLS, *np.tile([10, 11, 111, 12], 50), SEP])
    seen = seen_by_decoder(tokens, rule(), share, np.random.default_rng(3))
    words = seen[1:-1, 1:-1][:, [column for column in range(200) if column % 4 != 2]]
    off = ~np.eye(200, dtype=bool)[:, [column for column in range(200) if column % 4 != 2]]
    assert 1 - words[off].mean() == pytest.approx(share, abs=0.02)
    assert len(np.unique(seen, axis=0)) == len(tokens)


def dataset(**settings):
    ids, starts = np.arange(10, 46), np.array([0, 5, 13, 16, 36])
    corpus = SimpleNamespace(ids=np.where(ids % 3, ids, ids + 100), starts=starts, marks=None)
    rows = np.array([[0, 2, 61], [2, 4, 10], [3, 4, 61], [0, 4, 20]])
    return ErnieDataset(corpus, rows, rule(), seed=4, binary_head=False, **settings)


def test_a_batch_holds_the_texts_and_what_each_position_sees():
    """The encoder's masks are those without a decoder."""
    with_decoder, without = dataset(decoder_masked_prob=0.5), dataset()
    samples = [with_decoder[index] for index in range(4)]
    batch = collate(samples, pad_id=PAD, max_seq_len=64)
    for row, (sample, plain) in enumerate(zip(samples, map(without.__getitem__, range(4)))):
        assert all(np.array_equal(a, b) for a, b in zip(sample[:5], plain[:5]))
        tokens, length = PLAIN_OF[without.text(row).tokens], len(sample.input_ids)
        expected = np.where(np.isin(tokens, (CLS, SEP)), -1, tokens)
        assert batch["decoder_labels"][row, :length].tolist() == expected.tolist()
        assert (batch["decoder_labels"][row, length:] == -1).all()
        assert np.array_equal(batch["decoder_mask"][row, :length, :length], sample.decoder_mask)
        assert batch["decoder_mask"][row, length:, 0].all()  # else float16 gives NaN there
        assert not batch["decoder_mask"][row, length:, 1:].any()
        assert not batch["decoder_mask"][row, :, length:].any()
    assert "decoder_mask" not in collate([without[0]], pad_id=PAD, max_seq_len=64)
