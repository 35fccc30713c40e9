"""What follows from the logits of a pair model: predictions, scores and rankings."""

from dataclasses import dataclass, field, replace
from heapq import nlargest
from itertools import islice
from typing import Any, Callable, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ernie_pair.core.cli.options import bound_problem, check_whole_numbers, checked
from ernie_pair.core.errors import InputError, NumbersError
from ernie_pair.inference.token_rows import Reading
from ernie_pair.models.labels import Labels, match_class
from ernie_pair.models.temperature import Calibration

CANDIDATES = 4096  # ranked at a time


def clip_scores(outputs: np.ndarray, label_range: Optional[Tuple[float, float]]) -> np.ndarray:
    """Return the scores float64 [N] of outputs [N, 1], in the range of the labels if it is known."""
    scores = outputs[:, 0].astype(np.float64)
    return scores if label_range is None else np.clip(scores, *label_range)


class ScoreUnit(NamedTuple):
    """The kind of a score and its range; None: no bound."""

    name: str
    least: Optional[float] = None
    most: Optional[float] = None

    def check_inside(self, threshold: Optional[float]) -> None:
        """Raise InputError for a threshold that no score of this unit can have; None: no threshold."""
        checked(threshold, Optional[float], "--threshold")
        fault = bound_problem(threshold, {"at_least": self.least, "at_most": self.most})
        if fault:
            raise InputError(f"--threshold {threshold} {fault}: it is {self.name}")


COSINE = ScoreUnit("a cosine", -1, 1)
PRODUCT = ScoreUnit("a product of vectors")
PROBABILITY = ScoreUnit("a probability", 0, 1)


def find_unit(has_classes: bool, label_range: Optional[Tuple[float, float]]) -> ScoreUnit:
    """Return the unit of a pair classifier's scores: probabilities, or those of regression or ranking."""
    if has_classes:
        return PROBABILITY
    return ScoreUnit("a score of the model", *(label_range or (None, None)))


