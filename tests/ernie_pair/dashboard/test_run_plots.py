"""Pictures and pages of runs, drawn from their metrics.jsonl."""

import json
import re

import pytest
from fake_runs import write_flags, write_pair_run
from package_command import command
from tiny_pair import train_config

from data_tools.base.errors import InputError
from ernie_pair.checkpoint.run_note import run_id_of
from ernie_pair.dashboard.curves import best_of, chosen_metrics, curves_of, metrics_of
from ernie_pair.dashboard.plot_page import flag_table, results_of
from ernie_pair.dashboard.plot_runs import PlotConfig, plot
from ernie_pair.dashboard.run_folder import flags_of, open_runs, short_names
from ernie_pair.pair.train.train_pair import train_pair
from ernie_pair.run_config.kept_config import keep_config


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [write_pair_run(folder / "a"), write_pair_run(folder / "b", slope=2.0)]


def plotted(runs, output, **flags):
    plot(PlotConfig([str(run) for run in runs], str(output), **flags))
    return output.read_bytes()


def test_the_page_compares_results_and_flags(runs, tmp_path):
    page = plotted(runs, tmp_path / "runs.html").decode()
    assert "Runs compared" in page and "Flags that differ" in page
    assert re.search(r"<td[^>]*>learning_rate</td><td>0.0001</td><td>0.0002</td>", page)
    assert "use_amp" not in page and 'src="data:image/svg+xml' in page


def test_the_best_value_stands_with_its_step(runs):
    table = results_of(open_runs(list(map(str, runs))), ["loss", "accuracy"])
    assert table.heads[:5] == ["run", "started", "steps", "valid loss", "valid accuracy"]
    opened = open_runs([str(runs[1])])
    valid = next(curve for curve in curves_of(opened, "accuracy") if curve.split == "valid")
    assert best_of(valid, "accuracy") == (max(valid.values), 40)
    assert table.rows[1][4] == f"{max(valid.values):.4f} (40)"


@pytest.mark.parametrize("ending, start", [("svg", b"<svg"), ("png", b"\x89PNG")])
def test_a_picture_of_the_runs(runs, tmp_path, ending, start):
    content = plotted(runs, tmp_path / f"runs.{ending}", metrics="loss,accuracy")
    assert content.startswith(start)
    if ending == "svg":
        assert b'id="legend_1"' in content and content.count(b'id="axes_') == 2
        assert plotted(runs, tmp_path / "again.svg", metrics="loss,accuracy") == content


def test_training_and_validation_stand_together_in_order(runs):
    opened = open_runs([str(runs[0])])
    assert metrics_of(opened)[:3] == ["loss", "accuracy", "auc"] and metrics_of(opened)[3] == "learning_rate"
    assert [curve.split for curve in curves_of(opened, "loss")] == ["train", "valid"]
    assert "learning_rate" not in chosen_metrics(opened, [], 9)


def test_runs_below_a_folder_are_found_and_named_shortly(runs):
    assert [run.name for run in open_runs([str(runs[0].parent)])] == ["a", "b"]
    assert [run.name for run in open_runs([str(runs[0]), str(runs[0].parent)])] == ["a", "b"]  # each once


def test_only_the_folders_of_a_run_are_passed_over(tmp_path):
    names = ("cache_on", "checkpoints2", "log_odds", "vdl-try")
    for name in (*names, "cache", "checkpoints", "log", "vdl", "earlier-20240501-120000-abcd"):
        write_pair_run(tmp_path / name, steps=5)
    assert [run.name for run in open_runs([str(tmp_path)])] == list(names)


def test_names_take_as_many_parts_as_tell_them_apart(tmp_path):
    assert short_names([tmp_path / "x" / "out", tmp_path / "y" / "out"]) == ["x/out", "y/out"]
    assert short_names([tmp_path / "a\n%b"]) == ["a__b"]


def test_a_run_of_another_version_is_known_by_its_checkpoint(tmp_path):
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
    """Keep the flags of a start, as training does."""
    keep_config(folder, "train", train_config(folder, **flags), known_by={"run_id": run_id_of(folder)})


def test_flags_of_a_person_beside_the_run_are_not_its_own(tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    assert flags_of(tmp_path) == {}
    start(tmp_path, seed=2)
    assert (tmp_path / "config-2.yaml").is_file() and flags_of(tmp_path)["seed"] == 2


def test_flags_are_those_of_the_last_start(tmp_path):
    for seed in (2, 3, 4):
        start(tmp_path, seed=seed)
    assert flags_of(tmp_path)["seed"] == 4
    (tmp_path / "run.json").unlink()  # what was copied without it still shows its flags
    assert flags_of(tmp_path)["seed"] == 4


def test_one_run_shows_all_its_flags(runs):
    table = flag_table(open_runs([str(runs[0])]))
    assert table.title == "Flags" and ["use_amp", "false"] in table.rows


def test_values_that_are_no_numbers_are_left_out(tmp_path):
    lines = [
        {"split": "train", "step": 1, "loss": "nan", "consumed_samples": 8},
        {"split": "train", "step": 2, "loss": 0.5, "consumed_samples": 16},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"split"')
    (curve,) = curves_of(open_runs([str(tmp_path)]), "loss")
    assert (curve.steps, curve.values) == ([2], [0.5])


@pytest.mark.parametrize(
    "outs, flags, fault",
    [
        ("absent", {}, "is no folder"),
        ("empty", {}, "holds no run"),
        ("a", {"metrics": "los"}, "metrics los was logged by none"),
        ("a", {"output": "runs.pdf"}, "ends in none of"),
    ],
)
def test_what_cannot_be_drawn_is_refused(runs, tmp_path, monkeypatch, outs, flags, fault):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    out = runs[0] if outs == "a" else tmp_path / outs
    with pytest.raises(InputError, match=fault):
        plot(PlotConfig([str(out)], **flags))
    assert not list(tmp_path.glob("*.*"))


def test_a_page_of_others_is_not_replaced(runs, tmp_path):
    (tmp_path / "runs.html").write_text("mine")
    with pytest.raises(InputError, match="exists"):
        plotted(runs, tmp_path / "runs.html")
    assert b"Runs" in plotted(runs, tmp_path / "runs.html", overwrite=True)


def test_a_real_run_by_the_command(tmp_path):
    train_pair(train_config(tmp_path, max_steps=4))
    done = command("plot", tmp_path / "out", "--output", tmp_path / "run.html")
    assert done.code == 0, done.told
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert "valid accuracy" in page and "max_seq_len" in page
