"""Masking functions of the user's own: how they are found, and what of their results is refused."""

import numpy as np
import pytest
from masking_cases import rule

from data_tools.dataset_utils import create_masked_lm_predictions
from data_tools.samples.masking import CheckedMasking, load_masking_fn
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


@pytest.mark.parametrize(
    "name, message",
    [
        ("hide", "is not package.module:function"),
        ("a.b:", "is not package.module:function"),
        ("no_such_module:f", "No module named 'no_such_module'"),
        (".mymask:hide", "is not package.module:function"),
        (f"{__name__}:no_such_function", "has no function no_such_function"),
        (f"{__name__}:NOT_A_FUNCTION", "has no function NOT_A_FUNCTION"),
        (f"{__name__}:without_marks", r"does not take \(tokens, rule, rng, marks\)"),
    ],
)
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
