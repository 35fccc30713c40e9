"""An index whose texts are replaced, deleted and embedded anew answers as a dictionary of them would."""

import io
import json
import re
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from children import python
from tiny_search import HashEmbedder, bm25_of, index_of, texts_of, use_embedder, write_lines

from ernie_pair.core.cli.cli import parse_config
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.retrieval import build_index as building
from ernie_pair.retrieval.build_index import IndexConfig, make_index
from ernie_pair.retrieval.index import read_index, stored_vectors
from ernie_pair.retrieval.index_folder import Answering, keep_measured, open_index_folder
from ernie_pair.retrieval.searcher import PairSearcher, TextRecall

for library in ("bm25s", "faiss", "rjieba"):
    pytest.importorskip(library)
TEXTS, COLOURS = texts_of(400), ("红", "绿", "")
EVENTS = 400  # uses of files by a change


def content_of(index):
    """{id: (text, colour)} of an index."""
    folder = open_index_folder(index)
    places = range(len(folder.ids))
    return {folder.ids[n]: (folder.texts[n], folder.payload_of(n).get("colour", "")) for n in places}


class Checked:
    """An index beside the dictionary that it must equal, {id: (text, colour)}; its texts may repeat."""

    def __init__(self, folder, **flags):
        self.folder, self.index, self.rng = folder, folder / "index", np.random.default_rng(7)
        self.made = 0
        self.rows = self.drawn(60)
        self.run(input_file=self.written(self.rows), payload_columns="colour", retrieval="both", **flags)

    def drawn(self, count):
        self.made += count
        ids = [f"t{self.made - n}" for n in range(count)]
        return {name: (str(self.rng.choice(TEXTS)), str(self.rng.choice(COLOURS))) for name in ids}

    def written(self, rows):
        lines = [{"id": name, "text": text, "colour": colour} for name, (text, colour) in rows.items()]
        return str(write_lines(self.folder / "rows.jsonl", map(json.dumps, lines)))

    def run(self, event=0, **flags):
        """Run `index`, before its ``event`` in a process that is killed there; return whether it was."""
        model = {} if "delete" in flags else {"embedding_model": "any"}
        flags = {"output_dir": self.index, **model, **flags}
        words = [str(word) for name, value in flags.items() for word in (f"--{name}", value)]
        if not event:
            make_index(parse_config(IndexConfig, words))
            return False
        done = python(Path(__file__).with_name("killed_index.py"), json.dumps(words), event)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return done.returncode != 0

    def change(self, event=0):
        """Change both; a change that is killed is whole or not there, and then it is made again."""
        known = self.rng.choice([*self.rows], int(self.rng.integers(1, 5)), replace=False).tolist()
        new, way = self.drawn(len(known)), self.rng.choice(["add", "update", "delete"])
        if way == "update":  # the first two, where there are as many, have the ids of others
            new = dict(zip([*known[:2], *[*new][2:]], new.values()))
        gone = known if way == "delete" else new
        after = {name: row for name, row in self.rows.items() if name not in gone}
        flags = {"delete": write_lines(self.folder / "ids.txt", known)}
        if way != "delete":
            after, flags = {**after, **new}, {"input_file": self.written(new), way: "true"}
        killed = self.run(event, **flags)
        there = content_of(self.index)
        assert there == after or killed and there == self.rows
        if there != after:
            self.run(**flags)
        self.rows = after
        return killed

    def search(self, breadth):
        """The hits of a query, of a colour or of any, are the best that the texts one by one give."""
        query, colour = str(self.rng.choice(TEXTS)), str(self.rng.choice([*COLOURS, "any"]))
        texts = [text for text, _ in self.rows.values()]
        if self.rng.integers(2):
            searcher, scores = PairSearcher(self.index, retrieval="bm25"), bm25_of(query, texts)
            scores = [score or -1 for score in scores]  # without a shared word a text is not found
        else:
            searcher = PairSearcher(self.index, "any", retrieval="vectors", breadth=breadth)
            vectors = HashEmbedder().embed([query, *texts])
            scores = (vectors[1:] @ vectors[0]).tolist()
        fits = {n: s for (n, (_, own)), s in zip(self.rows.items(), scores) if colour in ("any", own)}
        hits = searcher.search(query, 10, {} if colour == "any" else {"colour": colour})
        wanted = sorted((score for score in fits.values() if score != -1), reverse=True)[:10]
        assert [hit.score for hit in hits] == pytest.approx(wanted, rel=1e-4, abs=1e-6)
        assert [fits[hit.id] for hit in hits] == pytest.approx(wanted, rel=1e-4, abs=1e-6)
        for hit in hits:
            assert (hit.text, hit.payload.get("colour", "")) == self.rows[hit.id]
            assert hit.score in (hit.similarity, hit.bm25)


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("most, kills", [(12, 1), pytest.param(170, 7, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
def test_random_changes_answer_as_a_dictionary(tmp_path, embedder, kind, most, kills):
    checked, breadth, killed = Checked(tmp_path, kind=kind), 0 if kind == "flat" else 400, 0
    for number in range(most):
        due = killed < kills and number * kills >= killed * most
        killed += checked.change(int(checked.rng.integers(1, EVENTS)) if due else 0)
        checked.search(breadth)
    assert killed == kills and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
def test_vectors_that_stay_are_as_they_were_stored(tmp_path, embedder, kind, dtype):
    index = index_of(tmp_path, TEXTS[:120], kind=kind, dtype=dtype)

    def vectors():
        found = open_index_folder(index)
        read = read_index(index / "index.faiss", found.manifest.expected)
        (stored,) = stored_vectors(read, found.manifest.texts, 200)
        return dict(zip((found.ids[n] for n in range(len(stored))), map(bytes, stored)))

    before, gone = vectors(), {f"t{n}" for n in range(0, 120, 7)}
    make_index(IndexConfig("", str(index), delete=str(write_lines(tmp_path / "ids.txt", sorted(gone)))))
    assert vectors() == {name: vector for name, vector in before.items() if name not in gone}
    assert len(gone) == 18 and open_index_folder(index).manifest.recall_at_10 > 0.7


def faq(folder, **flags):
    """An index of five texts with a colour, by their words."""
    rows = ["id\ttext\tcolour", *(f"q{n}\t{text}\t红" for n, text in enumerate(TEXTS[:5]))]
    path, flags = write_lines(folder / "faq.tsv", rows), {"retrieval": "bm25", "payload_columns": "colour"}
    make_index(IndexConfig(str(path), str(folder / "index"), **flags))
    return folder / "index"


def change(index, flag, *lines):
    """Update or add rows, or delete ids."""
    path = str(write_lines(index.parent / ("ids.txt" if flag == "delete" else "rows.tsv"), lines))
    flags = {"delete": path} if flag == "delete" else {"input_file": path, flag: True}
    make_index(IndexConfig(output_dir=str(index), **flags))


HEAD = "id\ttext\tcolour"


def test_the_counts_of_a_change_are_said(tmp_path, capfd):
    index, update = faq(tmp_path), [HEAD, "q1\t今天\t绿", "q9\t明天\t", "q3\t你好\t红"]
    change(index, "update", *update)
    assert f"2 replaced, 1 added in {index}\n" in capfd.readouterr().err
    rows = content_of(index)
    assert [*rows] == ["q0", "q2", "q4", "q1", "q9", "q3"] and rows["q1"] == ("今天", "绿")
    change(index, "update", *update)
    assert f"{index} was changed by" in capfd.readouterr().err
    change(index, "delete", "q0", "absent", "q4", "none")
    assert content_of(index) == {name: rows[name] for name in ("q2", "q1", "q9", "q3")}
    said = capfd.readouterr().err
    assert f"2 deleted, 4 left in {index}\n" in said and 'ids.txt:2: "absent" is the id of no text in' in said


@pytest.mark.parametrize("name, content", [
    ("ids.csv", "id,reason\nq0,\nq3,wrong\n"),
    ("ids.tsv", "q0\t\nq3\twrong\n"),
    ("ids.jsonl", '{"id": 7}\n{"id": "q0"}\n{"id": "q3"}\n'),
    ("ids.xlsx", "id,question,reply\nq0,怎么开户,去柜台办理\nq3,怎么销户,在手机上办理\n"),
])  # fmt: skip
def test_of_a_table_of_ids_only_the_ids_are_read(tmp_path, name, content):
    index, path = faq(tmp_path), tmp_path / name
    if path.suffix == ".xlsx":
        pd.read_csv(io.StringIO(content)).to_excel(path, index=False)
    else:
        path.write_text(content)
    make_index(IndexConfig("", str(index), delete=str(path)))
    assert [*content_of(index)] == ["q1", "q2", "q4"]


def test_lines_of_ids_that_are_left_out_are_said(tmp_path, capfd):
    index, path = faq(tmp_path), write_lines(tmp_path / "ids.csv", ["id,reason", "q0,x", ",y", "q3,z"])
    make_index(IndexConfig("", str(index), delete=str(path), on_bad_row="skip"))
    assert "left out: 1 line, the first: " in capfd.readouterr().err
    assert len(content_of(index)) == 3 and open_index_folder(index).manifest.lines_left_out == 0


def test_a_file_that_changes_while_it_is_read_changes_nothing(tmp_path, monkeypatch):
    index, read = faq(tmp_path), building.read_texts
    before = content_of(index)

    def grown(path, *given, **named):
        yield from read(path, *given, **named)
        path.write_text(f"{path.read_text()}q2\t今天\t红\n")

    monkeypatch.setattr(building, "read_texts", grown)
    with pytest.raises(InputError, match="rows.tsv changed while it was read; run again"):
        change(index, "update", HEAD, "q1\t今天\t绿")
    assert content_of(index) == before


def test_a_reader_goes_on_with_the_state_that_it_opened(tmp_path):
    index = faq(tmp_path)
    opened, folder = PairSearcher(index), open_index_folder(index)
    change(index, "update", HEAD, "q0\t怎么销户\t红")
    change(index, "add", HEAD, "q7\t再见\t红")
    change(index, "delete", "q4")  # so that there are as many
    assert [opened.search(text)[0].id for text in TEXTS[:5]] == ["q0", "q1", "q2", "q3", "q4"]
    with pytest.raises(CheckpointError, match="was changed while it was opened"):
        TextRecall(folder, None)
    found = TextRecall.open(folder, None).recall(["销户", "再见"])
    assert [hits[0].id for hits in found] == ["q0", "q7"]


NEW = {"input_file": "a.tsv", "embedding_model": "m"}


@pytest.mark.parametrize("flag, lines, reason", [
    ("delete", ["a", "b"], r'ids.txt:1: "a" is the id of no text in .*, nor are 1 more: nothing is deleted'),
    ("delete", ["q1", "q2", "q1"], "ids.txt:3: repeats the id of line 1; give it once"),
    ("delete", [f"q{n}" for n in range(5)], "names all 5 texts, and an index needs one"),
    ("delete", [], "ids.txt holds no id; give one on every line"),
    ("update", [HEAD, "q1\t今\t", "q1\t好\t"], "rows.tsv:3: repeats the id of line 2"),
    ("update", ["id\ttext", "q1\t今天"], "no column 'colour' in id, text; .* keeps it with each text"),
    ("update", ["text\tcolour", "今天\t红"], "has no ids, by which update replaces texts"),
    ({**NEW, "update": True, "add": True}, None, "add and update exclude each other"),
    ({**NEW, "delete": "b.txt"}, None, "delete takes the place of input_file"),
    ({"delete": "b.txt", "embedding_model": "m"}, None, "delete makes no vectors"),
    ({"delete": "b.txt", "overwrite": True}, None, "delete keeps the texts that overwrite would replace"),
    ({"upgrade_from": "x"}, None, "upgrade_from needs the model to upgrade to"),
    ({"upgrade_from": "x", "embedding_model": "m", "overwrite": True}, None, "upgrade_from x is no index"),
    ({"embedding_model": "m"}, None, "input_file is missing; give a file of texts"),
    ({**NEW, "update": True, "output_dir": "x"}, None, "update: x is no index yet; make it without"),
    ({**NEW, "add": True}, None, "was made with retrieval bm25: to add texts, take no model"),
    ({**NEW, "add": True, "kind": "ivf"}, None, "kind ivf: add keeps that of the index"),
    ({**NEW, "add": True, "overwrite": True}, None, "add keeps the texts that overwrite would replace"),
    ("add", [HEAD, "q1\t今\t"], "rows.tsv:2: repeats the id of a text in the index"),
])  # fmt: skip
def test_a_change_that_does_not_fit_changes_nothing(tmp_path, flag, lines, reason):
    index = faq(tmp_path)
    before = {path.name: path.read_bytes() for path in index.iterdir()}
    with pytest.raises(InputError, match=reason):
        if lines is None:
            make_index(IndexConfig(**{"output_dir": str(index), **flag}))
        else:
            change(index, flag, *lines)
    assert {path.name: path.read_bytes() for path in index.iterdir()} == before


def test_an_upgrade_keeps_the_texts_and_says_what_it_changes(tmp_path, monkeypatch, capfd):
    use_embedder(monkeypatch, HashEmbedder())
    old = Checked(tmp_path, kind="ivf", dtype="fp16", lists=5)
    flags, hashed = {"upgrade_from": str(old.index), "embedding_model": "any"}, HashEmbedder().fingerprint
    for model, share in ((HashEmbedder(), "100.0"), (HashEmbedder("e" * 64, dim=3), r"\d\d?\.\d")):
        use_embedder(monkeypatch, model)
        new = tmp_path / f"new{model.dim}"
        of_model = Answering("vectors", "", hashed, 0.5, 0.9, 0.9, (0.8, 1), 1, 9, "a" * 64, 50)
        by_words = of_model._replace(retrieval="bm25", fingerprint="")
        keep_measured(old.index, answering=[of_model, by_words], measured=[of_model.key, by_words.key])
        make_index(IndexConfig(output_dir=str(new), **flags))
        said = capfd.readouterr().err
        assert re.search(rf"of the 10 nearest to each of 60 texts {share} % are as in {old.index}", said)
        assert content_of(new) == old.rows
        is_same = model.dim == HashEmbedder().dim
        assert open_index_folder(new).answering == ((of_model, by_words) if is_same else (by_words,))
        assert ("the thresholds of vectors are not taken over; measure them again" in said) != is_same
        made, before = (open_index_folder(folder).manifest for folder in (new, old.index))
        same = {"dim": made.dim, "fingerprint": model.fingerprint, "recall_at_10": made.recall_at_10}
        assert made == replace(before, **same)
        assert read_index(new / "index.faiss", made.expected).nlist == 5
        assert PairSearcher(new, "any").search(old.rows["t1"][0])[0].text == old.rows["t1"][0]
