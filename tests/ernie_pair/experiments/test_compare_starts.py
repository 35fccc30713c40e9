"""compare starts: its runs, its report on them, and the loss on a domain's text."""

import io
import json
import math
import re
import shutil
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_pretrain
from matplotlib.figure import Figure
from tiny_pair import write_model, write_pairs

from data_tools.corpus.format import Corpus
from ernie_pair.__main__ import _run as run_here
from ernie_pair.commands import COMMANDS, function_of
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.experiments import compare_starts as compare_runs
from ernie_pair.experiments.compare_starts import (
    FILES,
    CompareConfig,
    build_tables,
    compare,
    compare_starts,
    domain_loss,
    panels_of,
    warnings_of,
    write_comparison,
)
from ernie_pair.models.source import open_model
from ernie_pair.pairs.targets.metrics import METRICS, measure
from ernie_pair.report.page import Origin


def write_weights(folder, kind="ErnieForPretraining", seed=1):
    import paddle
    from paddlenlp import transformers

    paddle.seed(seed)
    config = transformers.ErnieConfig.from_dict(json.loads((folder / "config.json").read_text()))
    model = getattr(transformers, kind)(config)
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    paddle.save(weights, str(folder / "model_state.pdparams"))
    return folder


def config_in(folder, **flags):
    """Two starts, one of which has weights, and a YAML file of flags."""
    write_weights(write_model(folder / "first"))
    write_model(folder / "second")
    flags = {
        "model_type": "ernie",
        "train_file": str(write_pairs(folder / "train.tsv", 60, seed=0)),
        "dev_file": str(write_pairs(folder / "dev.tsv", 41, seed=1)),
        "max_steps": 3, "batch_size": 16, "learning_rate": 0.005, "seed": 7, "device": "cpu",
        **flags,
    }  # fmt: skip
    (folder / "train.yaml").write_text(json.dumps(flags))
    return CompareConfig(
        starts=f"first={folder}/first random=random:{folder}/second",
        train_config=str(folder / "train.yaml"),
        output_dir=str(folder / "out"),
        seeds=2,
        bootstrap=20,
    )


def change_flags(config, **flags):
    path = Path(config.train_config)
    path.write_text(json.dumps({**json.loads(path.read_text()), **flags}))


@pytest.fixture
def config(tmp_path):
    return config_in(tmp_path)


def run_in_process(monkeypatch):
    made = []

    def call(words, name, log):
        made.append(words)
        run_here(words)

    monkeypatch.setattr(compare_runs, "run_child", call)
    return made


@pytest.fixture
def calls(monkeypatch):
    return run_in_process(monkeypatch)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A comparison: (config, calls, output); of both orders, Paddle's own kernels and names of classes."""
    folder, printed = tmp_path_factory.mktemp("finished"), io.StringIO()
    config = config_in(folder, kernels="plain", label_map="0=different,1=same", symmetric="average")
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        calls = run_in_process(patch)
        compare_starts(config)
    return config, calls, printed.getvalue()


@pytest.fixture
def copied(finished, tmp_path):
    shutil.copytree(finished[0].output_dir, tmp_path / "out")
    shutil.copy(finished[0].train_config, tmp_path / "train.yaml")
    return replace(finished[0], output_dir=str(tmp_path / "out"), train_config=str(tmp_path / "train.yaml"))


