"""Plots, pages and charts of runs, drawn from their metrics.jsonl, and the counts that curves come from."""

import json
import re
import shutil
import sys
import threading

import numpy as np
import pytest
from children import command
from run_files import counts_of, write_flags, write_pair_run
from sklearn.metrics import precision_score, recall_score
from tiny_pair import train_config
from visualdl import LogReader
from werkzeug.test import Client

from ernie_pair.checkpoint.run_config import keep_config
from ernie_pair.checkpoint.run_folder import ensure_run_id
from ernie_pair.core.errors import InputError
from ernie_pair.pairs.train.train_pair import train_pair
from ernie_pair.report.board import BoardConfig, BoardRecords, _server_of, board
from ernie_pair.report.plot_runs import (
    Curve,
    PlotConfig,
    choose_metrics,
    curves_of,
    find_best,
    flag_table,
    flags_of,
    metrics_of,
    open_runs,
    plot,
    results_of,
    short_names,
)
from ernie_pair.runtime.processes.sockets import listen
from ernie_pair.training.step_metrics import PARTS, count_probabilities, curve_of, parse_counts


@pytest.fixture(scope="module")
def runs(module_path):
    return [write_pair_run(module_path / "a"), write_pair_run(module_path / "b", slope=2.0)]


def plotted(runs, output, **flags):
    plot(PlotConfig([str(run) for run in runs], str(output), **flags))
    return output.read_bytes()


def test_the_page_compares_results_and_orders_metrics(runs, tmp_path):
    page = plotted(runs, tmp_path / "runs.html").decode()
    assert "Runs compared" in page and "Flags that differ" in page
    assert re.search(r"<td[^>]*>learning_rate</td><td[^>]*>0.0001</td><td[^>]*>0.0002</td>", page)
    flags = flag_table(open_runs([str(runs[0])]))  # of a single run: all
    assert flags.title == "Flags" and ["use_amp", "false"] in flags.rows
    assert "use_amp" not in page and 'src="data:image/svg+xml' in page
    opened = open_runs([str(runs[0])])
    assert metrics_of(opened)[:3] == ["loss", "accuracy", "auc"] and metrics_of(opened)[3] == "learning_rate"
    assert [curve.split for curve in curves_of(opened, "loss")] == ["train", "valid"]
    assert "learning_rate" not in choose_metrics(opened, [], 9)


def test_the_best_value_is_shown_with_its_step(runs, tmp_path):
    table = results_of(open_runs(list(map(str, runs))), ["loss", "accuracy"])
    assert table.heads[:5] == ["run", "started", "steps", "valid loss", "valid accuracy"]
    opened = open_runs([str(runs[1])])
    valid = next(curve for curve in curves_of(opened, "accuracy") if curve.split == "valid")
    assert find_best(valid, "accuracy", opened[0].flags) == (max(valid.values), 40)
    assert table.rows[1][4] == f"{max(valid.values):.4f} (40)"
    run = write_pair_run(tmp_path / "a", best_metric="accuracy", greater_is_better=False)
    assert results_of(open_runs([str(run)]), ["accuracy"]).rows[0][3] == "0.5000 (0)"


@pytest.mark.parametrize("metric, flags, best", [
    ("ngram_loss", {}, 1.0),
    ("mae", {}, 1.0),
    ("f1", {"best_metric": "auc", "greater_is_better": False}, 3.0),
    ("my_error", {"best_metric": "my_error", "greater_is_better": False}, 1.0),
    ("my_error", {"best_metric": "my_error", "greater_is_better": None}, 3.0),
    ("loss", {"best_metric": "loss", "greater_is_better": True}, 3.0),
])  # fmt: skip
def test_losses_and_the_runs_flags_decide_what_is_best(metric, flags, best):
    assert find_best(Curve(0, "valid", [1, 2, 3], [2.0, 1.0, 3.0]), metric, flags)[0] == best


