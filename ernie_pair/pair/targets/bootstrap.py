"""Confidence intervals of metrics: bootstrap over the rows of a file."""

from typing import Callable, Dict, Iterator, List, Sequence

import numpy as np

SHARE = 0.95  # of the resamples lies in an interval

Measure = Callable[[np.ndarray], Dict[str, float]]  # of how often each row stands in the file


def resamples(num_rows: int, samples: int, seed: int) -> Iterator[np.ndarray]:
    """Yield how often each row was drawn, ``num_rows`` draws with replacement; int64 [num_rows] each."""
    for sample in range(samples):
        rng = np.random.default_rng([seed, sample])
        yield np.bincount(rng.integers(num_rows, size=num_rows), minlength=num_rows)


def percentile_interval(values: np.ndarray) -> List[float]:
    """Return [low, high], between which the middle SHARE of the values lies; nan is ignored."""
    rest = (1 - SHARE) / 2
    return np.nanquantile(values, [rest, 1 - rest]).tolist()


def bootstrap_intervals(
    measure: Measure, names: Sequence[str], num_rows: int, samples: int, seed: int
) -> Dict[str, List[float]]:
    """Return {metric: [low, high]}, the percentile bootstrap of ``samples`` resamples of the rows.

    A metric that has no value on any resample is left out.
    """
    drawn = [measure(counts) for counts in resamples(num_rows, samples, seed)]
    columns = {name: np.array([values[name] for values in drawn]) for name in names}
    return {n: percentile_interval(column) for n, column in columns.items() if not np.isnan(column).all()}
