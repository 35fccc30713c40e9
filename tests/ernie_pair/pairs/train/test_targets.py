"""Regression and ranking models from training to serving, by command and from Python."""

import json
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from asked import evaluated, predicted
from fake_predictor import answer_and_health
from run_files import killed_after
from sklearn.metrics import ndcg_score
from tiny_pair import OTHERS, candidate_rows, graded_rows, score_rows, target_config, train_config, write_rows

from ernie_pair.__main__ import _run
from ernie_pair.core.errors import InputError
from ernie_pair.deployment.export_config import ExportConfig
from ernie_pair.deployment.export_pair import export_pair
from ernie_pair.evaluation.evaluate_pair import evaluate_pair
from ernie_pair.evaluation.predict_pair import predict_pair
from ernie_pair.evaluation.scorer import load
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.models.spec import parse_spec
from ernie_pair.pairs.config.ask_config import EvaluateConfig, PredictConfig
from ernie_pair.pairs.config.pair_config import PairConfig
from ernie_pair.pairs.train.train_pair import train_pair
from ernie_pair.pairs.train.trainer import PairTrainer
from ernie_pair.weights.weight_files import read_weights


def words_of(config):
    usual = {item.name: item.default for item in fields(config)}
    given = {name: value for name, value in asdict(config).items() if value != usual[name]}
    return [f"--{name}={str(v).lower() if isinstance(v, bool) else v}" for name, v in given.items()]


@pytest.fixture(scope="module", params=["regression", "ranking"])
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    _run(["train", *words_of(target_config(folder, request.param))])
    return request.param, folder


@pytest.fixture(scope="module")
def scores(run):
    _, folder = run
    return column(folder / "out", folder / "dev.tsv", folder / "p.tsv")


@pytest.fixture(scope="module")
def exported(run):
    target, folder = run
    judged = {"quantize": "int8", "quantize_file": str(folder / "dev.tsv"), "max_accuracy_drop": 0.2}
    export_pair(ExportConfig(str(folder / "out"), str(folder / "ex"), "both", triton=True, **judged))
    return folder / "ex"


def column(*places):
    return np.array(predicted(*places)["prediction"], float)


def test_the_target_is_saved_in_the_model_config(run):
    target, folder = run
    config = json.loads((folder / "out" / "best" / "config.json").read_text())
    kept = {"regression": {"label_range": [0.0, 5.0]}, "ranking": {"pair_target": "ranking"}}[target]
    wanted = {"num_labels": 1, "problem_type": "regression", **kept}
    assert wanted.items() <= config.items() and parse_spec(config).target == target
    best = {"regression": "best-mse", "ranking": "best-mrr"}[target]
    assert (folder / "out" / "best").resolve().name.startswith(best)
    card = (folder / "out" / "best" / "README.md").read_text(encoding="utf-8")
    assert "that scores sentence pairs" in card and "print(answer.scores)" in card