@pytest.mark.parametrize("ending, start", [("svg", b"<svg"), ("png", b"\x89PNG")])
def test_runs_can_be_plotted_as_svg_or_png(runs, tmp_path, ending, start):
    content = plotted(runs, tmp_path / f"runs.{ending}", metrics="loss,accuracy")
    assert content.startswith(start)
    if ending == "svg":
        assert b'id="legend_1"' in content and content.count(b'id="axes_') == 2
        assert plotted(runs, tmp_path / "again.svg", metrics="loss,accuracy") == content


def test_runs_below_a_folder_are_found_by_short_names(runs, tmp_path):
    assert [run.name for run in open_runs([str(runs[0].parent)])] == ["a", "b"]
    assert [run.name for run in open_runs([str(runs[0]), str(runs[0].parent)])] == ["a", "b"]  # each once
    names = ("cache_on", "checkpoints2", "log_odds", "vdl-try")
    for name in (*names, "cache", "checkpoints", "log", "vdl", "earlier-20240501-120000-abcd"):
        write_pair_run(tmp_path / name, steps=5)
    assert [run.name for run in open_runs([str(tmp_path)])] == list(names)
    assert short_names([tmp_path / "x" / "out", tmp_path / "y" / "out"]) == ["x/out", "y/out"]
    assert short_names([tmp_path / "a\n%b"]) == ["a__b"]


def test_flags_fall_back_to_those_in_the_checkpoint(tmp_path):
    folder = tmp_path / "checkpoints" / "step_00000004"
    folder.mkdir(parents=True)
    manifest = {"fingerprint": {"seed": 3, "nested": {}}, "topology": {"processes": 2}}
    (folder / "MANIFEST.json").write_text(json.dumps(manifest))
    assert flags_of(tmp_path) == {"seed": 3, "processes": 2}
    write_flags(tmp_path, {"seed": 4})
    assert flags_of(tmp_path) == {"seed": 4}
    (tmp_path / "config.yaml").write_text("{")
    assert flags_of(tmp_path) == {"seed": 3, "processes": 2}


def start(folder, **flags):
    keep_config(folder, "train", train_config(folder, **flags), identity={"run_id": ensure_run_id(folder)})


