"""Cross-validation: finished runs are not repeated, every row is predicted once, and folds are summarised."""

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import log_softmax
from tiny_pair import toy_rows, write_model, write_rows
from tiny_ship import logits_of_trained

from ernie_pair import CrossValidateConfig, cross_validate
from ernie_pair.__main__ import _run as run_here
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.evaluation.predict_pair import read_log_probabilities
from ernie_pair.experiments import cross_validate as module
from ernie_pair.experiments.cross_validate import answers_of, build_fold_table, evaluate_folds, measure_folds
from ernie_pair.experiments.series import TrainingRun, hash_weights
from ernie_pair.experiments.split_pairs import Folds
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.targets.metrics import METRICS, measure, resamples

FLAGS = {
    "model_type": "ernie", "from_scratch": True, "folds": 3, "max_steps": 6, "batch_size": 16,
    "learning_rate": 5e-3, "eval_freq": 3, "seed": 7, "device": "cpu", "bootstrap": 20,
}  # fmt: skip


def config_in(folder, **changes):
    """Ninety pairs, of which row 30 (counted from 0) is malformed."""
    rows = ["\t".join(map(str, row)) for row in toy_rows(90, 0)]
    rows[30] = "我\t你\t无"
    (folder / "all.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return CrossValidateConfig(
        model_name_or_path=str(write_model(folder / "model")),
        train_file=str(folder / "all.tsv"),
        output_dir=str(folder / "out"),
        on_bad_row="skip",
        **{**FLAGS, **changes},
    )


