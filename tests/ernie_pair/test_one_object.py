"""`ernie_pair.load`: one object of any folder, which answers what it can and says who can do the rest."""

import numpy as np
import pytest
from tiny_pair import write_pairs
from tiny_search import write_exports, write_lines
from tiny_ship import write_trained

import ernie_pair
from ernie_pair import load
from ernie_pair.core.errors import InputError

PAIR, TEXTS = ("今天气候好", "今天气候不好"), ["今天气候不好", "他们前后左右", "你大我小"]
CAN = {
    "classifier": "predict rank explain evaluate",
    "ship": "predict rank explain evaluate",
    "encoder": "embed rank evaluate",
    "words.index": "search",
}
ARGUMENTS = {
    "predict": ([PAIR],),
    "rank": (PAIR[0], TEXTS, 2),
    "explain": PAIR,
    "embed": (TEXTS,),
    "search": (PAIR[0],),
}


@pytest.fixture(scope="module")
def folder(module_path):
    pytest.importorskip("bm25s")
    write_exports(module_path)
    write_trained(module_path / "classifier", initializer_range=0.5)
    flags = {"output_dir": module_path / "words.index", "retrieval": "bm25"}
    ernie_pair.index(input_file=write_lines(module_path / "texts.txt", TEXTS), **flags)
    write_pairs(module_path / "test.tsv", 40)
    return module_path


@pytest.mark.parametrize("name", CAN)
def test_a_folder_does_what_it_can_and_names_who_does_the_rest(folder, name):
    opened, can = load(folder / name), CAN[name].split()
    for method, words in ARGUMENTS.items():
        if method in can:
            assert getattr(opened, method)(*words) is not None
        else:
            with pytest.raises(InputError, match=f"^an? .* cannot {method}; load the folder of an? [^\n]*$"):
                getattr(opened, method)(*words)
    if "evaluate" in can:
        test = folder / "test.tsv"
        wanted = ernie_pair.evaluate(model_path=folder / name, input_file=test, device="cpu")
        assert opened.evaluate(test, device="cpu") == wanted


def test_an_evaluation_decides_as_the_object_does(folder):
    opened = load(folder / "ship", threshold=0.9)
    found = opened.evaluate(folder / "test.tsv", bootstrap=0)
    assert found["threshold"] == 0.9


def test_an_encoder_ranks_by_the_similarity_of_vectors(folder):
    opened = load(folder / "encoder")
    query, *vectors = opened.embed([PAIR[0], *TEXTS])
    best = opened.rank(PAIR[0], TEXTS, top_k=3)
    places = np.argsort(-np.dot(vectors, query), kind="stable").tolist()
    assert [one.place for one in best] == places and best[0].text == TEXTS[places[0]]


@pytest.mark.parametrize("name, options, said", [
    ("encoder", {"threshold": 0.5}, "threshold is not for an embedding model, which .* is; leave it out"),
    ("words.index", {"symmetric": "none"}, "symmetric is not for an index, which .* is; leave it out"),
    ("ship", {"reranker": "x"}, "reranker is not for a model of pairs, which .* is; leave it out"),
    ("ship", {"batch": 3}, r"load has no option batch; did you mean batch_tokens\? help\(load\) lists"),
    ("ship", {"treshold": 0.5}, r"load has no option treshold; did you mean threshold\? help\(load\)"),
])  # fmt: skip
def test_an_option_of_other_folders_or_of_none_is_refused(folder, name, options, said):
    with pytest.raises(InputError, match=said):
        load(folder / name, **options)


def test_names_of_other_libraries_get_the_near_one(folder):
    with pytest.raises(InputError, match=r"rank has no option top_n; did you mean top_k\?"):
        load(folder / "ship").rank(*ARGUMENTS["rank"][:2], top_n=2)
    with pytest.raises(InputError, match=r"PairPredictor has no option batch; did you mean batch_tokens\?"):
        ernie_pair.PairPredictor(folder / "ship", batch=2)
    assert dir(ernie_pair) == ernie_pair.__all__
