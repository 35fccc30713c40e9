"""Every page and chart that the package makes, as a user sees it: desktop and phone, light and dark."""

import itertools
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import requests
from browser import CHECKS, LOOKS, PHONE, Look
from fake_predictor import Model
from made_up_answers import answers_of, config_of, ranking_answers, scored
from places import ROOT
from run_files import write_pair_run
from tiny_pair import write_pairs, write_rows
from tiny_search import HashEmbedder
from waiting import free_port

from data_tools.audit_text import AuditConfig, audit_text
from ernie_pair import index
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.checks.pipeline_inputs import TRAIN
from ernie_pair.evaluation.evaluation import evaluate_classes, evaluate_ranking, evaluate_scores
from ernie_pair.evaluation.evaluation_report import FILES, write_report
from ernie_pair.experiments.compare_models import FILES as MODEL_FILES
from ernie_pair.experiments.compare_models import write_table
from ernie_pair.experiments.compare_starts import FILES as COMPARISON_FILES
from ernie_pair.experiments.compare_starts import compare, write_comparison
from ernie_pair.inference.exported_model import ExportedModel
from ernie_pair.inference.scores import Prediction
from ernie_pair.pairs.audit.audit_pairs import AuditPairsConfig, audit_pairs
from ernie_pair.pairs.data.label_checks import OF_THESE
from ernie_pair.report.page import Origin, render_page
from ernie_pair.report.plot_runs import PlotConfig, group_of, open_runs, plot
from ernie_pair.retrieval.index_folder import keep_measured, open_index_folder
from ernie_pair.retrieval.searcher import TextRecall
from ernie_pair.training.best_model import BestModel

pytestmark = pytest.mark.browser

