"""Questions and answers as people have them, and the search that a pipeline makes of them."""

import json

import openpyxl
import pytest

from data_tools.text.text_files import Place
from ernie_pair import PairSearcher, pipeline
from ernie_pair.checks.faq import MIN_ENTRIES, SearchSteps, read_faq
from ernie_pair.checks.pipeline import Plan
from ernie_pair.checks.pipeline_inputs import PipelineConfig, inspect_inputs
from ernie_pair.core.errors import InputError
from ernie_pair.retrieval.build_index import IndexConfig, make_index
from ernie_pair.retrieval.index_folder import BM25, BOTH, open_index_folder

# {name of the file: (its first lines, {row: number and kind})}; N is replaced in rows that follow
SHAPES = {
    "question and answer": ("问题,答案\n", "问题{n}怎么办,答案{n}\n", 1),
    "two texts without a header": ("", "问题{n}怎么办呢,这是第{n}个问题的答案\n", 1),
    "variants of one answer": ("question,answer\n", "怎么办{n},答案{n}\n怎么做{n},答案{n}\n", 2),
    "variant and standard question": ("相似问,标准问\n", "怎么办{n},标准问题{n}\n怎么做{n},标准问题{n}\n", 3),
    "with the answer beside": ("标准问,相似问,答案\n", "标准{n},怎么办{n},答案{n}\n标准{n},怎么做{n},\n", 3),
    "the standard question above": ("标准问,相似问,答案\n", "标准{n},怎么办{n},答案{n}\n,怎么做{n},\n", 3),
    "several in a cell": ("标准问,相似问,答案\n", '标准{n},"怎么办{n}\n怎么做{n}",答案{n}\n', 3),
    "standard questions and answers alone": ("标准问,答案\n", "标准{n},答案{n}\n", 1),
    "rows without an id": ("序号,问题,答案\n", "{n},怎么办{n},答案{n}\n,怎么做{n},答案{n}\n", 2),
    "columns of variants": ("问题,标准答案,相似问1,相似问2\n", "问题{n},答案{n},怎么办{n},怎么做{n}\n", 3),
    "variants of a standard question": ("标准问,相似问1,相似问2\n", "标准{n},怎么办{n},怎么做{n}\n", 3),
    "names with colons": ("Q：,A：\n", "怎么办{n},答案{n}\n", 1),
}


def faq_of(tmp_path, head, row, count=MIN_ENTRIES, name="faq.csv"):
    path = tmp_path / name
    path.write_text(head + "".join(row.replace("{n}", str(n)) for n in range(count)), encoding="utf-8")
    return path


@pytest.mark.parametrize("shape", SHAPES)
def test_each_shape_has_its_groups(tmp_path, shape):
    head, row, size = SHAPES[shape]
    faq = read_faq(faq_of(tmp_path, head, row))
    assert [len(each) for each in faq.groups.values()] == [size] * MIN_ENTRIES
    assert len({entry.id for entry in faq.entries}) == len(faq.entries)
    if "答案{" in row:
        assert all(entry.answer == f"答案{entry.group}" for entry in faq.entries)


def test_json_and_named_columns(tmp_path):
    row = '{"ask": "问题{n}", "say": "答案{n}", "note": "说明{n}"}\n'
    path = faq_of(tmp_path, "", row, name="faq.jsonl")
    with pytest.raises(InputError, match="unclear") as refused:
        read_faq(path)
    assert "--faq_columns" in refused.value.message
    faq = read_faq(path, "question=ask,answer=say")
    assert faq.entries[3][1:4] == ("问题3", 3, "答案3")
    with pytest.raises(InputError, match="fix answer of faq_columns"):
        read_faq(path, "question=ask,answer=sey")
    with pytest.raises(InputError, match="names a column twice"):
        read_faq(path, "question=ask,answer=ask")


