"""Evaluated by mteb itself: a folder of ours scores as SentenceTransformer's of the same weights does."""

import sys

import numpy as np
import pytest
from other_libraries.client import newest_python
from tiny_embedding import LETTERS, embedding_config, random_text, toy_matches, write_files
from tiny_models import write_sentence

from ernie_pair import MtebEncoder, api, export, open_embedder
from ernie_pair.core.errors import InputError
from ernie_pair.embeddings.train.train_embedding import train_embedding
from ernie_pair.inference.embedder import EmbedderOptions

ABOUT = {
    "description": "made by a test",
    "dataset": {"path": "none", "revision": "1"},
    "eval_splits": ["test"],
    "eval_langs": ["zho-Hans"],
}
PROMPTS = {"query": LETTERS[0] * 2, "document": LETTERS[5], "STS": LETTERS[9] * 3}


@pytest.fixture(scope="module")
def mteb():
    """The package, in this process or from the newest libraries, behind all that is installed here."""
    python = newest_python()
    found = [] if python is None else python.parent.parent.glob("lib/python3*/site-packages")
    places = list(map(str, found))
    sys.path.extend(places)
    yield pytest.importorskip("mteb", reason="no mteb here, and none beside the newest libraries")
    for place in places:
        sys.path.remove(place)


@pytest.fixture(scope="module")
def tasks(mteb):
    """A retrieval of 30 queries among 60 texts, and 40 graded pairs."""
    from datasets import Dataset, DatasetDict
    from mteb.abstasks import AbsTaskRetrieval, AbsTaskSTS

    rows = [row for row in toy_matches(60, seed=4) if row[2]]
    rng = np.random.default_rng(8)
    pairs = [(text, text[: rng.integers(1, 4)] + random_text(rng, 2, 4)) for text, _, _ in rows[:40]]

    class ToyRetrieval(AbsTaskRetrieval):
        metadata = mteb.TaskMetadata(name="Toy", type="Retrieval", main_score="ndcg_at_10", **ABOUT)

        def load_data(self, **others):
            corpus = [{"id": f"d{n}", "text": match, "title": ""} for n, (_, match, _) in enumerate(rows)]
            queries = [{"id": f"q{n}", "text": text} for n, (text, _, _) in enumerate(rows[:30])]
            relevant = {f"q{n}": {f"d{n}": 1} for n in range(30)}
            parts = {"corpus": Dataset.from_list(corpus), "queries": Dataset.from_list(queries)}
            self.dataset = {"default": {"test": {**parts, "relevant_docs": relevant, "top_ranked": None}}}
            self.data_loaded = True

    class ToySimilarity(AbsTaskSTS):
        min_score, max_score = 0, 9
        metadata = mteb.TaskMetadata(name="Alike", type="STS", main_score="cosine_spearman", **ABOUT)

        def load_data(self, **others):
            one, other = zip(*pairs)
            scores = [len(set(first) & set(second)) for first, second in pairs]
            columns = {"sentence1": one, "sentence2": other, "score": scores}
            self.dataset = DatasetDict(test=Dataset.from_dict(columns))
            self.data_loaded = True

    return ToyRetrieval(), ToySimilarity()


def scores_of(mteb, model, tasks):
    result = mteb.evaluate(model, list(tasks), cache=None, show_progress_bar=False)
    return {one.task_name: one.scores["test"][0] for one in result.task_results}


def numbers_in(scores):
    return {name: value for name, value in scores.items() if isinstance(value, float) and value == value}


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_it_scores_as_sentence_transformers(mteb, tasks, tmp_path, similarity):
    """Prompts of queries, of documents and of a kind of task are put before the texts by both."""
    from sentence_transformers import SentenceTransformer

    folder = write_sentence(tmp_path / "folder", "cls", (), prompts=PROMPTS, similarity=similarity)
    theirs = scores_of(mteb, SentenceTransformer(str(folder)), tasks)
    ours = scores_of(mteb, MtebEncoder(open_embedder(folder)), tasks)
    assert set(ours) == set(theirs) == {"Toy", "Alike"}
    for name, scores in theirs.items():
        assert numbers_in(ours[name]) == pytest.approx(numbers_in(scores), abs=1e-4), name
    assert 0.01 < ours["Toy"]["ndcg_at_10"] < 0.99 and abs(ours["Alike"]["cosine_spearman"]) < 0.99
    plain = write_sentence(tmp_path / "plain", "cls", (), similarity=similarity)
    assert scores_of(mteb, MtebEncoder(open_embedder(plain)), tasks)["Toy"] != ours["Toy"]


