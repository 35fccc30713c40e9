"""select and audit labels: the choice beside the model's probabilities, agreement beside scikit-learn."""

import json
from operator import itemgetter
from xml.etree import ElementTree

import numpy as np
import pytest
from openpyxl import load_workbook
from scipy.special import logit
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.metrics import cohen_kappa_score
from sklearn.metrics.pairwise import cosine_similarity
from tiny_pair import write_rows
from tiny_ship import random_texts, write_trained

from ernie_pair import InputError, audit_labels, load, select
from ernie_pair.labelling.asked_labels import COLUMNS, NEAR, choose, id_of, measure_agreement, uncertainty
from ernie_pair.pairs.data.pair_source import read_pairs

PAIRS = random_texts(300, seed=4, longest=14)
ROWS, THRESHOLD, SIX, texts_of = 20, 0.3, PAIRS[:6], itemgetter("text_a", "text_b")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a model of two classes, one that is surer, one of three and one of none, and pairs."""
    here = tmp_path_factory.mktemp("select")
    write_trained(here / "model")
    write_trained(here / "sure", initializer_range=0.9)
    write_trained(here / "third", num_labels=3)
    write_trained(here / "scores", num_labels=1, problem_type="regression")
    write_rows(here / "pairs.tsv", PAIRS)
    return here


def rows_of(made, tmp_path, name="asked.jsonl", model="model", **flags):
    usual = {"input_file": f"{made}/pairs.tsv", "rows": ROWS, "device": "cpu"}
    path = select(**{**usual, **flags}, model_path=f"{made}/{model}", output_file=f"{tmp_path}/{name}")
    text = path.read_text(encoding="utf-8")
    return json.loads(text) if path.suffix == ".json" else list(map(json.loads, text.splitlines()))


def test_pairs_near_the_threshold_are_chosen(made, tmp_path):
    rows = rows_of(made, tmp_path, threshold=THRESHOLD)
    assert list(rows[0]) == [*COLUMNS, "label"] and len({row["pair_id"] for row in rows}) == ROWS
    assert [n for n, row in enumerate(rows) if row["why"] == "at random"] == [9, 19]
    shares = load(str(made / "model")).predict(PAIRS).probabilities[:, 1]
    distance = dict(zip(PAIRS, np.abs(logit(shares) - logit(THRESHOLD))))
    near = sorted(PAIRS, key=distance.get)
    chosen = [texts_of(row) for row in rows if row["why"] == "near the threshold"]
    assert chosen[0] == near[0] and len(chosen) == 18
    assert {*chosen} <= {*near[: 5 * ROWS]} and {*near[:3]} <= {*chosen}
    for row in rows:
        assert row["priority"] == pytest.approx(1 - np.tanh(distance[texts_of(row)] / 2), abs=1e-5)
        assert row["label"] == "" and row["pair_id"] == id_of(texts_of(row))
    assert rows_of(made, tmp_path, "other.jsonl", threshold=THRESHOLD, seed=5) != rows
    assert uncertainty(np.array([[0.5, 0.3, 0.2], [0.4, 0.2, 0.4]]), None) == pytest.approx([0.8, 1.0])


def test_the_order_of_rows_and_the_batch_size_decide_nothing(made, tmp_path):
    order = np.random.default_rng(1).permutation(len(PAIRS))
    mixed = write_rows(tmp_path / "mixed.tsv", [PAIRS[n] for n in order] + PAIRS[:50])
    found = rows_of(made, tmp_path, input_file=str(mixed), batch_size=7)
    assert found == rows_of(made, tmp_path, "whole.jsonl")


def test_what_two_models_dispute_is_chosen(made, tmp_path):
    rows = rows_of(made, tmp_path, model="sure", other_model_path=f"{made}/model")
    first, second = (load(f"{made}/{name}").predict(PAIRS).scores for name in ("sure", "model"))
    uncertain, disputed = 1 - np.abs(2 * first - 1), np.abs(first - second)
    wanted, is_disputed = dict(zip(PAIRS, uncertain + disputed)), dict(zip(PAIRS, disputed > uncertain))
    for row in rows:
        assert row["priority"] == pytest.approx(wanted[texts_of(row)], abs=1e-5)
        if row["why"] != "at random":
            assert (row["why"] == "two models disagree") == is_disputed[texts_of(row)]
    assert texts_of(rows[0]) == max(wanted, key=wanted.get)
    assert len({row["why"] for row in rows}) == 3


def test_no_two_chosen_pairs_are_alike():
    """A hundred copies of the best pair, each with another number, in both orders: one of them is chosen."""
    asks, says = "怎么注销我名下那张很久没有使用过的信用卡账户呢", "如何才能把闲置多年的信用卡账户彻底注销掉"
    best = [(asks, f"{says}{n // 10} {n % 10}") for n in range(100)]
    pairs = sorted({*best, *(pair[::-1] for pair in best), *PAIRS})
    scores = np.array([1.0 if "信用卡" in "".join(pair) else 0.3 for pair in pairs])
    for times in (1, 5):  # of which the first is too few: half of the candidates are copies
        found = choose(pairs, scores, 40, seed=0, times=times)
        assert len(found) == 40 and sum(scores[place] == 1 for place, _ in found) == 1
        texts = ["\n".join(sorted(pairs[place])) for place, _ in found]
        counts = CountVectorizer(analyzer="char", ngram_range=(1, 2), binary=True).fit_transform(texts)
        assert np.triu(cosine_similarity(counts), 1).max() < NEAR
    assert len(choose([best[0], best[0]], np.ones(2), 40, seed=0)) == 1  # the other is like it


def test_labelled_pairs_are_left_out_in_either_order(made, tmp_path, caplog):
    caplog.set_level("INFO")
    labelled = write_rows(tmp_path / "train.tsv", [(b, f" {a}！", 1) for a, b in PAIRS[:290]])
    rows = rows_of(made, tmp_path, labelled_files=str(labelled), rows=30)
    assert {texts_of(row) for row in rows} <= {*PAIRS[290:]} and len(rows) == 10
    assert "left out: 290 labelled, 0 repeated pairs" in caplog.text
    with pytest.raises(InputError, match="every pair is in labelled_files; give others"):
        rows_of(made, tmp_path, "none.jsonl", labelled_files=f"{made}/pairs.tsv")


def log_of(path, pairs, **more):
    start = {"time": "2026-11-30T08:15:02.123+00:00", "endpoint": "/predict", "model": "f" * 64}
    lines = [{**start, "texts": pair, "characters": [1, 1], "scores": [0.5, 0.5], **more} for pair in pairs]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


def test_a_log_of_requests_is_read(made, tmp_path, caplog):
    log_of(tmp_path / "log.1", PAIRS[:150])
    found = rows_of(made, tmp_path, input_file=log_of(tmp_path / "log", PAIRS[150:]))
    assert found == rows_of(made, tmp_path, "table.jsonl")
    assert "answers of the model ffffffffffff, not of this one, are scored again" in caplog.text
    hashed = log_of(tmp_path / "hashed", PAIRS, texts=None, sha256=["0" * 64] * 2)
    for log, fault in ((hashed, "hashes"), (log_of(tmp_path / "query", ["一"]), "no pairs")):
        with pytest.raises(InputError, match=f"the log holds {fault}.*; serve with log_requests"):
            rows_of(made, tmp_path, "none.jsonl", input_file=log)


def test_the_tasks_of_labelling_tools(made, tmp_path):
    table = [{name: row[name] for name in COLUMNS} for row in rows_of(made, tmp_path)]
    tasks = rows_of(made, tmp_path, "tasks.json", format="label_studio")
    assert tasks == [{"data": row} for row in table]
    page = ElementTree.parse(tmp_path / "tasks.xml").getroot()
    assert [one.get("value") for one in page.iter()] == [None, "$text_a", "$text_b", None, "0", "1"]
    lines = rows_of(made, tmp_path, "tasks.jsonl", format="doccano")
    assert lines == [{"text": "\n".join(texts_of(row)), **row, "label": []} for row in table]


@pytest.mark.parametrize("flags, fault", [
    ({"format": "doccano", "name": "asked.xlsx"}, "tasks of doccano are .jsonl; use that ending"),
    ({"format": "doccano", "annotators": 2}, "annotators needs format"),
    ({"model": "third", "other_model_path": "model"}, "model lacks the classes 0, 1, 2; give its twin"),
    ({"model": "scores"}, "is a model for regression, and select takes those with classes"),
])  # fmt: skip
def test_bad_flags(made, tmp_path, monkeypatch, flags, fault):
    monkeypatch.chdir(made)
    with pytest.raises(InputError, match=fault):
        rows_of(made, tmp_path, **flags)


@pytest.mark.parametrize("seed", range(20))
def test_kappa_of_two_is_that_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 1 + seed % 3, (rng.integers(2, 30), 2))
    found = measure_agreement(np.concatenate([table, [[0, -1]]]), 3)  # a pair with one label says nothing
    assert found["kind"] == "Cohen" and found["agreement"] == np.mean(table[:, 0] == table[:, 1])
    is_one = len({*table.ravel().tolist()}) == 1
    assert found["kappa"] == (None if is_one else pytest.approx(cohen_kappa_score(*table.T), abs=1e-12))


def test_kappa_of_more_is_that_of_a_worked_example():
    """10 subjects, 14 raters, 5 categories: https://en.wikipedia.org/wiki/Fleiss%27_kappa#Worked_example."""
    counts = """0 0 0 0 14  0 2 6 4 2  0 0 3 5 6  0 3 9 2 0  2 2 8 1 1
                7 7 0 0 0  3 2 6 3 0  2 5 3 2 2  6 5 2 1 0  0 2 2 3 7"""
    rows = np.array(counts.split(), dtype=int).reshape(10, 5)
    found = measure_agreement(np.array([np.repeat(np.arange(5), row) for row in rows]), 5)
    assert found["kind"] == "Fleiss"
    assert [found["kappa"], found["agreement"]] == pytest.approx([0.2099, 0.378], abs=1e-3)