def test_headers_that_no_one_knows_are_asked_about_and_named(tmp_path, capsys):
    path = faq_of(tmp_path, "客户的提问,我们的答复\n", "怎么办理第{n}项呢,到柜台办理第{n}项\n")
    assert len(read_faq(path).entries) == MIN_ENTRIES + 1
    said = capsys.readouterr().err
    assert "--faq_columns 'question=客户的提问,answer=我们的答复'" in said and "--text_column" not in said
    assert len(read_faq(path, "question=客户的提问,answer=我们的答复").entries) == MIN_ENTRIES
    assert len(read_faq(path, place=Place(header_row=1)).entries) == MIN_ENTRIES
    book = openpyxl.Workbook()
    for line in path.read_text(encoding="utf-8").splitlines():
        book.active.append(line.split(","))
    book.save(tmp_path / "faq.xlsx")
    read_faq(tmp_path / "faq.xlsx")
    assert capsys.readouterr().err.count("read without a header") == 1


def test_ids_of_the_table_are_kept(tmp_path):
    faq = read_faq(faq_of(tmp_path, "id,question,answer\n", "q{n},怎么办{n},答案{n}\n"))
    assert [entry.id for entry in faq.entries[:2]] == ["q0", "q1"]


def test_a_standard_question_without_a_variant_is_one(tmp_path):
    faq = read_faq(faq_of(tmp_path, "标准问,相似问,答案\n", "标准{n},,答案{n}\n别的{n},怎么做{n},说明{n}\n"))
    assert sorted(len(each) for each in faq.groups.values()) == [1] * MIN_ENTRIES + [2] * MIN_ENTRIES


def test_a_changed_file_is_named_before_anything_is_written(tmp_path):
    path = faq_of(tmp_path, *SHAPES["variants of one answer"][:2])
    config = PipelineConfig(output_dir=str(tmp_path / "out"), faq_file=str(path))
    SearchSteps(config, read_faq(path), None, "", 64).split()
    SearchSteps(config, read_faq(path), None, "", 64).check_same()
    path.write_text(path.read_text(encoding="utf-8").replace("怎么办3", "如何办3"), encoding="utf-8")
    with pytest.raises(InputError, match="has changed.*fresh_start=True"):
        SearchSteps(config, read_faq(path), None, "", 64).check_same()


