"""What an index finds of questions whose answers are known; and what rides along with its texts."""

import json

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, ndcg_score
from tiny_search import HashEmbedder, texts_of, use_embedder

from ernie_pair import PairSearcher, evaluate, index, search
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.retrieval import evaluate_search as evaluating
from ernie_pair.retrieval.evaluate_search import METRICS, EvaluateSearchConfig, evaluate_search, values_of
from ernie_pair.retrieval.index_folder import Answering, keep_measured, open_index_folder
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
        values = values_of(dict.fromkeys(answers, 1.0), found)
        ranks = [place for place, name in enumerate(found, start=1) if name in answers] or [np.inf]
        expected = [
            min(ranks) <= 1,
            min(ranks) <= 10,
            *(sum(r <= k for r in ranks) / len(answers) for k in (1, 10)),
        ]
        scores = [30 - found.index(name) if name in found else -1 for name in range(30)]
        ndcg = ndcg_score([[name in answers for name in range(30)]], [scores], k=10)
        np.testing.assert_allclose(values[:6], [*expected, 1 / min(ranks), ndcg], atol=1e-9)
    assert values_of({"a": 1.0, "b": 1.0}, []) == [0] * len(METRICS)


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
    keep_measured(made, "it finds them")
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


def test_map_is_that_of_scikit_learn():
    rng = np.random.default_rng(1)
    for _ in range(20):
        found = rng.permutation(30).tolist()
        answers = rng.choice(30, rng.integers(1, 9), replace=False).tolist()
        scores = [-found.index(name) for name in range(30)]
        wanted = average_precision_score([name in answers for name in range(30)], scores)
        assert values_of(dict.fromkeys(answers, 1.0), found)[METRICS.index("map")] == pytest.approx(wanted)


WORDS = "开户 还款 销户 挂失 转账 额度 账单 积分 分期 密码".split()


@pytest.fixture
def asked(tmp_path):
    """An index of 200 texts, 160 questions near theirs of which some lack half, and 40 without an answer."""
    rng = np.random.default_rng(5)
    texts = ["".join(rng.choice(WORDS, 4)) + f"{n:03d}" for n in range(200)]
    (tmp_path / "faq.tsv").write_text(
        "id\ttext\n" + "".join(f"t{n}\t{text}\n" for n, text in enumerate(texts)), encoding="utf-8"
    )
    rows = [
        (f"请问{text[:4] if n % 4 == 0 else text}{chr(0x4E00 + n)}", f"t{n}")
        for n, text in enumerate(texts[:160])
    ]
    rows += [("".join(rng.choice(WORDS, 2)) + chr(0x5E00 + n), "") for n in range(40)]
    made = index(input_file=str(tmp_path / "faq.tsv"), retrieval="bm25", output_dir=str(tmp_path / "index"))
    return made, questions(tmp_path, rows), rows


def test_a_threshold_is_measured_saved_and_obeyed(tmp_path, asked):
    made, path, rows = asked
    searcher = PairSearcher(made)
    best = [(hits[0].score, hits[0].id) if hits else (-np.inf, "") for hits in
            searcher.search_many([text for text, _ in rows], 1)]  # fmt: skip
    found = evaluate(index=str(made), input_file=path, at_precision=0.9, save_threshold=True)
    told = found["stages"]["bm25"]["answering"]
    scores, right = (
        np.array([score for score, _ in best]),
        np.array([b[1] == r[1] for b, r in zip(best, rows)]),
    )
    answered = scores >= told["threshold"]
    assert found["questions"] == 200 and found["unanswerable"] == 40 and told["reached"]
    assert told["precision"] == right[answered].mean() >= 0.9 and 0 < told["coverage"] == answered.mean() < 1
    assert told["interval"][0] < told["precision"] < told["interval"][1]
    lower = sorted({score for score in scores if np.isfinite(score)})
    for threshold in [one for one in lower if one < told["threshold"]]:  # none below reaches it
        assert right[scores >= threshold].mean() < 0.9
    assert list(told["coverage_at"].values()) == sorted(told["coverage_at"].values(), reverse=True)
    obeyed = list(PairSearcher(made).search_many([text for text, _ in rows], 1))
    assert [bool(hits) for hits in obeyed] == answered.tolist()
    chances = np.array([hits[0].probability for hits in obeyed if hits])
    assert abs(chances.mean() - right[answered].mean()) < 0.1 and (np.diff(chances) != 0).any()
    assert all(PairSearcher(made, threshold=0.0).search_many([rows[0][0]], 1))  # otherwise: keep all
    output = tmp_path / "found.jsonl"
    (tmp_path / "asked.txt").write_text(f"{rows[1][0]}\n{rows[answered.argmin()][0]}\n", encoding="utf-8")
    search(index=str(made), input_file=str(tmp_path / "asked.txt"), output_file=str(output), top_k=1)
    said = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [one["answered"] for one in said] == [True, False] and said[0]["hits"][0]["probability"] > 0.5
    assert read_hits(output)[0] == [
        hit._replace(
            score=round(hit.score, 6), bm25=round(hit.bm25, 6), probability=round(hit.probability, 6)
        )
        for hit in obeyed[1]
    ]
    table = output.with_suffix(".tsv")
    search(index=str(made), input_file=str(tmp_path / "asked.txt"), output_file=str(table), top_k=1)
    assert read_hits(table) == read_hits(output)


