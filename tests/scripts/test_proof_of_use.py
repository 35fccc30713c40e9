"""The proof of use: runs that resume where they were killed, the page of their results, a small full run."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import cut_pairs
import numpy as np
import pytest
import readme_block
import write_results
from children import command
from fake_peer import write_fake_peer
from places import ROOT
from proof.experiments import TITLES, Places, Run, Scale, runs_of, words_of
from proof.figures import circle_figures, find_best, overlap_figures, read_curve, seen_figures
from readme_block import FIGURES, between, is_chinese
from run import RunConfig, Runner, run_group
from test_cut_documents import texts_of
from tiny_models import write_sentence
from write_results import read_runs, read_tables, render_page, render_summary

from data_tools.corpus.format import document_ranges
from data_tools.make_sample import SampleConfig, make_sample
from ernie_pair.core.errors import InputError

SCRIPT = """
import sys
from pathlib import Path
with open(sys.argv[1], "a") as file:
    file.write("once\\n")
sys.exit("killed" if Path(sys.argv[2]).exists() else 0)
"""
# fmt: off
SMALL = {
    "layers": 1, "hidden": 16, "heads": 2, "length": 32, "batch": 4, "processes": 1, "steps": 2,
    "precision": "fp32", "samples": 8, "small_rows": 10, "large_rows": 20, "choose": 10, "rest": 5,
    "epochs": 1, "seeds": 1, "bootstrap": 10, "trials": 1, "task_steps": 2,
}
# fmt: on


def run_of(folder, name="one", more=(), **changes):
    """A run of a small script, which records each call and fails while the file `broken` exists."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    words = (str(script), f"{folder}/calls", f"{folder}/broken", *more)
    return Run(name, "a title", (words,), lambda places: {"value": 1}, **changes)


@pytest.fixture
def runner(tmp_path):
    return Runner("group", Places(tmp_path / "work", tmp_path / "data", tmp_path / "work"))


@pytest.fixture
def kill(runner, tmp_path):
    def killed(run):
        (tmp_path / "broken").touch()
        with pytest.raises(Exception, match=f"of group/{run.name}"):
            runner.make([run])
        (tmp_path / "broken").unlink()

    return killed


def stored(runner, run):
    return json.loads(runner.path_of(run).read_text())


def test_a_run_is_not_repeated_and_its_commands_do_not_change(runner, tmp_path):
    files = {"$RUN/flags.yaml": "train_file: $DATA/train.tsv\n"}
    run = run_of(tmp_path, files=files)
    for _ in range(2):
        assert runner.make([run]) == []
    assert (tmp_path / "calls").read_text() == "once\n"
    result = stored(runner, run)
    assert result["value"] == 1 and result["runs"] == 1 and result["steps"] == 0 and result["cores"] > 0
    assert "paddlepaddle" in result["machine"] and "weights" in result
    flags = (tmp_path / "work/group/one/flags.yaml").read_text()
    assert flags == f"train_file: {tmp_path}/data/train.tsv\n"
    with pytest.raises(InputError, match="group/one was begun with other commands; remove its folder"):
        runner.make([run_of(tmp_path, more=["--flag"], files=files)])


def test_a_killed_run_goes_on_and_a_link_of_the_user_stays(runner, kill, tmp_path):
    links = {"$WORK/weights/half": "$RUN/model_1", "$WORK/weights/mine": "$RUN/model_1"}
    (tmp_path / "work/weights/mine").mkdir(parents=True)
    run = run_of(tmp_path, links=links)
    kill(run)
    (tmp_path / "work/group/one/kept").touch()
    assert runner.status_lines([run]) == ["group: 0 of 1 runs are done", "  one                     begun"]
    assert runner.make([run]) == [] and (tmp_path / "calls").read_text() == 2 * "once\n"
    assert (tmp_path / "work/group/one/kept").exists() and not (tmp_path / "work/weights/mine").is_symlink()
    assert (tmp_path / "work/weights/half").readlink() == tmp_path / "work/group/one/model_1"


def test_a_result_names_the_weights_it_started_from(runner, tmp_path):
    """Those of a model; a file of predictions that a run needs has none."""
    model, predictions = tmp_path / "work" / "weights" / "small", tmp_path / "work" / "predictions.tsv"
    model.mkdir(parents=True)
    (model / "model_state.pdparams").write_bytes(b"abc")
    predictions.touch()
    run = run_of(tmp_path, needs=("$WORK/weights/small", "$WORK/predictions.tsv"))
    assert runner.make([run]) == []
    assert stored(runner, run)["weights"] == "small ba7816bf"