def probabilities(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Return softmax(logits / temperature) of logits [N, C], float64 [N, C]."""
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def decide(
    logits: np.ndarray, temperature: float = 1.0, threshold: Optional[float] = None
) -> Tuple[np.ndarray, np.ndarray]:
    """Return the class int64 [N] and the probabilities float64 [N, C] of logits [N, C], at ``temperature``.

    The class is the most probable one, or with ``threshold`` 1 where the probability of 1 reaches it, else 0.
    """
    shares = probabilities(logits, temperature)
    if threshold is None:
        return logits.argmax(axis=1), shares
    return (shares[:, 1] >= threshold).astype(np.int64), shares


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a pair model, trained or exported, says of N pairs, in their order.

    A model without classes has ``scores`` alone. Of two classes ``scores`` are the probabilities that the
    pairs match, of more there are none.
    """

    classes: Optional[np.ndarray]  # int64 [N]: the most probable class, or the one by the threshold
    labels: Optional[List[str]]  # the names of the classes, [N]
    probabilities: Optional[np.ndarray]  # float64 [N, C], calibrated if the model is
    scores: Optional[np.ndarray]  # float64 [N]
    reading: Optional[Reading] = field(default=None, kw_only=True)  # of the texts, by an exported model

    @property
    def rows(self) -> np.ndarray:
        """Return the probabilities float64 [N, C], or without classes the scores as [N, 1]."""
        if self.probabilities is not None:
            return self.probabilities
        assert self.scores is not None
        return self.scores[:, None]

    def part(self, which: slice) -> "Prediction":
        """Return what is said of some of the pairs."""
        values: List[Any] = [self.classes, self.labels, self.probabilities, self.scores]
        reading = self.reading and self.reading.part(which)
        return Prediction(*(None if value is None else value[which] for value in values), reading=reading)


def predict_from(logits: np.ndarray, labels: Labels, calibration: Calibration) -> Prediction:
    """Return the prediction that follows from logits [N, C] of a model with ``labels``."""
    if not labels.has_classes:
        return Prediction(None, None, None, clip_scores(logits, labels.label_range))
    classes, shares = decide(logits, calibration.temperature, calibration.threshold)
    match = match_class(labels)
    scores = None if match is None else shares[:, match]
    return Prediction(classes, [labels.names[number] for number in classes], shares, scores)


def check_threshold(threshold: Optional[float], num_classes: int, where: str) -> None:
    """Raise InputError for a threshold of a model that does not have two classes."""
    if threshold is not None and num_classes != 2:
        has = "gives scores" if num_classes == 1 else f"has {num_classes}"
        raise InputError(f"--threshold decides between two classes, and {where} {has}; leave it out")


def check_rankable(num_classes: int, where: str) -> None:
    """Raise InputError for a model that has no score to rank candidates by; 1: without classes."""
    if num_classes > 2:
        raise InputError(
            f"{where} has {num_classes} classes, but candidates are ranked by the second of two, or by a "
            "score; train it with labels 0 and 1"
        )


def are_names(names: Sequence[str]) -> bool:
    """Return whether classes have real names, other than 0, 1 and so on or LABEL_0, LABEL_1."""
    return any(name not in (str(number), f"LABEL_{number}") for number, name in enumerate(names))


def chosen_calibration(
    saved: Calibration, threshold: Optional[float], symmetric: str, num_classes: int, where: str
) -> Calibration:
    """Return how the model ``where`` decides: as ``saved``, but for ``threshold`` and ``symmetric`` if given.

    Raises InputError for a threshold of other than two classes, or a way of scoring it was not tuned for.
    """
    check_threshold(threshold, num_classes, where)
    chosen = saved.chosen_symmetry(symmetric, where)
    return replace(saved, symmetric=chosen, threshold=saved.threshold if threshold is None else threshold)


@dataclass(frozen=True)
class Window:
    """A part of a text, text[begin:end] of it in characters."""

    begin: int
    end: int
    text: str


Span = Tuple[int, int]
Windows = Sequence[Optional[Window]]  # None: the text was read whole


class WindowedPairs(NamedTuple):
    """The ``size`` given pairs, and behind them those with further windows of their second texts.

    ``owners`` int64 [P]: the given pair that each is of; ``spans``: the window of each, None: the whole text.
    """

    pairs: List[Tuple[str, str]]
    owners: np.ndarray
    spans: List[Optional[Span]]
    size: int

    def best(self, predicted: Sequence[Prediction]) -> Tuple[np.ndarray, Windows]:
        """Return the best score of each given pair, float64 [N], and its window, of what is ``predicted``."""
        scores = np.concatenate([each.scores for each in predicted if each.scores is not None])
        order = np.lexsort((-scores, self.owners))
        chosen = order[np.searchsorted(self.owners[order], np.arange(self.size))]
        spans = [self.spans[place] for place in chosen.tolist()]
        texts = (text for _, text in self.pairs)
        cut = [span and Window(span[0], span[1], text[slice(*span)]) for span, text in zip(spans, texts)]
        return scores[chosen], cut


class Ranked(NamedTuple):
    """A candidate and how well it matches the query."""

    place: int  # among the candidates, from 0
    text: str
    score: float  # a probability with two classes, otherwise the score of the model
    window: Optional[Window] = None  # of a text that is scored in windows: the best


def rank_texts(
    score: Callable[[Sequence[str]], Tuple[np.ndarray, Windows]], candidates: Iterable[str], top_k: int
) -> List[Ranked]:
    """Return the ``top_k`` candidates with the best ``score``, best first; ties in their order.

    ``score``: candidates to numbers, float64 [N], and windows. ``candidates`` may be an iterator of any
    length: CANDIDATES and top_k of them are in memory at a time. Raises InputError for a ``top_k`` below 1 or
    one text as candidates, NumbersError for a score that is NaN.
    """
    check_whole_numbers(1, top_k=top_k)
    if isinstance(candidates, (str, bytes)):
        raise InputError(f"the candidates are one text, {candidates[:60]!r}; give a list of texts")

    def scored() -> Iterator[Tuple[float, int, str, Optional[Window]]]:  # of equals the first one is the best
        rest, first = iter(candidates), 0
        while window := list(islice(rest, CANDIDATES)):
            found, parts = score(window)
            scores = np.asarray(found, dtype=np.float64)
            if np.isnan(scores).any():
                raise NumbersError(f"the score of candidate {first + int(np.isnan(scores).argmax())} is NaN")
            yield from zip(scores.tolist(), range(-first, -first - len(window), -1), window, parts)
            first += len(window)

    best = nlargest(top_k, scored())
    return [Ranked(-place, text, value, part) for value, place, text, part in best]


def best_places(scores: np.ndarray, top_k: int) -> List[int]:
    """Return the positions of the ``top_k`` best of scores [N], best first; ties in their order."""
    return np.argsort(-np.asarray(scores), kind="stable")[:top_k].tolist()
