"""Embedders and scorers that are pickled: as a folder and settings, opened again by whoever unpickles them."""

import os
import pickle
import shutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
from tiny_search import texts_of, write_exports

from ernie_pair import PairPredictor, load, open_embedder
from ernie_pair.core.errors import MachineError
from ernie_pair.inference.embedder import EmbedderOptions

TEXTS = texts_of(20)
PAIRS = [(text, text[:3]) for text in TEXTS]
PROMPTED = EmbedderOptions(dim=8, prompt="我")


@pytest.fixture(scope="module")
def here(module_path):
    write_exports(module_path)
    shutil.copytree(module_path / "trained", module_path / "pairs")
    (module_path / "pairs" / "embedding.json").unlink()
    return module_path


def answers(model):
    return model.embed(TEXTS) if hasattr(model, "embed") else model.predict(PAIRS)


OPENED = {
    "trained embedder": lambda: open_embedder("trained"),
    "exported embedder": lambda: open_embedder("encoder", options=PROMPTED),
    "trained scorer": lambda: load("pairs", threshold=0.7),
    "exported scorer": lambda: load("ship", threshold=0.7, symmetric="average"),
    "predictor": lambda: PairPredictor("ship", batch_tokens=99),
}


@pytest.mark.parametrize("dumps", ["pickle", "cloudpickle"])
@pytest.mark.parametrize("opens", OPENED.values(), ids=OPENED)
def test_an_unpickled_model_gives_the_same_bits(here, monkeypatch, tmp_path, opens, dumps):
    monkeypatch.chdir(here)
    model = opens()
    packed = pytest.importorskip(dumps).dumps(model)
    assert len(packed) < 2000
    monkeypatch.chdir(tmp_path)  # the folder was given relative to another one
    found, wanted = answers(pickle.loads(packed)), answers(model)
    if isinstance(wanted, np.ndarray):
        assert np.array_equal(found, wanted)
    else:
        assert (
            np.array_equal(found.scores, wanted.scores) and found.classes.tolist() == wanted.classes.tolist()
        )


def test_a_spawned_process_gives_the_same_bits(here):
    models = [open_embedder(here / "encoder", options=PROMPTED), load(here / "ship")]
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        vectors, scored = pool.map(answers, models)
        assert (
            np.array_equal(vectors, models[0].embed(TEXTS)) and pool.submit(os.getpid).result() != os.getpid()
        )
    assert np.array_equal(scored.scores, models[1].predict(PAIRS).scores)


def test_another_model_in_its_place_is_refused(here, tmp_path):
    folder = shutil.copytree(here / "encoder", tmp_path / "moved")
    packed = pickle.dumps(open_embedder(folder))
    shutil.rmtree(folder)
    with pytest.raises(MachineError, match="moved: not seen by .*; put it where all machines"):
        pickle.loads(packed)
    shutil.copytree(here / "trained", folder)
    with pytest.raises(MachineError, match="is another model, or computed by .* and not onnx"):
        pickle.loads(packed)


def test_a_model_that_no_folder_describes_is_not_pickled(here):
    predictor = PairPredictor(here / "ship")
    opened = PairPredictor(here / "ship", backend=predictor._backend)
    with pytest.raises(TypeError, match="open it by its folder"):
        pickle.dumps(opened)
