"""The table of a teacher, a student and the student in int8."""

import io
import json
import shutil
from dataclasses import asdict, replace

import numpy as np
import pytest
from tiny_pair import distill_config, write_teacher

from ernie_pair import PairPredictor, distill, load_config
from ernie_pair.core.cli.cli import exit_code_of, run_command
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.atomic_files import CONFIG_YAML
from ernie_pair.experiments.compare_models import CompareModelsConfig, compare_models, write_table
from ernie_pair.models.source import open_model
from ernie_pair.pairs.data.pair_source import read_pairs
from ernie_pair.pairs.targets.metrics import percentile_interval, resamples
from ernie_pair.weights.weight_files import write_weights

pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def folder(module_path):
    """A folder with the runs teacher/out and small/, and their pairs in dev.tsv."""
    config = distill_config(module_path, write_teacher(module_path / "teacher"), learning_rate=1e-3)
    distill(config)
    dev = module_path / "dev.tsv"
    text, label = dev.read_text(encoding="utf-8").rstrip("\n").rsplit("\t", 1)
    dev.write_text(f"{text}\t{1 - int(label)}\n", encoding="utf-8")  # nobody is right everywhere
    return module_path


@pytest.fixture(scope="module")
def compared(folder):
    flags = {name: value for name, value in asdict(config_of(folder)).items() if value not in ("", None)}
    words = [f"--{name}={value}" for name, value in flags.items()]
    with pytest.raises(SystemExit) as stop:
        run_command(compare_models, CompareModelsConfig, words)
    assert stop.value.code == 0
    return folder / "table"


def config_of(folder, **changes):
    models = f"teacher={folder / 'teacher' / 'out'} student={folder / 'small'}"
    given = {"models": models, "input_file": str(folder / "dev.tsv"), "output_dir": str(folder / "table")}
    return CompareModelsConfig(**{**given, "bootstrap": 100, "threads": 1, **changes})


def test_each_row_has_the_accuracy_size_and_speed_of_its_model(folder, compared):
    found = json.loads((compared / "models.json").read_text())
    teacher, student, int8 = found["models"]
    assert [teacher["name"], student["name"], int8["name"]] == ["teacher", "student", "student int8"]
    assert [row["precision"] for row in found["models"]] == ["fp32", "fp32", "int8"]
    assert (teacher["size"], student["size"]) == ("3 x 32", "1 x 32") and found["rows"] == 41
    pairs = read_pairs(folder / "dev.tsv", 2)
    texts = list(zip(pairs.left, pairs.right))
    for row, (name, backend) in zip(found["models"], (("teacher", "onnx"), ("student", "onnx-int8"))):
        asked = PairPredictor(compared / "exported" / name, backend).logits(texts).argmax(axis=1)
        row = int8 if backend == "onnx-int8" else row
        hits = asked == pairs.labels
        assert row["accuracy"] == pytest.approx(np.mean(hits))
        means = [hits @ counts / len(hits) for counts in resamples(len(hits), 100, config_of(folder).seed)]
        assert row["accuracy_interval"] == pytest.approx(percentile_interval(np.array(means)))
    for row in found["models"]:
        low, high = row["accuracy_interval"]
        assert low <= row["accuracy"] <= high
        assert row["difference"] == pytest.approx(row["accuracy"] - teacher["accuracy"])
        assert 0 < row["latency_ms"]["p50"] <= row["latency_ms"]["p95"] and row["pairs_per_second"] > 0
    assert teacher["difference_interval"] == [0.0, 0.0] and teacher["agreement"] == 1.0
    low, high = teacher["accuracy_interval"]
    assert teacher["times_as_fast"] == 1.0 and low < teacher["accuracy"] < high
    sizes = [(compared / "exported" / n / "model.onnx").stat().st_size for n in ("teacher", "student")]
    assert [teacher["bytes"], student["bytes"]] == sizes and sizes[0] > sizes[1] > int8["bytes"]


def test_the_table_is_also_written_as_markdown_and_html(compared):
    text = (compared / "models.md").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert lines[0].startswith("41 pairs of ") and lines[2].startswith("| model | layers | precision |")
    assert [line.split("|")[1].strip() for line in lines[4:]] == ["teacher", "student", "student int8"]
    page = (compared / "models.html").read_text(encoding="utf-8")
    for cell in lines[-1].strip("| ").split(" | "):
        assert f">{cell.strip()}</td>" in page


