"""Regression and ranking models from training to serving, by command and from Python."""

import json
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import pytest
from tiny_pair import train_config, write_model, write_pairs, write_rows
from tiny_targets import LEARNS, candidate_rows, score_rows, target_config

from data_tools.files.errors import InputError
from ernie_pair.__main__ import _run
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.models.spec import parse_spec
from ernie_pair.pair.config.ask_config import EvaluateConfig, PredictConfig
from ernie_pair.pair.config.pair_config import PairConfig, TrainConfig
from ernie_pair.pair.train.train_pair import train_pair
from ernie_pair.pair.train.trainer import PairTrainer
from ernie_pair.score.evaluation.evaluate_pair import evaluate_pair
from ernie_pair.score.evaluation.predict_pair import RunConfig, predict_exported, predict_pair
from ernie_pair.score.export.export_config import ExportConfig
from ernie_pair.score.export.export_pair import export_pair


def words_of(config):
    """The flags of a command line that give ``config``."""
    usual = {item.name: item.default for item in fields(config)}
    given = {name: value for name, value in asdict(config).items() if value != usual[name]}
    return [
        f"--{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in given.items()
    ]


@pytest.fixture(scope="module", params=["regression", "ranking"])
def run(request, tmp_path_factory):
    """(target, folder) of a run that has been trained by command."""
    folder = tmp_path_factory.mktemp(request.param)
    _run(["train", *words_of(target_config(folder, request.param))])
    return request.param, folder


@pytest.fixture(scope="module")
def scores(run):
    """(target, folder) of a run, with the predictions of its dev pairs in p.tsv."""
    target, folder = run
    predict_pair(
        PredictConfig(str(folder / "out"), str(folder / "dev.tsv"), str(folder / "p.tsv"), device="cpu")
    )
    return run


@pytest.fixture(scope="module")
def exported(run):
    target, folder = run
    judged = {"quantize": "int8", "quantize_file": str(folder / "dev.tsv"), "max_accuracy_drop": 0.2}
    export_pair(ExportConfig(str(folder / "out"), str(folder / "ex"), "both", triton=True, **judged))
    return folder / "ex"