def test_the_task_is_learned_and_its_metrics_are_written(run):
    target, folder = run
    report = folder / "report"
    metrics = evaluated(folder / "out", folder / "dev.tsv", report=str(report), bootstrap=50)
    assert metrics["target"] == target and {"swap", *metrics["intervals"]} <= set(metrics)
    assert metrics[{"regression": "pearson", "ranking": "mrr"}[target]] > 0.9
    page = (report / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/svg+xml") == {"regression": 3, "ranking": 2}[target] and "{{" not in page
    assert json.loads((report / "report.json").read_text()) == metrics
    assert (report / "errors.tsv").read_text(encoding="utf-8").startswith("line\t")


def test_flags_that_need_classes_are_refused(run, tmp_path):
    target, folder = run
    model, dev, out = (str(path) for path in (folder / "out", folder / "dev.tsv", tmp_path / "out.tsv"))
    for command, config in (
        (predict_pair, PredictConfig(model, dev, out, device="cpu", threshold=0.5)),
        (predict_pair, PredictConfig(model, dev, out, device="cpu", scores=True)),
        (evaluate_pair, EvaluateConfig(model, dev, out, device="cpu", calibrate_on=dev)),
        (evaluate_pair, EvaluateConfig(model, dev, out, device="cpu", at_precision=0.9)),
        (export_pair, ExportConfig(model, out, threshold=0.5)),
    ):
        reason = f"(threshold|scores|calibrate_on|at_precision).* is a model for {target}; leave it out"
        with pytest.raises(InputError, match=reason):
            command(config)
    assert not (tmp_path / "out.tsv").exists()


def test_the_exported_model_gives_the_same_scores(run, scores, exported, tmp_path):
    target, folder = run
    manifest = json.loads((exported / "export.json").read_text())
    assert manifest["target"] == target and manifest["labels"] == ["score"]
    assert manifest["int8"]["spearman"]["onnx"] > 0.3 and manifest["int8"]["agreement"] > 0.8
    assert 'key: "target"' in (exported / "triton" / "pair" / "config.pbtxt").read_text()
    places = exported, folder / "dev.tsv"
    assert column(*places, tmp_path / "p.tsv") == pytest.approx(scores, abs=2e-5)
    with pytest.raises(InputError, match=f"scores=True .* is a model for {target}"):
        predicted(*places, tmp_path / "q.tsv", scores=True)


def test_trained_and_exported_models_give_scores_alone(run, scores, exported):
    target, folder = run
    rows = list((score_rows if target == "regression" else candidate_rows)(20, 1))
    for place in (exported, folder / "out"):
        found = load(place).predict([row[:2] for row in rows])
        assert found.scores == pytest.approx(scores[: len(rows)], abs=2e-5)
        assert found.classes is found.labels is found.probabilities is None
    with pytest.raises(InputError, match="threshold decides between two classes"):
        PairPredictor(exported, "onnx", threshold=0.5)


def test_the_service_returns_scores(exported):
    pytest.importorskip("httpx")
    predictor, pairs = PairPredictor(exported, "onnx"), [["你好", "好好好"], ["你", "我"]]
    answer, health = answer_and_health(predictor, pairs)
    assert set(answer) == {"scores", "milliseconds"}
    assert answer["scores"] == pytest.approx(predictor.score(pairs).tolist(), abs=1e-5)
    limits = predictor.exported.label_range
    assert health["target"] == predictor.exported.target
    assert health["label_range"] == (list(limits) if limits else None)


def test_scores_can_be_trained_and_predicted_from_python(run):
    target, folder = run
    rows = score_rows if target == "regression" else candidate_rows
    config = PairConfig(str(folder / "again"), max_steps=2, device="cpu", batch_size=8)
    trainer = PairTrainer(str(folder / "out"), config, list(rows(40, 0)), list(rows(20, 1)))
    before, again = trainer.predict(list(rows(20, 1))), trainer.evaluate()
    assert before.scores.shape == (len(before.label_ids),) and before.classes is None
    names = set(before.metrics) - {"runtime", "samples_per_second"}
    assert all(again[name] == before.metrics[name] for name in names)
    assert names == set(trainer.train().metrics)
    assert trainer.config.best_metric == {"regression": "mse", "ranking": "mrr"}[target]
    bad = PairTrainer(str(folder / "out"), PairConfig("none", device="cpu", on_bad_row="skip"))
    spread = bad.predict([("左", "右"), ("", "右")]).scores
    assert np.isfinite(spread[0]) and np.isnan(spread[1])


def test_an_interrupted_run_resumes_to_the_same_weights(run, tmp_path):
    target, folder = run
    cut = target_config(tmp_path, target, checkpoint_steps=3)
    with killed_after(4):
        train_pair(cut)
    train_pair(cut)
    both = (read_weights(out / "model_last/model.safetensors") for out in (folder / "out", tmp_path / "out"))
    whole, resumed = both
    assert all(np.array_equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.parametrize("target, flags, reason", [
    ("regression", {"class_weights": "1,2"}, "class_weights 1,2 is for classes"),
    ("regression", {"rdrop_alpha": 1.0, "dropout": 0.1}, "rdrop_alpha=1.0 is for classes"),
    ("regression", {"label_map": "no,yes"}, "label_map no,yes is for classes"),
    ("regression", {"best_metric": "accuracy"}, "best_metric accuracy is not a metric of"),
    ("regression", {"most_candidates": 4}, "most_candidates=4 is for target ranking"),
    ("ranking", {"best_metric": "mse"}, "best_metric mse is not a metric of a model for ranking"),
    ("ranking", {"label_range": "0,5"}, "label_range 0,5 is for regression"),
    ("ranking", {"streaming": True, "max_steps": 3}, "streaming=True never has all"),
    ("classification", {"label_range": "0,5"}, "label_range .*leave it out"),
    ("classification", {"ranking_loss": "margin"}, "ranking_loss .*leave it out"),
    ("classification", {"query": "q"}, "query .*leave it out"),
])  # fmt: skip
def test_flags_of_another_target_are_refused_at_start(tmp_path, target, flags, reason):
    config = target_config(tmp_path, target, **flags)
    (tmp_path / "train.tsv").unlink()  # nothing can have been read
    with pytest.raises(InputError, match=f"^{reason}"):
        train_pair(config)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("label, reason", [
    ("5.5", "label '5.5' is not a number from 0 to 5"),
    ("-1", "label '-1' is not a number from 0 to 5"),
    ("nan", "label 'nan' is not a number from 0 to 5"),
    ("inf", "label 'inf' is not a number from 0 to 5"),
    ("same", "label 'same' is not a number .*target classification"),
    ("", "label '' is not a number"),
])  # fmt: skip
def test_an_invalid_score_is_reported_with_its_line(tmp_path, label, reason):
    config = target_config(tmp_path, "regression")
    with open(config.train_file, "a", encoding="utf-8") as file:
        file.write(f"左\t右\t{label}\n")
    with pytest.raises(InputError, match=rf"train\.tsv:166: {reason}"):
        train_pair(config)
    assert not list((tmp_path / "out").glob("**/*.arrow"))


def test_queries_without_a_positive_are_refused_or_skipped(tmp_path):
    config = target_config(tmp_path, "ranking", max_steps=1)
    rows = [*candidate_rows(11, 0), ("无", "左", 0), ("无", "右", 0)]
    write_rows(tmp_path / "train.tsv", rows)
    line = len(rows) - 1
    reason = rf"train\.tsv:{line}: no candidate of the query '无' has a label above 0"
    with pytest.raises(InputError, match=reason):
        train_pair(config)
    rows.insert(1, (rows[0][0], rows[0][0], 0))
    write_rows(tmp_path / "train.tsv", rows)
    with pytest.raises(
        InputError, match=r"train\.tsv:2: the text '.*' is its own negative; correct its label"
    ):
        train_pair(config)
    train_pair(replace(config, on_bad_row="skip"))
    notes = (tmp_path / "out" / "train.rejected.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(note)["line"] for note in notes] == [2, line + 1, line + 2]


def test_a_ranker_of_grades_learns_resumes_and_ships(tmp_path):
    """Its nDCG is scikit-learn's of what it predicts; killed and accumulated it has the same weights."""
    flags = {"ranking_loss": "ranknet", "most_candidates": 0, "best_metric": "ndcg", "batch_size": 8}
    rows_of = partial(graded_rows, most=8)
    whole = target_config(tmp_path, "ranking", rows_of, **flags)
    train_pair(whole)
    model, dev, folder = str(tmp_path / "out"), str(tmp_path / "dev.tsv"), str(tmp_path / "ex")
    shown = column(model, dev, tmp_path / "p.tsv")
    metrics = evaluated(model, dev, report=str(tmp_path / "r"), bootstrap=50)
    queries, texts, grades = zip(*rows_of(20, 1))
    queries, grades = np.array(queries), np.array(grades)
    groups = [queries == query for query in dict.fromkeys(queries)]
    wanted = np.mean([ndcg_score([grades[rows]], [shown[rows]]) for rows in groups])
    assert metrics["ndcg"] == pytest.approx(wanted, abs=1e-4) and wanted > 0.9
    assert metrics["ranked_queries"] == 20 and metrics["intervals"]["ndcg"]
    export_pair(ExportConfig(model, folder, "onnx"))
    ranked = PairPredictor(folder).rank(str(queries[0]), [text for text, own in zip(texts, groups[0]) if own])
    assert [one.place for one in ranked] == np.argsort(-shown[groups[0]], kind="stable").tolist()
    for name, changes in {"cut": {"checkpoint_steps": 3}, "merged": {"batch_size": 4}}.items():
        again = replace(whole, output_dir=str(tmp_path / name), **changes)
        if name == "cut":
            with killed_after(4):
                train_pair(again)
        else:
            again = replace(again, gradient_accumulation_steps=2)
        train_pair(again)
        weights = [read_weights(tmp_path / run / "model_last/model.safetensors") for run in ("out", name)]
        for key, array in weights[0].items():
            far = np.abs(array - weights[1][key]).max()
            assert far == 0 if name == "cut" else far < 1e-3, key


def test_a_column_can_name_the_query_of_each_row(tmp_path):
    config = target_config(tmp_path, "ranking", query="query_id", max_steps=2)
    # Every first text is unique: without the column each query would have a single candidate.
    rows = [(f"{left}{a}", b, label, a) for left, (a, b, label) in zip(OTHERS * 9, candidate_rows(20, 0))]
    for name in ("train", "dev"):
        write_rows(tmp_path / f"{name}.tsv", [("text_a", "text_b", "label", "query_id"), *rows])
    train_pair(config)
    places = tmp_path / "out", tmp_path / "dev.tsv"
    assert evaluated(*places, query="query_id")["queries"] == 20
    with pytest.raises(InputError, match="dev.tsv:1: no column 'topic' in text_a, .*; fix query"):
        evaluated(*places, query="topic")


def test_a_trained_classifier_can_start_a_regression_model(tmp_path):
    (tmp_path / "a").mkdir()
    train_pair(train_config(tmp_path / "a", max_steps=1))
    scores = target_config(tmp_path, "regression", max_steps=1, from_scratch=False)
    train_pair(replace(scores, model_name_or_path=str(tmp_path / "a" / "out"), model_type=None))
    assert json.loads((tmp_path / "out" / "best" / "config.json").read_text())["num_labels"] == 1


def test_metrics_of_three_classes_are_reported_per_class(tmp_path):
    rng = np.random.default_rng(0)
    rows = [(a, b, ("no", "maybe", "yes")[rng.integers(3)]) for a, b, _ in score_rows(60, 0)]
    config = train_config(tmp_path, label_map="no,maybe,yes", best_metric="f1", max_steps=2)
    for path in (config.train_file, config.dev_file):
        write_rows(Path(path), rows)
    train_pair(config)
    kept = json.loads((tmp_path / "out" / "best" / "config.json").read_text())
    assert kept["id2label"] == {"0": "no", "1": "maybe", "2": "yes"}
    report = str(tmp_path / "r")
    metrics = evaluated(config.output_dir, config.dev_file, report=report, bootstrap=20)
    assert [row["class"] for row in metrics["per_class"]] == ["no", "maybe", "yes"]
    assert sum(row["rows"] for row in metrics["per_class"]) == 60 and np.sum(metrics["confusion"]) == 60
    for name in ("precision", "recall", "f1"):
        assert metrics["averages"]["macro"][name] == pytest.approx(metrics[name])
    assert all(row["f1_interval"][0] <= row["f1"] <= row["f1_interval"][1] for row in metrics["per_class"])
    assert "macro average" in (tmp_path / "r" / "report.html").read_text(encoding="utf-8")


def test_rows_whose_score_is_minus_one_are_audited(tmp_path, capfd):
    """-1 is a valid score; only for classes does it stand for a missing label."""
    rows = [("怎么开户", f"如何开户{number}", -1.0) for number in range(8)]
    config = target_config(tmp_path, "regression", label_range="-1,1", max_steps=1, best_metric="mse")
    write_rows(Path(config.train_file), [*rows, rows[0]])
    write_rows(Path(config.dev_file), [("今天下雨", "下雨了", -1.0), ("再见", "你好", 1.0)])
    train_pair(config)
    assert "repeating an earlier pair and its label" in capfd.readouterr().err