def test_every_start_runs_every_seed(finished):
    config, calls, table = finished
    out = Path(config.output_dir)
    result = json.loads((out / "compare.json").read_text())
    assert result["seeds"] == [7, 8] and result["rows"] == 41 and list(result["runs"]) == ["first", "random"]
    assert (out / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert [words[0] for words in calls] == ["train", "predict"] * 4
    for name in ("first", "random"):
        assert len({run["loss"] for run in result["runs"][name]}) == 2  # two seeds, two models
        for seed, run in zip(result["seeds"], result["runs"][name]):
            (best,) = (out / f"{name}-seed-{seed}").glob("best-accuracy-*")
            assert best.name == f"best-accuracy-{run['accuracy']:.4f}"
    page = (out / "compare.html").read_text(encoding="utf-8")
    for words in (">Starts compared", "first - random", "differ</h2>", "first-seed-7", "random-seed-8"):
        assert words in page
    low, high = result["differences"][0]["interval"]["accuracy"]
    assert f">{low:+.4f} to {high:+.4f}</td>" in page and "src=" in page
    assert not re.search('(src|href)="(?!data:|#)|@import', page)  # the page is self-contained
    assert f"\nfirst   {result['mean']['first']['accuracy']:.4f} +- " in table


def test_prediction_uses_order_kernels_and_names_of_classes(finished):
    config, calls, _ = finished
    flags = {"--kernels=plain", "--precision=fp32", "--symmetric=average"}
    assert all(flags < set(words) for words in calls if words[0] == "predict")
    header = (Path(config.output_dir) / "first-seed-7" / "predictions.tsv").read_text().splitlines()[0]
    assert header.split("\t") == ["index", "prediction", "predicted_label", "probability_0", "probability_1"]


def test_no_run_is_repeated(copied, calls):
    out = Path(copied.output_dir)
    (out / "first-seed-7" / "metrics.jsonl").unlink()  # only its predictions are needed
    compare_starts(replace(copied, seeds=3))
    assert [words[0] for words in calls] == ["train", "predict"] * 2
    page = (out / "compare.html").read_text(encoding="utf-8")
    assert "random-seed-9" in page and "first-seed-7" not in page
    assert json.loads((out / "compare.json").read_text())["seeds"] == [7, 8, 9]


def test_runs_of_a_different_plan_are_rejected(copied, calls):
    plan = json.loads((Path(copied.output_dir) / "plan.json").read_text())["settings"]
    change_flags(copied, symmetric="none")
    with pytest.raises(InputError, match="symmetric .*was average and is now none; give another"):
        compare_starts(copied)
    with pytest.raises(InputError, match="symmetric of training was average and is now none"):
        compare_starts(replace(copied, symmetric="average"))
    change_flags(copied, symmetric="average", learning_rate=0.004)
    with pytest.raises(InputError, match="learning_rate was 0.005 and is now 0.004; give another output_dir"):
        compare_starts(copied)
    change_flags(copied, learning_rate=0.005)
    with pytest.raises(InputError, match=r"test_file \(sha256\) was"):
        compare_starts(replace(copied, test_file=plan["train_file"]))
    other = write_start(Path(copied.output_dir).parent / "other", seed=2)
    with pytest.raises(InputError, match=r"start first \(sha256\) was"):
        compare_starts(replace(copied, starts=f"first={other} {copied.starts.split()[1]}"))
    assert not calls


def test_general_pairs_are_measured_before_and_after_training(copied, calls, capsys):
    general = write_pairs(Path(copied.output_dir).parent / "general.tsv", 30, seed=5)
    compare_starts(replace(copied, general_file=str(general)))
    assert [words[0] for words in calls].count("evaluate") == 2  # random weights have nothing to lose
    out = Path(copied.output_dir)
    told = json.loads((out / "compare.json").read_text())["general"]
    runs = [json.loads((out / f"first-seed-{seed}" / "general.json").read_text()) for seed in (7, 8)]
    assert told["random"] == {"line": "random weights"} and len({run["auc"] for run in runs}) == 2
    assert told["first"]["after"] == pytest.approx(np.mean([run["auc"] for run in runs]), abs=1e-4)
    lows, highs = zip(*(run["start"]["interval"] for run in runs))
    assert told["first"]["interval"] == [min(lows), max(highs)]
    line = re.escape(told["first"]["line"])
    assert re.search(line, (out / "compare.html").read_text("utf-8")) and re.search(
        line, capsys.readouterr().out
    )
    compare_starts(replace(copied, general_file=str(general)))
    assert len(calls) == 6  # each run once: what was trained and predicted is not done again


@pytest.mark.parametrize("rows, said", [
    ("我\t你\n", "general.tsv:1: no label"),
    ("我\t你\t1\n", "general.tsv has no pair of class 0"),
    ("TRAIN", "general.tsv:1: this pair is trained on, as are 60 of 60 of general_file; give"),
])  # fmt: skip
def test_unfit_general_pairs_are_refused_before_anything_runs(tmp_path, config, calls, rows, said):
    rows = (tmp_path / "train.tsv").read_text("utf-8") if rows == "TRAIN" else rows
    (tmp_path / "general.tsv").write_text(rows, encoding="utf-8")
    with pytest.raises(InputError, match=said):
        compare_starts(replace(config, general_file=str(tmp_path / "general.tsv")))
    assert not calls and not (tmp_path / "out").exists()


def test_damaged_predictions_are_reported(copied, calls):
    predictions = Path(copied.output_dir) / "first-seed-7" / "predictions.tsv"
    predictions.write_text("index\tprediction\n0\t1\n")
    with pytest.raises(CheckpointError, match="predictions.tsv is damaged; remove it"):
        compare_starts(copied)


@pytest.mark.parametrize("starts, reason", [
    ("a=x", "one start has nothing to be compared with"),
    ("a=x ../b=y", "../b=y is not NAME=MODEL with a new name"),
    ("a=no/such b=y", "no/such is not a folder"),
])  # fmt: skip
def test_invalid_starts_are_reported_before_anything_runs(tmp_path, config, calls, starts, reason):
    with pytest.raises(InputError, match=reason):
        compare_starts(replace(config, starts=starts))
    assert not calls and not (tmp_path / "out").exists()


def write_start(folder, seed=1, **config):
    return write_weights(write_model(folder, num_labels=config.pop("num_labels", 2), **config), seed=seed)


@pytest.mark.parametrize("theirs, said", [
    ({"id2label": {"0": "different", "1": "same"}}, "different, same"),
    ({"num_labels": 3, "id2label": {"0": "same", "1": "different", "2": "unsure"}}, "same, .*unsure"),
])  # fmt: skip
def test_starts_with_other_classes_are_rejected(tmp_path, config, calls, theirs, said):
    write_start(tmp_path / "a", id2label={"0": "same", "1": "different"})
    write_start(tmp_path / "b", **theirs)
    asked = replace(config, starts=f"a={tmp_path}/a b={tmp_path}/b")
    with pytest.raises(InputError, match=f"a tells same, different apart and b {said}; set label_map"):
        compare_starts(asked)
    assert not calls and not (tmp_path / "out").exists()


def test_a_regression_model_may_be_a_start_for_classes(tmp_path, config, calls):
    write_model(tmp_path / "score", num_labels=1, problem_type="regression")
    asked = replace(config, starts=f"score=random:{tmp_path}/score first={tmp_path}/first", seeds=1)
    with pytest.raises(InputError, match="compares classifiers, and these are models for regression"):
        compare_starts(asked)
    change_flags(config, target="classification")
    compare_starts(asked)
    assert set(json.loads((tmp_path / "out" / "compare.json").read_text())["runs"]) == {"score", "first"}


def test_a_test_file_with_only_one_class_is_rejected(tmp_path, config, calls):
    (tmp_path / "ones.tsv").write_text("我\t你\t1\n", encoding="utf-8")
    with pytest.raises(InputError, match="ones.tsv has no pair of class 0"):
        compare_starts(replace(config, test_file=str(tmp_path / "ones.tsv")))
    assert not calls


def test_a_failed_run_ends_the_comparison_with_its_error(tmp_path):
    with pytest.raises(
        InputError, match=r"did you mean learning_rate.*\(train of run; see .*run.log\)"
    ) as error:
        compare_runs.run_child(["train", "--lerning_rate=1"], "train of run", tmp_path / "run.log")
    assert error.value.exit_code == 2


@pytest.fixture
def ends(tmp_path, monkeypatch):
    """Run a shell script in place of `python -m ernie_pair`; return the code compare starts ends with."""

    def run(script):
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr("sys.executable", str(program))
        log = tmp_path / "first-seed-7.log"
        return exit_code_of(lambda: compare_runs.run_child(["train"], "train of first-seed-7", log))

    return run


@pytest.mark.parametrize("script, code, said", [
    ("echo 'error: the weights are damaged' >&2; exit 3", 3, "error: the weights are damaged (train of"),
    ("echo 'error: the loss is nan' >&2; exit 4", 4, "error: the loss is nan (train of first-seed-7;"),
    ("echo 'error: no space left' >&2; exit 5", 5, "error: no space left (train of first-seed-7; see"),
    ("echo 'error: rank 1 is lost' >&2; exit 6", 6, "error: rank 1 is lost (train of first-seed-7; see"),
    ("exit 4", 4, "error: a run ended with exit code 4 (train of first-seed-7; see"),
    ("echo Traceback >&2; exit 1", 1, "exit code 1, which is a bug (train of first-seed-7; see"),
    ("kill -9 $$", 5, "a run was killed by SIGKILL (train of first-seed-7; see"),
    ("kill -11 $$", 5, "a run was killed by SIGSEGV (train of first-seed-7; see"),
    ("exit 143", 143, "stopped by SIGTERM (train of first-seed-7; see"),
    ("kill -15 $$", 143, "stopped by SIGTERM (train of first-seed-7; see"),
    ("exit 130", 130, "stopped by SIGINT (train of first-seed-7; see"),
])  # fmt: skip
def test_a_failed_run_determines_the_exit_code(ends, tmp_path, capfd, script, code, said):
    """Lines of an earlier attempt in the same log are not mistaken for those of this one."""
    (tmp_path / "first-seed-7.log").write_text("error: of yesterday\n")
    assert ends(script) == code
    (line,) = capfd.readouterr().err.splitlines()
    assert said in line and "yesterday" not in line


def test_a_run_without_a_best_model_is_reported(tmp_path, config, monkeypatch):
    monkeypatch.setattr(compare_runs, "run_child", lambda words, name, log: None)
    with pytest.raises(CheckpointError, match="first-seed-7 holds no best model; remove it"):
        compare_starts(config)


def logits_of(labels, share, seed=0):
    """Two-class logits that predict the labels correctly in the given share of the rows."""
    right = np.random.default_rng(seed).permutation(len(labels)) < share * len(labels)
    return np.eye(2)[np.where(right, labels, 1 - labels)]


def test_means_deviations_and_differences_are_correct():
    labels = np.arange(400) % 2
    logits = {
        "better": [logits_of(labels, share, seed) for seed, share in enumerate((0.8, 0.9))],
        "worse": [logits_of(labels, share, seed) for seed, share in enumerate((0.7, 0.7))],
    }
    found = compare(logits, labels, [1, 2], samples=200)
    assert found.mean["better"]["accuracy"] == pytest.approx(0.85)
    assert found.deviation["better"]["accuracy"] == pytest.approx(math.sqrt(2) * 0.05)
    assert found.deviation["worse"]["accuracy"] == pytest.approx(0)
    (difference,) = found.differences
    assert (difference.one, difference.other) == ("better", "worse")
    assert difference.mean["accuracy"] == pytest.approx(0.15)
    low, high = difference.interval["accuracy"]
    assert 0.05 < low < 0.12 < 0.18 < high < 0.25 and difference.not_above_0["accuracy"] == 0
    assert list(found.runs["worse"][0]) == list(METRICS)
    assert found.runs["worse"][0] == pytest.approx(measure(logits["worse"][0], labels))


def test_the_comparison_is_paired():
    """The same rows and seeds are resampled for both, so equal models differ by exactly zero."""
    logits = [logits_of(np.arange(30) % 2, 0.6, seed) for seed in range(3)]
    found = compare({"a": logits, "b": logits}, np.arange(30) % 2, [1, 2, 3], samples=50)
    (difference,) = found.differences
    assert difference.interval == {name: [0.0, 0.0] for name in METRICS}
    assert difference.not_above_0["accuracy"] == 1


def test_two_models_at_chance_have_no_gain(tmp_path):
    """One always predicts 1, the other always 0: f1 differs by 0.6, yet neither has learned anything."""
    labels = np.arange(300) % 7 % 2  # 3 of 7 are of class 1
    always = {
        "ones": [np.array([[0.0, 1.0]]).repeat(300, axis=0)],
        "zeros": [np.eye(2)[[0]].repeat(300, axis=0)],
    }
    found = compare({**always, "able": [logits_of(labels, 0.9)]}, labels, [1], samples=100)
    every = ["accuracy", "f1", "auc"]
    assert found.at_chance == {"ones": every, "zeros": every, "able": []}
    assert found.chance == {"accuracy": pytest.approx(4 / 7, abs=0.01), "auc": 0.5}
    assert found.single_class == {"ones": [1], "zeros": [0], "able": [None]}
    both, one, _ = found.differences
    assert both.mean["f1"] > 0.5 and both.at_chance == dict.fromkeys(every, ["ones", "zeros"])
    assert one.at_chance["auc"] == ["ones"]
    starts, differences = build_tables(found, None)
    remarks = [row[-1] for row in differences.rows]
    assert remarks.count("both are at chance: no gain") == remarks.count("ones is at chance") == 3
    assert [row[-1] for row in starts.rows] == ["accuracy, f1, auc", "accuracy, f1, auc", "–"]
    warned = list(warnings_of(found, ("no", "yes")))
    assert warned[0].startswith("ones, seed 1: the classifier predicts yes for all 300 rows")
    assert "ones and zeros are both at chance: their difference shows no gain" in warned[-1]
    assert len(warned) == 3
    paths = dict.fromkeys(found.runs, "x")
    write_comparison([tmp_path / name for name in FILES], found, None, paths, [], Origin())
    told = json.loads((tmp_path / "compare.json").read_text())
    assert told["at_chance"] == found.at_chance and told["differences"][0]["at_chance"] == both.at_chance
    assert told["interval"]["able"]["accuracy"][0] > told["chance"]["accuracy"]


def test_the_page_shows_chance_level_and_domain_loss(tmp_path):
    labels = np.arange(60) % 3 % 2
    found = compare(
        {"a": [np.eye(2)[[0]].repeat(60, axis=0)], "b": [logits_of(labels, 0.9)]}, labels, [1], 50
    )
    domain = {"a": {"lm_loss": 1.0, "perplexity": math.e}, "b": {"reason": "x"}}
    starts, differences = build_tables(found, domain)
    assert starts.rows[0][-2:] == ["accuracy, f1, auc", "1.0000 (2.7)"] and starts.rows[1][-2:] == ["–", "-"]
    assert all(len(row) == len(starts.heads) for row in starts.rows) and len(differences.rows) == 3
    assert {row[-1] for row in differences.rows} == {"a is at chance"}
    write_comparison([tmp_path / name for name in FILES], found, domain, {}, [], Origin())
    assert (tmp_path / FILES[-1]).read_text(encoding="utf-8").count("<img") == 3


def test_charts_of_a_comparison_show_every_run_and_mean():
    labels = np.arange(60) % 3 % 2
    for seeds in ([1], [1, 2, 3]):
        logits = {
            name: [logits_of(labels, share, seed) for seed in seeds]
            for name, share in (("a", 0.9), ("b", 0.6))
        }
        found = compare(logits, labels, seeds, 20)
        runs, differences, domain = (
            draw for _, draw in panels_of(found, {"a": {"lm_loss": 2.5}, "b": {"reason": "x"}})
        )
        axes = Figure().subplots()
        runs(axes)
        points = [line.get_xydata() for line in axes.lines if line.get_marker() == "o"]
        for place, (name, drawn) in enumerate(zip(found.runs, points)):
            assert drawn[:, 1].tolist() == [run["accuracy"] for run in found.runs[name]]
            assert drawn[:, 0].mean() == pytest.approx(place) and np.ptp(drawn[:, 0]) < 0.5
            assert (np.diff(drawn[:, 0]) > 0).all()
        heads = [label.get_text().split("\n")[0] for label in axes.get_xticklabels()]
        assert axes.get_ylabel() == "accuracy" and heads == list(found.runs)
        axes = Figure().subplots()
        differences(axes)
        (one,) = found.differences
        shown = [label.get_text().split("\n")[1] for label in axes.get_yticklabels()]
        drawn = [line.get_xdata().tolist() for line in axes.lines[:-1]]
        assert drawn == [each for name in shown for each in (list(one.interval[name]), [one.mean[name]])]
        axes = Figure().subplots()
        domain(axes)
        assert [bar.get_height() for bar in axes.patches] == [2.5, 0] and axes.get_ylabel() == "loss"


def test_one_seed_has_no_deviation():
    logits = [logits_of(np.arange(30) % 2, 0.6)]
    found = compare({"a": logits, "b": logits, "c": logits}, np.arange(30) % 2, [1], samples=5)
    assert found.deviation is None and len(found.differences) == 3
    table = build_tables(found, None)[0]
    assert table.title == "30 rows, 1 seed from 1, by the likeliest class (of two: threshold 0.5)"
    assert "+-" not in table.rows[0][1] and "+-" not in table.note


@pytest.fixture(scope="module")
def domain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("domain")
    model = write_weights(tiny_pretrain.write_model(folder / "model"))
    tiny_pretrain.write_corpus(folder, model)
    return Corpus(folder / "text"), model


def source_of(folder):
    return open_model(str(folder), model_type="", from_scratch=False)


def test_random_weights_have_the_loss_of_uniform_guessing(domain):
    corpus, model = domain
    found = domain_loss(source_of(model), corpus, num_samples=40, max_seq_len=24)
    assert found["lm_loss"] == pytest.approx(math.log(len(tiny_pretrain.VOCAB)), rel=0.1)
    assert found["perplexity"] == math.exp(found["lm_loss"]) and found["lm_accuracy"] < 0.2
    assert found == domain_loss(source_of(model), corpus, num_samples=40, max_seq_len=24)


def test_a_constant_prediction_has_the_expected_domain_loss(domain, tmp_path):
    """The head predicts at the masked positions: a bias that forces one token is right only where it was."""
    import paddle

    corpus, model = domain
    other = tiny_pretrain.write_model(tmp_path / "other")
    weights = paddle.load(str(model / "model_state.pdparams"), return_numpy=True)
    token = tiny_pretrain.VOCAB.index("天")
    for name in ("cls.predictions.decoder.bias", "cls.predictions.decoder_bias"):  # the same parameter
        weights[name][token] = 50.0
    paddle.save(weights, str(other / "model_state.pdparams"))
    found = domain_loss(source_of(other), corpus, num_samples=200, max_seq_len=24)
    assert 0 < found["lm_accuracy"] < 0.15  # one character of many
    assert found["lm_loss"] == pytest.approx(50 * (1 - found["lm_accuracy"]), rel=0.05)


def test_models_unfit_for_the_domain_loss_are_rejected(domain, tmp_path):
    corpus, _ = domain
    encoder = write_weights(tiny_pretrain.write_model(tmp_path / "encoder"), "ErnieForSequenceClassification")
    with pytest.raises(CheckpointError, match="holds no cls.predictions.*, the head that predicts masked"):
        domain_loss(source_of(encoder), corpus, 8, 24)
    stranger = write_weights(write_model(tmp_path / "stranger"))
    with pytest.raises(InputError, match="was made with another vocabulary than that of"):
        domain_loss(source_of(stranger), corpus, 8, 24)
    cased = write_weights(tiny_pretrain.write_model(tmp_path / "cased", do_lower_case=False))
    with pytest.raises(InputError, match="was made with another vocabulary than that of"):
        domain_loss(source_of(cased), corpus, 8, 24)
    gram = replace(source_of(encoder), spec=source_of(encoder).spec.replace(model_type="ernie_gram"))
    with pytest.raises(InputError, match="only an ERNIE or a BERT has a head for masked words"):
        domain_loss(gram, corpus, 8, 24)


def test_an_incomparable_start_does_not_end_the_comparison(domain, copied, calls, monkeypatch):
    monkeypatch.setattr(compare_runs, "DOMAIN_SAMPLES", 8)
    corpus, _ = domain
    compare_starts(replace(copied, domain_data=str(Path(corpus.prefix).parent)))
    losses = json.loads((Path(copied.output_dir) / "compare.json").read_text())["domain"]
    assert set(losses) == {"first", "random"} and "another vocabulary" in losses["first"]["reason"]
    assert not calls


def test_the_command_is_the_function():
    assert function_of(COMMANDS["compare starts"]) is compare_runs.compare_starts
