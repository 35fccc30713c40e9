"""The proof of use: runs that go on where they were killed, a page of their JSON, a miniature."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import cut_pairs
import pytest
import write_results
from fake_peer import write_fake_peer
from places import ROOT
from proof.chosen import with_chosen_rates
from proof.curves import MOST_POINTS, read_curve, seconds_in
from proof.experiment import Places, Run, words_of
from proof.figures import trial_figures
from proof.groups import GROUPS
from proof.page import read_results, render_page
from proof.runner import Runner, main_folder
from proof.scale import Scale
from proof.status import status_lines

from data_tools.base.errors import InputError
from data_tools.make_sample import SampleConfig, make_sample

SCRIPT = """
import sys
from pathlib import Path
with open(sys.argv[1], "a") as file:
    file.write("once\\n")
sys.exit("killed" if Path(sys.argv[2]).exists() else 0)
"""
SMALL = {
    **{"layers": 1, "hidden": 16, "heads": 2, "length": 32, "batch": 4, "processes": 1, "steps": 2},
    **{"precision": "fp32", "samples": 8, "small_rows": 10, "large_rows": 20, "choose": 10, "rest": 5},
    **{"epochs": 1, "seeds": 1, "bootstrap": 10, "trials": 2},
}


def run_of(folder, name="one", more=(), **changes):
    """A run of a small script: it notes that it was called, and fails while there is a file `broken`."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    words = (str(script), f"{folder}/calls", f"{folder}/broken", *more)
    return Run(name, "a title", (words,), lambda places: {"value": 1}, **changes)


def runner_of(folder):
    return Runner("group", Places(folder / "work", folder / "data", folder / "work"), folder / "runs")


def calls(folder):
    path = folder / "calls"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_run_is_made_once_until_its_commands_change(tmp_path):
    runner, run = runner_of(tmp_path), run_of(tmp_path)
    for _ in range(2):
        assert runner.make([run]) == []
    assert calls(tmp_path) == 1
    result = json.loads((tmp_path / "runs" / "group" / "one.json").read_text())
    assert result["figures"] == {"value": 1} and result["seeds"] == [1234] and result["wall_seconds"] >= 0
    assert result["versions"]["paddlepaddle"] and result["machine"]["cores"] > 0
    runner.make([run_of(tmp_path, more=["--flag"])])
    assert calls(tmp_path) == 2


def test_a_run_of_other_commands_has_a_folder_of_its_own(tmp_path, caplog):
    """Of a finished run and of one that was cut short; links into the earlier folder follow, others stay."""
    runner, made = runner_of(tmp_path), tmp_path / "work/group/one"
    links = {"$WORK/weights/half": "$RUN/model_1", "$WORK/weights/mine": "$RUN/model_1"}
    (tmp_path / "work/weights/mine").mkdir(parents=True)
    runner.make([run_of(tmp_path, links=links)])
    (made / "kept").write_text("")
    (tmp_path / "broken").write_text("")
    with pytest.raises(Exception, match="of group/one"):
        runner.make([run_of(tmp_path, more=["--flag"])])
    assert [path.name for path in made.parent.glob("one-earlier-*/kept")] == ["kept"]
    assert not (made / "kept").exists() and "its commands have changed; the earlier run is" in caplog.text
    (made / "cut_short").write_text("")
    (tmp_path / "broken").unlink()
    runner.make([run_of(tmp_path, more=["--other"], links={link: "$RUN/model_2" for link in links})])
    assert [path.name for path in made.parent.glob("one-earlier-*/cut_short")] == ["cut_short"]
    assert (tmp_path / "work/weights/half").readlink() == made / "model_2"
    assert not (tmp_path / "work/weights/mine").is_symlink()


@pytest.mark.parametrize("change", [{"choose": 7}, {"rest": 7}, {"small_rows": 7}, {"learning_rate": 7.0}])
def test_what_runs_share_has_a_folder_for_its_settings(change):
    for name in ("lcqmc_large", "lcqmc_large_four"):
        one, other = (
            {run.name: run for run in GROUPS["starts"].runs(scale)}[name]
            for scale in (Scale(), Scale(**change))
        )
        for place, words in enumerate(one.commands):
            folders = [
                next(word for word in each.commands[place] if "output_dir" in word) for each in (one, other)
            ]
            assert (folders[0] == folders[1]) == (words == other.commands[place])
    two, four = (GROUPS["starts"].runs(Scale())[place].read.keywords["folder"] for place in (0, 3))
    assert two == four