@pytest.mark.parametrize("change", [{"choose": 7}, {"rest": 7}, {"small_rows": 7}, {"learning_rate": 7.0}])
def test_shared_folders_are_reused_only_for_equal_settings(change):
    def folder_in(words):
        return next(word for word in words if "output_dir" in word)

    one, other = ({run.name: run for run in runs_of("starts", scale)} for scale in (Scale(), Scale(**change)))
    for name in ("lcqmc_large", "lcqmc_large_recipes"):
        for words, others in zip(one[name].commands, other[name].commands):
            assert (folder_in(words) == folder_in(others)) == (words == others)
    three, recipes = (one[name].read.keywords["folder"] for name in ("lcqmc_large", "lcqmc_large_recipes"))
    assert three != recipes


def test_half_a_batch_must_divide_evenly_among_processes():
    with pytest.raises(InputError, match="batch=6 is not a multiple of twice processes=2"):
        Scale(batch=6, processes=2)
    assert Scale(batch=8, processes=2).batch == 8


def test_a_run_with_missing_inputs_is_skipped(runner, tmp_path):
    lacking = run_of(tmp_path, "lacking", needs=("$WORK/weights",))
    assert runner.make([lacking, run_of(tmp_path)]) == ["lacking: $WORK/weights does not exist"]
    assert runner.is_done(run_of(tmp_path)) and not runner.is_done(lacking)
    (tmp_path / "work" / "weights").mkdir()
    assert runner.make([lacking]) == []


def test_the_status_shows_what_is_done_and_what_is_left(runner, tmp_path):
    runs = [run_of(tmp_path, name) for name in ("first", "second")]
    runs.append(run_of(tmp_path, "lacking", needs=("$WORK/weights",)))
    runner.make([runs[0]])
    assert [line.split() for line in runner.status_lines(runs)[1:]] == [
        ["first", "done"], ["second", "left"], ["lacking", "needs", "$WORK/weights"],
    ]  # fmt: skip


def test_experiment_commands_contain_no_absolute_paths():
    """All runs of all groups: symbolic paths, unique names, and inputs that come from the work folder."""
    for group in TITLES:
        runs = runs_of(group, Scale())
        assert len({run.name for run in runs}) == len(runs)
        for run in runs:
            assert not re.search(r"[=\" ]/\w", json.dumps(run.recipe)), run.name
            assert all(need.startswith("$WORK/") for need in run.needs)
            assert all(
                words[0] in ("ernie-pair", "python") or (ROOT / words[0]).is_file() for words in run.commands
            )


def test_an_ablation_run_changes_only_its_own_flag():
    def launched(commands):
        return next(words for words in commands if "launch" in words)

    flags_of = {
        run.name: dict(
            word.split("=", 1) for words in run.commands if "launch" in words for word in words[3:]
        )
        for run in runs_of("pretraining", Scale())
        if run.name not in ("pretrained", "characters", "gram")
    }
    assert len(flags_of) >= 6
    for name, flag in (
        ("no_whole_words", "whole_word_mask"),
        ("no_order", "binary_head"),
        ("rate_low", "max_lr"),
    ):
        changed = flags_of[name].items() ^ flags_of["base"].items()
        assert {each for each, _ in changed} == {f"--{flag}"}
    sizes = ("--max_steps", "--global_batch_size", "--max_seq_len")
    tokens = {int(f[sizes[0]]) * int(f[sizes[1]]) * int(f[sizes[2]]) for f in flags_of.values()}
    assert len(tokens) == 1


@pytest.fixture
def log(tmp_path):
    def written(events):
        path = tmp_path / "metrics.jsonl"
        path.write_text("".join(json.dumps(event) + "\n" for event in events))
        return path

    return written


def test_a_curve_has_the_evaluations_alone(log, tmp_path):
    events = [{"split": "train", "step": step, "lm_loss": step / 7} for step in range(1, 9)]
    events += [{"split": "valid", "step": step, "lm_loss": step / 7, "noise": 1} for step in (7, 3, 3)]
    events += [{"split": "valid", "step": 9, "accuracy": 0.5}]
    assert read_curve(log(events)) == [
        {"step": 3, "lm_loss": 0.42857},
        {"step": 7, "lm_loss": 1.0},
        {"step": 9},
    ]
    assert read_curve(tmp_path / "none") == []


