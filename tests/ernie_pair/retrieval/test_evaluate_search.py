"""What an index finds of questions whose answers are known; and what rides along with its texts."""

import json

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from ernie_pair import PairSearcher, evaluate, index, search
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.retrieval.evaluate_search import METRICS, values_of
from ernie_pair.retrieval.index_folder import keep_verdict
from ernie_pair.retrieval.search_texts import read_hits

TEXTS = "id,问题,答案,分类\na,怎么开户,带身份证,账户\nb,如何还款,点还款,\nc,花呗怎么还款,打开支付宝,还款\n"


@pytest.fixture
def made(tmp_path):
    (tmp_path / "faq.csv").write_text(TEXTS, encoding="utf-8")
    return index(
        input_file=str(tmp_path / "faq.csv"), retrieval="bm25", text_column="问题",
        payload_columns="答案, 分类", output_dir=str(tmp_path / "faq.index"),
    )  # fmt: skip


def questions(tmp_path, rows):
    path = tmp_path / "questions.tsv"
    path.write_text("question\tid\n" + "".join(f"{text}\t{name}\n" for text, name in rows), encoding="utf-8")
    return str(path)


def test_the_measures_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    for _ in range(40):
        names = rng.permutation(30).tolist()
        answers, found = names[: rng.integers(1, 13)], rng.permutation(30)[: rng.integers(10, 31)].tolist()
        values = values_of(answers, found)
        ranks = [place for place, name in enumerate(found, start=1) if name in answers] or [np.inf]
        expected = [
            min(ranks) <= 1,
            min(ranks) <= 10,
            *(sum(r <= k for r in ranks) / len(answers) for k in (1, 10)),
        ]
        scores = [30 - found.index(name) if name in found else -1 for name in range(30)]
        ndcg = ndcg_score([[name in answers for name in range(30)]], [scores], k=10)
        np.testing.assert_allclose(values, [*expected, 1 / min(ranks), ndcg], atol=1e-9)
    assert values_of(["a", "b"], []) == [0, 0, 0, 0, 0, 0]


def test_stages_are_measured_with_intervals(tmp_path, made):
    rows = [("花呗还款怎么弄", "c"), ("花呗还款怎么弄", "b"), ("开户要带什么", "a"), ("完全无关", "b")]
    path, output = questions(tmp_path, rows), tmp_path / "found.json"
    found = evaluate(index=str(made), input_file=path, output_file=str(output))
    assert found == json.loads(output.read_text(encoding="utf-8"))
    stage = found["stages"]["bm25"]
    assert found["questions"] == 3 and found["best"] == "bm25"
    assert stage["hit@1"] == stage["hit@10"] == stage["mrr"] == pytest.approx(2 / 3, abs=1e-5)
    assert stage["recall@1"] == 0.5 and stage["gain"] == [0, 0, 0]
    assert all(stage["intervals"][name][0] <= stage[name] <= stage["intervals"][name][1] for name in METRICS)
    assert stage["lost"] == [{"question": "完全无关", "answers": ["b"], "found": ""}]


@pytest.mark.parametrize(
    "rows, said", [([("怎么开户", "z")], ":2: .* has no text with the id"), ([], "no question|no column")]
)
def test_what_cannot_be_measured_is_refused(tmp_path, made, rows, said):
    with pytest.raises(InputError, match=said):
        evaluate(index=str(made), input_file=questions(tmp_path, rows))


def test_columns_ride_along(tmp_path, made):
    hit = PairSearcher(made).search("花呗怎么还款")[0]
    assert hit.payload == {"答案": "打开支付宝", "分类": "还款"}
    assert hit.content(4)["payload"] == hit.payload
    (tmp_path / "asked.txt").write_text("如何还款\n无关\n", encoding="utf-8")
    both = []
    for name in ("found.jsonl", "found.csv"):
        output = tmp_path / name
        search(index=str(made), input_file=str(tmp_path / "asked.txt"), output_file=str(output))
        both.append(read_hits(output))
    assert both[0] == both[1] and both[0][0][0].payload == {"答案": "点还款"} and not both[0][1]


