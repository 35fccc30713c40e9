"""Several corpora as one stream of samples, in exact proportions.

--input_dir "5.0 data/a 7.0 data/b" is read as weights 5/12 and 7/12. After any number n of samples
each corpus has given floor or ceil of its share of n, so the mixture is the same at every place of the
stream. The order of the corpora repeats after 12 samples: sample i is looked up, not counted, and a
resumed run needs only its number. Weights 1, 2, 1:

    sample                  0  1  2  3  4  5  6  7
    from corpus             1  0  1  2  1  0  1  2
    that corpus's sample    0  0  1  0  2  1  3  1
"""

import math
import os
import shlex
from bisect import bisect_right
from decimal import Decimal
from fractions import Fraction
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import List, NamedTuple, Sequence, Tuple

import numpy as np

from ernie_pair.core.errors import InputError
from ernie_pair.core.files.json_file import reads_as_number
from ernie_pair.core.installation import raise_interrupt

try:
    from data_tools._helpers import turns as compiled_turns  # from helpers.cpp, by setup.py
except ImportError as error:
    raise_interrupt(error)
    compiled_turns = None  # type: ignore[assignment]  # not compiled: its Python twin is used

MAX_PERIOD = 1_000_000  # samples until the order of the corpora repeats
_EXAMPLE = 'write weight folder weight folder, as in --input_dir "5.0 data/a 7.0 data/b"'


class WeightedFolder(NamedTuple):
    """A folder of --input_dir and its weight."""

    weight: Fraction
    folder: Path


def read_blend(text: str) -> List[WeightedFolder]:
    """Parse an --input_dir: one path, or weight folder weight folder ... with shell quotes.

    Raises InputError: a weight or a folder is missing, a weight is not above 0, a folder occurs twice.
    """
    try:  # the name of a folder may hold any quotes
        words = [] if os.path.isdir(text) else shlex.split(text)
    except ValueError as error:
        raise InputError(f"--input_dir {text}: {error}; {_EXAMPLE}") from None
    if not words or not reads_as_number(words[0]):
        return [WeightedFolder(Fraction(1), Path(text))]
    found = []
    for word, folder in zip_longest(words[::2], map(Path, words[1::2])):
        if folder is None or not reads_as_number(word) or not 0 < float(word) < math.inf:
            raise InputError(f"--input_dir: {word} is no weight above 0 of a folder; {_EXAMPLE}")
        found.append(WeightedFolder(Fraction(word.replace("_", "")), folder))
    folders = [folder for _, folder in found]
    for number, folder in enumerate(folders):
        if folder in folders[:number]:
            raise InputError(f"--input_dir: {folder} is given twice; add up its weights and give it once")
    return found


class Blend:
    """The order in which K corpora give samples, for any sample number; a pure function of the weights.

    ``parts``: int64 [K], the weights as the smallest whole numbers; ``period``: their sum. Takes 6 bytes
    for each sample of a period, however long the run. Raises InputError for
    weights so uneven that the period is above MAX_PERIOD.
    """

    def __init__(self, weights: Sequence[Fraction]):
        denominator = math.lcm(*(weight.denominator for weight in weights))
        wholes = [int(weight * denominator) for weight in weights]
        parts = [whole // math.gcd(*wholes) for whole in wholes]
        self.period = sum(parts)
        if self.period > MAX_PERIOD:
            rounded = " ".join(str(max(1, round(1000 * part / self.period))) for part in parts)
            raise InputError(
                f"--input_dir: these weights repeat only after {Decimal(self.period):.9g} samples, more than "
                f"{MAX_PERIOD}; round them, for example to {rounded}"
            )
        self.parts = np.array(parts, np.int64)
        self._turns = (turns if compiled_turns is None else compiled_turns)(self.parts)
        self._own = np.empty(self.period, np.int32)
        by_corpus = np.argsort(self._turns, kind="stable")
        firsts = np.cumsum(self.parts) - self.parts
        self._own[by_corpus] = np.arange(self.period) - np.repeat(firsts, self.parts)

    def locate(self, numbers) -> Tuple[np.ndarray, np.ndarray]:
        """Return the corpus of each sample number, and the sample's number within that corpus.

        ``numbers``: integers of any shape; both results are int64 of that shape.
        """
        rounds, place = np.divmod(np.asarray(numbers, np.int64), self.period)
        corpora = self._turns[place].astype(np.int64)
        return corpora, rounds * self.parts[corpora] + self._own[place]

    def counts(self, num_samples: int) -> List[int]:
        """Return how many of the first ``num_samples`` come from each corpus."""
        rounds, rest = divmod(num_samples, self.period)
        return (rounds * self.parts + np.bincount(self._turns[:rest], minlength=len(self.parts))).tolist()


class BlendedDataset:
    """The samples of several ``datasets`` in the order of ``blend``; item i depends on i only."""

    def __init__(self, datasets: Sequence, blend: Blend):
        self.datasets, self.blend = datasets, blend

    def __len__(self) -> int:
        return sum(map(len, self.datasets))

    def __getitem__(self, index: int):
        corpus, own = (int(value) for value in self.blend.locate(index))
        return self.datasets[corpus][own]

    def lengths(self, indices: np.ndarray) -> np.ndarray:
        """Return the token counts of the samples ``indices`` [N], control tokens included: int64 [N]."""
        corpora, own = self.blend.locate(indices)
        found = np.zeros(len(own), np.int64)
        for number, dataset in enumerate(self.datasets):
            found[corpora == number] = dataset.lengths(own[corpora == number])
        return found


class PhasedDataset:
    """``counts[0]`` samples of ``datasets[0]``, then ``counts[1]`` of the next, each from its first on."""

    def __init__(self, datasets: Sequence, counts: Sequence[int]):
        self.datasets = list(datasets)
        self.firsts: List[int] = [0, *accumulate(counts)]  # of each phase, and the end of the last

    def __len__(self) -> int:
        return self.firsts[-1]

    def __getitem__(self, index: int):
        phase = min(bisect_right(self.firsts, index) - 1, len(self.datasets) - 1)
        return self.datasets[phase][index - self.firsts[phase]]


def turns(parts: np.ndarray) -> np.ndarray:
    """Return the corpus of each sample of one period, uint16 [period]; the specification of the C++ twin.

    ``parts``: int64 [K], the weights. Unit j of corpus k must fall into the samples
    floor(j / w) .. ceil((j + 1) / w) - 1 where w is the corpus's share. Taking, among those that have begun,
    the one that ends first satisfies every window.
    """
    period = int(parts.sum())
    shares, given = parts.tolist(), [0] * len(parts)
    order = np.empty(period, np.uint16)
    for turn in range(period):
        begun = [k for k, share in enumerate(shares) if given[k] * period < share * (turn + 1)]
        chosen = min(begun, key=lambda k: -(-(given[k] + 1) * period // shares[k]))
        order[turn] = chosen
        given[chosen] += 1
    return order
