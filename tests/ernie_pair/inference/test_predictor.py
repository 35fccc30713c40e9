"""The predictor of exported models: its predictions, their order, and what it refuses."""

import doctest
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
from children import WITHOUT_TRAINING, python
from tiny_ship import MAX_SEQ_LEN, PADDLE, logits_of_trained, random_texts, ship, write_trained

from ernie_pair.core.errors import CheckpointError, InputError, NumbersError
from ernie_pair.core.installation import extra_here, install_command, training_extra
from ernie_pair.evaluation.predict_pair import predict_pair
from ernie_pair.inference import backends
from ernie_pair.inference.exported_model import read_exported
from ernie_pair.inference.predictor import BATCH_SIZE, PairPredictor
from ernie_pair.inference.scores import probabilities
from ernie_pair.models.temperature import Calibration, write_calibration
from ernie_pair.pairs.config.ask_config import PredictConfig
from ernie_pair.runtime.cpu import LEVEL_ASKED, cpu_level, has_bf16

ASKED = """
import asyncio, httpx
from ernie_pair import PairPredictor
from ernie_pair.service.service import ServedModels, create_app
from ernie_pair.service.batcher import Batching
from ernie_pair.service.request import Limits
model, pairs, output = sys.argv[1:]

async def ask(predictor):
    app = create_app(ServedModels(predictor), Batching(8, 0.01, 100), Limits(2000, 5, 20))
    async with app.router.lifespan_context(app):
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here")
        return await client.post("/predict", json={"pairs": [["今", "天"]]})

predictor = PairPredictor(model)
answer = asyncio.run(ask(predictor)).json()
assert answer["labels"] == predictor.predict([("今", "天")]).labels, answer
_run(["predict", "--model_path", model, "--input_file", pairs, "--output_file", output])
try:
    from ernie_pair import PairTrainer
except ImportError as error:
    print(error)
"""
COMMANDS_RUN = """
for line in sys.argv[1:]:
    print(f"# {line}")
    try:
        print(exit_code_of(lambda: _run(line.split())))
    except SystemExit as left:
        print(left.code)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    names = {"0": "不同", "1": "相同", "2": "相关"}
    folder = write_trained(tmp_path_factory.mktemp("trained") / "best", num_labels=3, id2label=names)
    write_calibration(folder, Calibration(1.7, "dev.tsv", rows=100))
    return folder


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    """Both formats where ONNX Runtime is installed, otherwise only Paddle's."""
    format = "both" if backends.find_spec("onnxruntime") else "paddle"
    return ship(trained, tmp_path_factory.mktemp("exported") / "ship", format)


@pytest.fixture(params=["paddle", "onnx"])
def predictor(request, exported):
    if request.param == "onnx":
        pytest.importorskip("onnxruntime")
    return PairPredictor(exported, request.param, threads=1)


def test_logits_match_the_trained_model_in_pair_order(trained, predictor):
    pairs = random_texts(2 * BATCH_SIZE + 9)
    assert max(len(a) + len(b) for a, b in pairs) > MAX_SEQ_LEN  # some are truncated
    expected = logits_of_trained(trained, pairs)
    assert len({tuple(row) for row in expected.round(3).tolist()}) > BATCH_SIZE  # rows can be told apart
    answers = predictor.logits(pairs)
    assert answers.shape == expected.shape and answers.dtype == np.float32
    assert np.abs(answers - expected).max() < 1e-5


def test_order_boundary_and_length_decide_the_logits(predictor):
    pairs = random_texts(12, seed=1)
    alone = np.concatenate([predictor.logits([pair]) for pair in pairs])
    assert np.abs(predictor.logits(pairs) - alone).max() < 1e-5
    assert MAX_SEQ_LEN - 3 == 32 + 5
    cut, whole = predictor.logits([("今天天气" * 8, "真很不太好"), ("今天天气" * 30, "真很不太好")])
    assert np.array_equal(cut, whole)
    straight, swapped, moved = predictor.logits([("今天好", "坏"), ("坏", "今天好"), ("今天", "好坏")])
    assert np.abs(straight - swapped).max() > 1e-3 and np.abs(straight - moved).max() > 1e-3


