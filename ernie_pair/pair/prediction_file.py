"""The file of predictions: the recipe's two columns, and the probabilities when they are asked for.

index<TAB>prediction<TAB>probability_0<TAB>probability_1
0<TAB>1<TAB>0.0312842<TAB>0.968716
"""

from typing import Iterator

import numpy as np


def prediction_lines(classes: np.ndarray, shares: np.ndarray) -> Iterator[str]:
    """A header and a line per row. ``classes`` [rows]; ``shares`` [rows, columns to show], maybe none."""
    names = [f"probability_{label}" for label in range(shares.shape[1])]
    yield "\t".join(["index", "prediction", *names]) + "\n"
    for index, (label, row) in enumerate(zip(classes.tolist(), shares.tolist())):
        yield "\t".join([str(index), str(label), *(f"{share:.6g}" for share in row)]) + "\n"
