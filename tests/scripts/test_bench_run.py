"""A run started by a benchmark: its flags, the events read from it, and how it fails."""

import bench_run
import pytest
from bench_run import train_events

from data_tools.files.errors import InputError

# Writes its flags and thread count to its events; exits with the code given by --code.
PROGRAM = """
import json, os, sys
from pathlib import Path
flags = dict(word[2:].split("=", 1) for word in sys.argv[1:])
output = Path(flags["output_dir"])
output.mkdir()
said = {"flags": flags, "threads": os.environ.get("OMP_NUM_THREADS")}
lines = [{"split": split, "step": step, **said} for step in (1, 2, 3) for split in ("train", "dev")]
(output / "metrics.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in lines))
if int(flags["code"]):
    print("the reason, in 数", file=sys.stderr)
sys.exit(int(flags["code"]))
"""


@pytest.fixture
def flags(tmp_path, monkeypatch):
    """Flags of a program that stands in for a script of the package."""
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    monkeypatch.setattr(bench_run, "SCRIPTS", tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    return {"output_dir": str(tmp_path / "run"), "device": "cpu", "bucket": True, "code": 0}


@pytest.mark.parametrize("threads, told", [(0, "7"), (2, "2")])
def test_training_events_are_returned_without_the_first(flags, threads, told):
    for _ in range(2):  # the output of the first run is deleted
        events = train_events("program.py", flags, threads=threads)
        assert [event["step"] for event in events] == [2, 3]
        assert {event["threads"] for event in events} == {told}
        assert events[0]["flags"]["bucket"] == "True"


def test_a_failed_run_is_reported_with_its_last_line(flags):
    with pytest.raises(InputError, match="^a run ended with code 3: the reason, in 数$"):
        train_events("program.py", {**flags, "code": 3})


def test_processes_are_started_by_the_launcher(flags):
    events = train_events("program.py", flags, processes=1, threads=2)
    assert [event["step"] for event in events] == [2, 3] and events[0]["threads"] == "2"


def test_missing_gpus_are_an_error_before_the_run(flags, monkeypatch):
    monkeypatch.setattr(bench_run, "count_cards", lambda: 1)
    with pytest.raises(InputError, match="^2 processes need 2 GPUs, and 1 are visible$"):
        train_events("program.py", {**flags, "device": "gpu"}, processes=2)
