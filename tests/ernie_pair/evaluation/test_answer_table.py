"""Predictions stand beside the columns of the input, in the format that the ending of the output says."""

import json

import openpyxl
import pandas as pd
import pytest
from pyarrow import parquet
from tiny_pair import write_rows
from tiny_ship import ship, write_trained

from ernie_pair import predict
from ernie_pair.core.errors import InputError
from ernie_pair.evaluation.evaluate_pair import evaluate_pair
from ernie_pair.evaluation.predict_pair import predict_pair
from ernie_pair.pairs.audit.audit_pairs import AuditPairsConfig, audit_pairs
from ernie_pair.pairs.config.ask_config import EvaluateConfig, PredictConfig
from ernie_pair.pairs.data.pair_source import read_pairs

ROWS = [
    {"id": "007", "question": "=今天", "answer": '明天,"好"', "label": 1, "prediction": "old"},
    {"id": "008", "question": "+上", "answer": "下", "label": 0, "prediction": None},
    {"id": "009", "question": "左", "answer": "@右", "label": 1, "prediction": "old"},
]
ALL = ["index", "prediction", "probability_0", "probability_1", "id", "question", "answer", "label"]


@pytest.fixture(scope="module")
def world(module_path):
    ship(write_trained(module_path / "model"), module_path / "ship")
    lines = [json.dumps(row, ensure_ascii=False) for row in ROWS]
    (module_path / "in.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return module_path


def asked(world, out, **flags):
    flags = {"input_file": str(world / "in.jsonl"), "scores": True, **flags}
    predict_pair(PredictConfig(model_path=str(world / "ship"), output_file=str(out), **flags))
    return out


def frame_of(path):
    read = {
        ".tsv": lambda: pd.read_csv(path, sep="\t", dtype={"id": str}),
        ".csv": lambda: pd.read_csv(path, dtype={"id": str}),
        ".xlsx": lambda: pd.read_excel(path, dtype={"id": str}),
        ".jsonl": lambda: pd.read_json(path, lines=True, dtype={"id": str}),
        ".parquet": lambda: pd.read_parquet(path),
    }
    return read[path.suffix]()


@pytest.mark.parametrize("ending", [".tsv", ".csv", ".xlsx", ".jsonl", ".parquet"])
def test_answers_and_columns_are_written_by_the_ending(world, tmp_path, ending):
    path = asked(world, tmp_path / f"out{ending}")
    frame = frame_of(path)
    assert list(frame) == [*ALL, "input_prediction"]
    assert frame["id"].tolist() == ["007", "008", "009"] and frame["index"].tolist() == [0, 1, 2]
    assert frame["question"].tolist() == [row["question"] for row in ROWS]
    assert set(frame["prediction"]) <= {0, 1} and (frame["probability_0"] < 1).all()
    pairs = read_pairs(path, 2)
    assert pairs.left == [row["question"] for row in ROWS] and pairs.known_labels.tolist() == [1, 0, 1]
    measured = {"input_file": str(path), "output_file": str(tmp_path / "metrics.json"), "bootstrap": 0}
    evaluate_pair(EvaluateConfig(model_path=str(world / "ship"), **measured))
    assert json.loads((tmp_path / "metrics.json").read_text())["rows"] == 3
    audit_pairs(AuditPairsConfig(str(path)))


def test_a_workbook_has_no_formula_and_numbers_are_numbers(world, tmp_path):
    sheet = openpyxl.load_workbook(asked(world, tmp_path / "out.xlsx")).active
    assert [cell.data_type for cell in sheet[2]] == ["n", "n", "n", "n", "s", "s", "s", "n", "s"]
    table = parquet.read_table(asked(world, tmp_path / "out.parquet"))
    assert [str(one) for one in table.schema.types[:5]] == ["int64", "int64", "double", "double", "string"]


def test_columns_choose(world, tmp_path):
    path = asked(world, tmp_path / "out.csv", columns="id, prediction,answer")
    assert list(pd.read_csv(path)) == ["id", "prediction", "answer"]
    path = asked(world, tmp_path / "answers.tsv", columns="answers", scores=False)
    assert path.read_text().splitlines()[0] == "index\tprediction"
    with pytest.raises(
        InputError, match="columns id,titel: titel is no column .*; name some of answers, input"
    ):
        asked(world, tmp_path / "no.csv", columns="id,titel")
    assert not (tmp_path / "no.csv").exists()


def test_what_an_ending_cannot_hold_is_refused_before_the_model(world, tmp_path):
    with pytest.raises(InputError, match="out.xls: name a file that ends with .tsv, .csv, .xlsx"):
        asked(world, tmp_path / "out.xls")
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"sentence1": "左", "sentence2": "右"}\n{"sentence1": "上\\n", "sentence2": "下"}\n')
    fault = "lines.jsonl:2: '上.n' has a tab or a line end, .* leave the column sentence1 out with --?columns"
    with pytest.raises(InputError, match=fault.replace("--?", "")):
        asked(world, tmp_path / "out.tsv", input_file=str(lines))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lines.jsonl"]
    assert len(asked(world, tmp_path / "out.tsv", input_file=str(lines), columns="answers").read_text()) > 9


def test_predictions_of_predictions_lose_no_column(world, tmp_path):
    path = tmp_path / "in.csv"
    path.write_text("text_a,text_b,x,x,x_4,prediction\n左,右,1,2,3,old\n")
    for name in ("one.csv", "two.jsonl", "three.csv"):
        path = asked(world, tmp_path / name, input_file=str(path), columns="prediction,input")
    names = ["x", "x_4_", "x_4", "input_prediction", "input_input_prediction", "input_input_input_prediction"]
    frame = pd.read_csv(path)
    assert {*names} < {*frame} and [str(frame[name][0]) for name in names[:3]] == ["1", "2", "3"]
    assert "old" in frame.iloc[0].tolist() and len({*frame}) == len(names) + 3


def test_rows_without_a_header_and_bad_rows_keep_their_place(world, tmp_path):
    path = write_rows(tmp_path / "plain.tsv", [("左", "右", 1), ("", "下", 0), ("今", "天", 0)])
    out = asked(world, tmp_path / "out.csv", input_file=str(path), on_bad_row="skip", scores=False)
    frame = pd.read_csv(out)
    assert list(frame) == ["index", "prediction", "text_a", "text_b", "label"]
    assert frame["text_b"].tolist() == ["右", "下", "天"] and frame["prediction"].isna().tolist() == [0, 1, 0]


def test_python_gets_the_same_rows_with_and_without_a_file(world, tmp_path):
    flags = {"model_path": str(world / "ship"), "input_file": str(world / "in.jsonl")}
    rows = predict(**flags)
    assert rows[0]["id"] == "007" and rows[0]["input_prediction"] == "old" and rows[0]["prediction"] in (0, 1)
    assert predict(**flags, output_file=str(tmp_path / "out.jsonl")) == rows
    assert [row["index"] for row in predict(**flags, output_file=str(tmp_path / "out.xlsx"))] == [0, 1, 2]
    (row,) = predict(model_path=str(world / "ship"), pair=["怎么开户", "如何\n开户"])
    assert list(row) == ["index", "prediction"]