def test_every_kind_of_task_takes_it(mteb, minilm):
    """Those that mteb ships for trying a model; their English texts are all unknown to a tiny model."""
    from mteb.mocks import mock_tasks
    from sentence_transformers import SentenceTransformer

    kinds = "Retrieval Reranking Classification PairClassification MultilingualClusteringFast BitextMining"
    mocks = [getattr(mock_tasks, f"Mock{kind}Task")() for kind in kinds.split()]
    model = MtebEncoder(open_embedder(minilm))
    assert isinstance(model, mteb.EncoderProtocol)
    ours, theirs = (scores_of(mteb, one, mocks) for one in (model, SentenceTransformer(str(minilm))))
    assert len(ours) == len(mocks)
    for name, scores in theirs.items():  # k-means takes a text that lies between two clusters to either
        assert ours[name]["main_score"] == pytest.approx(scores["main_score"], abs=0.02), name


def test_a_trained_and_an_exported_folder_have_one_revision(mteb, tasks, tmp_path):
    """By which mteb keeps results; both score what `evaluate` measures on the same texts."""
    train_embedding(embedding_config(write_files(tmp_path), max_steps=40))
    export(model_path=str(tmp_path / "out"), output_dir=str(tmp_path / "onnx"))
    trained, exported = (MtebEncoder(open_embedder(tmp_path / name)) for name in ("out", "onnx"))
    assert trained.mteb_model_meta.revision == exported.mteb_model_meta.revision
    assert trained.mteb_model_meta.embed_dim == trained.embedder.dim == 32
    one, other = (scores_of(mteb, model, tasks)["Toy"] for model in (trained, exported))
    assert one["ndcg_at_10"] == pytest.approx(other["ndcg_at_10"], abs=1e-3) and one["ndcg_at_10"] > 0.2


def test_vectors_of_embed_are_not_computed_again(mteb, tasks, tmp_path):
    folder, retrieval = write_sentence(tmp_path / "folder", prompts=PROMPTS), tasks[0]
    retrieval.load_data()
    corpus = retrieval.dataset["default"]["test"]["corpus"]["text"]
    (tmp_path / "corpus.txt").write_text("".join(f"{text}\n" for text in corpus), encoding="utf-8")
    where = {"input_file": str(tmp_path / "corpus.txt"), "output_dir": str(tmp_path / "vectors")}
    api.embed(model_path=str(folder), prompt_name="document", **where)
    stored = {str(tmp_path / "vectors"): str(tmp_path / "corpus.txt")}
    embedder = open_embedder(folder)
    expected = scores_of(mteb, MtebEncoder(embedder), tasks)["Toy"]
    asked = []
    embed, embedder.embed = embedder.embed, lambda texts, prompt: asked.extend(texts) or embed(texts, prompt)
    found = scores_of(mteb, MtebEncoder(embedder, stored), tasks)["Toy"]
    assert found["ndcg_at_10"] == pytest.approx(expected["ndcg_at_10"], abs=0.01)
    assert asked and not set(asked[:30]) & set(corpus)
    for other, message in (
        (open_embedder(write_sentence(tmp_path / "other", seed=7)), "its vectors are not of"),
        (open_embedder(folder, "cpu", EmbedderOptions(max_seq_len=9)), "its vectors are not of"),
    ):
        with pytest.raises(InputError, match=message):
            MtebEncoder(other, stored)
    (tmp_path / "corpus.txt").write_text("天\n", encoding="utf-8")
    with pytest.raises(InputError, match="is not the file that"):
        MtebEncoder(open_embedder(folder), stored)


def test_a_model_of_distances_is_refused(tmp_path):
    folder = write_sentence(tmp_path / "folder", similarity="euclidean")
    with pytest.raises(InputError, match="euclidean distance"):
        MtebEncoder(open_embedder(folder))