@pytest.mark.parametrize("columns, answer", [
    ("topic,answer", "answer"), ("topic,answer=说明", "说明"), ("answer,answer=说明", "说明"), ("topic", ""),
])  # fmt: skip
def test_of_texts_with_the_same_answer_the_best_is_found(tmp_path, columns, answer):
    rows = [f"t{n}\t怎么办{'呢' * (n % 8)}{n}\t柜台\t答案{n // 8}\t答案{n // 8}\n" for n in range(160)]
    for name, more in (("faq.tsv", rows), ("more.tsv", ["none\t怎么办\t柜台\t\t\n"])):
        (tmp_path / name).write_text("id\ttext\ttopic\tanswer\t说明\n" + "".join(more), encoding="utf-8")
    flags = {"input_file": str(tmp_path / "faq.tsv"), "output_dir": str(tmp_path / "index")}
    made = index(**flags, retrieval="bm25", payload_columns=columns)
    keep_verdict(made, "it finds them")
    index(**{**flags, "input_file": str(tmp_path / "more.tsv")}, add=True)
    searcher = PairSearcher(made, recall_k=10)
    assert searcher.texts.verdict == "it finds them"
    hits = searcher.search("怎么办呢", top_k=15)
    num_answers = len({hit.payload.get(answer, hit.id) for hit in hits})
    assert len(hits) == 15 and (num_answers == 15 if answer else hits[0].payload == {"topic": "柜台"})
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert len(searcher.search("怎么办呢", top_k=200)) == (21 if answer else 161)
    found = evaluate(index=str(made), input_file=questions(tmp_path, [("怎么办呢", "t0")]))
    assert found["stages"]["bm25"]["hit@10"] == float(bool(answer))


def test_columns_called_as_those_of_an_answer_are_told_apart(tmp_path):
    (tmp_path / "faq.csv").write_text("问题,text,score\n怎么开户,甲,1.5\n", encoding="utf-8")
    made = index(
        input_file=str(tmp_path / "faq.csv"), retrieval="bm25", text_column="问题",
        payload_columns="text,score", output_dir=str(tmp_path / "index"),
    )  # fmt: skip
    (tmp_path / "asked.txt").write_text("开户\n", encoding="utf-8")
    output = tmp_path / "found.csv"
    search(index=str(made), input_file=str(tmp_path / "asked.txt"), output_file=str(output))
    assert "payload_text,payload_score" in output.read_text(encoding="utf-8")
    assert read_hits(output)[0][0].payload == {"text": "甲", "score": "1.5"}


def test_added_texts_bring_theirs(tmp_path, made):
    (tmp_path / "more.csv").write_text("id,问题,答案,分类\nd,办卡要什么,身份证,账户\n", encoding="utf-8")
    index(input_file=str(tmp_path / "more.csv"), text_column="问题", output_dir=str(made), add=True)
    assert PairSearcher(made).search("办卡")[0].payload == {"答案": "身份证", "分类": "账户"}
    (tmp_path / "less.csv").write_text("id,问题\ne,改密码\n", encoding="utf-8")
    with pytest.raises(InputError, match="no column '答案'"):
        index(input_file=str(tmp_path / "less.csv"), text_column="问题", output_dir=str(made), add=True)


def test_a_payload_that_is_damaged_is_refused(made):
    manifest = json.loads((made / "index.json").read_text(encoding="utf-8"))
    (made / "payload.utf8").write_bytes(b"x" * (made / "payload.utf8").stat().st_size)
    with pytest.raises(CheckpointError, match="payload.utf8 is not the file"):
        PairSearcher(made)
    manifest["files"]["payload.utf8"] = sha256_of_file(made / "payload.utf8")
    (made / "index.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(CheckpointError, match="payload of text 1 is damaged"):
        PairSearcher(made).search("如何还款", top_k=1)