def test_half_a_batch_is_whole_in_every_process():
    with pytest.raises(InputError, match="batch=6 is no multiple of twice processes=2"):
        Scale(batch=6, processes=2)
    assert Scale(batch=8, processes=2).batch == 8


def test_a_run_that_fails_leaves_no_figures_and_goes_on(tmp_path):
    runner, run = runner_of(tmp_path), run_of(tmp_path)
    (tmp_path / "broken").write_text("")
    with pytest.raises(Exception, match="of group/one"):
        runner.make([run])
    assert not (tmp_path / "runs").exists()
    spent = json.loads((tmp_path / "work/group/one/spent.json").read_text())["seconds"]
    (tmp_path / "broken").unlink()
    runner.make([run])
    assert json.loads(runner.path_of(run).read_text())["wall_seconds"] >= round(spent, 1)


def test_a_run_without_what_it_needs_is_left_out(tmp_path, capsys):
    runner = runner_of(tmp_path)
    lacking = run_of(tmp_path, "lacking", needs=("$WORK/weights",))
    assert runner.make([lacking, run_of(tmp_path)]) == ["lacking: $WORK/weights is not there"]
    assert runner.is_done(run_of(tmp_path)) and not runner.is_done(lacking)
    (tmp_path / "work" / "weights").mkdir()
    assert runner.make([lacking]) == []


def test_the_status_tells_what_is_left_and_for_how_long(tmp_path):
    runner = runner_of(tmp_path)
    runs = [run_of(tmp_path, name) for name in ("first", "second", "third")]
    runs.append(run_of(tmp_path, "lacking", needs=("$WORK/weights",)))
    lines = status_lines({"group": (runner, runs)})
    assert lines[0].startswith("group: 0 of 4 runs are done, of none is known how long")
    assert lines[-1].endswith("; 4 runs are of groups of which none is done")
    runner.make([runs[0]])
    (tmp_path / "broken").write_text("")
    with pytest.raises(Exception, match="of group/second"):
        runner.make([runs[1]])
    for path, key, seconds in (
        (runner.path_of(runs[0]), "wall_seconds", 3600),
        (tmp_path / "work/group/second/spent.json", "seconds", 600),
    ):
        path.write_text(json.dumps({**json.loads(path.read_text()), key: seconds}))
    assert status_lines({"group": (runner, runs), "other": (runner, [])}) == [
        "group: 1 of 4 runs are done, about 2:50:00 left",
        "  first                   done, took 1:00:00",
        "  second                  cut short after 0:10:00",
        "  third                   left",
        "  lacking                 left; needs $WORK/weights",
        "other: 0 of 0 runs are done",
        "left in all: about 2:50:00",
    ]
    changed = run_of(tmp_path, "first", more=["--flag"])
    assert status_lines({"group": (runner, [changed])})[1].endswith(
        "left; its commands have changed since its figures"
    )


def test_files_and_links_are_made_in_their_places(tmp_path):
    files = {"$RUN/flags.yaml": "train_file: $DATA/train.tsv\n"}
    links = {"$WORK/weights/half": "$RUN/out"}
    runner_of(tmp_path).make([run_of(tmp_path, files=files, links=links)])
    made = tmp_path / "work/group/one"
    assert (made / "flags.yaml").read_text() == f"train_file: {tmp_path}/data/train.tsv\n"
    assert (tmp_path / "work/weights/half").readlink() == made / "out"
    published = (tmp_path / "runs/group/one.json").read_text()
    assert "train_file: $DATA/train.tsv" in published and json.loads(published)["figures"]


def test_no_command_of_an_experiment_names_a_machine():
    """All runs of all groups: places by name, names of their own, and what they need is made by another."""
    for group in GROUPS.values():
        runs = group.runs(Scale())
        assert len({run.name for run in runs}) == len(runs)
        for run in runs:
            text = json.dumps(run.recipe)
            assert not re.search(r"[=\" ]/\w", text), run.name
            assert all(need.startswith("$WORK/") for need in run.needs)
            assert all(words[0] == "ernie-pair" or (ROOT / words[0]).is_file() for words in run.commands)


