"""Generate the changed pairs of a file: of each kind the rows whose rule applies, the same for a seed.

A row is a function of the file, the seed, its kind and its place alone, so any process makes the same ones.
"""

from typing import Dict, Iterator, List, NamedTuple, Tuple

import numpy as np

from data_tools.files.errors import InputError
from data_tools.files.installation import import_optional
from data_tools.options.options import names_in, refuse_unknown_names
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.robustness.rules import (
    Change,
    Facts,
    Rule,
    Untouched,
    add_filler,
    change_entity,
    change_negation,
    exchange_texts,
    make_homophone,
    make_typo,
)

ALL = "all"
# The numbers belong to the draws: a kind that is added gets a new one.
KINDS: Dict[str, Tuple[int, Rule]] = {
    "typo": (1, make_typo),
    "homophone": (2, make_homophone),
    "negation": (3, change_negation),
    "entity": (4, change_entity),
    "order": (5, exchange_texts),
    "filler": (6, add_filler),
}
CHANGING = ("negation", "entity")  # the label becomes that of different texts


class Perturbing(NamedTuple):
    """Which ``kinds`` are generated, at most how many ``rows`` of each (0: all), and the ``seed``."""

    kinds: Tuple[str, ...]
    rows: int
    seed: int


class Perturbed(NamedTuple):
    """Changed pairs, kind after kind, each in the order of the file.

    ``labels`` int64 [N] are UNKNOWN where they do not follow; ``origins`` int64 [N] are the rows of the file
    that they were made of, ``kinds`` and ``hows`` say by which rule.
    """

    left: List[str]
    right: List[str]
    labels: np.ndarray
    kinds: List[str]
    hows: List[str]
    origins: np.ndarray

    def __len__(self) -> int:
        return len(self.left)

    def origin(self, row: int, pairs: Pairs) -> str:
        """Return where row ``row`` comes from among ``pairs``: `typo doubled line 17`."""
        kind, how = self.kinds[row], self.hows[row]
        named = kind if how == kind else f"{kind} {how}"
        return f"{named} line {pairs.number(int(self.origins[row]))}"


def parse_kinds(text: str) -> Tuple[str, ...]:
    """Return the kinds that --robustness names, in the order of KINDS; `all` names every one.

    Raises InputError for an unknown name, and for homophones without pypinyin.
    """
    names = names_in(text)
    fault = f" is no kind; name some of {', '.join(KINDS)}, or {ALL}"
    refuse_unknown_names("robustness", names, (*KINDS, ALL), fault)
    chosen = tuple(kind for kind in KINDS if kind in names or ALL in names)
    if "homophone" in chosen:
        import_optional("pypinyin", "robustness")
    return chosen


def perturb(pairs: Pairs, num_classes: int, asked: Perturbing) -> Perturbed:
    """Return the changed pairs of ``pairs``, which have labels. Raises InputError if there is none."""
    same, different = (1, 0) if num_classes == 2 else (None, None)
    facts = Facts(sorted({*pairs.left, *pairs.right}), same, different)
    found = [
        (kind, row, change) for kind in asked.kinds for row, change in _changes(pairs, facts, kind, asked)
    ]
    if not found:
        raise InputError(f"{pairs.path}: no rule of {', '.join(asked.kinds)} applies to any row; name others")
    return Perturbed(
        [change.left for _, _, change in found],
        [change.right for _, _, change in found],
        np.array([change.label for _, _, change in found], dtype=np.int64),
        [kind for kind, _, _ in found],
        [change.how for _, _, change in found],
        np.array([row for _, row, _ in found], dtype=np.int64),
    )


def _changes(pairs: Pairs, facts: Facts, kind: str, asked: Perturbing) -> List[Tuple[int, Change]]:
    """Return the rows of a kind and what became of them; where there are more than enough, drawn ones."""
    number, rule = KINDS[kind]
    order = list(range(len(pairs)))
    if asked.rows:
        order = np.random.default_rng([asked.seed, number]).permutation(len(pairs)).tolist()
    found: List[Tuple[int, Change]] = []
    for row, change in _applied(pairs, facts, rule, ([asked.seed, number, row] for row in order)):
        found.append((row, change))
        if len(found) == asked.rows:
            break
    return sorted(found, key=lambda entry: entry[0])


def _applied(pairs: Pairs, facts: Facts, rule: Rule, seeds) -> Iterator[Tuple[int, Change]]:
    for seed in seeds:
        row = seed[-1]
        texts = pairs.left[row], pairs.right[row]
        change = rule(Untouched(*texts, int(pairs.known_labels[row]), np.random.default_rng(seed)), facts)
        if change is not None and change[:2] != texts:
            yield row, change
