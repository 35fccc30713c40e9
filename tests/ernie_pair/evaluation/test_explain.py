"""Why a pair has its score: `PairScorer.explain`, the command, the service, and what they agree on."""

import json

import numpy as np
import pytest
from fake_predictor import ask
from tiny_pair import write_rows
from tiny_ship import MAX_SEQ_LEN, ship, write_trained

from ernie_pair import explain
from ernie_pair.core.errors import InputError
from ernie_pair.evaluation.explain_pair import explanation_lines
from ernie_pair.evaluation.scorer import load
from ernie_pair.inference.explanation import common_runs
from ernie_pair.models.temperature import Calibration, write_calibration

pytest.importorskip("rjieba")
A, B = "我今天气候真好x好", "你今天 气候，不太好𠮷"
TRAIN = [("今天气候好", "今天气候不好", "0"), ("他们前后", "她们左右", "1")]


@pytest.fixture(scope="module")
def folder(module_path):
    classes = {"num_labels": 3, "id2label": dict(zip("012", "odd even none".split()))}
    for name, decided, changes in (
        ("plain", Calibration(), {}),
        ("tuned", Calibration(1.5, threshold=0.4, symmetric="average"), {}),
        ("three", Calibration(), classes),
    ):
        write_calibration(write_trained(module_path / name, initializer_range=0.5, **changes), decided)
        ship(module_path / name, module_path / f"{name}-exported", "onnx")
    return module_path


@pytest.mark.parametrize("name", ["plain", "tuned", "three", "plain-exported", "tuned-exported"])
def test_what_is_explained_is_what_is_predicted(folder, name):
    scorer = load(folder / name, threads=1)
    found, predicted = scorer.explain(A, B, TRAIN), scorer.predict([(A, B)])
    assert found.logits == scorer.logits([(A, B)])[0].tolist()
    assert found.probabilities == predicted.probabilities[0].tolist()
    assert (found.class_number, found.label) == (predicted.classes[0], predicted.labels[0])
    assert found.verdict.startswith(f"{found.label}: the ")
    assert (found.temperature, found.threshold) == (scorer.calibration.temperature, scorer.threshold)

    def score(pairs):
        some = scorer.predict(pairs)
        shares = some.probabilities[:, found.class_number] if some.scores is None else some.scores
        return shares.tolist()

    assert found.score == score([(A, B)])[0]
    if scorer.symmetric == "none":
        assert (found.a_b, [found.b_a]) == (found.score, score([(B, A)]))
    else:
        assert min(found.a_b, found.b_a) < found.score < max(found.a_b, found.b_a)
    shorter = []
    for one in found.left_out:
        text = A if one.text == "a" else B
        assert text[one.place : one.place + len(one.word)] == one.word
        rest = text[: one.place] + text[one.place + len(one.word) :]
        shorter.append((rest, B) if one.text == "a" else (A, rest))
    assert len(shorter) > 8 and [one.score for one in found.left_out] == score(shorter)
    assert np.allclose([score([pair])[0] for pair in shorter], score(shorter), rtol=0, atol=1e-6)
    assert [one.change for one in found.left_out] == [found.score - one.score for one in found.left_out]
    assert [(one.text_a, one.label) for one in found.nearest] == [(TRAIN[0][0], "0")]


def test_tokens_are_unknown_shared_or_cut_off(folder):
    scorer = load(folder / "plain-exported", threads=1)
    found = scorer.explain(A, "今天" * MAX_SEQ_LEN)
    shared = "".join(token.text for token in found.tokens_a if token.run)
    assert shared == "今天" and [token.text for token in found.tokens_a if token.is_unknown] == ["x"]
    kept = [token for token in found.tokens_a + found.tokens_b if not token.is_cut]
    assert len(kept) == MAX_SEQ_LEN - 3 and len(found.tokens_b) == 2 * MAX_SEQ_LEN
    assert {token.run for token in found.tokens_b if token.is_cut} == {0}
    assert len(found.left_out) <= MAX_SEQ_LEN