def test_an_existing_table_is_shown_without_recomputing(folder, compared, capsys):
    before = (compared / "models.json").read_bytes()
    compare_models(config_of(folder))
    assert (compared / "models.json").read_bytes() == before
    assert (compared / "models.md").read_text(encoding="utf-8") in capsys.readouterr().out
    with pytest.raises(InputError, match="overwrite.*bootstrap=100 and not 50"):
        compare_models(config_of(folder, bootstrap=50))


BAD = [
    ({"models": "a=absent"}, "--models a=absent is not a folder"),
    ({"models": "teacher"}, "teacher is not NAME=MODEL with a new name"),
    ({"models": " "}, "--models names no model"),
    ({"input_file": "absent.tsv"}, "absent.tsv: no such file"),
    ({"input_file": "bare.tsv"}, "bare.tsv:1: no label; each row needs one of 0, 1"),
    ({"models": "a=one b=encoder"}, "encoder holds no classifier, only an encoder; train one with"),
    ({"models": "a=one b=shipped"}, "shipped holds an exported model, which has no weights to load"),
    ({"device": "gpu:1"}, "--device gpu:1: int8 runs on the CPU; add --int8 none"),
    ({"models": "a=one b=other"}, "a tells 0, 1 apart and b no, yes"),
]


@pytest.mark.parametrize("changes, reason", BAD)
def test_bad_input_is_a_one_line_error_and_writes_nothing(
    tmp_path, folder, monkeypatch, capfd, changes, reason
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bare.tsv").write_text("今天\t明天\n", encoding="utf-8")
    for name in ("one", "other", "encoder", "shipped"):
        shutil.copytree((folder / "small" / "best").resolve(), tmp_path / name)
    named = tmp_path / "other" / "config.json"
    found = json.loads(named.read_text())
    named.write_text(json.dumps({**found, "id2label": {"0": "no", "1": "yes"}, "label2id": {}}))
    arrays = open_model("encoder", model_type="", from_scratch=False).read_weights()
    write_weights(tmp_path / "encoder", {n: a for n, a in arrays.items() if not n.startswith("classifier.")})
    (tmp_path / "shipped" / "model_state.pdparams").rename(tmp_path / "shipped" / "model.onnx")
    code = exit_code_of(lambda: compare_models(config_of(folder, output_dir="out", **changes)))
    assert code == (3 if "no classifier" in reason else 2)
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and reason in error
    assert not (tmp_path / "out").exists()


def test_a_comparison_on_stdin_mentions_no_temporary_file(tmp_path, folder, monkeypatch, capsys):
    rows = io.BytesIO((folder / "dev.tsv").read_bytes())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(rows))
    out = tmp_path / "table"
    compare_models(config_of(folder, input_file="-", output_dir=str(out), bootstrap=10))
    assert capsys.readouterr().out.endswith((out / "models.md").read_text(encoding="utf-8"))
    assert json.loads((out / "models.json").read_text())["input_file"] == "-"
    assert load_config(CompareModelsConfig, out / CONFIG_YAML).input_file == "-"
    written = [path for path in out.rglob("*") if path.suffix in (".yaml", ".md", ".html", ".json")]
    assert not [path for path in written if "/ernie-pair-" in path.read_text(encoding="utf-8")]


def test_the_models_are_opened_on_the_device_that_is_asked_for(tmp_path, folder):
    config = config_of(folder, output_dir=str(tmp_path / "table"), device="gpu:1", int8="none")
    with pytest.raises(InputError, match="device gpu: this ONNX Runtime has no CUDA; pip uninstall"):
        compare_models(config)
    content = {"rows": 2, "input_file": "dev.tsv", "threads": 2, "device": "gpu:1, by CUDA", "models": []}
    shown = write_table([tmp_path / name for name in ("a.json", "a.md", "a.html")], content)
    assert "2 pairs of dev.tsv, ONNX Runtime, gpu:1, by CUDA" in shown


def test_int8_can_be_requested_for_all_models_or_none(tmp_path, folder):
    for kind, count in (("none", 1), ("all", 2)):
        one = replace(config_of(folder), models=f"student={folder / 'small'}", int8=kind)
        compare_models(replace(one, output_dir=str(tmp_path / kind)))
        found = json.loads((tmp_path / kind / "models.json").read_text())
        assert len(found["models"]) == count
