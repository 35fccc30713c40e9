"""Indexing and searching with exported models, without any training library installed."""

import json
import subprocess
import sys

import pytest
from children import WITHOUT_TRAINING
from places import ROOT
from tiny_search import texts_of, write_exports, write_lines

from ernie_pair.retrieval.build_index import IndexConfig, make_index
from ernie_pair.retrieval.searcher import PairSearcher

for library in ("faiss", "onnxruntime"):
    pytest.importorskip(library)

SEARCHED = """
folder = sys.argv[1]
models = ["--embedding_model", f"{folder}/encoder"]
_run(["index", "--input_file", f"{folder}/faq.tsv", *models, "--dim", "8", "--output_dir", f"{folder}/own"])
files = ["--input_file", f"{folder}/queries.txt", "--output_file", f"{folder}/answers.jsonl"]
_run(["search", "--index", f"{folder}/own", *models, "--model_path", f"{folder}/ship", *files])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_exports(tmp_path_factory.mktemp("exported"))
    texts = texts_of(60)
    write_lines(folder / "faq.tsv", (f"q{place}\t{text}" for place, text in enumerate(texts)))
    write_lines(folder / "queries.txt", texts[:4])
    return folder


def test_exported_models_search_without_a_framework(folder):
    words = [sys.executable, "-c", WITHOUT_TRAINING + SEARCHED, str(folder)]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    rows = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    searcher = PairSearcher(folder / "own", folder / "trained", folder / "ship", threads=1)  # the same model
    for row, hits in zip(rows, searcher.search_many(row["query"] for row in rows)):
        assert [hit["id"] for hit in row["hits"]] == [hit.id for hit in hits]
        assert [hit["score"] for hit in row["hits"]] == pytest.approx([hit.score for hit in hits], abs=1e-4)


def test_an_index_records_the_dimension_of_its_vectors(folder, tmp_path):
    config = IndexConfig(str(folder / "faq.tsv"), str(tmp_path / "index"), str(folder / "trained"), dim=8)
    make_index(config)
    assert json.loads((tmp_path / "index" / "index.json").read_text())["dim"] == 8
    for model in ("trained", "encoder"):
        (hit,) = PairSearcher(tmp_path / "index", folder / model, threads=1).search(texts_of(60)[7], top_k=1)
        assert hit.id == "q7" and hit.similarity == pytest.approx(1, abs=1e-4)