@pytest.mark.parametrize("metric", ["accuracy", "auc"])
def test_the_best_evaluation_is_found_among_all_of_them(log, metric):
    values = [0.5] * 180
    values[60] = 0.75
    events = [{"split": "valid", "step": step, metric: value} for step, value in enumerate(values)]
    assert find_best(log([{"split": "train", "step": 1, metric: 0.9}, *events]), metric) == 0.75


def write_pairs(path, rows):
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_the_splits_of_a_data_set_share_no_pair(tmp_path):
    rows = [(f"问{number}", f"答{number}", str(number % 2)) for number in range(60)]
    test = write_pairs(tmp_path / "dev.tsv", [("答3", "问3", "1"), ("其他", "别的", "0")])
    train = write_pairs(tmp_path / "train.tsv", [*rows, rows[5]])
    config = cut_pairs.CutConfig(train, test, str(tmp_path / "cut"), rows="10 20", choose=5, rest=7)
    cut_pairs.cut_pairs(config)
    parts = {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()]
        for path in (tmp_path / "cut").glob("*.jsonl")
    }
    keys = {name: [(row["text_a"], row["text_b"]) for row in part] for name, part in parts.items()}
    sizes = {"train_10": 10, "train_20": 20, "train_all": 54, "choose": 5, "rest": 7}
    assert {name: len(part) for name, part in keys.items()} == sizes
    assert keys["train_20"][:10] == keys["train_10"] and keys["train_all"][:20] == keys["train_20"]
    assert len({*keys["train_20"], *keys["choose"], *keys["rest"]}) == 32
    text = (tmp_path / "cut" / "text.txt").read_text()
    assert text.count("\n\n") == 54 and text.startswith("\n".join(keys["train_all"][0]) + "\n\n")
    assert ("问3", "答3") not in {*keys["train_all"], *keys["choose"]}
    assert all("label" not in row for row in parts["rest"])
    assert all(row["label"] == str(int(row["text_a"][1:]) % 2) for row in parts["train_10"])
    with pytest.raises(InputError, match="are needed; lower choose or rows"):
        cut_pairs.cut_pairs(replace(config, rows="60", output_dir=str(tmp_path / "more")))


def test_the_stages_of_a_search_are_shown_with_intervals(tmp_path):
    rng, places = np.random.default_rng(3), Places(tmp_path, tmp_path, tmp_path)
    found = {"metrics": ["recall@1", "recall@10", "nDCG@10"], "texts": 9}
    values = {seed: rng.random((40, 3)) for seed in (1, 2)}
    for seed, each in values.items():
        (tmp_path / f"{seed}.json").write_text(json.dumps({**found, "queries": {"both": each.tolist()}}))
    files = ["$RUN/1.json", "$RUN/2.json"]
    better = {seed: each + np.where(rng.random(each.shape) < 0.5, 0.2, 0.1) for seed, each in values.items()}
    for seed, each in better.items():
        (tmp_path / f"b{seed}.json").write_text(json.dumps({**found, "queries": {"both": each.tolist()}}))
    stages = {"a stage": [files, "both"], "better": [["$RUN/b1.json", "$RUN/b2.json"], "both"]}
    figures = circle_figures(places, {**stages, "the same": stages["a stage"]}, bootstrap=400)
    stage, better, _ = figures["stages"]
    gain = better["gain_low"], better["gain_high"]
    assert 0.1 < gain[0] < gain[1] < 0.2  # of pairs: far narrower than the intervals
    assert stage["recall@10"] == round(np.mean([each[:, 1].mean() for each in values.values()]), 6)
    low, high = stage["nDCG@10_low"], stage["nDCG@10_high"]
    whole = np.concatenate(list(values.values()))[:, 2]
    assert low < whole.mean() < high and 1 < (high - low) / (3.92 * whole.std() / 80**0.5) < 2.5


@pytest.mark.parametrize("rows", ["0", "10 many", "10 ²"])
def test_sizes_that_are_not_numbers_of_pairs_are_refused(rows):
    with pytest.raises(InputError, match="not numbers of pairs; write it as in"):
        cut_pairs.CutConfig("train.tsv", "dev.tsv", "cut", rows=rows)


def assert_in(page, *texts):
    for text in texts:
        assert text in page


