"""--pooling cosine: texts that are read alone, and what their cosine says of a match."""

from dataclasses import replace

import numpy as np
import paddle
import pytest
from run_files import killed_after
from sklearn.linear_model import LogisticRegression
from tiny_pair import distill_config, target_config, train_config, write_new
from tiny_ship import random_texts, ship

from ernie_pair.core.errors import InputError
from ernie_pair.embeddings.open_embedder import open_embedder
from ernie_pair.evaluation.inference_model import TrainedScorer
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.models.families import FAMILIES
from ernie_pair.models.labels import Labels
from ernie_pair.models.networks.classifier import build_classifier, load_classifier
from ernie_pair.models.networks.text_cosine import SLOPE, CosineHead, texts_apart
from ernie_pair.models.source import open_model
from ernie_pair.pairs.distill.distill import distill_pair
from ernie_pair.pairs.train.train_pair import train_pair

PAIRS = [("今天好", "你坏"), ("我他她", "多少上下多少"), ("好", "好"), ("下", "开始开始开始")]
TWO = Labels.numbered(2)


def with_head(folder, family="ernie"):
    """A saved classifier of random weights whose head is set."""
    new = write_new(folder.with_name(f"{folder.name}-new"), family)
    source = open_model(str(new), model_type=family, from_scratch=True)
    model = build_classifier(source, 7, 0.0, "cosine")
    model.classifier.begin(20.0, -3.0)
    folder.mkdir()
    model.write(folder, source.vocab_file, 32)
    return folder


def cosines_of(folder, pairs):
    embedder = open_embedder(folder)
    left, right = (embedder.unit_vectors(texts, "query") for texts in zip(*pairs))
    return np.einsum("nd,nd->n", left, right, dtype=np.float64)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_follow_from_the_vectors_of_each_text_alone(tmp_path, family):
    scorer = TrainedScorer(str(with_head(tmp_path / "m", family)), "cpu")
    logits, cosines = scorer.logits(PAIRS), cosines_of(tmp_path / "m", PAIRS)
    assert np.ptp(cosines) > 0.05 and cosines[2] == pytest.approx(1, abs=1e-5)
    assert logits[:, 1] - logits[:, 0] == pytest.approx(20 * cosines - 3, abs=2e-4)
    turned = scorer.logits([(right, left) for left, right in PAIRS])
    assert np.abs(turned - logits).max() < 2e-4


@pytest.mark.parametrize("separators", [1, 2])
def test_the_texts_of_a_pair_are_read_as_single_ones(separators):
    first, second = [3, 5, 6, 7, 4], [3, 8, 9, 4]  # [CLS] is 3, [SEP] 4
    joined = [*first, *[4] * (separators - 1), *second[1:]]
    types = [0] * len(first) + [2] * (separators - 1) + [1] * (len(second) - 1)
    rows = [(joined, types), ([3, 4, 4], [0, 0, 1])]
    ids = np.array([[*one, *[1] * (11 - len(one))] for one, _ in rows])
    kinds = np.array([[*one, *[0] * (11 - len(one))] for _, one in rows])
    found = texts_apart(paddle.to_tensor(ids), paddle.to_tensor(kinds), 1).numpy().tolist()
    empty = [3, 4] + [1] * 9
    assert found == [first + [1] * 6, empty, second + [1] * 7, empty]


@pytest.mark.parametrize("family", ["ernie", "roberta"])
@pytest.mark.parametrize("format", ["paddle", "onnx", "int8"])
def test_an_export_answers_as_the_trained_model(tmp_path, family, format):
    pytest.importorskip("onnxruntime")
    folder, pairs = with_head(tmp_path / "m", family), random_texts(40, longest=24)
    flags = {"quantize": "int8", "max_accuracy_drop": 1.0} if format == "int8" else {}
    if flags:
        rows = "".join(f"{a}\t{b}\t{n % 2}\n" for n, (a, b) in enumerate(pairs))
        (tmp_path / "dev.tsv").write_text(rows, encoding="utf-8")
        flags["quantize_file"] = str(tmp_path / "dev.tsv")
    ship(folder, tmp_path / "ship", "paddle" if format == "paddle" else "onnx", 32, **flags)
    found = PairPredictor(tmp_path / "ship", f"onnx-{format}" if flags else format).logits(pairs)
    assert np.abs(found - TrainedScorer(str(folder), "cpu").logits(pairs)).max() < (0.5 if flags else 1e-4)


