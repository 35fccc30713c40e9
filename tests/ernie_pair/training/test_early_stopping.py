"""When a run ends early, against a search through the evaluations, and what a checkpoint keeps of it."""

from pathlib import Path

import numpy as np
import pytest

from ernie_pair.checkpoint.manifest import TrainState, parse_state, state_bytes
from ernie_pair.training.best_model import EarlyStopping


def ends_after(values, *rules, state=None):
    """The number of evaluations until the run ends, or 0 if it does not."""
    stopping, state = EarlyStopping(*rules), state or TrainState()
    for number, value in enumerate(values, start=1):
        stopping.judge(state, value)
        if stopping.is_due(state):
            return number
    return 0


@pytest.mark.parametrize("seed", range(40))
def test_a_run_ends_after_patience_evaluations_without_gain(seed):
    rng = np.random.default_rng(seed)
    values = (rng.integers(0, 12, 12) / 16).tolist()
    patience = int(rng.integers(0, 5))
    better, ends = 0, 0
    for number in range(1, len(values)):
        better = number if values[number] > values[better] else better
        if not ends and 0 < patience <= number - better:
            ends = number + 1
    assert ends_after(values, patience) == ends
    assert ends_after([-value for value in values], patience, True) == ends


def test_counting_resumes_from_the_saved_state():
    values, state = [0.5, 0.6, 0.4, 0.5, 0.6], TrainState()
    ends_after(values, 0, state=state)
    assert state == TrainState()  # without patience nothing is counted
    assert ends_after(values[:3], 3, state=state) == 0
    read = parse_state(state_bytes(state), Path("state.json"))
    assert read == state and ends_after(values[3:], 3, state=read) == 2