def test_the_character_overlap_is_the_baseline(tmp_path):
    """The threshold comes from the training pairs; on the test pairs another one would be better."""
    train = [("甲乙", "甲乙", "1"), ("甲乙丙", "甲乙丁", "1"), ("甲乙", "甲丙", "0"), ("甲", "乙", "0")]
    test = [("甲乙", "甲乙", "1"), ("甲乙丙丁", "甲乙丙戊", "0"), ("甲乙", "甲丙", "0"), ("甲", "乙", "0")]
    train, test = (
        Path(write_pairs(tmp_path / f"{name}.tsv", rows)) for name, rows in (("train", train), ("test", test))
    )
    shares = {"overlap_accuracy": 0.75, "overlap_auc": 1.0, "overlap_chosen": 1.0}
    assert overlap_figures(train, test, train, "accuracy") == shares
    assert overlap_figures(train, test, test, "auc") == shares
    assert seen_figures(train, test) == {"seen_any": 0.75, "seen_both": 0.75}


def test_the_page_and_the_readme_show_only_what_was_run():
    """What they show of everything is compared with the committed pages below."""
    results = read_tables(FIGURES)
    peer = {"transformers": results["peer"]["transformers"]}
    page, _ = render_page({"peer": peer})
    assert_in(page, TITLES["peer"], "`run.py peer --only ours` has not been run")
    assert not any(text in page for text in ("![", *(TITLES[group] for group in TITLES if group != "peer")))
    assert "Trainer" not in render_summary({**results, "peer": peer}, in_chinese=False)
    assert render_summary({"peer": peer}, in_chinese=False) == ""


def test_an_invalid_or_missing_result_is_reported(tmp_path):
    (tmp_path / "starts").mkdir()
    (tmp_path / "starts" / "broken.json").write_text("[]")
    with pytest.raises(InputError, match="broken.json.*remove it"):
        read_runs(tmp_path)
    config = write_results.WriteConfig(str(tmp_path / "none"), str(tmp_path / "page.md"))
    with pytest.raises(InputError, match="no run is there"):
        write_results.write_results(config)


def test_the_committed_page_matches_the_committed_tables(tmp_path):
    """Read and written again, they are the same."""
    shutil.copytree(FIGURES, tmp_path / "results")
    write_results.write_results(write_results.WriteConfig(output=str(tmp_path / "RESULTS.md")))
    assert (tmp_path / "RESULTS.md").read_text() == (ROOT / "docs" / "RESULTS.md").read_text()
    made, committed = ({path.name for path in folder.glob("*")} for folder in (tmp_path / "results", FIGURES))
    assert made == committed
    for path in FIGURES.glob("*.csv"):
        assert (tmp_path / "results" / path.name).read_text() == path.read_text(), path.name


@pytest.mark.parametrize(
    "page, shape", [("README.md", "({} layers, hidden size {})"), ("README_cn.md", "（{} 层，隐藏层 {}，")]
)
def test_the_readme_shows_the_committed_comparisons(page, shape):
    text = (ROOT / page).read_text(encoding="utf-8")
    shown = between(readme_block.RESULTS).search(text)
    assert shown and shown[1] == render_summary(read_tables(FIGURES), is_chinese(page)) != ""
    assert shape.format(Scale().layers, Scale().hidden) in text


@pytest.fixture(scope="module")
def data(module_path):
    make_sample(SampleConfig(output_dir=str(module_path / "sample"), documents=120, pairs=180))
    for name in ("text", "pairs/lcqmc", "pairs/mrpc", "vocab"):
        (module_path / name).mkdir(parents=True)
    documents = (module_path / "sample" / "corpus.txt").read_text().strip().split("\n\n")
    for number, name in enumerate(("stories", "laws")):
        (module_path / "text" / f"{name}.txt").write_text("\n\n".join(documents[number::2]) + "\n")
    for name in ("lcqmc/train", "lcqmc/dev", "mrpc/train", "mrpc/dev", "mrpc/test"):
        part = "train" if name.endswith("train") else "dev"
        shutil.copy(module_path / "sample" / "pairs" / f"{part}.tsv", module_path / "pairs" / f"{name}.tsv")
    vocab = module_path / "vocab" / "ernie_1.0_zh.txt"
    assert command("build", "vocab", f"--input_path={module_path}/text", f"--output_file={vocab}").code == 0
    return module_path


@pytest.fixture
def start(data, tmp_path):
    places = {"work": str(tmp_path / "work"), "data": str(data)}
    return lambda group, **flags: run_group(RunConfig(group, **{**places, **SMALL, **flags}))


