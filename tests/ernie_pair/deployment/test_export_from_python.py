"""Export from Python: trained folders, trainers, and layers of a reader's own."""

import json

import numpy as np
import pytest
from own_layers import Bag, bag, state, tutorial_model
from tiny_pair import VOCAB, toy_rows, write_model
from tiny_ship import write_trained

from ernie_pair import PairConfig, PairPredictor, PairTrainer
from ernie_pair.core.errors import InputError

PAIRS = [row[:2] for row in toy_rows(20, seed=1)]
ROWS = list(toy_rows(40, seed=0))


@pytest.fixture
def make(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("".join(f"{token}\n" for token in VOCAB), encoding="utf-8")

    def trainer(layer, **settings):
        settings = {"max_seq_len": 32, "device": "cpu", "batch_size": 8, "max_steps": 3, **settings}
        return PairTrainer(layer, PairConfig(str(tmp_path / "out"), **settings), ROWS, ROWS, vocab_file=path)

    return trainer


def test_a_trainer_exports_its_model_and_goes_on(tmp_path):
    config = PairConfig(
        str(tmp_path / "out"), from_scratch=True, model_type="ernie", device="cpu", max_steps=3
    )
    trainer = PairTrainer(write_model(tmp_path / "model"), config, ROWS, ROWS)
    trainer.train()
    expected = trainer.predict(PAIRS).predictions
    trainer.export(tmp_path / "ship", threshold=0.7)
    predictor = PairPredictor(tmp_path / "ship")
    assert predictor.threshold == 0.7 and predictor.exported.max_seq_len == config.max_seq_len
    np.testing.assert_allclose(predictor.logits(PAIRS), expected, atol=1e-4)
    assert np.array_equal(trainer.predict(PAIRS).predictions, expected)
    with pytest.raises(InputError, match="overwrite"):
        trainer.export(tmp_path / "ship", max_seq_len=16)
    trainer.export(tmp_path / "ship", max_seq_len=16, overwrite=True)


@pytest.mark.parametrize("layer", [tutorial_model, bag])
@pytest.mark.parametrize("format", ["paddle", "both"])
def test_a_layer_is_exported_and_stays_as_it_is(tmp_path, make, layer, format):
    if format != "paddle":
        pytest.importorskip("onnxruntime")
    layer = layer()
    trainer = make(layer, label_map="0=different,1=same")
    trainer.train()
    expected, before = trainer.predict(PAIRS).predictions, state(layer)
    parts = [type(part) for part in layer.sublayers()]
    trainer.export(tmp_path / "ship", format=format)
    for backend in ("paddle",) if format == "paddle" else ("paddle", "onnx"):
        predictor = PairPredictor(tmp_path / "ship", backend=backend)
        assert predictor.class_names == ("different", "same")
        np.testing.assert_allclose(predictor.logits(PAIRS), expected, atol=1e-4)
    assert np.array_equal(trainer.predict(PAIRS).predictions, expected)
    assert [type(part) for part in layer.sublayers()] == parts
    assert all(np.array_equal(value, before[name]) for name, value in state(layer).items())
    assert trainer.train().is_done
    told = json.loads((tmp_path / "ship" / "config.json").read_text())
    assert told["layer_class"].endswith(f":{type(layer).__name__}")


class Listed(Bag):
    def forward(self, input_ids, token_type_ids):
        return Bag.forward(self, input_ids, token_type_ids) + sum(input_ids.tolist()[0])


def test_a_layer_without_static_graph_is_refused_by_name(tmp_path, make):
    with pytest.raises(InputError, match=r"Listed has no .*'tolist'.*super\(Listed, self\)") as error:
        make(Listed()).export(tmp_path / "ship")
    assert len(str(error.value).splitlines()) == 1 and not (tmp_path / "ship").exists()


def test_asking_a_trained_folder_names_the_export(tmp_path, make):
    trained = write_trained(tmp_path / "best")
    with pytest.raises(InputError, match="ernie_pair.export_pair, or use PairTrainer") as error:
        PairPredictor(trained)
    assert len(str(error.value).splitlines()) == 1
    make(bag()).save_model(tmp_path / "saved")
    with pytest.raises(InputError, match=r"load it in Python: PairTrainer\(Bag\(...\), config, weights="):
        PairPredictor(tmp_path / "saved")