def test_flags_are_those_of_the_runs_last_start(tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 1\n")  # the user's
    assert flags_of(tmp_path) == {}
    for seed in (2, 3, 4):
        start(tmp_path, seed=seed)
    assert (tmp_path / "config-2.yaml").is_file() and flags_of(tmp_path)["seed"] == 4
    (tmp_path / "run.json").unlink()  # a copy without it still shows its flags
    assert flags_of(tmp_path)["seed"] == 4


def test_non_numeric_values_are_left_out(tmp_path):
    lines = [
        {"split": "train", "step": 1, "loss": "nan", "consumed_samples": 8},
        {"split": "train", "step": 2, "loss": 0.5, "consumed_samples": 16},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"split"')
    (curve,) = curves_of(open_runs([str(tmp_path)]), "loss")
    assert (curve.steps, curve.values) == ([2], [0.5])


@pytest.mark.parametrize("outs, flags, fault", [
    ("absent", {}, "is not a folder"),
    ("empty", {}, "holds no run"),
    ("a", {"metrics": "los"}, "metrics los was not logged by any"),
    ("a", {"output_file": "runs.pdf"}, "does not end in"),
])  # fmt: skip
def test_invalid_plot_requests_are_refused(runs, tmp_path, monkeypatch, outs, flags, fault):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    out = runs[0] if outs == "a" else tmp_path / outs
    with pytest.raises(InputError, match=fault):
        plot(PlotConfig([str(out)], **flags))
    assert not list(tmp_path.glob("*.*"))
    with pytest.raises(InputError, match="^outs is missing: output folders of .*; give it: BoardConfig"):
        BoardConfig()


def test_an_unrelated_file_is_not_overwritten(runs, tmp_path):
    (tmp_path / "runs.html").write_text("mine")
    with pytest.raises(InputError, match="exists"):
        plotted(runs, tmp_path / "runs.html")
    assert b"Runs" in plotted(runs, tmp_path / "runs.html", overwrite=True)


def go_on(folder, step, **counts):
    event = {"split": "valid", "step": step, "loss": 0.125, "accuracy": 0.975, "consumed_samples": 8 * step}
    event.update(counts)
    with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")


def test_the_page_is_redrawn_if_the_run_has_continued(tmp_path, capsys):
    run, page = write_pair_run(tmp_path / "a"), tmp_path / "runs.html"
    assert "0.9750 (45)" not in plotted([run], page).decode()
    before = page.stat()
    plotted([run], page)
    assert page.stat().st_ino == before.st_ino and "nothing to do" in capsys.readouterr().err
    go_on(run, 45)
    write_flags(run, {"learning_rate": 3e-4})  # resumed with another flag
    assert "0.9750 (45)" in plotted([run], page).decode()
    page.write_text("edited")
    go_on(run, 50)
    with pytest.raises(InputError, match="it was changed since it was made"):
        plotted([run], page)


def test_a_page_of_other_runs_is_refused_naming_the_runs(tmp_path):
    a, b = write_pair_run(tmp_path / "a"), write_pair_run(tmp_path / "b")
    page = tmp_path / "runs.html"
    plotted([a], page)
    done = command("plot", a, b, "--output_file", page)
    assert done.code == 2 and len(done.told.splitlines()) == 1
    assert re.search(
        r"made with OUTS 'a \([-0-9: ]+\)' and not 'a \([-0-9: ]+\), b \([-0-9: ]+\)'", done.told
    )
    done = command("plot", a, "--output_file", page, "--metrics", "loss")
    assert done.code == 2 and "made with --metrics '' and not 'loss'" in done.told
    shutil.rmtree(a)
    write_pair_run(a)
    (a / "run.json").write_text(json.dumps({"run_id": "0" * 16, "started": "2020-01-01T00:00:00"}))
    with pytest.raises(InputError, match="not 'a .2020-01-01 00:00:00.'"):
        plotted([a], page)


def test_the_plot_command_plots_a_real_run(tmp_path):
    train_pair(train_config(tmp_path, max_steps=4))
    done = command("plot", tmp_path / "out", "--output_file", tmp_path / "run.html")
    assert done.code == 0, done.told
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert "valid accuracy" in page and "max_seq_len" in page


# --- the probability counts of an evaluation, and the curve derived from them


@pytest.fixture
def answers():
    rng = np.random.default_rng(3)
    labels = rng.integers(2, size=500)
    return np.clip(rng.normal(0.3 + 0.4 * labels, 0.2), 0, 1), labels


def test_every_row_is_counted_once_by_its_label(answers):
    given, labels = answers
    counts = count_probabilities(given, labels)
    assert [sum(row) for row in counts] == np.bincount(labels).tolist()
    assert counts[1][-1] == np.count_nonzero((given >= 0.99) & (labels == 1))
    assert parse_counts(counts).shape == (2, PARTS)


def test_the_curve_matches_scikit_learn(answers):
    given, labels = answers
    curve = curve_of(np.array(count_probabilities(given, labels)))
    for part in (0, 37, 50, 99):
        predicted = np.floor(given * PARTS).clip(max=PARTS - 1) >= part
        assert curve["precision"][part] == pytest.approx(precision_score(labels, predicted))
        assert curve["recall"][part] == pytest.approx(recall_score(labels, predicted))


def test_nan_and_missing_classes_still_give_a_curve():
    counts = count_probabilities(np.array([np.nan, 0.2, 1.0]), np.array([0, 0, 1]))
    assert [sum(row) for row in counts] == [1, 1] and counts[0][20] == 1 and counts[1][99] == 1
    curve = curve_of(np.array(count_probabilities(np.array([0.2]), np.array([0]))))
    assert set(curve["recall"]) == {0.0} and curve["precision"][0] == 0.0 and curve["precision"][99] == 1.0


# --- what VisualDL reads of several runs; the dashboard itself is opened in tests/browser


@pytest.fixture
def board_runs(tmp_path):
    return [write_pair_run(tmp_path / "a"), write_pair_run(tmp_path / "b", slope=2.0)]


def read(folder):
    (record,) = folder.glob("vdlrecords.*.log")
    return LogReader(file_path=str(record))


def points(folder, tag):
    return [(point.id, point.value) for point in read(folder).get_data("scalar", tag)]


def test_all_runs_and_splits_share_the_same_charts(board_runs, tmp_path):
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    BoardRecords(tmp_path / "board", open_runs(list(map(str, board_runs)))).close()
    assert all(path.read_bytes() == content for path, content in before.items())
    for name in ("a", "b"):
        train, valid = (read(tmp_path / "board" / name / split) for split in ("train", "valid"))
        assert train.get_tags()["scalar"][:2] == ["metrics/loss", "metrics/accuracy"]
        assert valid.get_tags()["scalar"] == ["metrics/loss", "metrics/accuracy", "metrics/auc"]
        assert any(tag.startswith("steps and machine/") for tag in train.get_tags()["scalar"])
        assert "hyper_parameters" in valid.get_tags() and "text" in valid.get_tags()
    assert len(points(tmp_path / "board" / "a" / "valid", "metrics/loss")) == 9


def test_new_events_of_a_running_run_are_picked_up(board_runs, tmp_path):
    records = BoardRecords(tmp_path / "board", open_runs([str(board_runs[0])]))
    assert not records.follow()
    go_on(board_runs[0], 45)
    assert records.follow() and not records.follow()
    records.close()
    found = points(tmp_path / "board" / "a" / "valid", "metrics/loss")
    assert len(found) == 10 and found[-1] == (45, 0.125)


def test_each_evaluation_has_one_pr_curve_and_its_histograms(board_runs, tmp_path):
    records = BoardRecords(tmp_path / "board", open_runs([str(board_runs[0])]))
    go_on(board_runs[0], 45, **counts_of(1.0))
    assert records.follow()
    records.close()
    reader, steps = read(tmp_path / "board" / "a" / "valid"), list(range(0, 50, 5))
    curves = reader.get_data("pr_curve", "metrics/class 1")
    assert [curve.id for curve in curves] == steps and max(curves[-1].pr_curve.TP) == 100
    for label in (0, 1):
        bars = reader.get_data("histogram", f"metrics/probability of 1, label {label}")
        assert [each.id for each in bars] == steps and sum(bars[-1].histogram.hist) == 100


def test_missing_runs_ports_and_visualdl_are_one_line_errors(tmp_path, board_runs, monkeypatch):
    (tmp_path / "empty").mkdir()
    done = command("board", tmp_path / "empty")
    assert done.code == 2 and "holds no run" in done.told and len(done.told.splitlines()) == 1
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        done = command("board", board_runs[0], "--port", port)
    assert done.code == 5 and f"--port {port}" in done.told and len(done.told.splitlines()) == 1
    monkeypatch.setitem(sys.modules, "visualdl", None)
    with pytest.raises(InputError, match="visualdl is not installed; pip install"):
        board(BoardConfig([str(board_runs[0])], port=0))


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_page_uses_the_requested_language(board_runs, tmp_path, monkeypatch, lang):
    BoardRecords(tmp_path / "board", open_runs([str(board_runs[0])])).close()
    monkeypatch.chdir(tmp_path / "board")
    with listen("127.0.0.1", 0) as listener:
        server = _server_of(BoardConfig([str(board_runs[0])], lang=lang), ["a"], listener)
        client = Client(server.app)
        assert f"vdl_lng={lang};" in client.get("/app/scalar").headers["Set-Cookie"]
        assert client.get("/app/api/scalar/tags").json["data"]["runs"] == ["a/valid", "a/train"]
        server.server_close()
    assert not [thread for thread in threading.enumerate() if "queue" in thread.name]