def test_a_small_run_of_the_whole_proof_of_use(data, start, tmp_path, capsys):
    """From text to a pretrained model, what it forgets, a classifier, a search, the peer and the page."""
    whole = {"pretraining": "pretrained", "task": "lcqmc", "options": "plain symmetric_scoring"}
    whole.update(scratch="searched", forgetting="before", peer="ours transformers")
    for group, only in whole.items():
        start(group, only=only, peer_python=write_fake_peer(tmp_path))
    start("options", only="plain")
    assert "run 1 of 1 is done" in capsys.readouterr().err
    start("status")
    assert_in(capsys.readouterr().out, "peer: 2 of 4 runs are done", "starts: 0 of 10 runs are done")
    with pytest.raises(InputError, match="options/plain was begun with other commands"):
        start("options", only="plain", choose=9)
    for path in (tmp_path / "work/figures").rglob("*.json"):
        text = path.read_text()
        assert len(text) < 20_000 and str(tmp_path) not in text and str(data) not in text
    write_results.write_results(
        write_results.WriteConfig(str(tmp_path / "work/figures"), str(tmp_path / "RESULTS.md"))
    )
    page = (tmp_path / "RESULTS.md").read_text()
    assert re.search(r"\| pretrained: whole words \| 1 \| [67]\.", page)
    assert_in(
        page,
        "| LCQMC: 2 steps with the texts of its training pairs | 1 | ",
        "| symmetric scoring of the plain models | 1 | ",
        "| Trainer of transformers, float32, 20 rows of LCQMC | 1 | 1.0000 | ",
        "- transformers - ours: accuracy +",
        "attention eager",
        "- best flags for scratch, of 1 complete trials: epochs ",
    )
    assert (tmp_path / "results" / "pretraining.svg").read_text().startswith("<svg")
    assert (tmp_path / "work/weights/half/model_state.pdparams").is_file()
    assert_held_out_domains_were_not_trained_on(tmp_path / "work")


def assert_held_out_domains_were_not_trained_on(work):
    """Neither in the pretraining nor in those that go on; both parts of a domain together are all of it."""
    texts = texts_of(work / "corpus" / "documents.jsonl")
    seen = {texts[number] for number in document_ranges("940,50,10", len(texts))["train"]}
    for domain in ("laws", "stories"):
        parts = (f"{part}.jsonl" for part in ("train", "held_out", "documents"))
        train, held_out, whole = (set(texts_of(work / "domains" / domain / part)) for part in parts)
        assert held_out and not held_out & (seen | train)
        assert train <= seen and train | held_out == whole


def test_a_published_model_is_trained_on_both_sides(start, tmp_path):
    """The model that is fetched otherwise is there already; losses and vectors are tested in tests/peer."""
    (tmp_path / "work" / "published").mkdir(parents=True)
    write_sentence(tmp_path / "work" / "published" / "minilm")
    start("published", only="ours transformers", peer_python=write_fake_peer(tmp_path), seeds=2)
    page, _ = render_page(read_runs(tmp_path / "work/figures"))
    assert_in(page, "### Fine-tuning on MRPC, beside Trainer", "- pairs/s, ours / transformers: ")
    assert_in(page, "- transformers - ours: accuracy +", ", f1 +")
    assert_in(page, "| Trainer of transformers | 2 | 1.0000 ± 0.0000 | ")


def test_the_group_is_the_first_argument():
    words = [sys.executable, "scripts/results/run.py"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: GROUP_NAME is missing: the group of")
    example = "python scripts/results/run.py starts --work output/results --data my_data"
    assert done.stderr.endswith(f"; for example: {example}\n")


@pytest.mark.parametrize("group, flags, error", [
    ("options", {"only": "nothing"}, "^only nothing is no run of options; use some of plain, rdrop"),
    ("peer", {"only": "transformers"}, "^transformers of peer need peer_python, a Python"),
    ("peer", {"peer_python": "/bin/false"}, "install torch, transformers and accelerate"),
    ("options", {"data": "nowhere"}, "^data nowhere: no such folder"),
    ("options", {"work": "/a b"}, "^work /a b: blanks end a path"),
])  # fmt: skip
def test_an_unknown_run_or_path_is_a_one_line_error(start, group, flags, error):
    with pytest.raises(InputError, match=error):
        start(group, **flags)


def test_command_words_omit_flags_that_are_none():
    words = words_of("train", seed=1, model_type=None, scores=True)
    assert words == ("ernie-pair", "train", "--seed=1", "--scores=true")
