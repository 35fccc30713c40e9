"""The texts that an encoder learns from, each encoded once, and which of them belong together."""

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Dict, Iterable, List, Optional, Tuple

import numpy as np

from data_tools.base.errors import InputError, counted
from ernie_pair.pair.data.pair_file import Pairs


@dataclass(frozen=True)
class TrainingTexts:
    """Texts and what is known of them; all numbers are places in ``texts``.

    ``anchors`` and ``positives`` int64 [N] belong together, as pair i of the training. ``negatives`` are hard
    negatives of an anchor: {place: places}, ascending.
    """

    texts: List[str]
    anchors: np.ndarray
    positives: np.ndarray
    negatives: Dict[int, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.anchors)

    @property
    def is_augmented(self) -> bool:
        """Return whether each text belongs to itself alone: SimCSE."""
        return self.anchors is self.positives

    @cached_property
    def match_keys(self) -> np.ndarray:
        """Return anchor * texts + positive of all that belong together, both ways, int64 ascending."""
        number, (a, b) = len(self.texts), (self.anchors, self.positives)
        return np.unique(np.concatenate([a * number + b, b * number + a]))

    def belong_together(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return whether texts ``left`` [A, 1] and ``right`` [1, C] do, or are one text, bool [A, C]."""
        keys = left * len(self.texts) + right
        places = np.minimum(np.searchsorted(self.match_keys, keys), len(self.match_keys) - 1)
        return (self.match_keys[places] == keys) | (left == right)

    def negatives_of(self, pair: int, epoch: int, count: int) -> np.ndarray:
        """Return at most ``count`` hard negatives of a pair, int64; the epochs take them in turn."""
        found = self.negatives.get(int(self.anchors[pair]))
        if found is None or not count:
            return np.zeros(0, dtype=np.int64)
        size = min(count, len(found))
        return found[(epoch * size + np.arange(size)) % len(found)]


def texts_of_pairs(pairs: Pairs, negatives: Optional[Pairs], where: str) -> TrainingTexts:
    """Return the texts of labelled pairs: rows of label 1 belong together, those of 0 are hard negatives.

    ``negatives``: rows of a text and a hard negative of it besides. What is a match of an anchor is no
    negative of it. Raises InputError if nothing belongs together, or no row of ``negatives`` is of use.
    """
    places: Dict[str, int] = {}
    left, right = (_places_of(side, places) for side in (pairs.left, pairs.right))
    is_match = pairs.known_labels == 1
    if not is_match.any():
        raise InputError(f"{where} has no pair of label 1: nothing belongs together; take another file")
    anchors, positives = left[is_match], right[is_match]
    rows = [(left[~is_match], right[~is_match])]
    if negatives is not None:
        more = tuple(_places_of(side, places) for side in (negatives.left, negatives.right))
        if not np.isin(more[0], anchors).any():
            raise InputError(
                f"{negatives.path}: none of its first texts is that of a pair of label 1 in {where}; give "
                "negatives of the texts that are trained with"
            )
        rows.append((more[0], more[1]))
    found = TrainingTexts(list(places), anchors, positives)
    return TrainingTexts(found.texts, anchors, positives, _negatives_in(found, rows))


def texts_alone(texts: Iterable[str], where: str) -> TrainingTexts:
    """Return texts that each belong to themselves, each once. Raises InputError for fewer than two."""
    every = list(dict.fromkeys(texts))
    if len(every) < 2:
        raise InputError(
            f"{where} has {counted(len(every), 'text')}; a step compares several, give a file of more"
        )
    places = np.arange(len(every), dtype=np.int64)
    return TrainingTexts(every, places, places)


def _places_of(texts: Iterable[str], places: Dict[str, int]) -> np.ndarray:
    return np.array([places.setdefault(text, len(places)) for text in texts], dtype=np.int64)


def _negatives_in(texts: TrainingTexts, rows: List[Tuple[np.ndarray, np.ndarray]]) -> Dict[int, np.ndarray]:
    """Return the hard negatives of each anchor among ``rows`` of (texts, other texts)."""
    left, right = (np.concatenate(side) for side in zip(*rows))
    is_of_use = np.isin(left, texts.anchors)
    left, right = left[is_of_use], right[is_of_use]
    keys = np.unique(left * len(texts.texts) + right)
    left, right = np.divmod(keys, len(texts.texts))
    wrong = np.isin(keys, texts.match_keys) | (left == right)
    left, right = left[~wrong], right[~wrong]
    firsts, begins = np.unique(left, return_index=True)
    return {int(text): found for text, found in zip(firsts, np.split(right, begins[1:]))}


def sha256_of_texts(texts: Iterable[str]) -> str:
    """Return the SHA-256 of texts, in hex."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(json.dumps(text).encode() + b"\n")
    return digest.hexdigest()