def test_a_row_of_the_ablation_changes_its_flags_alone():
    scale = Scale()
    rows = {run.name: run for run in GROUPS["pretraining"].runs(scale)}
    trainings = {
        name: {
            tuple(word.split("=", 1))
            for words in run.commands
            for word in words
            if "launch" in words
            if "=" in word
        }
        for name, run in rows.items()
    }
    assert len(set(rows) - {"pretrained", "characters", "gram"}) >= 6
    for name, flag in (
        ("no_whole_words", "--whole_word_mask"),
        ("no_order", "--binary_head"),
        ("rate_low", "--max_lr"),
    ):
        assert {each for each, _ in trainings[name] ^ trainings["base"]} == {flag}
    tokens = {
        name: int(flags["--max_steps"]) * int(flags["--global_batch_size"]) * int(flags["--max_seq_len"])
        for name, flags in ((name, dict(pairs)) for name, pairs in trainings.items())
        if name not in ("pretrained", "characters", "gram")
    }
    assert len(set(tokens.values())) == 1


def write_lines(path, events):
    path.write_text("".join(json.dumps(event) + "\n" for event in events))


def test_curves_are_thinned_and_keep_their_ends(tmp_path):
    events = [{"split": "train", "step": step, "loss": step / 7, "noise": 1} for step in range(1, 500)]
    events += [{"split": "train", "step": 499, "loss": 5.0}, {"split": "valid", "step": 7, "accuracy": 0.5}]
    write_lines(tmp_path / "metrics.jsonl", events)
    curve = read_curve(tmp_path / "metrics.jsonl")
    assert len(curve["train"]) == MOST_POINTS
    assert curve["train"][0] == {"step": 1, "loss": 0.14286} and curve["train"][-1] == {
        "step": 499,
        "loss": 5.0,
    }
    assert curve["valid"] == [{"step": 7, "accuracy": 0.5}]
    assert read_curve(tmp_path / "none") == {}


def test_seconds_of_a_pretraining_come_from_its_log(tmp_path):
    events = [
        {"split": "train", "step": 1, "consumed_samples": 10, "samples_per_second": 5.0},
        {"split": "valid", "step": 1, "consumed_samples": 10},
        {"split": "train", "step": 2, "consumed_samples": 30, "samples_per_second": 10.0},
    ]
    write_lines(tmp_path / "metrics.jsonl", events)
    assert seconds_in(tmp_path / "metrics.jsonl") == 4.0


def write_pairs(path, rows):
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_the_cuts_of_a_data_set_share_no_pair(tmp_path):
    rows = [(f"问{number}", f"答{number}", str(number % 2)) for number in range(60)]
    test = write_pairs(tmp_path / "dev.tsv", [("答3", "问3", "1"), ("其他", "别的", "0")])
    train = write_pairs(tmp_path / "train.tsv", [*rows, rows[5]])
    config = cut_pairs.CutConfig(train, test, str(tmp_path / "cut"), rows="10 20", choose=5, rest=7)
    cut_pairs.cut_pairs(config)
    parts = {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()]
        for path in (tmp_path / "cut").glob("*.jsonl")
    }
    keys = {name: [(row["text_a"], row["text_b"]) for row in found] for name, found in parts.items()}
    assert {name: len(found) for name, found in keys.items()} == {
        **{"train_10": 10, "train_20": 20, "train_all": 54, "choose": 5, "rest": 7}
    }
    assert keys["train_20"][:10] == keys["train_10"] and keys["train_all"][:20] == keys["train_20"]
    assert len({*keys["train_20"], *keys["choose"], *keys["rest"]}) == 32
    assert ("问3", "答3") not in {*keys["train_all"], *keys["choose"]}
    assert all("label" not in row for row in parts["rest"])
    for row in parts["train_10"]:
        assert row["label"] == str(int(row["text_a"][1:]) % 2)
    with pytest.raises(InputError, match="are needed; lower choose or rows"):
        cut_pairs.cut_pairs(replace(config, rows="60", output_dir=str(tmp_path / "more")))


def result_of(group, name, figures, **changes):
    result = {
        **{"group": group, "name": name, "title": f"the {name}", "commands": [["ernie-pair", "a b"]]},
        **{"files": {}, "seeds": [1, 2], "versions": {}, "machine": {"cores": 2}, "wall_seconds": 60},
        **{"figures": figures, "curve": {}},
    }
    return {**result, **changes}