GROUND = "return getComputedStyle(document.body).backgroundColor"
NAMES = ("runs", "report", "scores", "ranks", "models", "starts", "pipeline")
VERDICT = (
    "it is better than counting shared characters: accuracy 0.9000 (95 %: 0.8800 to 0.9200) on 60 test pairs "
    "at threshold 0.5000; counting shared characters reaches 0.7000"
)
LINE = "ernie-pair train --train_file=pairs/train.jsonl --output_dir=a/folder/with/a/name/that/is/long"
TITLE = "From text and pairs to m"
USE = ["model", "report", "serve     ernie-pair serve --model_path out", "ask       curl -s localhost:8000"]
PLAN = SimpleNamespace(  # what the page of a pipeline asks of it
    verdict=f"{VERDICT}; serve it: ernie-pair serve --model_path out/exported",
    search=None,
    inputs=SimpleNamespace(labels=SimpleNamespace(has_classes=True), rows={"train": 600}, text=None),
    summary=lambda: USE,
)
MODEL = {
    "size": "4 x 312", "precision": "fp32", "threshold": 0.5, "accuracy": 0.9,
    "accuracy_interval": [0.88, 0.92],
    "difference": 0.0, "difference_interval": [0.0, 0.0], "agreement": 1.0, "pairs_per_second": 100.0,
    "times_as_fast": 1.0, "latency_ms": {"p50": 9.0, "p95": 12.0}, "bytes": 4e8,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def runs(folder):
    return [write_pair_run(folder / "a"), write_pair_run(folder / "b", slope=2.0, seed=8)]


@pytest.fixture(scope="module")
def pages(folder, runs):
    plot(PlotConfig([str(run) for run in runs], str(folder / "runs.html")))
    answers = answers_of()._replace(names=("不同", "相同"))
    answers = answers._replace(pairs=answers.pairs.changed(path="test.tsv"))
    made = Origin({"batch_size": 64, "worst_rows": 10}, "# A sentence-pair classifier\n\n- base model: m\n")
    report = [folder / name for name in FILES]
    evaluation = {**evaluate_classes(answers, config_of()), "shared_characters": {"accuracy": 0.7}}
    evaluation["shared_characters"]["thresholds_of"] = OF_THESE
    evaluation["verdict"] = VERDICT
    origins = {answers.pairs.where(0): "all.csv:77"}
    write_report(report, evaluation, answers, 50, made=made, origins=origins)
    others = {"scores": scored(np.arange(60) % 6 / 2), "ranks": ranking_answers()}
    for (name, each), evaluate in zip(others.items(), (evaluate_scores, evaluate_ranking)):
        drafts = [folder / f"{name}{Path(file).suffix}" for file in FILES]
        write_report(drafts, evaluate(each, config_of()), each, 50)
    PLAN.evaluation = evaluation
    decided = "3 epochs of batches of 32, rate 0.0003"
    step = {"title": TRAIN, "decided": decided, "commands": [LINE], "time": "0:00:05"}
    groups = [group_of(open_runs([str(runs[0])]), [], "Fine-tuning")]
    shown = {"plan": PLAN, "search": None, "steps": [step], "time": "0:00:05", "groups": groups}
    template = ROOT / "ernie_pair" / "checks" / "pipeline.html"
    (folder / "pipeline.html").write_text(
        render_page(template, title=TITLE, **shown, made=made), encoding="utf-8"
    )
    models = [{**MODEL, "name": name, "pairs_per_second": speed} for name, speed in zip("abc", (9, 100, 20))]
    content = {"rows": 60, "input_file": "test.tsv", "threads": 2, "models": models}
    write_table([folder / name for name in MODEL_FILES], content)
    labels = np.arange(60) % 2
    logits = {
        name: [np.eye(2)[(labels + np.arange(60) // part) % 2]] for name, part in (("a", 40), ("b", 50))
    }
    found, opened = compare(logits, labels, [7], 50), open_runs(list(map(str, runs)))
    drafts = [(folder / "starts").with_suffix(Path(name).suffix) for name in COMPARISON_FILES]
    write_comparison(drafts, found, None, {}, opened, made)
    return {name: folder / f"{name}.html" for name in NAMES}


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: f"{look.size[0]}-{look.theme}")
@pytest.mark.parametrize("name", NAMES)
def test_pages_are_legible_and_make_no_network_requests(browser, pages, name, look):
    browser.open(pages[name], look)
    assert browser.errors() == [] and browser.asked() == []
    assert browser.overflow() <= 0 and browser.pale_texts() == [] and browser.covering_legends() == []
    assert browser.run("return [...document.images].every((i) => i.complete && i.naturalWidth > 0)")
    assert browser.run(GROUND) == ("rgb(11, 18, 32)" if look.theme == "dark" else "rgb(248, 250, 252)")
    inverted = "return [...document.images].every((i) => getComputedStyle(i).filter.includes('invert'))"
    assert browser.run(inverted) == (look.theme == "dark") or name == "models"  # which has no picture


# For each table: is it wider than its container, and is its last cell visible after scrolling to the end?
SCROLLED = """
return [...document.querySelectorAll("table")].map((table) => {
  const box = table.parentElement, wide = box.scrollWidth > box.clientWidth;
  const cell = [...table.rows[0].cells].pop(), right = () => cell.getBoundingClientRect().right;
  const hidden = right() > innerWidth;
  box.scrollLeft = box.scrollWidth;
  const shaded = getComputedStyle(box).backgroundImage.includes("linear-gradient");
  return {wide, hidden, shaded, seen: right() <= innerWidth, page: scrollX};
});
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", NAMES)
def test_a_wide_table_scrolls_inside_its_own_container(browser, pages, name, theme):
    browser.open(pages[name], Look(PHONE, theme))
    tables = browser.run(SCROLLED)
    assert all(table["seen"] and table["page"] == 0 for table in tables)
    assert all(table["wide"] and table["shaded"] for table in tables if table["hidden"])
    assert any(table["hidden"] for table in tables) or name in ("models", "pipeline")


COLUMN = (
    "return [...document.querySelectorAll('table')].find((t) => (t.tHead || t).innerText.includes({head!r}))"
)
CELLS = COLUMN + ".tBodies[0].innerText.trim().split('\\n').map((line) => line.split('\\t')[{place}])"


def test_clicking_a_header_sorts_and_a_second_click_reverses(browser, pages):
    browser.open(pages["models"])
    cells = CELLS.format(head="pairs/s", place=9)
    click = COLUMN.format(head="pairs/s") + ".tHead.rows[0].cells[9].click()"
    assert browser.run(cells) == ["9", "100", "20"]
    browser.run(click)
    assert browser.run(cells) == ["9", "20", "100"]
    browser.run(click)
    assert browser.run(cells) == ["100", "20", "9"]


def test_enter_on_a_header_sorts_rows_within_their_groups(browser, pages):
    browser.open(pages["report"])
    head = COLUMN.format(head="Slice") + ".tHead.rows[0].cells[1]"
    groups = "return [...document.querySelectorAll('tr.kind')].map((row) => row.innerText.trim())"
    before = browser.run(groups)
    browser.run(f"{head}.dispatchEvent(new KeyboardEvent('keydown', {{key: 'Enter'}}))")
    assert browser.run(f"{head}.getAttribute('aria-sort')") == "ascending"
    assert browser.run(groups) == before and len(before) > 1
    rows = "return [...document.querySelector('tr.kind').parentElement.rows].map((row) => row.innerText)"
    first = [row.split("\t") for row in itertools.takewhile(lambda row: "\t" in row, browser.run(rows)[1:])]
    assert len(first) > 1 and [int(row[1]) for row in first] == sorted(int(row[1]) for row in first)


FILTER = """
const [text, kind] = document.querySelectorAll(".filter input, .filter select");
text.value = arguments[0];
kind.value = [...kind.options].find((option) => option.text === arguments[1]).value;
text.dispatchEvent(new Event("input", {bubbles: true}));
const shown = [...document.querySelectorAll("tr[data-kinds]:not([hidden])")];
return shown.map((row) => row.innerText.split("\\t"));
"""


def test_the_errors_are_filtered_by_text_and_by_kind(browser, pages):
    browser.open(pages["report"])
    rows, wrong = browser.run(FILTER, "", "all kinds"), browser.run(FILTER, "", "相同 → 不同")
    assert rows[0][0] == "all.csv:77" and 0 < len(wrong) < len(rows)
    assert all(row[1:3] == ["相同", "不同"] for row in wrong)
    assert f"{len(wrong)} of {len(rows)} rows" in browser.text()
    assert len(browser.run(FILTER, "ALERT", "all kinds")) == 1


def test_a_command_is_copied_by_its_button(browser, pages):
    browser.open(pages["pipeline"])
    granted = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    browser.driver.execute_cdp_cmd("Browser.grantPermissions", granted)
    browser.run("[...document.querySelectorAll('.copy')].pop().click()")
    browser.wait("return document.body.innerText.includes('Copied')")
    browser.run("navigator.clipboard.readText().then((text) => { window.copied = text; })")
    assert browser.wait("return window.copied") == LINE


WORDS = {
    "report": "Date;UTC;paddlepaddle;--batch_size 64;Model card;不同;相同",
    "runs": "Runs compared;valid accuracy;Flags that differ;learning_rate;0.0002;seed",
    "pipeline": "test pairs at threshold 0.5000;0.7000;600;0:00:05;The evaluation;Fine-tuning;always 不同",
    "starts": "Starts compared;a - b;not above 0;Runs;valid accuracy;Flags that differ",
}


@pytest.mark.parametrize("name", WORDS)
def test_pages_show_what_was_measured_and_how(browser, pages, name):
    browser.open(pages[name])
    text = browser.text()
    assert [words for words in WORDS[name].split(";") if words not in text] == []
    if name == "report":
        assert "base model: m" not in text  # collapsed until it is clicked
        browser.run("document.querySelector('summary').click()")
        assert "base model: m" in browser.text()
    if name == "runs":
        assert "use_amp" not in text  # equal in both
        swatches = "return [...document.querySelectorAll('.legend .swatch')].map((s) => s.style.borderColor)"
        assert len(set(browser.run(swatches))) == 2


@pytest.mark.parametrize("name", NAMES)
def test_a_page_says_in_chinese_all_but_names(browser, pages, name):
    browser.open(f"{pages[name].as_uri()}?lang=zh-CN")
    assert browser.run(f"{CHECKS} return englishTexts()") == []
    assert browser.errors() == [] and "undefined" not in browser.text()


@contextmanager
def serving(model, embedder=None, key="", texts=None):
    """The address of the service, which serves ``model`` and ``embedder``, and searches ``texts``."""
    uvicorn = pytest.importorskip("uvicorn")
    pytest.importorskip("prometheus_client")
    from ernie_pair.service.batcher import Batching
    from ernie_pair.service.request import Limits
    from ernie_pair.service.service import ServedModels, create_app

    port = free_port()
    served = ServedModels(model, embedder, texts)
    app = create_app(served, Batching(8, 0.01, 100), Limits(2000, 5, 200), api_key=key)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def service():
    with serving(Model()) as address:
        yield address


class Scores(Model):
    """A model without classes: says how long both texts are together, of 0 to 5."""

    exported = ExportedModel(Path("none"), ("score",), 128, 1.0, {}, target="regression", label_range=(0, 5))
    threshold, symmetric = None, "none"

    def predict(self, pairs):
        return Prediction(None, None, None, np.array([len(a) + len(b) for a, b in pairs], dtype=np.float64))


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: f"{look.size[0]}-{look.theme}")
def test_try_it_page_shows_the_predicted_label(browser, service, look):
    browser.open(f"{service}/?a=今天天气好&b=今天很好", look)
    browser.wait("return !document.getElementById('answer').hidden")
    assert "odd" in browser.text() or "even" in browser.text()
    assert browser.errors() == [] and browser.overflow() <= 0 and browser.pale_texts() == []
    assert all(address.startswith(service) for address in browser.asked())


def test_try_it_page_says_why_a_pair_has_its_score(browser, service):
    browser.open(f"{service}/?a=今天天气好&b=今天很好&lang=zh-CN")
    browser.wait("return !document.getElementById('answer').hidden")
    browser.run("document.getElementById('why').click()")
    browser.wait("return document.querySelector('#reasons .row')")
    shown = ("两句都有：今天天 好", "每个词让得分增加多少", "低于阈值 0.9900")
    assert [words for words in shown if words not in browser.text()] == []
    assert browser.errors() == []


RANK = """
document.getElementById("query").value = "今天";
document.getElementById("candidates").value = arguments[0];
document.getElementById("rank").click();
"""


CHINESE = (
    "好于字重合基线：准确率 0.9000（95 %：0.8800 到 0.9200），60 条测试句对，阈值 0.5000；字重合基线是 0.7000",  # noqa: E501
    *("1：两句匹配", "概率达到 25.00%"),
)
AT_START = "注意：最好的 accuracy 是第 0 步的 0.5900：训练没有改进初始模型。"
LATER = "注意：最好的 accuracy 是 0.5900，不高于字重合基线的 0.6200：除了相同的字，模型没有学到别的。"
ENGLISH = (VERDICT, "Caution: the best accuracy, 0.5900, is that of step 0", "1: the texts match")


@pytest.mark.parametrize("lang, step, words", [
    ("zh-CN", 0, (*CHINESE, AT_START)), ("zh-CN", 9, (LATER,)), ("en-US", 0, ENGLISH),
])  # fmt: skip
def test_the_page_says_in_two_languages_what_the_model_is_worth(browser, lang, step, words):
    model, agent = Model(), browser.run("return navigator.userAgent")
    best = BestModel(Path(), baseline=0.62)
    best.improves(TrainState(step=step), {"accuracy": 0.59})
    told = {"verdict": VERDICT, "learned_nothing": best.learned_nothing}
    model.exported = replace(model.exported, labels=("0", "1"), **told)
    spoken = {"userAgent": agent, "acceptLanguage": lang}
    browser.driver.execute_cdp_cmd("Emulation.setUserAgentOverride", spoken)
    with serving(model) as address:
        browser.open(f"{address}/")
        browser.wait("return names.length === 2")
        assert [each for each in words if each not in browser.text()] == [] and browser.errors() == []


def test_swagger_ui_lists_the_routes_and_tries_them(browser, service):
    pytest.importorskip("fastapi_offline")
    browser.open(f"{service}/docs")
    browser.wait("return document.querySelectorAll('.opblock').length >= 8")
    assert "/v1/rerank" in browser.text() and browser.errors() == []
    assert all(address.startswith((service, "data:")) for address in browser.asked())
    browser.run("document.querySelector('#operations-default-predict_predict_post button').click()")
    browser.wait("return document.querySelector('.try-out__btn')")
    browser.run("document.querySelector('.try-out__btn').click()")
    browser.wait("return document.querySelector('.execute')")
    browser.run("document.querySelector('.execute').click()")
    browser.wait("return document.querySelector('.live-responses-table')")
    assert '"milliseconds"' in browser.text()


def test_the_page_asks_for_the_key_of_the_service(browser):
    with serving(Model(), key="sk-1") as address:
        browser.open(f"{address}/")
        browser.wait("return names.length === 2")
        browser.run("window.prompt = () => 'sk-1'")
        browser.run(RANK, "甲\n乙乙")
        browser.wait("return !document.getElementById('found').hidden")
        assert "[2] 乙乙" in browser.text()


def test_without_a_classifier_the_page_names_what_is_served(browser):
    with serving(None, HashEmbedder()) as address:
        browser.open(f"{address}/")
        browser.wait("return document.getElementById('form').hidden")
        assert "embedder" in browser.text() and browser.errors() == []


FAQ = [["question", "topic", "answer"], ["怎么开户", "账户", "带身份证到柜台办理。"],
       ["开户要多久", "账户", "当天就能用。"], ["怎么还款", "信用卡", "在手机上点“还款”。"]]  # fmt: skip


@pytest.mark.parametrize("look", [Look(), Look(PHONE)], ids=["desktop", "phone"])
def test_with_an_index_a_question_gets_answers_the_best_first(browser, tmp_path, look):
    faq = {"input_file": str(write_rows(tmp_path / "faq.tsv", FAQ)), "text_column": "question"}
    index(**faq, output_dir=str(tmp_path / "faq"), retrieval="bm25", payload_columns="topic,answer")
    with serving(None, texts=TextRecall(open_index_folder(tmp_path / "faq"), None)) as address:
        browser.open(f"{address}/", look)
        browser.wait("return !document.getElementById('search_form').hidden")
        assert browser.run("return document.getElementById('question').value") == "怎么开户"  # an example
        browser.run("document.getElementById('search').click()")
        browser.wait("return !document.getElementById('found').hidden")
        found = browser.run(
            "return [...document.querySelectorAll('#matches li')].map((item) => item.innerText)"
        )
        assert found[0].startswith("带身份证到柜台办理。\ntopic: 账户\n[0] 怎么开户")
        assert "Answers, best first" in browser.text() and "Ask a question" in browser.text()
        assert browser.errors() == [] and browser.overflow() <= 0 and browser.pale_texts() == []


FOUND = [
    "the right answer is first for 75.0% (95 %: 60.0% to 85.0%) of 1,060 questions that were held out, among "
    "the first ten for 90.0% (95 %: 80.0% to 95.0%); mrr 0.812 (95 %: 0.700 to 0.900)",
    "留出的 1,060 个问题中，正确答案排第一的占 75.0%（95 %：60.0% 到 85.0%），排进前十的占 90.0%"
    "（95 %：80.0% 到 95.0%）；mrr 0.812（95 %：0.700 到 0.900）",
]
VERDICTS = [  # in English and in Chinese
    ("BM25 alone is served: {0}", "只用 BM25：{0}"),
    ("BM25 alone is served, for no other way was clearly better: {0}; both, reranked: first for 7.0%",
     "只用 BM25，没有别的方式明显更好：{0}；both, reranked 排第一的占 7.0%"),
    ("both is not clearly better than BM25 alone (5.0%, 8.0%, mrr 0.1): {0}",
     "both 不明显好于单用 BM25（5.0%、8.0%、mrr 0.1）：{0}"),
    ("vectors is worse than BM25 alone (5.0%, 8.0%, mrr 1): {0}",
     "vectors 不如单用 BM25（5.0%、8.0%、mrr 1）：{0}"),
]  # fmt: skip


def test_the_page_says_what_a_search_is_worth(browser, tmp_path):
    faq = {"input_file": str(write_rows(tmp_path / "faq.tsv", FAQ)), "text_column": "question"}
    made = index(**faq, output_dir=str(tmp_path / "faq"), retrieval="bm25")
    for words in VERDICTS:
        english, chinese = (each.format(found) for each, found in zip(words, FOUND))
        keep_measured(made, english)
        with serving(None, texts=TextRecall(open_index_folder(made), None)) as address:
            for lang, said in (("en", english), ("zh", chinese)):
                browser.open(f"{address}/?lang={lang}")
                browser.wait("return !document.getElementById('search_form').hidden")
                assert said in browser.text() and browser.errors() == []


def test_a_model_without_classes_ranks_by_plain_scores(browser):
    with serving(Scores()) as address:
        browser.open(f"{address}/")
        browser.wait("return names.length === 1")
        browser.run(RANK, "甲\n\n乙乙\n丙丙丙丙")
        browser.wait("return !document.getElementById('found').hidden")
        text = browser.text()
        for words in ("[n]: candidate n", "[3] 丙丙丙丙\n6.0000", "[2] 乙乙\n4.0000", "[1] 甲\n3.0000"):
            assert words in text
        assert "%" not in text and browser.errors() == []
        widths = "return [...document.querySelectorAll('#matches .fill')].map((bar) => bar.style.width)"
        assert browser.run(widths) == ["100%", "80%", "60%"]  # a score beyond its range fills the bar


def test_audit_charts_can_be_opened_in_the_browser(browser, folder):
    train = write_pairs(folder / "train.tsv", 60)
    audit_pairs(AuditPairsConfig(train_file=str(train), output_dir=str(folder / "pairs")))
    text = write_rows(folder / "text.txt", [["今天天气很好，我们去公园。"], ["今天天气很好，我们去公园。"]])
    audit_text(AuditConfig([str(text)], output_dir=str(folder / "text")))
    for picture in (*(folder / "pairs").glob("*.png"), *(folder / "text").glob("*.png")):
        browser.open(picture)
        assert browser.run("return document.images[0].naturalWidth") > 800 and browser.errors() == []
    assert len(list(folder.glob("*/*.png"))) == 2


@pytest.fixture(scope="module")
def board(runs):
    """The address of a board of the runs, started as a command; SIGTERM must shut it down cleanly."""
    port = free_port()
    words = ["board", *map(str, runs), "--port", str(port), "--lang", "en"]
    process = subprocess.Popen([sys.executable, "-m", "ernie_pair", *words], stderr=subprocess.PIPE, cwd=ROOT)
    told = ""
    while "open http" not in told:
        line = process.stderr.readline().decode()
        assert line, told
        told += line
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    told += process.communicate(timeout=60)[1].decode()
    assert process.returncode == 0 and told.rstrip().endswith("stopped"), told


def test_the_board_shows_the_curves_of_all_runs(browser, board):
    browser.open(f"{board}/app/scalar")
    browser.wait("return document.querySelectorAll('canvas').length >= 3")
    assert "Smoothing" in browser.text()  # in the requested language
    text = browser.text()
    for words in ("SCALARS", "metrics\n3", "a/train", "a/valid", "b/train", "b/valid"):
        assert words in text
    assert browser.errors() == []
    assert all(address.startswith(board) for address in browser.asked())


@pytest.mark.parametrize(
    "tab, charts, tag", [("histogram", 4, "probability of 1, label 1"), ("pr-curve", 1, "class 1")]
)
def test_the_board_shows_probability_histograms_and_pr_curves(browser, board, tab, charts, tag):
    browser.open(f"{board}/app/{tab}")
    browser.wait(f"return document.querySelectorAll('canvas').length >= {charts}")
    for words in (f"metrics\n{charts}", "a/valid", "b/valid"):
        assert words in browser.text()
    found = requests.get(f"{board}/app/api/{tab}/tags", timeout=60).json()["data"]
    assert f"metrics/{tag}" in found["tags"][found["runs"].index("a/valid")]
    assert browser.errors() == []


def test_the_board_shows_flags_beside_metrics(browser, board):
    browser.open(f"{board}/app/hyper-parameter")
    browser.wait("return document.body.innerText.includes('a/valid')")
    text = browser.text()
    assert "learning_rate" in text and "0.0002" in text and "use_amp" not in text
    browser.open(f"{board}/app/sample/text")
    browser.wait("return document.body.innerText.includes('use_amp false')")
