"""Load a user's own masking function by its name: package.module:function."""

from inspect import signature
from typing import Callable, Optional

import numpy as np

from data_tools.base.errors import InputError
from data_tools.base.named_object import import_named
from data_tools.dataset_utils import MaskedTokens, MaskingRule, create_masked_lm_predictions

MaskingFunction = Callable[[np.ndarray, MaskingRule, np.random.Generator, Optional[np.ndarray]], MaskedTokens]


def load_masking_fn(name: str) -> MaskingFunction:
    """Return the function called ``name``, its results checked; '' is create_masked_lm_predictions.

    It is called like that one: (tokens, rule, rng, marks), marks None if the corpus has none. Modules are
    found as Python finds them, then in the working folder. Raises InputError if there is no such function,
    and later if one of its results cannot be a masked sample.
    """
    if not name:
        return create_masked_lm_predictions
    function = import_named(name, "--masking_fn", "function")
    if not _takes_four(function):
        raise InputError(f"--masking_fn {name} does not take (tokens, rule, rng, marks); give it these four")
    return CheckedMasking(name, function)


class CheckedMasking:
    """A masking function whose results are checked against the contract of the built-in one."""

    def __init__(self, name: str, function: MaskingFunction):
        self.name, self.function = name, function

    def __call__(
        self,
        tokens: np.ndarray,
        rule: MaskingRule,
        rng: np.random.Generator,
        marks: Optional[np.ndarray] = None,
    ) -> MaskedTokens:
        """Mask ``tokens``, int64 [S]. Raises InputError if the result cannot be a masked sample."""
        answer = self.function(tokens.copy(), rule, rng, marks)
        fault = _fault_of(answer, tokens, len(rule.base_ids))
        if fault:
            raise InputError(
                f"--masking_fn {self.name}: {fault}; return (ids, positions, labels) as "
                "data_tools/dataset_utils.py says"
            )
        return MaskedTokens(*(np.asarray(part, dtype=np.int64) for part in answer))


def _takes_four(function: Callable) -> bool:
    try:
        signature(function).bind(*range(4))
    except TypeError:
        return False
    except ValueError:  # a compiled function without a signature
        return True
    return True


def _fault_of(answer, tokens: np.ndarray, vocab_size: int) -> str:
    """Return what is wrong with a function's result, '' for nothing."""
    if not (isinstance(answer, (tuple, list)) and len(answer) == 3):
        return "does not return three arrays"
    ids, positions, labels = map(np.asarray, answer)
    if {ids.dtype.kind, positions.dtype.kind, labels.dtype.kind} - set("iu"):
        return "returns something other than whole numbers"
    if ids.shape != tokens.shape:
        return f"turned {tokens.shape} tokens into {ids.shape} ids"
    if positions.ndim != 1 or positions.shape != labels.shape:
        return f"returns positions {positions.shape} but labels {labels.shape}"
    if not len(positions):
        return "masked nothing"
    if (np.diff(positions.astype(np.int64)) <= 0).any() or not 0 <= positions[0] <= positions[-1] < len(ids):
        return "returns positions that do not ascend within the sample"
    if min(ids.min(), labels.min()) < 0 or max(ids.max(), labels.max()) >= vocab_size:
        return f"returns an id outside 0..{vocab_size - 1}"
    return ""