@pytest.fixture
def config(tmp_path):
    return config_in(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A short cross-validation of two folds: (config, result, points for reporters)."""
    config, points = config_in(tmp_path_factory.mktemp("finished"), folds=2, max_steps=3), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "report_series", lambda names, folder, flags, each: points.append(each))
        return config, cross_validate(config), points[0]


@pytest.fixture
def short(finished, tmp_path):
    shutil.copytree(finished[0].output_dir, tmp_path / "out")
    return replace(finished[0], output_dir=str(tmp_path / "out"))


def cells_of(path):
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_row_is_predicted_by_a_model_that_never_saw_it(config, tmp_path, capsys):
    found = cross_validate(config, verbose=True)
    out = tmp_path / "out"
    header, *rows = cells_of(out / "predictions.tsv")
    assert header == ["index", "prediction", "probability_0", "probability_1"]
    assert [row[0] for row in rows] == [str(number) for number in range(90)]
    assert rows[30][1:] == ["", "", ""] and all(row[1] in "01" for row in rows[:30])
    folds = {index: fold for index, fold, _ in cells_of(out / "folds.tsv")[1:]}
    assert len(folds) == 89 and "30" not in folds
    for number in (1, 2, 3):
        own = [row[1:] for row in rows if folds.get(row[0]) == str(number)]
        assert own == [row[1:] for row in cells_of(out / f"fold-{number}" / "predictions.tsv")[1:]]
        parts = [
            (out / "folds" / f"fold-{number}-{name}.jsonl").read_text() for name in ("train", "dev", "test")
        ]
        texts = [
            {json.loads(line)[side] for line in part.splitlines() for side in ("text_a", "text_b")}
            for part in parts
        ]
        assert not texts[2] & (texts[0] | texts[1]) and not texts[0] & texts[1]
    report = json.loads((out / "report.json").read_text())
    assert report["accuracy"] == pytest.approx(np.mean([fold["accuracy"] for fold in report["folds"]]))
    assert found.mean["accuracy"] == report["accuracy"] and report["rows"] == 89 == sum(found.rows)
    low, high = report["intervals"]["accuracy"]
    assert low <= report["accuracy"] <= high and set(found.interval) == set(METRICS)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<h2>Folds</h2>" in page and ">fold 3<" in page and ">deviation<" in page
    out = capsys.readouterr().out
    cells = {line[:9].strip(): line[9:].split() for line in out.splitlines()}
    place, (low, high) = list(METRICS).index("accuracy"), found.interval["accuracy"]
    assert (cells["mean"][0], cells["mean"][1 + place]) == ("89", f"{found.mean['accuracy']:.4f}")
    assert (cells["95 % from"][place], cells["95 % to"][place]) == (f"{low:.4f}", f"{high:.4f}")


class Killed(BaseException):
    pass


def test_a_killed_series_resumes_at_its_unfinished_fold(finished, tmp_path, monkeypatch):
    """Finished folds are not trained again, and the result equals that of an uninterrupted series."""
    config = finished[0]
    made, train = [], TrainingRun.train

    def train_or_die(run):
        made.append(run._trainer.config.output_dir[-6:])
        if len(made) == 2:
            raise Killed
        return train(run)

    monkeypatch.setattr(TrainingRun, "train", train_or_die)
    again = replace(config, output_dir=str(tmp_path / "again"))
    with pytest.raises(Killed):
        cross_validate(again)
    assert not (tmp_path / "again" / "predictions.tsv").exists()
    cross_validate(again)
    assert made == ["fold-1", "fold-2", "fold-2"]
    cross_validate(again)
    assert len(made) == 3
    for name in ("predictions.tsv", "folds.tsv", "errors.tsv"):
        whole = Path(config.output_dir, name).read_bytes()
        assert (tmp_path / "again" / name).read_bytes() == whole


def test_a_fold_equals_a_train_run_on_its_files(finished, tmp_path):
    config = finished[0]
    own = {name: value for name, value in FLAGS.items() if name not in ("folds", "bootstrap", "max_steps")}
    flags = {**own, "max_steps": 3, "model_name_or_path": config.model_name_or_path}
    for part in ("train", "dev"):
        flags[f"{part}_file"] = f"{config.output_dir}/folds/fold-1-{part}.jsonl"
    run_here(["train", *(f"--{k}={str(v)}" for k, v in flags.items()), f"--output_dir={tmp_path}/alone"])
    one, other = (
        Path(folder) / "best" / "model_state.pdparams"
        for folder in (tmp_path / "alone", Path(config.output_dir, "fold-1"))
    )
    assert one.read_bytes() == other.read_bytes()


def test_a_fold_is_predicted_the_way_its_model_is_shipped(config, tmp_path):
    """A model trained to average both orders is shipped that way, so its fold is measured that way."""
    spread = str(write_model(tmp_path / "spread", initializer_range=0.5))  # so that the order matters
    cross_validate(replace(config, model_name_or_path=spread, folds=2, max_steps=3, symmetric="average"))
    told = read_log_probabilities(tmp_path / "out" / "fold-1" / "predictions.tsv", 2)
    rows = (tmp_path / "out" / "folds" / "fold-1-test.jsonl").read_text(encoding="utf-8").splitlines()
    pairs = [(row["text_a"], row["text_b"]) for row in map(json.loads, rows)]
    model = str(tmp_path / "out" / "fold-1" / "best")
    one, turned = (logits_of_trained(model, asked) for asked in (pairs, [pair[::-1] for pair in pairs]))
    found = [log_softmax(logits, axis=1) for logits in ((one + turned) / 2, one)]
    assert np.abs(told - found[0]).max() < 1e-3 < np.abs(told - found[1]).max()


def test_the_command_accepts_dev_file_and_class_names(config, tmp_path, capsys):
    dev = tmp_path / "dev.tsv"
    rows = (f"{a}\t{b}\t{('no', 'yes')[label]}\n" for a, b, label in toy_rows(20, 3))
    dev.write_text("".join(rows), encoding="utf-8")
    flags = {**FLAGS, "folds": 2, "max_steps": 2, "bootstrap": 0}
    words = [f"--{name}={str(value)}" for name, value in flags.items()]
    words += [f"--model_name_or_path={config.model_name_or_path}", f"--train_file={config.train_file}"]
    words += ["--label_map=0=no,1=yes", f"--output_dir={tmp_path}/out", "--on_bad_row=skip"]
    run_here(["cross-validate", *words, f"--dev_file={dev}"])
    assert not list((tmp_path / "out" / "folds").glob("*-dev.jsonl"))
    assert cells_of(tmp_path / "out" / "predictions.tsv")[0][:3] == ["index", "prediction", "predicted_label"]
    out = capsys.readouterr().out
    assert "deviation" in out and "95 %" not in out
    assert "intervals" not in json.loads((tmp_path / "out" / "report.json").read_text())


def test_the_dev_file_is_read_with_the_flags_of_its_columns(config, tmp_path):
    text = "比\t乙\t甲\n" + "".join(f"{label}\t{b}\t{a}\n" for a, b, label in toy_rows(30, 0))
    Path(config.train_file).write_text(text, encoding="gb18030")
    (tmp_path / "dev.tsv").write_text("比\t乙\t甲\n无\t我\t你\n" + text[6:], encoding="gb18030")
    named = {"text_a": "甲", "text_b": "乙", "label": "比", "encoding": "gb18030"}
    files = {"dev_file": str(tmp_path / "dev.tsv"), "folds": 2, "max_steps": 1, "eval_freq": 1}
    with pytest.raises(InputError, match="dev.tsv:2: label '无' is not one of"):
        cross_validate(replace(config, **named, **files, on_bad_row="stop"))
    assert not (tmp_path / "out" / "folds").exists()
    cross_validate(replace(config, **named, **files))
    rows = (tmp_path / "out" / "folds" / "dev.jsonl").read_text(encoding="utf-8").splitlines()
    first = dict(zip(("text_a", "text_b", "label"), map(str, next(toy_rows(30, 0)))))
    first["origin"] = f"{tmp_path / 'dev.tsv'}:3"
    assert len(rows) == 30 and json.loads(rows[0]) == first
    assert "无" in (tmp_path / "out" / "dev.rejected.jsonl").read_text(encoding="utf-8")


def test_a_model_is_known_by_all_its_weight_files(tmp_path):
    files, hashes = [tmp_path / "1", tmp_path / "2"], set()
    for contents in ("ab", "cb", "ad"):
        for path, content in zip(files, contents):
            path.write_text(content)
        hashes.add(hash_weights(SimpleNamespace(weight_files=files)))
    assert len(hashes) == 3


def test_changed_plans_and_damaged_predictions_are_rejected(short, tmp_path):
    with pytest.raises(InputError, match="learning_rate was 0.005 and is now 0.004; give another output_dir"):
        cross_validate(replace(short, learning_rate=0.004))
    with pytest.raises(InputError, match="folds was 2 and is now 3"):
        cross_validate(replace(short, folds=3))
    cross_validate(replace(short, bootstrap=10, report_to="none"))  # changes no prediction
    (tmp_path / "out" / "fold-2" / "predictions.tsv").write_text("index\tprediction\n0\t1\n")
    with pytest.raises(CheckpointError, match=r"fold-2/predictions.tsv is damaged; remove it"):
        cross_validate(short)
    (tmp_path / "out" / "predictions.tsv").write_text("mine")
    with pytest.raises(InputError, match="predictions.tsv exists; .* changed since it was made"):
        cross_validate(short)


@pytest.mark.parametrize("change, reason", [
    ({"train_file": "none.tsv"}, "none.tsv: no such file"),
    ({"on_bad_row": "stop"}, "all.tsv:31: label '无' is not one of"),
])  # fmt: skip
def test_invalid_input_is_rejected_before_any_run(config, tmp_path, monkeypatch, change, reason):
    monkeypatch.setattr(TrainingRun, "train", None)
    with pytest.raises(InputError, match=reason):
        cross_validate(replace(config, **change))
    assert not (tmp_path / "out" / "folds").exists()


def test_a_series_whose_first_run_is_refused_leaves_no_folder(config, tmp_path):
    """Or else its plan would refuse the flag that cures it."""
    with pytest.raises(InputError, match="max_seq_len=4000 is more than the model's 128 positions"):
        cross_validate(replace(config, max_seq_len=4000))
    assert not (tmp_path / "out").exists()


def test_the_interval_is_that_of_rows_written_repeatedly(config):
    rng = np.random.default_rng(2)
    labels, fold, group = rng.integers(2, size=90), rng.integers(3, size=90), rng.integers(25, size=90)
    logits = (rng.normal(size=(90, 2)) + np.eye(2)[labels]).astype(np.float32)
    folds = Folds(group * 3 + fold, fold)
    found = measure_folds(logits, labels, folds, config, Path("p"))
    means = np.zeros((config.bootstrap, len(METRICS)))
    for number in range(3):
        rows = np.flatnonzero(fold == number)
        groups = [rows[folds.group[rows] == one] for one in np.unique(folds.group[rows])]
        for place, counts in enumerate(resamples(len(groups), config.bootstrap, config.seed + number)):
            drawn = np.concatenate([np.tile(each, count) for each, count in zip(groups, counts)])
            metrics = measure(logits[drawn], labels[drawn])
            means[place] += [metrics[name] / 3 for name in METRICS]
    for name, column in zip(METRICS, means.T):
        assert found.interval[name] == pytest.approx(np.percentile(column, [2.5, 97.5]).tolist())
        values = [measure(logits[fold == number], labels[fold == number])[name] for number in range(3)]
        wanted = pytest.approx([np.mean(values), np.std(values, ddof=1)])
        assert [found.mean[name], found.deviation[name]] == wanted


def test_an_undefined_fold_metric_is_null_in_the_report(config, tmp_path):
    labels = np.array([0, 1] * 20 + [0] * 20)  # the third fold has no pair of class 1
    logits = np.random.default_rng(0).normal(size=(60, 2))
    folds = Folds(np.arange(60), np.arange(60) // 20)
    asked = replace(config, folds=3)
    found = measure_folds(logits, labels, folds, asked, tmp_path / "predictions.tsv")
    pairs = Pairs(["a"] * 60, ["b"] * 60, labels, "", "all.tsv")
    told = evaluate_folds(found, answers_of(pairs, ("0", "1"), logits), asked)
    assert json.dumps(told, allow_nan=False) and told["folds"][2]["auc"] is None
    assert told["auc"] is told["deviation"]["auc"] is None and told["folds"][0]["auc"] is not None
    assert build_fold_table(found).rows[2][1 + len(METRICS) - 2] is None


def test_a_file_that_cannot_be_folded_is_refused_before_any_run(config, tmp_path):
    zeros = [row for row in toy_rows(60, 0) if row[2] == 0]
    few = [(f"{x}{a}", f"{x}好{b}", (a + b) % 2) for x in "我你" for a in (0, 1) for b in (0, 1)]
    for rows, flags, reason in (
        (zeros, {"label_map": "0=other,1=same"}, "has no pair of class same; give pairs of all classes"),
        (few, {"folds": 2}, "fold 1: its 4 training rows are in 1 group, the smallest of 4"),
    ):
        path = write_rows(tmp_path / "some.tsv", rows)
        with pytest.raises(InputError, match=reason):
            cross_validate(replace(config, train_file=str(path), **flags))
        assert not (tmp_path / "out" / "folds").exists()


def test_the_mean_is_logged_to_the_report_to_tools(finished):
    config, result, points = finished
    assert [step for step, _ in points] == [1, 2, 2]
    assert points[-1][1]["mean/accuracy"] == result.mean["accuracy"]
    log = read_log_probabilities(Path(config.output_dir) / "fold-1" / "predictions.tsv", 2)
    assert points[0][1]["fold/accuracy"] == result.folds[0]["accuracy"] and len(log) == result.rows[0]


def test_a_signal_between_two_folds_stops_the_series(config, monkeypatch):
    monkeypatch.setattr(TrainingRun, "logits", lambda run, file: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit) as ended:
        cross_validate(config)
    assert ended.value.code == 143
    assert not (Path(config.output_dir) / "fold-2").exists()
