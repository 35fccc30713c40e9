"""Concatenate the datasets of the phases of a run."""

from bisect import bisect_right
from itertools import accumulate
from typing import List, Sequence

from data_tools.ernie_dataset import Sample


class PhasedDataset:
    """The first ``counts[0]`` samples are those of ``datasets[0]``, the next ``counts[1]`` of the next.

    Each is read from its own first sample; item i depends on i only.
    """

    def __init__(self, datasets: Sequence, counts: Sequence[int]):
        self.datasets = list(datasets)
        self.firsts: List[int] = [0, *accumulate(counts)]  # of each phase, and the end of the last

    def __len__(self) -> int:
        return self.firsts[-1]

    def __getitem__(self, index: int) -> Sample:
        phase = min(bisect_right(self.firsts, index) - 1, len(self.datasets) - 1)
        return self.datasets[phase][index - self.firsts[phase]]
