"""When a run stops early, and that a checkpoint saves the count of evaluations without improvement."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from data_tools.files.errors import CheckpointError
from ernie_pair.checkpoint.manifest import TrainState, parse_state, state_bytes
from ernie_pair.train.best_model import EarlyStopping


def ends_after(values, *rules, state=None):
    """The number of evaluations until the run ends, or 0 if it does not."""
    stopping, state = EarlyStopping(*rules), state or TrainState()
    for number, value in enumerate(values, start=1):
        stopping.judge(state, value)
        if stopping.is_due(state):
            return number
    return 0


@pytest.mark.parametrize(
    "values, patience, number",
    [
        ([0.5, 0.5], 1, 2),
        ([0.5, 0.6, 0.6, 0.5, 0.6], 3, 5),
        ([0.5, 0.4, 0.6, 0.4, 0.7, 0.4], 2, 0),
        ([0.5, 0.4, 0.4], 3, 0),
        ([0.5] * 9, 0, 0),
    ],
)
def test_a_run_ends_after_patience_evaluations_without_gain(values, patience, number):
    assert ends_after(values, patience) == number
    assert ends_after([-value for value in values], patience, 0.0, True) == number


def test_a_gain_of_at_most_min_delta_is_no_improvement():
    assert ends_after([0.5, 0.625, 0.625], 1, 0.125) == 2
    assert ends_after([0.5, 0.75, 0.875], 1, 0.125) == 3


def test_small_gains_that_add_up_count_as_an_improvement():
    assert ends_after([0.5, 0.5625, 0.625, 0.6875, 0.75, 0.8125], 3, 0.125) == 0


def test_counting_resumes_from_the_saved_state():
    values, state = [0.5, 0.6, 0.4, 0.5, 0.6], TrainState()
    assert ends_after(values[:3], 3, state=state) == 0
    read = parse_state(state_bytes(state), Path("state.json"))
    assert read == state and ends_after(values[3:], 3, state=read) == 2


def test_without_patience_nothing_is_counted():
    state = TrainState()
    ends_after([0.5, 0.4, 0.3], 0, state=state)
    assert state == TrainState()


def old_state(**changes):
    """state.json as it was before there was early stopping."""
    values = {
        k: v for k, v in asdict(TrainState(7, 14)).items() if k not in ("metric_to_beat", "stale_evaluations")
    }
    return json.dumps({**values, **changes}).encode()


def test_a_state_from_before_early_stopping_can_be_read():
    assert parse_state(old_state(), Path("state.json")) == TrainState(7, 14)


@pytest.mark.parametrize(
    "damage", [{"metric_to_beat": "0.5"}, {"stale_evaluations": -1}, {"stale_evaluations": 0.5}]
)
def test_a_damaged_count_is_refused(damage):
    with pytest.raises(CheckpointError, match="does not hold the state of a run"):
        parse_state(old_state(**damage), Path("state.json"))