def table_of(path, change=lambda rows: None, **columns):
    """A table as select writes it, with the labels ``columns``: {name: one for each row}."""
    rows = [[id_of(pair), *pair, "0.5", "", *more] for pair, *more in zip(SIX, *columns.values())]
    rows.insert(0, [*COLUMNS, *columns])
    change(rows)
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def audit(tmp_path, *files, **flags):
    flags |= {"output_file": f"{tmp_path}/kept.tsv", "conflicts_file": f"{tmp_path}/unlike.jsonl"}
    asked = table_of(tmp_path / "asked.tsv", label=" " * 6)
    found = audit_labels(asked=asked, label_file=",".join(files), overwrite=True, **flags)
    kept = read_pairs(tmp_path / "kept.tsv", 2)
    lines = (tmp_path / "unlike.jsonl").read_text(encoding="utf-8").splitlines()
    return found, dict(zip(zip(kept.left, kept.right), kept.labels.tolist())), list(map(json.loads, lines))


@pytest.mark.parametrize("rule, of_two", [("majority", "1 "), ("unanimous", "  "), ("first", "11")])
def test_a_label_of_several(tmp_path, rule, of_two):
    labels = {"label_1": "是是否是 否", "label_2": "是否 否 否", "label_3": "是是否   "}
    found, kept, unlike = audit(tmp_path, table_of(tmp_path / "filled.tsv", **labels), rule=rule)
    wanted = ["1", of_two[0].strip(), "0", of_two[1].strip(), "", "0"]
    assert kept == {pair: int(label) for pair, label in zip(SIX, wanted) if label}
    counts = [found[name] for name in ("asked", "labelled", "unfilled", "conflicts", "left_out")]
    assert counts == [6, len(kept), 1, 2, 5 - len(kept)]
    assert [[*one.values()][3:] for one in unlike] == [["1", "0", "1", wanted[1]], ["1", "0", "", wanted[3]]]
    assert found["agreement"] == pytest.approx((1 + 1 / 3 + 1 + 0 + 1) / 5) and found["kind"] == "Fleiss"


