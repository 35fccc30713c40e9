"""What `PairTrainer.predict` returns."""

from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np

from ernie_pair.pair.data.pair_file import BadRow

TIMES = ("runtime", "samples_per_second")  # among the metrics of an evaluation that was asked for


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions in the order of the rows; `predictions, label_ids, metrics = found` takes it apart.

    A model without classes fills ``scores`` and leaves ``classes``, ``names`` and ``probabilities`` empty.
    ``predictions`` are the logits, as everywhere in Transformers and PaddleNLP; ``classes`` are decided from
    them by temperature and threshold, where the model has such. Without labels, ``label_ids`` is None and
    ``metrics`` are the times alone. With on_bad_row="skip" a row that is no pair has the class and the label
    -1, NaN for numbers and no name.
    """

    predictions: np.ndarray  # the logits, float32 [N, C]
    label_ids: Optional[np.ndarray]  # classes int64 [N], or scores float64 [N]
    metrics: Dict[str, float]  # of the likeliest classes, or of the scores; runtime, samples_per_second
    classes: np.ndarray  # int64 [N]
    names: List[str]  # of the classes, [N]
    probabilities: np.ndarray  # float64 [N, C], calibrated if the model is
    scores: Optional[np.ndarray] = None  # float64 [N], of a model without classes

    @classmethod
    def of_scores(
        cls,
        outputs: np.ndarray,
        label_ids: Optional[np.ndarray],
        metrics: Dict[str, float],
        scores: np.ndarray,
    ) -> "Predictions":
        """Return the predictions of a model without classes: its outputs [N, 1] and their scores [N]."""
        no_classes, no_shares = np.zeros(0, dtype=np.int64), np.zeros((0, 0))
        return cls(outputs, label_ids, metrics, no_classes, [], no_shares, scores)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over (predictions, label_ids, metrics)."""
        return iter((self.predictions, self.label_ids, self.metrics))

    def __getitem__(self, index: Union[int, slice]) -> Any:
        """Return one of (predictions, label_ids, metrics), or several."""
        return tuple(self)[index]

    def with_bad_rows(self, bad: Sequence[BadRow]) -> "Predictions":
        """Return these predictions with an empty one in place of each row that was left out."""
        if not bad:
            return self
        count = len(self.predictions) + len(bad)
        places = np.setdiff1d(np.arange(count), [row.place for row in bad])
        if self.scores is not None:
            labels = None if self.label_ids is None else _spread(self.label_ids, places, count, np.nan)
            outputs, scores = (
                _spread(each, places, count, np.nan) for each in (self.predictions, self.scores)
            )
            return Predictions.of_scores(outputs, labels, self.metrics, scores)
        names = iter(self.names)
        return Predictions(
            _spread(self.predictions, places, count, np.nan),
            None if self.label_ids is None else _spread(self.label_ids, places, count, -1),
            self.metrics,
            _spread(self.classes, places, count, -1),
            [next(names) if is_pair else "" for is_pair in np.isin(np.arange(count), places)],
            _spread(self.probabilities, places, count, np.nan),
        )


def with_times(metrics: Dict[str, float], seconds: float, count: int) -> Dict[str, float]:
    """Return ``metrics`` and, behind them, the times of ``count`` rows; a metric of such a name stays."""
    times = dict(zip(TIMES, (round(seconds, 4), round(count / max(seconds, 1e-9), 3))))
    return {**metrics, **{name: value for name, value in times.items() if name not in metrics}}


def _spread(values: np.ndarray, places: np.ndarray, count: int, empty: float) -> np.ndarray:
    """Return ``values`` [N, ...] in their ``places`` among ``count`` rows, the others ``empty``."""
    shape: Tuple[int, ...] = (count, *values.shape[1:])
    all_rows = np.full(shape, empty, dtype=values.dtype)
    all_rows[places] = values
    return all_rows