FAULTS = {
    "one column": ("问题\n", "问题{n}怎么办\n", "ernie-pair index --retrieval bm25"),
    "no question": ("问题,答案\n", "问题{n},答案{n}\n,只有答案{n}\n", "rows without a question"),
    "no answer": (
        "问题,答案\n",
        "问题{n},答案{n}\n没有{n},\n",
        "no 答案 in 20 rows: 3, 5, 7, 9, 11 and 15 more",
    ),
    "no answer of a standard question": ("标准问,答案\n", "标准{n},答案{n}\n没有{n},\n", "no 答案"),
    "an error of a sheet": ("问题,答案\n", "问题{n},答案{n}\n没有{n},#N/A\n", "#N/A"),
    "numbers": ("月份,数量\n", "{n},{n}\n", "numbers alone in 1, 2"),
    "prices": ("问题,答案,说明\n", "问题{n},{n},说明{n}\n", "numbers alone in 答案"),
    "a name unknown": ("分类,问题,办法\n", "卡,问题{n}怎么办,到柜台办{n}\n", "'question=问题,answer=办法'"),
    "a list": ("", '{"question": "问题{n}", "answer": ["答案{n}"]}\n', "not a text"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_said_at_once(tmp_path, fault):
    head, row, said = FAULTS[fault]
    path = faq_of(tmp_path, head, row, name="faq.jsonl" if row.startswith("{") else "faq.csv")
    with pytest.raises(InputError) as refused:
        read_faq(path)
    assert said in refused.value.message
    if "answer" in fault or "question" in fault:
        assert "--on_bad_row skip" in refused.value.message
        assert len(read_faq(path, skips=True).entries) == MIN_ENTRIES


@pytest.mark.parametrize("head, where", [
    ("问题,答案\n怎么开户,甲\n怎么开户,乙\n", "2, 3"),
    ("标准问,相似问,答案\n怎么开户,如何开户,甲\n怎么开户,开户流程,乙\n怎么开户,开户,甲\n", "2, 3, 4"),
    ("问题,答案\n" + "".join(f"怎么开户,{n}甲\n" for n in range(9)), "2, 3, 4, 5, 6 and 4 more"),
])  # fmt: skip
def test_answers_that_differ_are_all_kept_and_said(tmp_path, capsys, head, where):
    row = "标准{n},问题{n},答案{n}\n" if "标准问" in head else "问题{n},答案{n}\n"
    faq = read_faq(faq_of(tmp_path, head, row))
    of_one = [entry.answer for entry in faq.entries if "开户" in entry.question]
    assert {"甲", "乙"} <= {*of_one} or len(of_one) == 9
    assert f'"怎么开户" has different answers, in the rows {where}; all' in capsys.readouterr().err


ONE_GROUP = "怎么开户,甲\n如何开户,甲\n开户流程,甲\n"


@pytest.mark.parametrize("head, is_stock, num_learned", [
    (ONE_GROUP, False, 0),
    ("".join(f"{chr(0x4E00 + 9 * n) * 5},人工客服\n" for n in range(12)), True, 0),
    ("".join(f"怎么办第{n}种卡,人工客服\n" for n in range(12)) + ONE_GROUP, False, 11),
])  # fmt: skip
def test_too_few_variants_and_a_stock_answer_are_none(tmp_path, capsys, head, is_stock, num_learned):
    path = faq_of(tmp_path, f"问题,答案\n{head}", "问题{n},答案{n}\n", count=80)
    config = PipelineConfig(output_dir=str(tmp_path / "out"), faq_file=str(path))
    search = SearchSteps(config, read_faq(path), None, "", 64)
    assert ('12 questions have the answer "人工客服"' in capsys.readouterr().err) == is_stock
    assert len(search.learned.get("variants", ())) == num_learned
    assert sum(answer == "人工客服" for _, answer in search.learned["answers"]) == num_learned
    assert bool(search.measuring) == bool(num_learned)
    assert ("too few variants to learn from or to measure" in search.describe()) == (not num_learned)
    assert "), with answers" in search.describe() and search.payload == "答案"


@pytest.mark.parametrize("flags, said", [
    ({}, "give --train_file"),
    ({"faq_file": "faq.csv", "test_file": "test.tsv"}, "--test_file is for labelled pairs"),
    ({"train_file": "pairs.tsv", "faq_columns": "question=a"}, "--faq_columns needs --faq_file"),
    ({"train_file": "pairs.tsv", "faq_file": "faq.xlsx", "header_row": 3}, "are of one table"),
])  # fmt: skip
def test_flags_that_do_not_fit(flags, said):
    with pytest.raises(InputError) as refused:
        PipelineConfig(output_dir="out", **flags)
    assert said in refused.value.message


STAGE = {"hit@1": 0.5, "hit@10": 0.9, "mrr": 0.6, "milliseconds": 1.0, "gain": [0.0, 0.0, 0.0]}
STAGE["intervals"] = {name: [0.4, 0.95] for name in ("hit@1", "hit@10", "mrr")}


@pytest.mark.parametrize("stages, served", [
    ({BM25: {}, BOTH: {"mrr": 0.7, "gain": [0.1, 0.02, 0.2]}}, BOTH),
    ({BM25: {"mrr": 0.8}, BOTH: {"mrr": 0.7, "gain": [-0.1, -0.2, 0.1]}}, BM25),
    ({BM25: {}, BOTH: {"mrr": 0.7, "gain": [0.1, -0.02, 0.2]}}, BM25),  # not clearly better
    ({BM25: {}, "bm25, reranked": {"mrr": 0.7, "gain": [0.1, -0.02, 0.2]}}, BM25),
    ({BM25: {}, "bm25, reranked": {"mrr": 0.7, "gain": [0.1, 0.02, 0.2]}}, "bm25, reranked"),
])  # fmt: skip
def test_what_serves_is_chosen_on_questions_of_its_own(tmp_path, stages, served):
    faq = read_faq(faq_of(tmp_path, *SHAPES["variants of one answer"][:2], count=200))
    config = PipelineConfig(output_dir=str(tmp_path / "out"), faq_file="faq.csv")
    search = SearchSteps(config, faq, None, "out/exported", 64)
    search.split()
    assert len(search.choosing) == len(search.measuring) == 50
    assert not {e.id for e in search.choosing} & {e.id for e in search.measuring}
    content = json.dumps({"questions": 50, "stages": {name: {**STAGE, **s} for name, s in stages.items()}})
    for name in ("choose", "measure"):
        (search.folder / f"{name}.json").write_text(content, encoding="utf-8")
    assert search.way == served
    words = search.serve_words
    assert ("--embedding_model" in words) == (not served.startswith(BM25))
    assert ("--model_path" in words) == served.endswith("reranked")
    assert ("BM25 alone is served" in search.verdict) == (served == BM25)


@pytest.mark.recipes
def test_too_few_variants_to_learn_are_searched_by_bm25(tmp_path):
    path = faq_of(tmp_path, "标准问,相似问\n", "标准问题{n},我想问{n}\n", count=MIN_ENTRIES // 2)
    made = pipeline(faq_file=str(path), output_dir=str(tmp_path / "out"), device="cpu")
    assert made["metrics"]["questions"] == MIN_ENTRIES // 2 and [*made["metrics"]["stages"]] == [BM25]
    assert not (tmp_path / "out" / "encoder").exists() and "--embedding_model" not in made["result"]
    why = "no encoder is trained: besides the 10 variants held out, 0 pairs are there to learn from"
    given = {"faq_file": str(path), "input_path": str(path), "text_column": "标准问"}
    config = PipelineConfig(output_dir=str(tmp_path / "new"), **given)
    lines = Plan(config, inspect_inputs(config)).lines()
    assert any(line.split()[0] == "model" and why in line for line in lines) and why in made["result"]
    assert "text         --input_path" in "".join(lines)
    verdict = open_index_folder(made["index"]).verdict
    assert verdict.startswith("BM25 alone is served: the right answer is first for ") and "95 %" in verdict
    hits = PairSearcher(made["index"]).search("我想问3")
    assert len({hit.payload["标准问"] for hit in hits}) == len(hits) and hits[0].text == "我想问3"
    path.write_text("问题,答案\n" + "".join(f"怎么办{n},柜台\n" for n in range(20)), encoding="utf-8")
    with pytest.raises(InputError, match="all questions have one answer"):
        pipeline(faq_file=str(path), output_dir=str(tmp_path / "other"), device="cpu")


@pytest.mark.recipes
def test_an_faq_is_a_search_that_answers(tmp_path):
    """The whole of it; what was held out is found among what was indexed, and the index has all."""
    rows = "怎么办{n},答案{n}\n怎么做{n},答案{n}\n如何做{n},答案{n}\n如何办{n},答案{n}\n"
    path = faq_of(tmp_path, "问题,答案\n", rows, count=14)
    flags = {"output_dir": str(tmp_path / "out"), "minutes": 0.01, "pretrain": False, "device": "cpu"}
    made = pipeline(faq_file=str(path), **flags)
    assert made["metrics"]["questions"] == 14 and BOTH in made["metrics"]["stages"]
    assert open_index_folder(made["index"]).verdict in made["result"]
    assert made["metrics"]["stages"][BM25]["hit@10"] > 0.5
    line = (tmp_path / "out" / "faq" / "measure.jsonl").read_text(encoding="utf-8").splitlines()[0]
    question = json.loads(line)["question"]
    hit = PairSearcher(made["index"], retrieval=BM25).search(question)[0]
    assert hit.text == question and hit.payload == {"答案": f"答案{question.strip('怎么办做如何')}"}
    assert pipeline(faq_file=str(path), **flags)["result"] == made["result"]
    (tmp_path / "new.csv").write_text("问题,答案\n哪里转账,柜台\n", encoding="utf-8")
    model = str(tmp_path / "out" / "encoder") if "--embedding_model" in made["result"] else ""
    make_index(IndexConfig(str(tmp_path / "new.csv"), made["index"], embedding_model=model, add=True))
    assert PairSearcher(made["index"], retrieval=BM25).search("转账")[0].payload == {"答案": "柜台"}