def test_files_of_annotators_and_one_label_alone(tmp_path, capsys):
    files = [table_of(tmp_path / f"{n}.tsv", label=cells) for n, cells in enumerate(("111111", "11 110"))]
    found, kept, _ = audit(tmp_path, *files, verbose=True)
    assert found["annotators"] == files and found["one_label_only"] == files[:1]
    assert found["kappa"] == 0 and len(kept) == 5  # as of scikit-learn
    shown = capsys.readouterr().out
    assert "asked: 6, labelled: 5, unfilled: 0, conflicts: 1, left out: 1" in shown
    assert "agreement: 80.0 %, Cohen's kappa: 0.0000" in shown and "0.tsv gave one label only" in shown
    same = table_of(tmp_path / "2.tsv", label="11111 ")
    assert audit(tmp_path, files[0], same, verbose=True)[0]["kappa"] is None
    assert "kappa: undefined, for all labels are the same" in capsys.readouterr().out


@pytest.mark.parametrize("change, fault", [
    (lambda rows: rows.append(["p0", "新", "的", "1", "", "1"]), ":8: never asked, by id and by texts"),
    (lambda rows: rows[2].__setitem__(1, "改过"), ":3: the texts were edited; put back"),
    (lambda rows: rows[3].__setitem__(5, "maybe"), ":4: label maybe is not one of 0, 1; "),
    (lambda rows: rows.append([*rows[1][:5], "1"]), "filled.tsv; keep one"),
    (lambda rows: [row.__setitem__(5, "") for row in rows[1:]], "no row has a label"),
    (lambda rows: rows[0].__setitem__(1, "texte"), ":2: no text_a and text_b; give"),
])  # fmt: skip
def test_what_was_not_asked_like_this_is_refused(tmp_path, change, fault):
    with pytest.raises(InputError) as error:
        audit(tmp_path, table_of(tmp_path / "filled.tsv", change, label="010101"))
    assert fault in str(error.value) and "\n" not in str(error.value)


