"""One scorer for every folder of a pair model: trained, exported, and several combined."""

import logging
import shutil
from threading import current_thread

import numpy as np
import pytest
from tiny_pair import write_model
from tiny_ship import MAX_SEQ_LEN, random_texts, ship, write_trained

from ernie_pair.__main__ import _run
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.json_file import read_json_object, write_json
from ernie_pair.embeddings.open_embedder import open_embedder
from ernie_pair.evaluation import scorer
from ernie_pair.evaluation.predict_pair import predicted_rows
from ernie_pair.evaluation.scorer import load, open_scorer, start_logits
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.inference.token_rows import EncodedPairs
from ernie_pair.models.labels import Labels
from ernie_pair.models.temperature import Calibration, write_calibration
from ernie_pair.pairs.config.ask_config import PredictConfig
from ernie_pair.pairs.data.pair_source import Pairs
from ernie_pair.runtime.processes.world import World

PAIRS = random_texts(30, longest=MAX_SEQ_LEN // 4)
DECIDED = Calibration(1.5, threshold=0.4, symmetric="average")


@pytest.fixture(scope="module")
def folder(module_path):
    write_calibration(write_trained(module_path / "trained", initializer_range=0.5), DECIDED)
    ship(module_path / "trained", module_path / "exported")
    return module_path


@pytest.mark.parametrize("name", ["trained", "exported"])
def test_every_folder_scores_and_decides_alike(folder, name):
    opened, trained = (load(str(folder / each), "cpu", 1) for each in (name, "trained"))
    assert (opened.threshold, opened.symmetric) == (0.4, "average") and opened.unit.name == "a probability"
    scores = opened.score(PAIRS)
    assert np.abs(scores - trained.score(PAIRS)).max() < 1e-3 and len(set(scores.round(3))) > 20
    assert np.array_equal(scores, opened.score([pair[::-1] for pair in PAIRS]))
    logits = opened.logits_of_texts(*zip(*PAIRS))
    found = opened.predict(PAIRS)
    assert logits.shape == (30, 2) and found.classes.tolist() == (found.probabilities[:, 1] >= 0.4).tolist()
    assert np.array_equal(found.scores, found.probabilities[:, 1]) and np.array_equal(found.scores, scores)
    assert found.labels == [opened.class_names[number] for number in found.classes]
    texts = [right for _, right in PAIRS[:9]]
    ranked = opened.rank(PAIRS[0][0], texts, top_k=3)
    assert [row.place for row in ranked] == [row.place for row in trained.rank(PAIRS[0][0], texts, top_k=3)]
    with pytest.raises(InputError, match="pair 0 is .*; give two texts"):
        opened.score(["今"])
    opened.decide_by(0.9, "auto")
    assert opened.threshold == load(folder / name, threshold=0.9).threshold == 0.9
    with pytest.raises(InputError, match="were tuned with symmetric average"):
        opened.decide_by(None, "none")


def test_an_exported_model_is_computed_by_one_process(folder, tmp_path, monkeypatch):
    config = PredictConfig(str(folder / "exported"), "in.tsv", str(tmp_path / "out.tsv"), device="cpu")
    assert open_scorer(config).world.size == 1
    monkeypatch.setattr(scorer, "launched_world", lambda: World(0, 2))
    with pytest.raises(InputError, match="is an exported model, which one process computes; start the com"):
        open_scorer(config)


def test_a_command_on_an_exported_model_has_a_log(folder, tmp_path, capfd, monkeypatch):
    logger = logging.getLogger("ernie_pair")
    monkeypatch.setattr(logger, "handlers", [])  # that of the fixture's command
    monkeypatch.setattr(logger, "propagate", False)  # to those that other tests set up
    (tmp_path / "in.tsv").write_text("今天\t今天好\n", encoding="utf-8")
    files = ["--input_file", str(tmp_path / "in.tsv"), "--output_file", str(tmp_path / "out.tsv")]
    _run(["predict", "--model_path", str(folder / "exported"), *files])
    assert "1 prediction by paddle" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["trained", "exported"])
def test_a_batch_holds_at_most_the_tokens_that_are_asked_for(folder, monkeypatch, name):
    sizes, padded = [], EncodedPairs.padded

    def seen(self, rows, length=0):
        batch = padded(self, rows, length)
        sizes.append(batch.input_ids.size)
        return batch

    monkeypatch.setattr(EncodedPairs, "padded", seen)
    pairs, found = PAIRS * 5, {}
    for most in (0, 1, 60, 1 << 16):
        sizes.clear()
        flags = {"device": "cpu", "batch_tokens": most, "threads": 1, "symmetric": "none"}
        opened = open_scorer(PredictConfig(str(folder / name), "in.tsv", "out.tsv", **flags))
        found[most] = opened.logits_of_texts(*zip(*pairs))
        again = load(folder / name, threads=1, batch_tokens=most).logits_of_texts(*zip(*pairs))
        assert np.abs(found[most] - found[0]).max() < 1e-5 and np.array_equal(again, found[most])
        counts = {1: len(pairs), 1 << 16: 1}
        assert len(sizes) == 2 * counts.get(most, len(sizes) // 2) and (most < 60 or max(sizes) <= most)


def test_a_thread_encodes_the_next_window(folder, tmp_path, monkeypatch):
    threads, encode = [], PairPredictor.encode
    monkeypatch.setattr(PairPredictor, "window", 8)
    monkeypatch.setattr(
        PairPredictor, "encode", lambda *given: threads.append(current_thread().name) or encode(*given)
    )
    (tmp_path / "in.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS), encoding="utf-8")
    given = (str(folder / "exported"), str(tmp_path / "in.tsv"), str(tmp_path / "out.tsv"))
    rows = predicted_rows(PredictConfig(*given, device="cpu"))
    assert threads == ["MainThread", *["read ahead"] * 3]
    assert [row["prediction"] for row in rows] == load(folder / "exported").predict(PAIRS).classes.tolist()


def test_a_start_says_of_pairs_what_it_can_before_it_is_trained(folder, tmp_path):
    left, right = map(list, zip(*PAIRS))
    pairs, trained = Pairs(left, right, None, ""), folder / "trained"
    found = start_logits(str(trained), pairs, Labels.numbered(2), "cpu")
    assert np.array_equal(found[:, 1], load(trained).score(PAIRS))  # a classifier
    turned = Labels.named({"same": 0, "different": 1})  # the match is class 0
    assert np.array_equal(start_logits(str(trained), pairs, turned, "cpu"), found[:, ::-1])
    encoder = shutil.copytree(trained, tmp_path / "encoder")
    write_json(
        encoder / "config.json", {**read_json_object(encoder / "config.json", ""), "architectures": []}
    )
    cosines = np.sum(open_embedder(encoder).embed(left) * open_embedder(encoder).embed(right), axis=1)
    found = start_logits(str(encoder), pairs, Labels.numbered(2), "cpu")
    assert np.allclose(found[:, 1], cosines, atol=1e-6) and np.array_equal(found[:, 0], -found[:, 1])
    new = write_model(tmp_path / "new", model_type="ernie")
    with pytest.raises(InputError, match="new holds no weights"):
        start_logits(str(new), pairs, Labels.numbered(2), "cpu")