def test_what_was_measured_stays_with_an_index_that_grows(tmp_path, asked, caplog):
    made, path, _ = asked
    keep_measured(made, "it finds them")
    evaluate(index=str(made), input_file=path, at_precision=0.8, save_threshold=True)
    (tmp_path / "more.tsv").write_text("id\ttext\nnew\t全新的问题\n", encoding="utf-8")
    index(input_file=str(tmp_path / "more.tsv"), add=True, output_dir=str(made))
    (tmp_path / "gone.tsv").write_text("id\nt0\n", encoding="utf-8")
    index(delete=str(tmp_path / "gone.tsv"), output_dir=str(made))  # as many texts as before
    with caplog.at_level("INFO"):
        searcher = PairSearcher(made)
    assert searcher.texts.verdict == "it finds them" and searcher.texts.answering.questions == 200
    assert "before the index was changed; measure again" in caplog.text


def test_a_way_that_has_no_threshold_any_more_is_named(asked, monkeypatch, capsys):
    made, path, _ = asked
    measure = evaluating._measure

    def measure_two(config):
        found = measure(config)
        (stage,) = found["stages"].values()
        failed = {**stage, "answering": {**stage["answering"], "reached": False}}
        return {**found, "stages": {"vectors": failed, "bm25": stage}}

    config = EvaluateSearchConfig(index=str(made), input_file=path, at_precision=0.8, save_threshold=True)
    evaluate_search(config)
    assert "without a threshold" not in capsys.readouterr().out
    monkeypatch.setattr(evaluating, "_measure", measure_two)
    evaluate_search(config)
    assert "without a threshold now: vectors; they answer everything" in capsys.readouterr().out


def test_a_precision_that_no_score_reaches_saves_nothing(tmp_path, made):
    path = questions(tmp_path, [("怎么开户", "b"), ("如何还款", "a")])
    with pytest.raises(InputError, match="no way of searching reaches precision 0.95 .* nothing was saved"):
        evaluate(index=str(made), input_file=path, save_threshold=True)
    assert not (made / "measured.json").exists()