def column(path):
    header, *rows = path.read_text(encoding="utf-8").splitlines()
    assert header == "index\tprediction"
    return np.array([float(row.split("\t")[1]) for row in rows])


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
    out, report = folder / "m.json", folder / "report"
    config = EvaluateConfig(
        str(folder / "out"), str(folder / "dev.tsv"), str(out), report=str(report), device="cpu"
    )
    evaluate_pair(config)
    found = json.loads(out.read_text())
    assert found["target"] == target and set(found["intervals"]) <= set(found) and "swap" in found
    better = {"regression": found.get("pearson", 0) > 0.9, "ranking": found.get("mrr", 0) > 0.9}
    assert better[target]
    page = (report / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/svg+xml") == {"regression": 3, "ranking": 2}[target] and "{{" not in page
    assert json.loads((report / "report.json").read_text()) == found
    assert (report / "errors.tsv").read_text(encoding="utf-8").startswith("line\t")


def test_flags_that_need_classes_are_refused(run, tmp_path):
    target, folder = run
    files = (str(folder / "out"), str(folder / "dev.tsv"), str(tmp_path / "out"))
    for flags in ({"threshold": 0.5}, {"scores": True}):
        with pytest.raises(
            InputError, match=f"{next(iter(flags))}=?.* is a model for {target}; leave it out"
        ):
            predict_pair(PredictConfig(*files, device="cpu", **flags))
    for flags in ({"calibrate_on": str(folder / "train.tsv")}, {"at_precision": 0.9}):
        with pytest.raises(
            InputError, match=f"{next(iter(flags))}=?.* is a model for {target}; leave it out"
        ):
            evaluate_pair(EvaluateConfig(*files, device="cpu", **flags))
    with pytest.raises(InputError, match=f"threshold=0.5 .* is a model for {target}; leave it out"):
        export_pair(ExportConfig(files[0], files[2], threshold=0.5))
    assert not (tmp_path / "out").exists()


def test_the_exported_model_gives_the_same_scores(scores, exported, tmp_path):
    target, folder = scores
    manifest = json.loads((exported / "export.json").read_text())
    assert manifest["target"] == target and manifest["labels"] == ["score"]
    assert manifest["int8"]["spearman"]["onnx"] > 0.3 and manifest["int8"]["agreement"] > 0.8
    assert 'key: "target"' in (exported / "triton" / "pair" / "config.pbtxt").read_text()
    predict_exported(RunConfig(str(exported), str(folder / "dev.tsv"), str(tmp_path / "p.tsv")))
    assert column(tmp_path / "p.tsv") == pytest.approx(column(folder / "p.tsv"), abs=2e-5)
    with pytest.raises(InputError, match=f"scores=True .* is a model for {target}"):
        predict_exported(RunConfig(str(exported), str(folder / "dev.tsv"), str(tmp_path / "q"), scores=True))


def test_the_predictor_scores_but_refuses_to_classify(scores, exported):
    target, folder = scores
    predictor = PairPredictor(exported, "onnx")
    rows = list((score_rows if target == "regression" else candidate_rows)(20, 1))
    found = predictor.score([row[:2] for row in rows])
    assert found == pytest.approx(column(folder / "p.tsv")[: len(rows)], abs=2e-5)
    with pytest.raises(InputError, match=f"is a model for {target}; use its `score`"):
        predictor.predict([("左", "右")])
    with pytest.raises(InputError, match="threshold decides between two classes"):
        PairPredictor(exported, "onnx", threshold=0.5)


def test_the_service_returns_scores(exported):
    pytest.importorskip("httpx")
    testclient = pytest.importorskip("starlette.testclient")
    app = pytest.importorskip("ernie_pair.serve.app")
    from ernie_pair.serve.batcher import Batching
    from ernie_pair.serve.request import Limits

    predictor = PairPredictor(exported, "onnx")
    pairs = [["你好", "好好好"], ["你", "我"]]
    with testclient.TestClient(
        app.create_app(predictor, Batching(8, 0.0, 100), Limits(2000, 5, 20))
    ) as client:
        answer = client.post("/predict", json={"pairs": pairs}).json()
        health = client.get("/health").json()
    assert set(answer) == {"scores", "milliseconds"}
    assert answer["scores"] == pytest.approx(predictor.score(pairs).tolist(), abs=1e-5)
    limits = predictor.exported.label_range
    assert health["target"] == predictor.exported.target
    assert health["label_range"] == (list(limits) if limits else None)


def test_scores_can_be_trained_and_predicted_from_python(run):
    target, folder = run
    rows = score_rows if target == "regression" else candidate_rows
    trainer = PairTrainer(
        str(folder / "out"),
        PairConfig(str(folder / "again"), max_steps=2, device="cpu", batch_size=8),
        list(rows(40, 0)),
        list(rows(20, 1)),
    )
    before = trainer.predict(list(rows(20, 1)))
    assert before.scores.shape == (len(before.label_ids),) and len(before.classes) == 0
    times = {"runtime", "samples_per_second"}
    again = trainer.evaluate()
    assert {name: again[name] for name in before.metrics.keys() - times} == {
        name: value for name, value in before.metrics.items() if name not in times
    }
    assert set(before.metrics) - times == set(trainer.train().metrics)
    assert trainer.config.best_metric == {"regression": "mse", "ranking": "mrr"}[target]
    bad = PairTrainer(str(folder / "out"), PairConfig("none", device="cpu", on_bad_row="skip"))
    spread = bad.predict([("左", "右"), ("", "右")]).scores
    assert np.isfinite(spread[0]) and np.isnan(spread[1])


@pytest.mark.parametrize("target", ["regression", "ranking"])
def test_an_interrupted_run_resumes_to_the_same_weights(tmp_path, target):
    config = target_config(tmp_path, target, epochs=2)
    train_pair(config)
    half = replace(config, output_dir=str(tmp_path / "half"), checkpoint_steps=3)
    from ernie_pair.pair.train import train_pair as module

    class Cut(module.PairJob):
        def step(self, batches, number, stop):
            if number == 5:
                raise KeyboardInterrupt
            return super().step(batches, number, stop)

    usual, module.PairJob = module.PairJob, Cut
    try:
        with pytest.raises(KeyboardInterrupt):
            train_pair(half)
    finally:
        module.PairJob = usual
    train_pair(half)
    states = [sorted((tmp_path / name / "checkpoints").glob("step_*"))[-1] for name in ("out", "half")]
    model = [next(path.glob("*.safetensors")).read_bytes() for path in states]
    assert states[0].name == states[1].name and model[0] == model[1]


REFUSED = {
    "class weights of regression": ("regression", {"class_weights": "1,2"},
     "class_weights 1,2 weighs classes"),
    "R-Drop of one output": ("regression", {"rdrop_alpha": 1.0, "dropout": 0.1}, "rdrop_alpha=1.0 compares"),
    "names of classes": ("regression", {"label_map": "no,yes"}, "label_map no,yes names classes"),
    "accuracy of scores": ("regression", {"best_metric": "accuracy"},
     "best_metric accuracy is not a metric of"),
    "mse of an order": ("ranking", {"best_metric": "mse"},
     "best_metric mse is not a metric of a model for ranking"),
    "range of an order": ("ranking", {"label_range": "0,5"}, "label_range 0,5 is for regression"),
    "stream of candidates": ("ranking", {"streaming": True, "max_steps": 3}, "streaming=True never has all"),
    "margin without its loss": ("ranking", {"margin": 2.0}, "margin=2.0 needs ranking_loss margin"),
    "order of scores": ("regression", {"most_candidates": 4}, "most_candidates=4 is for target ranking"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_flags_of_another_target_are_refused_at_start(tmp_path, case):
    target, flags, reason = REFUSED[case]
    config = target_config(tmp_path, target, **flags)
    (tmp_path / "train.tsv").unlink()  # nothing can have been read
    with pytest.raises(InputError, match=f"^{reason}"):
        train_pair(config)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("flags", [{"label_range": "0,5"}, {"ranking_loss": "margin"}, {"query": "q"}])
def test_a_classifier_refuses_regression_and_ranking_flags(tmp_path, flags):
    with pytest.raises(InputError, match=f"{next(iter(flags))} .*leave it out"):
        train_pair(train_config(tmp_path, **flags))


@pytest.mark.parametrize("text", ["5", "5,0", "0,x", "0,nan", "0,1,2"])
def test_an_invalid_label_range_is_refused(text):
    with pytest.raises(InputError, match=f"label_range[ =]{text} is not a lowest and a highest label"):
        PairConfig("out", target="regression", label_range=text)


BAD_SCORES = {
    "above the range": ("5.5", "label '5.5' is not a number from 0 to 5"),
    "below the range": ("-1", "label '-1' is not a number from 0 to 5"),
    "not a number": ("nan", "label 'nan' is not a number from 0 to 5"),
    "infinite": ("inf", "label 'inf' is not a number from 0 to 5"),
    "a class": ("same", "label 'same' is not a number .*target classification"),
    "empty": ("", "label '' is not a number"),
}


@pytest.mark.parametrize("case", BAD_SCORES)
def test_an_invalid_score_is_reported_with_its_line(tmp_path, case):
    config, (label, reason) = target_config(tmp_path, "regression"), BAD_SCORES[case]
    with open(config.train_file, "a", encoding="utf-8") as file:
        file.write(f"左\t右\t{label}\n")
    with pytest.raises(InputError, match=rf"train\.tsv:166: {reason}"):
        train_pair(config)
    assert not list((tmp_path / "out").glob("**/*.arrow"))


def test_a_classifier_given_scores_suggests_target_regression(tmp_path):
    config = train_config(tmp_path)
    write_rows(tmp_path / "train.tsv", [("左", "右", "3.5"), ("左", "右", "1")])
    with pytest.raises(InputError, match=r"train\.tsv:1: label '3.5' is not one of 0, 1.*target regression"):
        train_pair(config)


def test_queries_without_a_positive_are_refused_or_skipped(tmp_path):
    config = target_config(tmp_path, "ranking", max_steps=1)
    rows = [*candidate_rows(11, 0), ("无", "左", 0), ("无", "右", 0)]
    write_rows(tmp_path / "train.tsv", rows)
    line = len(rows) - 1
    with pytest.raises(
        InputError, match=rf"train\.tsv:{line}: no candidate of the query '无' has the label 1"
    ):
        train_pair(config)
    train_pair(replace(config, on_bad_row="skip"))
    told = (tmp_path / "out" / "train.rejected.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(row)["line"] for row in told] == [line, line + 1]


def test_a_column_can_name_the_query_of_each_row(tmp_path):
    header = "text_a\ttext_b\tlabel\tquery_id\n"
    # Every first text is unique: without the column each query would have a single candidate.
    rows = [(f"我{a}", b, label, a) for a, b, label in candidate_rows(20, 0)]
    rows = [(f"{OTHER}{left}", *rest) for OTHER, (left, *rest) in zip("今天明昨气候真很" * 20, rows)]
    text = header + "".join("\t".join(map(str, row)) + "\n" for row in rows)
    config = target_config(tmp_path, "ranking", query="query_id", max_steps=2)
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text(text, encoding="utf-8")
    train_pair(config)
    out = tmp_path / "m.json"
    asked = (str(tmp_path / "out"), str(tmp_path / "dev.tsv"), str(out))
    evaluate_pair(EvaluateConfig(*asked, query="query_id", device="cpu", bootstrap=0))
    assert json.loads(out.read_text())["queries"] == 20
    with pytest.raises(InputError, match="dev.tsv:1: no column 'topic' in text_a, .*; fix query"):
        evaluate_pair(EvaluateConfig(*asked[:2], str(tmp_path / "n"), query="topic", device="cpu"))


def test_a_trained_classifier_can_start_a_regression_model(tmp_path):
    train_pair(train_config(tmp_path / "a", max_steps=1) if (tmp_path / "a").mkdir() is None else None)
    scores = target_config(tmp_path, "regression", max_steps=1, from_scratch=False)
    train_pair(replace(scores, model_name_or_path=str(tmp_path / "a" / "out"), model_type=None))
    assert json.loads((tmp_path / "out" / "best" / "config.json").read_text())["num_labels"] == 1


def test_metrics_of_three_classes_are_reported_per_class(tmp_path):
    rng = np.random.default_rng(0)
    rows = [(a, b, ("no", "maybe", "yes")[rng.integers(3)]) for a, b, _ in score_rows(60, 0)]
    for name in ("train", "dev"):
        write_rows(tmp_path / f"{name}.tsv", rows)
    flags = {**LEARNS, "label_map": "no,maybe,yes", "best_metric": "f1", "max_steps": 2, "device": "cpu"}
    files = [str(tmp_path / name) for name in ("out", "train.tsv", "dev.tsv")]
    model = str(write_model(tmp_path / "model"))
    train_pair(
        TrainConfig(
            files[0],
            model_name_or_path=model,
            train_file=files[1],
            dev_file=files[2],
            model_type="ernie",
            from_scratch=True,
            **flags,
        )
    )
    out = tmp_path / "m.json"
    evaluate_pair(
        EvaluateConfig(files[0], files[2], str(out), report=str(tmp_path / "r"), device="cpu", bootstrap=20)
    )
    found = json.loads(out.read_text())
    assert [row["class"] for row in found["per_class"]] == ["no", "maybe", "yes"]
    assert sum(row["rows"] for row in found["per_class"]) == 60 and np.sum(found["confusion"]) == 60
    for name in ("precision", "recall", "f1"):
        assert found["averages"]["macro"][name] == pytest.approx(found[name])
    assert all(low <= row["f1"] <= high for row in found["per_class"] for low, high in [row["f1_interval"]])
    assert "macro average" in (tmp_path / "r" / "report.html").read_text(encoding="utf-8")


def test_compare_starts_refuses_regression_models(tmp_path):
    from ernie_pair.series.compare_starts import CompareConfig, compare_starts

    write_pairs(tmp_path / "train.tsv", 8)
    model = write_model(tmp_path / "model")
    flags = tmp_path / "flags.yaml"
    flags.write_text(
        f"train_file: {tmp_path}/train.tsv\ndev_file: {tmp_path}/train.tsv\ntarget: regression\n"
    )
    starts = f"a=random:{model} b=random:{model}"
    with pytest.raises(InputError, match="compares classifiers, and these are models for regression"):
        compare_starts(CompareConfig(starts=starts, train_config=str(flags), output_dir=str(tmp_path / "o")))


def test_rows_whose_score_is_minus_one_are_audited(tmp_path, capfd):
    """-1 is a valid score; only for classes does it stand for a missing label."""
    rows = [("怎么开户", f"如何开户{number}", -1.0) for number in range(8)]
    config = target_config(tmp_path, "regression", label_range="-1,1", max_steps=1, best_metric="mse")
    write_rows(Path(config.train_file), [*rows, rows[0]])
    write_rows(Path(config.dev_file), [("今天下雨", "下雨了", -1.0), ("再见", "你好", 1.0)])
    train_pair(config)
    assert "repeating an earlier pair and its label" in capfd.readouterr().err