def test_predictions_have_label_names_and_are_calibrated(predictor):
    pairs = random_texts(40, seed=2)
    logits, answer = predictor.logits(pairs), predictor.predict(pairs)
    assert answer.classes.tolist() == logits.argmax(axis=1).tolist()
    assert answer.labels == [("不同", "相同", "相关")[number] for number in answer.classes]
    assert len(set(answer.labels)) > 1
    none = predictor.predict([])
    assert none.labels == [] and none.probabilities.shape == (0, 3)
    assert answer.scores is None and answer.probabilities.shape == (40, 3)
    assert np.allclose(answer.probabilities, probabilities(logits, temperature=1.7), atol=1e-6)
    assert np.allclose(np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True), probabilities(logits))


@pytest.fixture(scope="module")
def in_bf16(exported):
    if not has_bf16(cpu_level()):
        pytest.skip("the processor has no AVX512-BF16")
    return PairPredictor(exported, "paddle", threads=1, precision="bf16")


def test_bf16_logits_are_close_to_those_of_float32(exported, in_bf16, capfd):
    pairs = random_texts(2 * BATCH_SIZE + 9)
    expected = PairPredictor(exported, "paddle", threads=1).logits(pairs)
    assert in_bf16.describe() == "paddle bf16"
    difference = np.abs(in_bf16.logits(pairs) - expected).max()
    capfd.readouterr()
    PairPredictor(exported, "paddle", threads=1, precision="bf16")
    assert "bfloat16" not in "".join(capfd.readouterr())  # nothing about its passes
    assert 1e-6 < difference < 0.05 * np.abs(expected).max()  # not identical: bf16 is in use


