import json
from dataclasses import asdict
from pathlib import Path

import pytest

from data_tools.files.errors import CheckpointError
from ernie_pair.checkpoint.manifest import TrainState, parse_state, state_bytes
from ernie_pair.train.step_work import add_step, window_means

NAN, INFINITY = float("nan"), float("inf")
STEPS = [{"loss": 0.1 * step, "accuracy": 1 / step, "learning_rate": 0.5 / step} for step in range(1, 8)]


def window_of(steps, window=None):
    window = window or {}
    for metrics in steps:
        window = add_step(window, metrics)
    return window


def test_a_window_has_means_and_the_latest_learning_rate():
    line = window_means(window_of(STEPS[:2]), STEPS[1])
    assert line == {"loss": (0.1 + 0.2) / 2, "accuracy": 0.75, "learning_rate": 0.25}
    assert list(line) == list(STEPS[1])


def test_the_mean_of_one_step_is_exactly_its_value():
    assert window_means(window_of(STEPS[2:3]), STEPS[2]) == STEPS[2]


@pytest.mark.parametrize("cut", range(len(STEPS)))
def test_resuming_within_a_window_gives_the_same_means(cut):
    state = TrainState(cut, window=window_of(STEPS[:cut]))
    read = parse_state(state_bytes(state), Path("state.json"))
    assert read == state
    whole, resumed = window_of(STEPS), window_of(STEPS[cut:], read.window)
    assert window_means(resumed, STEPS[-1]) == window_means(whole, STEPS[-1])


def test_a_window_is_not_changed_in_place():
    before = window_of(STEPS[:1])
    copy = dict(before)
    add_step(before, STEPS[1])
    assert before == copy


def test_non_finite_values_are_left_out_if_others_exist():
    steps = [{"loss": NAN, "gradient_norm": INFINITY}, {"loss": 2.0, "gradient_norm": INFINITY}]
    assert window_means(window_of(steps), steps[-1]) == {"loss": 2.0, "gradient_norm": INFINITY}
    assert state_bytes(TrainState(2, window=window_of(steps)))


def test_the_perplexity_is_that_of_the_mean_loss():
    steps = [{"lm_loss": 0.0, "perplexity": 1.0}, {"lm_loss": 2000.0, "perplexity": 1e300}]
    assert window_means(window_of(steps[:1]), steps[0])["perplexity"] == 1.0
    assert window_means(window_of(steps), steps[1])["perplexity"] == pytest.approx(1.0142320547350045e304)


def state_with(**changes):
    return json.dumps({**asdict(TrainState(7, 14)), **changes}).encode()


def test_a_checkpoint_of_an_older_version_has_an_empty_window():
    old = {k: v for k, v in asdict(TrainState(7, 14)).items() if k not in ("window", "best_step")}
    assert parse_state(json.dumps(old).encode(), Path("state.json")) == TrainState(7, 14)


@pytest.mark.parametrize(
    "window",
    [
        *([], None, 7, {"loss": 1.0}, {"loss": [1.0]}, {"loss": [1.0, 0]}, {"loss": ["1", 1]}),
        *({"loss": [1.0, 1.5]}, {"loss": [None, 1]}, {"loss": [10**200, 1]}, {"loss": [True, True]}),
    ],
)
def test_a_damaged_window_is_refused(window):
    with pytest.raises(CheckpointError, match="does not hold the state of a run|a number of 401 digits"):
        parse_state(state_with(window=window), Path("state.json"))


@pytest.mark.parametrize("step", ["0", -1, 0.5, True])
def test_a_damaged_best_step_is_refused(step):
    with pytest.raises(CheckpointError, match="does not hold the state of a run"):
        parse_state(state_with(best_step=step), Path("state.json"))
