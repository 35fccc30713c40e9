"""What VisualDL reads of several runs; the dashboard itself is opened in tests/browser."""

import json
import sys
import threading

import pytest
from fake_runs import counts_of, write_pair_run
from package_command import command
from visualdl import LogReader
from werkzeug.test import Client

from data_tools.files.errors import InputError
from ernie_pair.dashboard.board import BoardConfig, BoardRecords, _server_of, board
from ernie_pair.dashboard.curves import open_runs
from ernie_pair.runtime.processes.sockets import listen


@pytest.fixture
def runs(tmp_path):
    return [write_pair_run(tmp_path / "a"), write_pair_run(tmp_path / "b", slope=2.0)]


def read(folder):
    """Return the reader of the one record in a folder."""
    (record,) = folder.glob("vdlrecords.*.log")
    return LogReader(file_path=str(record))


def points(folder, tag):
    return [(point.id, point.value) for point in read(folder).get_data("scalar", tag)]


def test_all_runs_and_splits_share_the_same_charts(runs, tmp_path):
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    BoardRecords(tmp_path / "board", open_runs(list(map(str, runs)))).close()
    assert all(path.read_bytes() == content for path, content in before.items())
    for name in ("a", "b"):
        train, valid = (read(tmp_path / "board" / name / split) for split in ("train", "valid"))
        assert train.get_tags()["scalar"][:2] == ["metrics/loss", "metrics/accuracy"]
        assert valid.get_tags()["scalar"] == ["metrics/loss", "metrics/accuracy", "metrics/auc"]
        assert any(tag.startswith("steps and machine/") for tag in train.get_tags()["scalar"])
        assert "hyper_parameters" in valid.get_tags() and "text" in valid.get_tags()
    assert len(points(tmp_path / "board" / "a" / "valid", "metrics/loss")) == 9


def test_new_events_of_a_running_run_are_picked_up(runs, tmp_path):
    records = BoardRecords(tmp_path / "board", open_runs([str(runs[0])]))
    assert not records.follow()
    event = {"split": "valid", "step": 45, "loss": 0.25, "consumed_samples": 360}
    with open(runs[0] / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")
    assert records.follow() and not records.follow()
    records.close()
    found = points(tmp_path / "board" / "a" / "valid", "metrics/loss")
    assert len(found) == 10 and found[-1] == (45, 0.25)


def test_each_evaluation_has_one_pr_curve_and_its_histograms(runs, tmp_path):
    records = BoardRecords(tmp_path / "board", open_runs([str(runs[0])]))
    with open(runs[0] / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"split": "valid", "step": 45, "loss": 0.25, **counts_of(1.0)}) + "\n")
    assert records.follow()
    records.close()
    reader, steps = read(tmp_path / "board" / "a" / "valid"), list(range(0, 50, 5))
    curves = reader.get_data("pr_curve", "metrics/class 1")
    assert [curve.id for curve in curves] == steps and max(curves[-1].pr_curve.TP) == 100
    for label in (0, 1):
        bars = reader.get_data("histogram", f"metrics/probability of 1, label {label}")
        assert [each.id for each in bars] == steps and sum(bars[-1].histogram.hist) == 100


def test_missing_runs_ports_and_visualdl_are_one_line_errors(tmp_path, runs, monkeypatch):
    done = command("board", tmp_path)
    assert done.code == 2 and "holds no run" in done.told and len(done.told.splitlines()) == 1
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        done = command("board", runs[0], "--port", port)
    assert done.code == 5 and f"--port {port}" in done.told and len(done.told.splitlines()) == 1
    monkeypatch.setitem(sys.modules, "visualdl", None)
    with pytest.raises(InputError, match="visualdl is not installed; pip install"):
        board(BoardConfig([str(runs[0])], port=0))


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_page_uses_the_requested_language(runs, tmp_path, monkeypatch, lang):
    BoardRecords(tmp_path / "board", open_runs([str(runs[0])])).close()
    monkeypatch.chdir(tmp_path / "board")
    with listen("127.0.0.1", 0) as listener:
        server = _server_of(BoardConfig([str(runs[0])], lang=lang), ["a"], listener)
        client = Client(server.app)
        assert f"vdl_lng={lang};" in client.get("/app/scalar").headers["Set-Cookie"]
        assert client.get("/app/api/scalar/tags").json["data"]["runs"] == ["a/valid", "a/train"]
        server.server_close()
    assert not [thread for thread in threading.enumerate() if "queue" in thread.name]