def test_bf16_uses_few_input_shapes(in_bf16, monkeypatch):
    """Preparing for a new shape takes as long as several passes."""
    shapes, asked = set(), in_bf16._backend.logits
    monkeypatch.setattr(
        in_bf16._backend, "logits", lambda ids, types: shapes.add(ids.shape) or asked(ids, types)
    )
    for count in range(1, 24):
        in_bf16.predict(random_texts(count, seed=count, longest=MAX_SEQ_LEN // 2))
    assert {rows for rows, _ in shapes} <= {1, 2, 4, 8, 16, 32}
    assert {length for _, length in shapes} <= {8, 16, 24, 32, 40}


def test_a_rounded_up_length_stays_within_the_models_maximum(tmp_path, trained):
    if not has_bf16(cpu_level()):
        pytest.skip("the processor has no AVX512-BF16")
    folder = ship(trained, tmp_path / "ship", max_seq_len=125)
    predictor = PairPredictor(folder, "paddle", precision="bf16")
    assert len(predictor.logits([("今" * 200, "天" * 200)])) == 1


def test_float32_computes_what_is_asked_in_small_batches(exported, monkeypatch):
    """Paddle Inference keeps all activations of a pass."""
    predictor = PairPredictor(exported, "paddle", threads=1)
    shapes, asked = [], predictor._backend.logits
    monkeypatch.setattr(
        predictor._backend, "logits", lambda ids, types: shapes.append(ids.shape) or asked(ids, types)
    )
    for count in (1, 3, 7):
        predictor.predict(random_texts(count, longest=9))
    assert [rows for rows, _ in shapes] == [1, 3, 7] and predictor.device == "cpu"
    predictor.predict([("今" * 30, "天" * 30)] * 100)
    assert 1024 // 2 < max(rows * length for rows, length in shapes) <= 1024


@pytest.mark.parametrize("backend, level, reason", [
    ("onnx", "avx512_bf16", "precision bf16 is for backend paddle, not onnx; leave it out"),
    ("onnx-int8", "avx512_bf16", "is for backend paddle, not onnx-int8"),
    ("paddle", "avx512", r"needs a processor with AVX512-BF16 \(.*\); use precision fp32"),
    ("auto", "none", "needs a processor with AVX512-BF16 "),
])  # fmt: skip
def test_unsupported_bf16_is_refused(exported, monkeypatch, backend, level, reason):
    monkeypatch.setenv(LEVEL_ASKED, level)
    with pytest.raises(InputError, match=reason):
        PairPredictor(exported, backend, precision="bf16")


def test_precisions_and_thresholds_that_are_none_are_refused(tmp_path, exported, monkeypatch):
    for precision in ("bfloat16", "float16", ""):
        message = f"^precision {precision} is not one of fp32, bf16.*; use one of them$"
        with pytest.raises(InputError, match=message):
            PairPredictor(exported, precision=precision)
    two_classes = ship(write_trained(tmp_path / "best", num_labels=2), tmp_path / "ship")
    with pytest.raises(InputError, match="threshold=1.5 is above 1.*: it is a probability"):
        PairPredictor(two_classes, threshold=1.5)
    monkeypatch.setattr(backends, "check_bf16", lambda: None)
    onnx_only = replace(read_exported(exported), files={"model.onnx": ""})
    with pytest.raises(InputError, match="no model for paddle; precision bf16 takes one; export it with"):
        backends.open_backend(onnx_only, "auto", 1, "bf16")


def test_pairs_of_an_iterator_are_all_read(predictor):
    pairs = [("今", "天"), ("上", "下")]
    listed, given = predictor.predict(pairs), predictor.predict(zip(*zip(*pairs)))
    assert np.array_equal(given.probabilities, listed.probabilities)
    assert np.array_equal(predictor.logits(pair for pair in pairs), predictor.logits(pairs))
    with pytest.raises(InputError, match="pair 0 is 1; give two texts"):
        predictor.predict(iter([1, 2]))


@pytest.mark.parametrize("pair", [("今",), ("今", "天", "好"), ("今", 7), (None, "今"), "今", "今天", None])
def test_an_invalid_pair_is_reported_by_its_index(predictor, pair):
    with pytest.raises(InputError, match="pair 1 is .*; give two texts"):
        predictor.predict([("今", "天"), pair])


def test_non_finite_logits_are_an_error(predictor, monkeypatch):
    monkeypatch.setattr(predictor, "logits_of_ids", lambda ids, types: np.full((len(ids), 3), np.nan))
    with pytest.raises(NumbersError, match="returns NaN or infinity"):
        predictor.predict([("今", "天")])


def test_auto_selects_onnx_if_it_is_installed(exported, monkeypatch):
    pytest.importorskip("onnxruntime")
    assert PairPredictor(exported).backend == "onnx"
    monkeypatch.setattr(backends, "find_spec", lambda name: None if name == "onnxruntime" else 1)
    assert PairPredictor(exported).backend == "paddle"


@pytest.mark.parametrize(
    "library, backend, extra", [("onnxruntime", "onnx", extra_here()), ("paddle", "paddle", training_extra())]
)
def test_a_missing_library_error_says_how_to_install_it(exported, monkeypatch, library, backend, extra):
    if not read_exported(exported).files_of(backend):
        pytest.skip("ONNX Runtime is not installed")
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match=re.escape(f"{library} is not installed; {install_command(extra)}")):
        PairPredictor(exported, backend)


def test_a_format_that_was_not_exported_is_refused(exported):
    paddle_only = replace(read_exported(exported), files=dict.fromkeys(PADDLE, ""))
    with pytest.raises(InputError, match="holds no model for onnx; pass backend paddle"):
        backends.open_backend(paddle_only, "onnx", 1)
    with pytest.raises(InputError, match="holds no model for onnx; export it again"):
        backends.open_backend(replace(paddle_only, files={}), "auto", 1)


@pytest.mark.parametrize(
    "name", [*sorted(PADDLE), *"model.onnx vocab.txt config.json tokenizer_config.json".split()]
)
@pytest.mark.parametrize("damage", ["changed", "lost"])
def test_a_changed_or_missing_exported_file_is_refused(tmp_path, exported, name, damage):
    if name not in read_exported(exported).files:
        pytest.skip("ONNX Runtime is not installed")
    path = Path(copytree(exported, tmp_path / "ship")) / name
    if damage == "lost":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"{name} is not the file that was exported; export"):
        PairPredictor(tmp_path / "ship", "onnx" if name == "model.onnx" else "paddle")


WRONG = {
    "format": (5,), "target": ("translation",), "label_range": ([0, 5], [5, 0]), "labels": (["0"], [0, 1]),
    "max_seq_len": ("40", 0), "temperature": (0, float("nan"), True), "threshold": (0.5, "0.5"),
    "symmetric": ("both",), "files": ({"../../etc/passwd": ""}, []),
}  # fmt: skip