def test_a_file_for_cards_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match="onnx-gpu: .* pooling cosine reads each text alone; pass"):
        ship(with_head(tmp_path / "m"), tmp_path / "ship", "onnx-gpu")
    assert not (tmp_path / "ship").exists()


def test_a_new_head_begins_as_the_regression_of_the_labels():
    rng = np.random.default_rng(0)
    cosines = rng.uniform(0.2, 0.9, 200)
    known = (cosines + rng.normal(0, 0.2, 200) > 0.6).astype(np.int64)
    head = CosineHead(2)
    assert not head.is_fitted()
    head.fit(cosines, np.where(np.arange(200) < 150, known, -1), TWO)  # the last are without label
    known, seen = known[:150], cosines[:150]
    expected = LogisticRegression().fit((seen[:, None] - seen.mean()) / seen.std(), known)
    slope = expected.coef_[0, 0] / seen.std()
    assert head.is_fitted()
    assert head.weight.numpy()[0].tolist() == pytest.approx([-slope / 2, slope / 2], rel=1e-5)
    at_middle = head.bias.numpy()[1] * 2 + slope * seen.mean()
    assert at_middle == pytest.approx(expected.intercept_[0], abs=1e-4)
    head = CosineHead(1)
    head.fit(cosines, 5 * cosines - 1, Labels.scores((0.0, 5.0)))
    assert (*head.weight.numpy()[0], *head.bias.numpy()) == pytest.approx((5, -1), abs=1e-4)
    for labels, known in ((TWO, np.ones(200, np.int64)), (Labels.of_candidates(), rng.integers(0, 4, 200))):
        head = CosineHead(len(labels.names))
        head.fit(cosines, known, labels)
        assert abs(head.weight.numpy()).sum() == pytest.approx(SLOPE)


def test_labels_that_tell_nothing_leave_something_to_learn():
    for labels, sign in ((TWO, 1), (Labels.named({"same": 0, "different": 1}), -1)):
        for known in ([0, 1, 0, 1], [0, 0, 0, 0]):
            head = CosineHead(2)
            head.fit(np.array([0.5, 0.5, 0.9, 0.9]), np.array(known), labels)
            assert head.weight.numpy()[0, 1] * sign > 0.1


@pytest.mark.parametrize("target", ["classification", "regression", "ranking"])
def test_training_begins_with_the_fitted_head_and_resumes(tmp_path, target):
    flags = {"pooling": "cosine", "max_steps": 4, "checkpoint_steps": 2, "learning_rate": 1e-3}
    config = (
        train_config(tmp_path, **flags)
        if target == "classification"
        else target_config(tmp_path, target, **flags)
    )
    whole = train_pair(config)
    model, _ = load_classifier(str(whole.best_model))
    assert model.pooling == "cosine" and model.classifier.is_fitted() and not model.spec.has_match
    cut = replace(config, output_dir=str(tmp_path / "cut"))
    with killed_after(3):
        train_pair(cut)
    train_pair(cut)
    one, other = (tmp_path / name / "model_last" / "model.safetensors" for name in ("out", "cut"))
    assert one.read_bytes() == other.read_bytes()


def test_a_student_reads_texts_as_its_teacher_does(tmp_path):
    train_pair(train_config(tmp_path, pooling="cosine", max_steps=2))
    config = distill_config(tmp_path, tmp_path / "out" / "best", layers=1, max_steps=2)
    student = load_classifier(str(distill_pair(config).best_model))[0]
    assert student.pooling == "cosine" and student.classifier.is_fitted()
    other = replace(config, pooling="mean", output_dir=str(tmp_path / "mean"))
    assert load_classifier(str(distill_pair(other).best_model))[0].pooling == "mean"


@pytest.mark.parametrize(
    "flags, said",
    [
        ({"symmetric": "average"}, "symmetric average brings two orders together, and pooling cosine reads"),
        (
            {"match_embeddings": True},
            "match_embeddings=True tells each text of the other, and pooling cosine",
        ),
        ({"label_map": "a,b,c"}, "pooling cosine tells two classes apart, .* there are 3 classes; use"),
        ({"save_format": "hf"}, "pooling is .cosine., and no class of transformers classifies that"),
    ],
)
def test_what_it_cannot_be_is_refused_before_the_start(tmp_path, flags, said):
    with pytest.raises(InputError, match=said):
        train_pair(train_config(tmp_path, pooling="cosine", **flags))
    assert not (tmp_path / "out").exists()