def comparison(one, other, gain):
    values = {"accuracy": 0.5, "f1": 0.5, "auc": 0.5, "loss": 0.5}
    run = {**values, "calibration_error": 0.1}
    interval = dict.fromkeys(values, [gain - 0.1, gain + 0.1])
    difference = {"one": one, "other": other, "mean": dict.fromkeys(values, gain), "interval": interval}
    models = {name: {"runs": [run, {**run, "accuracy": 0.7}], "interval": interval} for name in (one, other)}
    return {"rows": 10, "majority": 0.5, "models": models, "differences": [difference]}


def test_the_page_shows_what_was_run_and_nothing_else():
    gain, loss = (comparison(name, "plain", value) for name, value in (("fgm", 0.2), ("rdrop", 0.05)))
    found = {"options": {n: result_of("options", n, f) for n, f in (("fgm", gain), ("rdrop", loss))}}
    page = render_page(found, {"options": ["rdrop", "fgm"]})
    rows = [line for line in page.text.splitlines() if line.startswith("| the ")]
    assert [row.split(" | ")[0] for row in rows] == ["| the rdrop", "| the fgm"]
    assert "0.6000 ± 0.1414" in rows[1] and "+0.2000 (+0.1000 to +0.3000)" in rows[1]
    assert "`run.py options --only fgm`" in rows[1] and "| 2 |" in rows[1]
    assert "- the rdrop: accuracy +0.0500" in page.text and "- the fgm:" not in page.text
    for group in ("pretraining", "starts", "forgetting"):
        assert GROUPS[group].TITLE not in page.text
    assert 'ernie-pair "a b"' in page.text and page.pictures == {}


def sided(name, gain, **changes):
    """The figures of a side, of the trainings of two seeds."""
    others = {"precision": "fp32", "threads": 2, "versions": {}, **changes}
    figures = {"training_seconds": [10.0, 20.0], "pairs_per_second": [4.0, 2.0], **others}
    return result_of("peer", name, {**comparison(name, "ours", gain), **figures})


def test_the_page_shows_both_sides_and_their_speed():
    ours = sided("ours", 0.0)
    ours["figures"]["differences"] = []
    theirs = sided("transformers", -0.05, versions={"torch": "2.0", "attention": "eager"})
    names = ["ours", "transformers"]
    page = render_page({"peer": {"ours": ours, "transformers": theirs}}, {"peer": names}).text
    rows = [line for line in page.splitlines() if line.startswith("| the ")]
    assert "-0.0500 (-0.1500 to +0.0500) | 15.0 | 3.0 | 1.0 | `run.py peer --only transformers` |" in rows[1]
    assert "- transformers - ours: accuracy -0.0500" in page and "2 thread(s) on both sides" in page
    assert "| transformers | 2 | 0.7000 | 0.5000 | 0.5000 | 0.5000 | 0.1000 | 20.0 | 2.0 |" in page
    assert "The peer: torch 2.0, attention eager." in page
    alone = render_page({"peer": {"transformers": theirs}}, {"peer": names}).text
    assert "`run.py peer --only ours` is yet to be made" in alone


def test_other_groups_train_by_what_the_search_has_chosen(tmp_path):
    """But for flags that are given; a page tells what was tried."""
    assert with_chosen_rates(Scale(), tmp_path) == Scale()
    trial = {"accuracy": 0.6, "loss": 0.7, "last_accuracy": 0.55, "train_accuracy": 0.9}
    trials = [{"learning_rate": rate, "epochs": 6, **trial} for rate in (1e-4, 2e-4)]
    figures = {"trials": trials, "chosen": {"learning_rate": 1e-4, "epochs": 6}}
    result = result_of("rates", "pretrained", figures)
    path = tmp_path / "rates" / "pretrained.json"
    path.parent.mkdir()
    path.write_text(json.dumps(result))
    chosen = with_chosen_rates(Scale(), tmp_path)
    assert (chosen.pair_rate, chosen.pair_epochs) == (1e-4, 6)
    given = with_chosen_rates(Scale(learning_rate=3e-4), tmp_path)
    assert (given.pair_rate, given.pair_epochs) == (3e-4, 6)
    page = render_page({"rates": {"pretrained": result}}, {"rates": ["pretrained"]}).text
    assert "| pretrained | 0.0002 | 6 | 0.6000 | 0.5500 | 0.7000 | 0.9000 | `run.py rates --only" in page
    assert "- best the pretrained: learning_rate 0.0001, epochs 6" in page
    path.write_text("{}")
    with pytest.raises(InputError, match="pretrained.json: KeyError.* no result of run.py rates; remove it"):
        with_chosen_rates(Scale(), tmp_path)