@pytest.mark.parametrize("changes", [{key: value} for key, values in WRONG.items() for value in values])
def test_a_manifest_with_invalid_values_is_refused(tmp_path, exported, changes):
    path = Path(copytree(exported, tmp_path / "ship")) / "export.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    named = rf"({next(iter(changes))}|NaN)"
    with pytest.raises(CheckpointError, match=rf"export\.json.*: .*{named}.*; export the model again"):
        PairPredictor(tmp_path / "ship")


def test_a_folder_that_was_not_exported_is_refused(tmp_path, trained):
    with pytest.raises(InputError, match=r"model_path .*absent is not a folder; give the output_dir"):
        PairPredictor(tmp_path / "absent")
    with pytest.raises(InputError, match=rf"holds no export\.json; .* --model_path {trained} --output"):
        PairPredictor(trained)
    with pytest.raises(InputError, match="threads=-1 is below 0"):
        PredictConfig("m", "i", "o", threads=-1)


def write_texts(path):
    pairs = random_texts(30, seed=4)
    path.write_text("".join(f"{a}\t{b}\t{n % 3}\n" for n, (a, b) in enumerate(pairs)), encoding="utf-8")
    return str(path)


def split_columns(path):
    return [line.split("\t") for line in Path(path).read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("scores", [False, True])
def test_the_run_command_writes_the_same_as_predict(tmp_path, trained, exported, scores):
    texts, ours, theirs = (
        write_texts(tmp_path / "pairs.tsv"),
        f"{tmp_path}/ours.tsv",
        f"{tmp_path}/theirs.tsv",
    )
    predict_pair(PredictConfig(str(exported), texts, ours, scores=scores))
    flags = {"max_seq_len": MAX_SEQ_LEN, "device": "cpu", "scores": scores}
    predict_pair(PredictConfig(model_path=str(trained), input_file=texts, output_file=theirs, **flags))
    (header, *rows), (its_header, *its_rows) = split_columns(ours), split_columns(theirs)
    assert header == its_header and len(header) == (9 if scores else 6)
    assert [row[:3] for row in rows] == [row[:3] for row in its_rows]
    assert rows[0][2] in ("不同", "相同", "相关")
    numbers = ([list(map(float, row[3:-3])) for row in each] for each in (rows, its_rows))
    assert np.allclose(*numbers, atol=1e-5)


def test_inference_works_without_the_training_libraries(tmp_path, exported):
    for library in ("onnxruntime", "fastapi", "httpx"):
        pytest.importorskip(library)
    texts, out = write_texts(tmp_path / "pairs.tsv"), tmp_path / "out.tsv"
    ran = python("-c", WITHOUT_TRAINING + ASKED, exported, texts, out)
    assert ran.returncode == 0, ran.stderr
    assert len(split_columns(out)) == 31 and "30 predictions by onnx" in ran.stderr
    assert f"is not installed; {install_command(training_extra())}" in ran.stdout


def test_commands_that_train_name_the_extra_they_need():
    """Their help, and that of other commands, works without it."""
    asked = "--input_file x --output_file x.tsv"
    refused = [
        "train --model_name_or_path x --train_file x --dev_file x --output_dir x",
        *(f"{command} --model_path x {asked}" for command in ("predict", "evaluate")),
    ]
    helped = [
        f"{command} --help" for command in ("train", "predict", "pretrain", "convert", "launch", "doctor")
    ]
    ran = python("-c", WITHOUT_TRAINING + COMMANDS_RUN, *refused, *helped)
    assert ran.returncode == 0, ran.stderr
    codes = dict(re.findall(r"^# (.+)$(?:\n.*)*?\n(\d+)$", ran.stdout, re.M))
    assert codes == {**dict.fromkeys(refused, "2"), **dict.fromkeys(helped, "0")}
    lines = ran.stderr.splitlines()
    message = rf"error: \w+ is not installed; {re.escape(install_command(training_extra()))}"
    assert len(lines) == len(refused) and all(re.fullmatch(message, line) for line in lines), lines


def test_the_example_in_the_docstring_works(tmp_path, exported, monkeypatch):
    copytree(exported, tmp_path / "ship")
    monkeypatch.chdir(tmp_path)
    (example,) = doctest.DocTestFinder().find(PairPredictor, globs={})[:1]
    assert len(example.examples) == 5
    assert doctest.DocTestRunner().run(example).failed == 0
