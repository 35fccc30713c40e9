"""cut_documents.py: the documents of a domain, cut as the corpus that has them too is split."""

import json
from types import SimpleNamespace

import pytest
from cut_documents import CutDocumentsConfig, cut_documents

from ernie_pair.core.errors import InputError

CORPUS = ["a", "b", "c", "d", "e"]  # of which d and e are held out


@pytest.fixture(autouse=True)
def _five_documents(monkeypatch):
    monkeypatch.setattr("cut_documents.find_corpus", lambda folder, flag: folder)
    monkeypatch.setattr("cut_documents.open_corpus", lambda folder: SimpleNamespace(num_documents=5))


def texts_of(path):
    return [json.loads(line)["text"] for line in path.read_text().splitlines()]


def cut(folder, domain, corpus):
    (folder / "corpus").mkdir(exist_ok=True)
    for path, texts in ((folder / "corpus" / "documents.jsonl", corpus), (folder / "laws.jsonl", domain)):
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    places = (str(folder / name) for name in ("corpus", "laws.jsonl", "o"))
    cut_documents(CutDocumentsConfig(*places, split="60,20,20"))
    return texts_of(folder / "o" / "train.jsonl"), texts_of(folder / "o" / "held_out.jsonl")


def test_a_domain_is_cut_as_its_corpus_is_split(tmp_path, capsys):
    assert cut(tmp_path, ["e", "a", "c"], CORPUS) == (["a", "c"], ["e"])
    assert "held_out.jsonl: 1 documents" in capsys.readouterr().out


def test_a_text_in_both_parts_is_a_training_document(tmp_path):
    assert cut(tmp_path, ["d", "e"], ["a", "d", "c", "d", "e"]) == (["d"], ["e"])


def test_a_domain_that_does_not_fit_its_corpus_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"laws.jsonl:2: no document of .*documents.jsonl"):
        cut(tmp_path, ["a", "x"], CORPUS)
    with pytest.raises(InputError, match="all its documents are in one part of the corpus"):
        cut(tmp_path, ["a", "b"], CORPUS)
    with pytest.raises(InputError, match="has 4 documents and its corpus 5; make it again"):
        cut(tmp_path, ["a"], CORPUS[:4])
    assert not (tmp_path / "o").exists()


def test_a_line_without_text_is_refused(tmp_path):
    (tmp_path / "laws.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match="holds JSON lines with text"):
        cut_documents(CutDocumentsConfig(str(tmp_path), str(tmp_path / "laws.jsonl"), str(tmp_path / "o")))
