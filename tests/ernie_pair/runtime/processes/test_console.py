"""The console of a run: its lines, their columns and their colours."""

import io
import logging
import re
import sys

import pytest
from children import python

from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.runtime.processes import console
from ernie_pair.runtime.processes.console import EventLines, Improvement, start_console
from ernie_pair.runtime.processes.world import World

logger = logging.getLogger("ernie_pair.somewhere")


class Screen(io.StringIO):
    """A terminal, or a file."""

    def __init__(self, is_terminal):
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal

    @property
    def lines(self):
        """The lines written, without the time of day."""
        return [re.sub(r"\d\d:\d\d:\d\d ", "", line, count=1) for line in self.getvalue().splitlines()]


@pytest.fixture
def screen(monkeypatch):
    """Returns a function that starts the console of ``rank`` on a screen and returns that screen."""

    def start(is_terminal=False, rank=0, **environment):
        for name in ("NO_COLOR", "TERM"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        shown = Screen(is_terminal)
        monkeypatch.setattr(sys, "stderr", shown)
        start_console(World(rank, 2))
        return shown

    return start


METRICS = {"loss": 2.0, "learning_rate": 1e-4, "samples_per_second": 54.321}


def test_the_columns_of_all_events_are_aligned(screen):
    shown, lines = screen(), EventLines(max_steps=1000, samples_per_epoch=160)
    lines.log_event("start", TrainState(), "from random weights")
    lines.log_metrics("train", TrainState(5, 80), METRICS)
    lines.log_metrics("valid", TrainState(20, 320), {"loss": 12.34567, "accuracy": 1.0})
    lines.log_metrics("train", TrainState(1000, 16000), {**METRICS, "samples_per_second": 12345.6})
    assert shown.lines == [
        "start step    0/1000    0.0%  epoch  0.00  from random weights",
        "train step    5/1000    0.5%  epoch  0.50  loss  2.0000  lr 1.00e-04     54.3 samples/s",
        "valid step   20/1000    2.0%  epoch  2.00  loss 12.3457  accuracy 1.0000",
        "train step 1000/1000  100.0%  epoch 100.00  loss  2.0000  lr 1.00e-04    12346 samples/s",
    ]


@pytest.mark.parametrize("value, shown", [
    (0.0, "0.0000"),
    (0.00012345, "0.000123"),
    (123.456789, "123.4568"),
    (45678.9, "4.57e+04"),
    (-0.25, "-0.2500"),
    (float("nan"), "   nan"),
    (7, "     7"),
    ("0:00:07", "0:00:07"),
])  # fmt: skip
def test_numbers_are_shown_with_their_significant_digits(screen, value, shown):
    said = screen()
    EventLines(max_steps=9).log_metrics("valid", TrainState(9), {"f1": value, "perplexity": 1.0})
    assert said.lines == [f"valid step 9/9  100.0%  f1 {shown}"]


def test_an_unknown_epoch_is_not_shown_and_the_end_has_a_time(screen, monkeypatch):
    monkeypatch.setattr("ernie_pair.runtime.processes.console.time.monotonic", lambda: 100.0 + 3723)
    shown = screen()
    EventLines(max_steps=10).log_event("saved", TrainState(10), "out/checkpoints/step_00000010")
    EventLines(max_steps=2, started=100.0).log_end(TrainState(2), "best accuracy 0.9")
    EventLines().log_event("stop", TrainState(3), "early")
    *lines, last = shown.lines
    assert lines == [
        "saved step 10/10  100.0%  out/checkpoints/step_00000010",
        "end   step 2/2  100.0%  took 1:02:03  best accuracy 0.9",
    ]
    assert "%" not in last and "epoch" not in last


def say_all():
    logger.info("plain")
    EventLines(max_steps=1).log_event("best", TrainState(1), "good", console.GOOD)
    logger.warning("careful")
    logger.error("broken")


@pytest.mark.parametrize(
    "is_terminal, environment", [(True, {}), (False, {}), (True, {"NO_COLOR": "1"}), (True, {"TERM": "dumb"})]
)
def test_only_a_terminal_gets_colours_unless_disabled(screen, is_terminal, environment):
    shown = screen(is_terminal, **environment)
    say_all()
    if is_terminal and not environment:
        starts = [line[:5] if line.startswith("\033") else "" for line in shown.getvalue().splitlines()]
        assert starts == ["", "\033[32m", "\033[33m", "\033[31m"]
        assert shown.getvalue().count("\033[0m\n") == 3
    else:
        assert "\033" not in shown.getvalue() and len(shown.lines) == 4
    other = screen(is_terminal, rank=1, NO_COLOR="1")
    say_all()
    assert other.lines == ["careful", "broken"]  # of another rank


def test_an_improvement_must_beat_all_earlier_evaluations():
    judge = Improvement("loss", lower_is_better=True)
    losses = [3.0, 2.0, 2.5, 2.0, 1.0, float("nan"), 0.5]
    assert [judge.judge({"loss": loss}) for loss in losses] == [False, True, False, False, True, False, True]
    assert not judge.judge({"accuracy": 1.0}) and not judge.judge({"loss": "nan"})


# --- the root logger

PROGRAM = """
import logging, ernie_pair, paddle
root = logging.getLogger()
{own}
from ernie_pair.runtime.device import quiet_libraries
quiet_libraries()
logging.getLogger("a.library").info("an INFO line")
logging.getLogger("a.library").warning("a warning")
"""


@pytest.mark.parametrize(
    "own, is_shown", [("", 0), ("root.addHandler(logging.NullHandler()); root.setLevel('INFO')", 1)]
)
def test_info_lines_of_libraries_are_shown_only_if_asked_for(own, is_shown):
    said = python("-c", PROGRAM.format(own=own)).stderr
    assert said.count("an INFO line") == is_shown and said.count("a warning") == 1
