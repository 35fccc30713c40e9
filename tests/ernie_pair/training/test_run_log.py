import io
import json
import logging
import os
import re
import resource
import sys
from datetime import timedelta

import pytest
from run_files import counts_of
from visualdl import LogReader

from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.runtime.processes.console import GOOD, start_console
from ernie_pair.runtime.processes.world import World
from ernie_pair.training import run_log as runlog
from ernie_pair.training.run_log import RemainingTime, RunLog, Silent
from ernie_pair.training.step_metrics import StepWork


def events(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def log_steps(folder, steps, resumed_at=0):
    log = RunLog(folder, TrainState(resumed_at), max_steps=9, product_rate=1e12)
    for step in steps:
        log.tick(0.5, 0.125, StepWork(samples=8, tokens=96, padded_tokens=128, flops=10**11))
        log.scalars("train", {"loss": 1 / 3 + step}, TrainState(step, 8 * step))
    log.close()


def curves(folder):
    (file,) = (folder / "vdl").glob("*/*")
    return LogReader(file_path=str(file))


def test_an_event_is_a_line_with_full_precision_and_rates(tmp_path):
    peaks = []
    for step in (1, 2):
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9)
        log_steps(tmp_path / str(step), [1, 2])
    event, later = events(tmp_path / "1")
    assert later["data_wait_share"] == event["data_wait_share"]  # each counts its own steps
    assert peaks[0] <= event.pop("memory_gb") <= peaks[1]
    speeds = {"samples_per_second": 16.0, "tokens_per_second": 256.0, "real_tokens_per_second": 192.0}
    shares = {"tera_flops_per_second": 0.2, "product_share": 0.2, "data_wait_share": 0.25}
    assert event == {
        "split": "train", "step": 1, "loss": 1 / 3 + 1, "consumed_samples": 8, **speeds, **shares
    }  # fmt: skip


def test_remaining_time_ignores_time_before_the_first_step(monkeypatch):
    clock = iter([1000.0, 1001.0, 1006.0])  # at creation, at the end of the first step, at the log line
    monkeypatch.setattr(runlog.time, "monotonic", lambda: next(clock))
    remaining = RemainingTime(max_steps=1000)
    for _ in range(3):
        remaining.tick(1.0)
    assert remaining.after(step=103) == str(timedelta(seconds=2 * 897)) == "0:29:54"


def test_an_evaluation_better_than_all_before_stands_out(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    log = RunLog(tmp_path, TrainState(), max_steps=9)
    for split, loss in (("valid", 3.0), ("train", 2.0), ("valid", 2.5), ("train", 1.0), ("valid", 2.75)):
        log.scalars(split, {"loss": loss}, TrainState(1))
    log.close()
    assert [line.tone for line in caplog.records if hasattr(line, "tone")] == ["", "", GOOD, "", ""]


@pytest.mark.parametrize("line", [
    '{"split": "train", "st',  # killed in the middle of a line
    "7\n", "[]\n", "null\n", '{"split": "train"}\n', '{"step": "1"}\n', "\x00\xff\n",
])  # fmt: skip
def test_no_step_is_logged_twice_after_a_resume(tmp_path, line):
    log_steps(tmp_path, [1, 2, 3])
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write(line)
    log_steps(tmp_path, [3, 4], resumed_at=2)
    assert [event["step"] for event in events(tmp_path)] == [1, 2, 3, 4]
    points = curves(tmp_path).get_data("scalar", "train/loss")
    assert [point.id for point in points] == [1, 2, 3, 4]


def test_a_failed_truncation_of_the_log_loses_no_event(tmp_path, monkeypatch):
    log_steps(tmp_path, [1, 2, 3])
    before = (tmp_path / "metrics.jsonl").read_bytes()

    def failing(descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="Input/output error"):
        log_steps(tmp_path, [3], resumed_at=2)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "run.json", "vdl"]


def log_counts(folder, steps, resumed_at=0):
    log = RunLog(folder, TrainState(resumed_at), max_steps=9)
    for step in steps:
        log.scalars("valid", {"loss": 1.0, **counts_of(step / 9)}, TrainState(step, 8 * step))
    log.close()


def test_histograms_and_pr_curves_are_restored_after_a_resume(tmp_path, capsys):
    log_counts(tmp_path / "whole", [1, 2, 3, 4])
    log_counts(tmp_path / "cut", [1, 2, 3])
    log_counts(tmp_path / "cut", [3, 4], resumed_at=2)
    assert events(tmp_path / "cut") == events(tmp_path / "whole")
    found = []
    for name in ("whole", "cut"):
        reader = curves(tmp_path / name)
        lines = reader.get_data("pr_curve", "valid/class 1")
        bars = reader.get_data("histogram", "valid/probability of 1, label 1")
        found.append([(e.id, list(e.pr_curve.precision), list(e.pr_curve.recall)) for e in lines])
        found.append([(e.id, list(e.histogram.hist), list(e.histogram.bin_edges)) for e in bars])
    assert found[:2] == found[2:] and [step for step, *_ in found[0]] == [1, 2, 3, 4]
    assert "probability_counts" not in capsys.readouterr().err


@pytest.mark.parametrize("owes, kept", [(False, ["train", "valid"]), (True, ["train"])])
def test_a_pending_evaluation_replaces_an_interrupted_one(tmp_path, owes, kept):
    log = RunLog(tmp_path, TrainState(), max_steps=9)
    for split in ("train", "valid"):
        log.scalars(split, {"loss": 1.0}, TrainState(3, 24))
    log.close()
    RunLog(tmp_path, TrainState(3, 24, evaluation_pending=owes), max_steps=9).close()
    assert [event["split"] for event in events(tmp_path)] == kept


def test_non_finite_numbers_are_logged_as_text_not_as_points(tmp_path):
    log = RunLog(tmp_path, TrainState(), max_steps=9)
    for step, loss in enumerate([float("nan"), float("inf"), -float("inf"), 1.5], start=1):
        log.scalars("train", {"loss": loss}, TrainState(step))
    log.close()
    assert [event["loss"] for event in events(tmp_path)] == ["nan", "inf", "-inf", 1.5]
    log_steps(tmp_path, [5], resumed_at=4)
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()
    points = curves(tmp_path).get_data("scalar", "train/loss")
    assert [(point.id, point.value) for point in points] == [(4, 1.5), (5, pytest.approx(5 + 1 / 3))]


def test_a_full_disk_loses_metrics_but_does_not_end_the_run(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("ernie_pair"), "propagate", True)
    log = RunLog(tmp_path, TrainState(), max_steps=9)
    log.file.close()
    log.file = open("/dev/full", "w")  # noqa: SIM115 - closed with the log
    for step in (1, 2):
        log.scalars("train", {"loss": 1.0}, TrainState(step))
    log.close()
    assert caplog.text.count("No space left on device; metrics are lost from here on") == 1


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("hides", [False, True])
def test_lines_stand_whole_above_the_bar_of_a_run(tmp_path, monkeypatch, hides):
    monkeypatch.setenv("TQDM_DISABLE", "1" if hides else "")
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    start_console(World())
    log_steps(tmp_path, [1, 2])
    written = shown.getvalue()
    assert ("step/s" in written or "s/step" in written or "?step" in written) is not hides
    lines = [part for part in re.split("[\r\n]", written) if "train step" in part]
    assert len(lines) == 2 and all(
        re.match(r"\d\d:\d\d:\d\d train step \d/9 .*remaining", line) for line in lines
    )
    assert Silent().tick(0.5, 0.1, StepWork()) is None and shown.getvalue() == written  # of another rank
