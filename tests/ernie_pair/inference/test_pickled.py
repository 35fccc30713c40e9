"""Embedders and scorers are pickled as a folder and settings, and opened again where they are unpickled."""

import pickle
import shutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
from tiny_search import texts_of, write_exports

from ernie_pair import PairPredictor, load, open_embedder
from ernie_pair.core.errors import MachineError
from ernie_pair.inference.embedder import EmbedderOptions, TextEmbedder

TEXTS = texts_of(20)
PROMPTED = EmbedderOptions(dim=8, prompt="我")
OPENED = {
    "trained embedder": lambda: open_embedder("trained"),
    "exported embedder": lambda: open_embedder("encoder", options=PROMPTED),
    "trained scorer": lambda: load("pairs", threshold=0.7),
    "exported scorer": lambda: load("ship", threshold=0.7, symmetric="average"),
}


@pytest.fixture(scope="module")
def here(module_path):
    write_exports(module_path)
    shutil.copytree(module_path / "trained", module_path / "pairs")
    (module_path / "pairs" / "embedding.json").unlink()
    return module_path


def answers(model):
    if isinstance(model, TextEmbedder):
        return model.embed(TEXTS)
    found = model.predict([(text, text[:3]) for text in TEXTS])
    return np.stack([found.scores, found.classes])


@pytest.mark.parametrize("dumps", ["pickle", "cloudpickle"])
@pytest.mark.parametrize("opens", OPENED.values(), ids=OPENED)
def test_an_unpickled_model_gives_the_same_bits(here, monkeypatch, tmp_path, opens, dumps):
    monkeypatch.chdir(here)
    model = opens()
    packed = pytest.importorskip(dumps).dumps(model)
    assert len(packed) < 2000
    monkeypatch.chdir(tmp_path)  # the folder was given relative to another one
    assert np.array_equal(answers(pickle.loads(packed)), answers(model))


def test_a_spawned_process_gives_the_same_bits(here):
    models = [open_embedder(here / "encoder", options=PROMPTED), load(here / "ship")]
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        assert all(map(np.array_equal, pool.map(answers, models), map(answers, models)))


def test_another_model_in_its_place_is_refused(here, tmp_path):
    folder = shutil.copytree(here / "encoder", tmp_path / "moved")
    packed = pickle.dumps(open_embedder(folder))
    shutil.rmtree(folder)
    with pytest.raises(MachineError, match="moved: not seen by .*; put it where all machines"):
        pickle.loads(packed)
    shutil.copytree(here / "trained", folder)
    with pytest.raises(MachineError, match="is another model, or computed by .*, or pass kernels plain"):
        pickle.loads(packed)
    folder = shutil.copytree(here / "ship", tmp_path / "ship")
    packed = pickle.dumps(load(folder))
    (folder / "export.json").write_text((folder / "export.json").read_text() + "\n")
    with pytest.raises(MachineError, match="is another model; give all machines the same$"):
        pickle.loads(packed)
    opened = PairPredictor(here / "ship", backend=PairPredictor(here / "ship")._backend)
    with pytest.raises(TypeError, match="open it by its folder"):
        pickle.dumps(opened)