def test_either_start_has_as_many_trials():
    """Of the same rates and epochs, and the highest rate is that of the flags."""
    ours, scratch = GROUPS["rates"].runs(Scale())
    for one, other in zip(ours.commands, scratch.commands):
        assert {*one} ^ {*other} <= {"--from_scratch=false", "--from_scratch=true"}
    tried = {
        tuple(word.split("=")[1] for word in words if word.startswith(("--learning_rate", "--epochs")))
        for words in ours.commands[1:]
    }
    assert len(tried) == len(ours.commands) - 1 == Scale().trials == 8
    assert {rate for rate, _ in tried} == {"0.0004", "0.0002", "0.0001", "5e-05"}
    assert {epochs for _, epochs in tried} == {"3", "6"}


def test_the_best_trial_is_that_of_the_pairs_that_choose(tmp_path):
    trials = {}
    for number, dev in enumerate(([0.5, 0.7, 0.6], [0.6, 0.8, 0.8], [0.8, 0.6, 0.5])):
        folder = tmp_path / str(number)
        folder.mkdir()
        events = [{"split": "train", "step": 3, "loss": 0.1, "accuracy": 0.9}]
        for step, accuracy in enumerate(dev):
            events.append({"split": "valid", "step": step, "loss": 1 - step / 10, "accuracy": accuracy})
        write_lines(folder / "metrics.jsonl", events)
        trials[f"$RUN/{number}"] = {"learning_rate": 0.1 * number, "epochs": 3}
    found = trial_figures(Places(tmp_path, tmp_path, tmp_path), trials)
    assert found["chosen"] == {"learning_rate": 0.1, "epochs": 3}  # as accurate as the third, of a lower loss
    first = found["trials"][0]
    assert (first["accuracy"], first["last_accuracy"], first["train_accuracy"]) == (0.7, 0.6, 0.9)


def test_a_longer_comparison_stands_in_place_of_its_beginning():
    short, long = (
        result_of("starts", name, comparison("pretrained", "scratch", 0.1))
        for name in ("afqmc", "afqmc_four")
    )
    page = render_page({"starts": {"afqmc": short, "afqmc_four": long}}, {"starts": ["afqmc", "afqmc_four"]})
    assert "### the afqmc_four" in page.text and "### the afqmc\n" not in page.text
    assert "- pretrained - scratch: accuracy +0.1000 (+0.0000 to +0.2000)" in page.text


def test_what_is_no_result_is_named(tmp_path):
    (tmp_path / "starts").mkdir()
    (tmp_path / "starts" / "broken.json").write_text("[]")
    with pytest.raises(InputError, match="broken.json.*remove it"):
        read_results(tmp_path)
    with pytest.raises(InputError, match="no run is there"):
        write_results.write_results(
            write_results.WriteConfig(str(tmp_path / "none"), str(tmp_path / "page.md"))
        )


def test_the_committed_page_is_that_of_the_committed_runs(tmp_path):
    committed = ROOT / "docs" / "RESULTS.md"
    if not read_results(main_folder()):
        assert not committed.exists()
        return
    write_results.write_results(write_results.WriteConfig(output=str(tmp_path / "RESULTS.md")))
    assert (tmp_path / "RESULTS.md").read_text() == committed.read_text()
    pictures = {path.name for path in (tmp_path / "results").glob("*")}
    assert pictures == {path.name for path in (ROOT / "docs" / "results").glob("*")}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    make_sample(SampleConfig(output_dir=str(folder / "sample"), documents=120, pairs=180))
    for name in ("text", "pairs/lcqmc", "vocab"):
        (folder / name).mkdir(parents=True)
    (folder / "sample" / "corpus.txt").rename(folder / "text" / "stories.txt")
    for name in ("train.tsv", "dev.tsv"):
        (folder / "sample" / "pairs" / name).rename(folder / "pairs" / "lcqmc" / name)
    words = ["build-vocab", f"--input_path={folder}/text", f"--output_path={folder}/vocab/ernie_1.0_zh.txt"]
    subprocess.run([sys.executable, "-m", "ernie_pair", *words], check=True, cwd=ROOT)
    return folder