def test_runs_are_what_match_embeddings_are_told():
    paddle = pytest.importorskip("paddle")
    from ernie_pair.models.networks.match_embeddings import match_levels

    rng = np.random.default_rng(0)
    for _ in range(20):
        first, second = (rng.integers(3, 8, size).tolist() for size in rng.integers(1, 12, 2))
        ids = [0, *first, 1, *second, 1]
        types = [0] * (len(first) + 2) + [1] * (len(second) + 1)
        levels = match_levels(paddle.to_tensor([ids]), paddle.to_tensor([types]), [0, 1, 3])[0].tolist()
        runs = [0, *common_runs(first, second, [3]), 0, *common_runs(second, first, [3]), 0]
        assert runs == levels


def test_the_command_shows_the_verdict_first_and_keeps_all(folder, tmp_path, capsys):
    train = write_rows(tmp_path / "train.tsv", TRAIN)
    flags = {"model_path": folder / "plain", "text_a": A, "text_b": B, "device": "cpu"}
    found = explain(**flags, train_file=train, output_file=tmp_path / "x.json")
    assert capsys.readouterr().out == "" and json.loads((tmp_path / "x.json").read_text("utf-8")) == found
    first, score, _, *tokens, heading, near = explanation_lines({**found, "left_out": []})
    assert first == found["verdict"] and f"score {found['score']:.4f}; " in score
    assert "shared (not told to the model): 今天气候 好" in tokens[1] and "unknown: ， 𠮷" in tokens[1]
    assert (heading, near) == (f"nearest pairs of {train}, by BM25", "\t".join(["0", *TRAIN[0][:2]]))
    train.write_text("x\ty\tz\tw\n" * 3, encoding="utf-8")
    with pytest.raises(InputError, match="give a file with columns text_a, text_b and label$"):
        explain(**flags, train_file=train)
    with pytest.raises(InputError, match="text_b has no visible character; fill it in"):
        explain(**{**flags, "text_b": " "})


def test_the_service_explains_as_the_model_does(folder):
    pytest.importorskip("httpx")
    predictor = load(folder / "plain-exported", threads=1)
    expected = predictor.explain(A, B).content()

    async def asked(client):
        bodies = (
            {"text_a": A, "text_b": B},
            {"text_a": A, "text_b": "好" * 21},
            {"text_a": A, "text_b": " "},
        )
        return [await client.post("/explain", json=body) for body in bodies]

    good, long, blank = ask(predictor, asked)
    assert good.status_code == 200 and good.json() == expected
    assert (long.status_code, blank.status_code) == (413, 422) and "text_b" in long.text + blank.text


def test_the_recorded_training_pairs_are_taken_as_they_were(tmp_path, monkeypatch):
    from tiny_pair import train_config

    from ernie_pair.evaluation import explain_pair
    from ernie_pair.pairs.train.train_pair import train_pair

    told: list = []
    monkeypatch.setattr(explain_pair.logger, "warning", lambda *words: told.append(words[0] % words[1:]))
    config = train_config(tmp_path, max_steps=1)
    train_pair(config)
    flags = {"model_path": config.output_dir, "text_a": A, "text_b": B, "device": "cpu"}
    found = explain(**flags)
    assert found["train_file"] == config.train_file and found["nearest"] and told == []
    with open(config.train_file, "a", encoding="utf-8") as file:
        file.write("多\t少\t0\n")
    assert explain(**flags)["train_file"] == ""
    assert told == [f"{config.train_file} has changed since the training; --train_file takes it as it is"]
    bad = write_rows(tmp_path / "bad.tsv", [*TRAIN, ("只有一句",)])
    assert explain(**flags, train_file=bad)["nearest"] and len(told) == 2
    assert told[1].startswith(f"{bad}: 1 bad row left out; the first: {bad}:{len(TRAIN) + 1}: ")