@pytest.mark.parametrize("change, said", [
    ({"fingerprint": "f" * 64}, "thresholds of another index"), ({"threshold": "x"}, "is damaged"),
    ({"more": 1}, "is damaged"), ({"interval": [1]}, "is damaged"),
])  # fmt: skip
def test_a_threshold_of_another_index_is_refused(asked, change, said):
    made, path, _ = asked
    evaluate(index=str(made), input_file=path, at_precision=0.8, save_threshold=True)
    content = json.loads((made / "measured.json").read_text())
    content["thresholds"][0].update(change)
    (made / "measured.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=said) as caught:
        PairSearcher(made)
    assert "\n" not in str(caught.value)


def test_grades_gain_as_in_scikit_learn():
    rng = np.random.default_rng(2)
    for _ in range(20):
        found, grades = rng.permutation(30).tolist(), rng.integers(0, 4, 30)
        answers = {name: float(grade) for name, grade in enumerate(grades) if grade}
        ndcg = ndcg_score([grades], [[-found.index(name) for name in range(30)]], k=10)
        assert values_of(answers, found)[METRICS.index("ndcg@10")] == pytest.approx(ndcg)


JUDGED = {
    "trec": ("q1 0 c 2\nq1 0 b 1\nq2 0 a 1\nq3 0 b 0\n", "q1\t花呗还款怎么弄\nq2\t开户要带什么\nq3\t无关\n"),
    "beir": ("query-id\tcorpus-id\tscore\nq1\tc\t2\nq1\tb\t1\nq2\ta\t1\nq3\tb\t0\n",
             "q1\t花呗还款怎么弄\nq2\t开户要带什么\nq3\t无关\n"),
}  # fmt: skip


@pytest.mark.parametrize("kind", JUDGED)
def test_judgements_of_others_are_read(tmp_path, made, kind):
    judged, queries = JUDGED[kind]
    (tmp_path / "qrels.tsv").write_text(judged, encoding="utf-8")
    (tmp_path / "queries.tsv").write_text(queries, encoding="utf-8")
    flags = {"index": str(made), "input_file": str(tmp_path / "queries.tsv")}
    found = evaluate(**flags, relevant=str(tmp_path / "qrels.tsv"))
    plain = evaluate(index=str(made), input_file=questions(tmp_path, [("花呗还款怎么弄", "c"),
        ("花呗还款怎么弄", "b"), ("开户要带什么", "a"), ("无关", "")]))  # fmt: skip
    assert found["questions"] == 3 and found["unanswerable"] == 1
    assert found["stages"]["bm25"]["map"] == plain["stages"]["bm25"]["map"]
    cases = [
        ("q1 0 c 1\nq9 0 a 1\n", r"queries.tsv:2: .*qrels.tsv judges no text for the query \"q2\""),
        (judged + "q1 0 zzz 1\n", r"qrels.tsv:\d: .* has no text with the id \"zzz\""),
        (judged + "q9 0 a 1\n", r'has no query with the id "q9"'),
        (judged + "q1 0 c 1\n", "are judged twice; keep one line"),
        (judged + "q1 0 a inf\n", r"qrels.tsv:\d: not QUERY 0 TEXT GRADE"),
        (judged + "q1 c\n", r"qrels.tsv:\d: not QUERY 0 TEXT GRADE"),
    ]
    for content, said in cases:
        (tmp_path / "qrels.tsv").write_text(content, encoding="utf-8")
        with pytest.raises(InputError, match=said) as caught:
            evaluate(**flags, relevant=str(tmp_path / "qrels.tsv"))
        assert "\n" not in str(caught.value)


def test_an_id_of_beir_may_hold_spaces(tmp_path):
    (tmp_path / "faq.tsv").write_text("id\ttext\na b\t怎么开户\nb\t如何还款\n", encoding="utf-8")
    made = index(input_file=str(tmp_path / "faq.tsv"), retrieval="bm25", output_dir=str(tmp_path / "index"))
    (tmp_path / "queries.tsv").write_text("id\ttext\nq 1\t怎么开户\n", encoding="utf-8")
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq 1\ta b\t1\n", encoding="utf-8")
    flags = {"input_file": str(tmp_path / "queries.tsv"), "relevant": str(tmp_path / "qrels.tsv")}
    assert evaluate(index=str(made), **flags)["stages"]["bm25"]["hit@1"] == 1


def test_positives_of_flag_embedding_are_read(tmp_path, made):
    path = tmp_path / "asked.jsonl"
    rows = [{"query": "花呗还款怎么弄", "pos": ["花呗怎么还款", "如何还款"], "neg": ["怎么开户"]}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    found = evaluate(index=str(made), input_file=str(path))
    assert found["questions"] == 1 and found["stages"]["bm25"]["recall@10"] == 1
    path.write_text(json.dumps({**rows[0], "pos": ["别的"]}) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"asked.jsonl:1: .*faq.index has no text \"别的\""):
        evaluate(index=str(made), input_file=str(path))


def test_a_threshold_is_saved_by_the_same_command_again(tmp_path, asked):
    made, path, _ = asked
    flags = {"at_precision": 0.8, "save_threshold": True, "output_file": str(tmp_path / "found.json")}
    found = evaluate(index=str(made), input_file=path, **flags)
    (made / "measured.json").unlink()
    assert evaluate(index=str(made), input_file=path, **flags) == found
    assert (made / "measured.json").exists()


def test_a_threshold_of_another_way_of_searching_stays(tmp_path, asked):
    made, path, _ = asked
    other = {"retrieval": "bm25", "reranker": "a" * 64, "fingerprint": "", "threshold": 0.5, "asked": 0.9,
             "precision": 0.9, "interval": [0.8, 0.95], "coverage": 0.5, "questions": 10,
             "index_sha256": "b" * 64, "recall_k": 50, "slope": 0.0, "intercept": 0.0}  # fmt: skip
    keep_measured(made, answering=[Answering(**other)], measured=[("bm25", "a" * 64)])
    evaluate(index=str(made), input_file=path, at_precision=0.8, save_threshold=True)
    assert [one.reranker for one in open_index_folder(made).answering] == ["a" * 64, ""]
    keep_measured(made, measured=[("bm25", "")])
    assert [one.reranker for one in open_index_folder(made).answering] == ["a" * 64]


def test_an_index_that_changes_meanwhile_gets_no_threshold(tmp_path, asked, monkeypatch):
    made, path, _ = asked
    measure = evaluating._measure

    def measure_and_change(config):
        found = measure(config)
        (tmp_path / "gone.tsv").write_text("id\nt0\n")
        index(delete=str(tmp_path / "gone.tsv"), output_dir=str(made))
        return found

    monkeypatch.setattr(evaluating, "_measure", measure_and_change)
    with pytest.raises(InputError, match="was changed since it was measured, and nothing was saved"):
        evaluate(index=str(made), input_file=path, at_precision=0.8, save_threshold=True)
    assert not (made / "measured.json").exists()


def test_the_lowest_score_measured_is_the_lowest_answer():
    stage = evaluating.Stage(
        np.zeros((3, 7)), np.array([0.91, 0.95, -0.2]), np.array([True] * 3), [""] * 3, 1.0
    )
    found = evaluating._threshold_of(stage, 0.9)
    assert found["threshold"] == pytest.approx(-0.2, abs=2e-6) and found["threshold"] < -0.2
    assert found["coverage"] == 1 and found["interval"] == pytest.approx([0.292402, 1.0], abs=1e-6)


def test_a_new_threshold_is_another_answer(tmp_path, asked):
    made, path, rows = asked
    (tmp_path / "asked.txt").write_text("".join(f"{text}\n" for text, _ in rows), encoding="utf-8")
    flags = {
        "index": str(made),
        "input_file": str(tmp_path / "asked.txt"),
        "output_file": str(tmp_path / "o.jsonl"),
    }
    search(**flags)
    evaluate(index=str(made), input_file=path, at_precision=0.95, save_threshold=True)
    with pytest.raises(InputError, match="exists; pass overwrite=True"):
        search(**flags)


def test_a_fused_rank_has_its_threshold_for_the_same_texts(tmp_path, monkeypatch):
    use_embedder(monkeypatch, HashEmbedder())
    monkeypatch.setattr(evaluating, "open_embedder", lambda *given: HashEmbedder())
    texts = texts_of(60)
    rows = "".join(f"t{n}\t{text}\tc{n % 2}\n" for n, text in enumerate(texts))
    (tmp_path / "faq.tsv").write_text(f"id\ttext\tkind\n{rows}", encoding="utf-8")
    made = index(input_file=str(tmp_path / "faq.tsv"), embedding_model="any", retrieval="both",
                 payload_columns="kind", output_dir=str(tmp_path / "index"))  # fmt: skip
    path = questions(tmp_path, [(text, f"t{n}") for n, text in enumerate(texts)])
    evaluate(index=str(made), embedding_model="any", input_file=path, save_threshold=True)
    searcher = PairSearcher(made, "any")
    assert searcher.texts.answering_of({}, 10) is not None
    assert searcher.texts.answering_of({"kind": "c1"}, 10) is None
    assert searcher.texts.answering_of({}, 51) is None
    assert PairSearcher(made, "any", retrieval="vectors").texts.answering_of({"kind": "c1"}, 99) is not None