def test_what_labelling_tools_export(tmp_path):
    """As Label Studio and doccano export the tasks that select wrote: with more keys, labels in lists."""

    def by(who, label, **more):
        value = {"value": {"choices": [label]}, "from_name": "label", "to_name": "text_a", "type": "choices"}
        return {"id": 9, "completed_by": who, "result": [value], "was_cancelled": False, **more}

    data = [{"pair_id": id_of((a, b)), "text_a": f"{a} ", "text_b": b} for a, b in SIX]
    tasks = [{"id": n, "data": one, "annotations": [by(1, str(n % 2)), by({"email": "b"}, str(n // 5))]}
             for n, one in enumerate(data)]  # fmt: skip
    tasks[0]["annotations"] += [by(1, "1", was_cancelled=True), {"completed_by": 1, "result": []}]
    path = tmp_path / "export.json"
    path.write_text(json.dumps(tasks, indent=1), encoding="utf-8")
    found, kept, unlike = audit(tmp_path, str(path))
    assert found["annotators"] == ["1", "b"] and len(unlike) == 2 and [*kept.values()] == [0, 0, 0, 1]
    tasks[2]["annotations"] = [{"completed_by": 1}]
    path.write_text(json.dumps(tasks), encoding="utf-8")
    with pytest.raises(InputError, match="export.json:3: annotations unlike those of Label Studio"):
        audit(tmp_path, str(path))
    lines = [{"text": "\n".join(pair), "text_a": pair[0], "text_b": pair[1], "label": ["same"] * (n % 2)}
             for n, pair in enumerate(SIX)]  # fmt: skip  # its own id is none of ours
    path.write_text("".join(json.dumps({"id": 7, **one}) + "\n" for one in lines), encoding="utf-8")
    found, kept, _ = audit(tmp_path, str(path))
    assert [*kept] == list(SIX[1::2]) and {*kept.values()} == {1} and found["unfilled"] == 3


def test_from_select_to_a_file_that_train_reads(made, tmp_path):
    asked, filled = f"{tmp_path}/asked.xlsx", f"{tmp_path}/filled.xlsx"
    flags = {"model_path": f"{made}/model", "input_file": f"{made}/pairs.tsv", "rows": 12}
    select(**flags, annotators=2, output_file=asked)
    book = load_workbook(asked)
    for number, row in enumerate(list(book.active)[1:]):
        row[5].value, row[6].value = number % 2, "否是"[number % 2] if number != 4 else "是"
    book.save(filled)
    found = audit_labels(asked=asked, label_file=filled, output_file=f"{tmp_path}/new.tsv")
    assert (found["labelled"], found["conflicts"], found["annotators"]) == (11, 1, ["label_1", "label_2"])
    kept = read_pairs(tmp_path / "new.tsv", 2)
    assert kept.labels.tolist() == [n % 2 for n in range(12) if n != 4]
