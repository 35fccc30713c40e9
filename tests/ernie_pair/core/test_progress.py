"""Bars are for a person at a terminal or a notebook, and can be turned off."""

import io
import sys

import pytest

from ernie_pair.core.progress import CountProgress, shows_bars


class Terminal(io.StringIO):
    def isatty(self):
        return True


class OutStream(io.StringIO):
    """What a notebook has in place of standard error: no terminal."""


OutStream.__module__ = "ipykernel.iostream"


@pytest.mark.parametrize("stream, environment, shown", [
    (Terminal(), {}, True),
    (OutStream(), {}, True),
    (io.StringIO(), {}, False),
    (None, {}, False),
    (Terminal(), {"TQDM_DISABLE": "1"}, False),
    (OutStream(), {"TQDM_DISABLE": "1"}, False),
    (Terminal(), {"TQDM_DISABLE": "0"}, True),
])  # fmt: skip
def test_a_bar_is_shown_only_to_a_person(monkeypatch, stream, environment, shown):
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stderr", stream)
    assert shows_bars() is shown


@pytest.mark.parametrize("screen, is_bar", [(OutStream, True), (Terminal, True), (io.StringIO, False)])
def test_a_count_is_a_bar_or_silent_for_a_minute(monkeypatch, screen, is_bar):
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    shown = screen()
    monkeypatch.setattr(sys, "stderr", shown)
    with CountProgress(3, "pair") as progress:
        for _ in range(3):
            progress.advance(1)
    assert ("/3 [" in shown.getvalue()) is is_bar and (shown.getvalue() != "") is is_bar