def start(data, folder, group, *words):
    flags = {"work": folder / "work", "data": data, "results": folder / "runs", **SMALL}
    given = [word.split("=")[0] for word in words]
    flags = [f"--{name}={value}" for name, value in flags.items() if f"--{name}" not in given]
    command = [sys.executable, ROOT / "scripts/results/run.py", group, *flags, *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


def test_a_miniature_of_the_whole(data, tmp_path):
    """Text to a pretrained model, a classifier from it and both orders asked, and the page of these."""
    for group, only in (("pretraining", "pretrained"), ("options", "plain symmetric_scoring")):
        done = start(data, tmp_path, group, "--only", only)
        assert done.returncode == 0, done.stderr
    peer = f"--peer_python={write_fake_peer(tmp_path)}"
    for group, words in (
        ("peer", ["--only", "ours transformers", peer]),
        ("rates", ["--only", "pretrained"]),
    ):
        done = start(data, tmp_path, group, *words)
        assert done.returncode == 0, done.stderr
    again = start(data, tmp_path, "options", "--only", "plain")
    assert "run 1 of 1 is done" in again.stderr
    told = start(data, tmp_path, "status").stdout
    assert "peer: 2 of 4 runs are done, about 0:" in told and "starts: 0 of 10 runs are done, of none" in told
    for group, only, flag in (("pretraining", "pretrained", "--steps=4"), ("options", "plain", "--choose=9")):
        changed = start(data, tmp_path, group, "--only", only, flag)
        assert changed.returncode == 0, changed.stderr
        assert f"{group}/{only}: its commands have changed" in changed.stderr
    for path in (tmp_path / "runs").rglob("*.json"):
        text = path.read_text()
        assert len(text) < 50_000 and str(tmp_path) not in text and str(data) not in text
    words = ["--results", tmp_path / "runs", "--output", tmp_path / "RESULTS.md"]
    subprocess.run([sys.executable, ROOT / "scripts/results/write_results.py", *words], check=True)
    page = Path(tmp_path / "RESULTS.md").read_text()
    assert "| pretrained: whole words | 1 | 7." in page or "| pretrained: whole words | 1 | 6." in page
    assert "| symmetric scoring of the plain models | 1 | " in page
    assert "| Trainer of transformers, float32, 20 rows of LCQMC | 1 | 1.0000 | " in page
    assert "- best from the pretrained weights, 20 rows of LCQMC, 10 pairs that choose: learn" in page
    assert "- transformers - ours: accuracy +" in page and "attention eager" in page
    assert (tmp_path / "results" / "pretraining.svg").read_text().startswith("<svg")
    assert (tmp_path / "work/weights/half/model_state.pdparams").is_file()


def test_an_unknown_run_or_place_is_one_line(data, tmp_path):
    unknown = start(data, tmp_path, "options", "--only", "nothing")
    assert unknown.returncode == 2
    assert "error: --only nothing is no run of options; use some of plain, rdrop" in unknown.stderr
    peer = start(data, tmp_path, "peer", "--only", "transformers")
    assert peer.returncode == 2 and "error: transformers of peer need --peer_python, a" in peer.stderr
    status = start(data, tmp_path, "status", "--only", "plain")
    assert status.returncode == 2 and "error: --only plain is of one group, and status tells" in status.stderr
    false = start(data, tmp_path, "peer", "--peer_python=/bin/false")
    assert false.returncode == 2 and "install torch, transformers and accelerate" in false.stderr
    nowhere = start(tmp_path / "nowhere", tmp_path, "options")
    assert nowhere.returncode == 2 and "nowhere: no such folder" in nowhere.stderr
    (tmp_path / "a b").mkdir()
    for flag in ("--work", "--data"):
        blank = start(data, tmp_path, "options", f"{flag}={tmp_path}/a b")
        assert blank.returncode == 2 and f"error: {flag} {tmp_path}/a b: blanks end a path" in blank.stderr


def test_words_leave_out_what_is_none():
    assert words_of("train", seed=1, model_type=None, scores=True) == (
        "ernie-pair",
        "train",
        "--seed=1",
        "--scores=true",
    )
