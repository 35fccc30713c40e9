"""Every page and picture that the package makes, as a person sees it: desktop and phone, light and dark."""

import itertools
import subprocess
import sys
import threading
import time

import pytest
import requests
from browser import LOOKS, Browser, Look, start_chromium
from fake_predictor import Model
from fake_runs import write_pair_run
from made_up_answers import answers_of, config_of
from places import ROOT
from ports import free_port
from tiny_pair import write_pairs, write_rows

from data_tools.audit_text import AuditConfig, audit_text
from ernie_pair.dashboard.plot_runs import PlotConfig, plot
from ernie_pair.pair.audit.audit_pairs import AuditPairsConfig, audit_pairs
from ernie_pair.pair.distill.model_table import FILES as MODEL_FILES
from ernie_pair.pair.distill.model_table import write_table
from ernie_pair.pair.evaluation.evaluation import evaluation_of
from ernie_pair.pair.evaluation.evaluation_report import FILES, write_report
from ernie_pair.report.page import Made

pytestmark = pytest.mark.browser

MODEL = {
    **{"size": "4 x 312", "precision": "fp32", "accuracy": 0.9, "accuracy_interval": [0.88, 0.92]},
    **{"difference": 0.0, "difference_interval": [0.0, 0.0], "agreement": 1.0, "pairs_per_second": 100.0},
    **{"times_as_fast": 1.0, "latency_ms": {"p50": 9.0, "p95": 12.0}, "bytes": 4e8},
}


@pytest.fixture(scope="module")
def browser():
    driver = start_chromium()
    yield Browser(driver)
    driver.quit()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def runs(folder):
    return [write_pair_run(folder / "a"), write_pair_run(folder / "b", slope=2.0, seed=8)]


@pytest.fixture(scope="module")
def pages(folder, runs):
    """The pages that are files, by name."""
    plot(PlotConfig([str(run) for run in runs], str(folder / "runs.html")))
    answers = answers_of()._replace(names=("不同", "相同"))
    made = Made({"batch_size": 64, "worst_rows": 10}, "# A sentence-pair classifier\n\n- base model: m\n")
    report = [folder / name for name in FILES]
    write_report(report, evaluation_of(answers, config_of()), answers, 10, made=made)
    models = [{**MODEL, "name": name, "pairs_per_second": speed} for name, speed in zip("abc", (9, 100, 20))]
    content = {"rows": 60, "input_file": "test.tsv", "threads": 2, "models": models}
    write_table([folder / name for name in MODEL_FILES], content)
    return {"runs": folder / "runs.html", "report": folder / "report.html", "models": folder / "models.html"}


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: f"{look.size[0]}-{look.theme}")
@pytest.mark.parametrize("name", ["runs", "report", "models"])
def test_a_page_is_legible_and_asks_nobody(browser, pages, name, look):
    browser.open(pages[name], look)
    assert browser.errors() == [] and browser.asked() == []
    assert browser.overflow() <= 0 and browser.pale_texts() == []
    assert browser.run("return [...document.images].every((i) => i.complete && i.naturalWidth > 0)")
    assert browser.run("return matchMedia('(prefers-color-scheme: dark)').matches") == (look.theme == "dark")


def test_a_dark_page_is_dark_and_its_charts_too(browser, pages):
    brightness = "return getComputedStyle(document.body).backgroundColor"
    browser.open(pages["report"])
    light = browser.run(brightness)
    browser.open(pages["report"], Look(theme="dark"))
    assert browser.run(brightness) != light
    assert "invert" in browser.run("return getComputedStyle(document.images[0]).filter")


def test_legends_lie_beside_the_curves(browser, pages):
    browser.open(pages["report"])
    assert browser.run("return document.images.length") == 5 and browser.covering_legends() == []


COLUMN = (
    "return [...document.querySelectorAll('table')].find((t) => (t.tHead || t).innerText.includes({head!r}))"
)
CELLS = COLUMN + ".tBodies[0].innerText.trim().split('\\n').map((line) => line.split('\\t')[{place}])"


def test_a_click_on_a_head_sorts_and_another_turns_it_round(browser, pages):
    browser.open(pages["models"])
    cells = CELLS.format(head="pairs/s", place=8)
    click = COLUMN.format(head="pairs/s") + ".tHead.rows[0].cells[8].click()"
    assert browser.run(cells) == ["9", "100", "20"]
    browser.run(click)
    assert browser.run(cells) == ["9", "20", "100"]
    browser.run(click)
    assert browser.run(cells) == ["100", "20", "9"]


def test_a_head_sorts_by_key_and_groups_stay_together(browser, pages):
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


def test_the_report_says_when_how_and_by_what(browser, pages):
    browser.open(pages["report"])
    text = browser.text()
    for words in ("Date", "UTC", "paddlepaddle", "--batch_size 64", "Model card", "不同", "相同"):
        assert words in text
    assert "base model: m" not in text  # folded until it is asked for
    browser.run("document.querySelector('summary').click()")
    assert "base model: m" in browser.text()


def test_the_page_of_runs_compares_them(browser, pages):
    browser.open(pages["runs"])
    text = browser.text()
    for words in ("Runs compared", "valid accuracy", "Flags that differ", "learning_rate", "0.0002", "seed"):
        assert words in text
    assert "use_amp" not in text  # equal in both
    swatches = "return [...document.querySelectorAll('.legend .swatch')].map((s) => s.style.borderColor)"
    assert len(set(browser.run(swatches))) == 2


@pytest.fixture(scope="module")
def service():
    """The address of the service, with a model that nobody trained."""
    uvicorn = pytest.importorskip("uvicorn")
    pytest.importorskip("prometheus_client")
    from ernie_pair.server.app import create_app
    from ernie_pair.server.batcher import Batching
    from ernie_pair.server.request import Limits

    port = free_port()
    app = create_app(Model(), Batching(8, 0.01, 100), Limits(2000, 5, 200))
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: f"{look.size[0]}-{look.theme}")
def test_the_try_it_page_answers(browser, service, look):
    browser.open(f"{service}/?a=今天天气好&b=今天很好", look)
    browser.wait("return !document.getElementById('answer').hidden")
    assert "odd" in browser.text() or "even" in browser.text()
    assert browser.errors() == [] and browser.overflow() <= 0 and browser.pale_texts() == []
    assert all(address.startswith(service) for address in browser.asked())


def test_the_pictures_of_the_audits_open(browser, folder):
    train = write_pairs(folder / "train.tsv", 60)
    audit_pairs(AuditPairsConfig(train_file=str(train), output=str(folder / "pairs")))
    text = write_rows(folder / "text.txt", [["今天天气很好，我们去公园。"], ["今天天气很好，我们去公园。"]])
    audit_text(AuditConfig([str(text)], output=str(folder / "text")))
    for picture in (*(folder / "pairs").glob("*.png"), *(folder / "text").glob("*.png")):
        browser.open(picture)
        assert browser.run("return document.images[0].naturalWidth") > 800 and browser.errors() == []
    assert len(list(folder.glob("*/*.png"))) == 2


@pytest.fixture(scope="module")
def board(runs):
    """The address of a board of the runs, started as a command; it is stopped by a signal, in good order."""
    port = free_port()
    words = ["board", *map(str, runs), "--port", str(port), "--refresh", "0.5", "--lang", "en"]
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


def test_the_board_opens_on_curves_of_all_runs(browser, board):
    browser.open(f"{board}/app/scalar")
    browser.wait("return document.querySelectorAll('canvas').length >= 3")
    assert "Smoothing" in browser.text()  # in the language that was asked for
    text = browser.text()
    for words in ("SCALARS", "metrics\n3", "a/train", "a/valid", "b/train", "b/valid"):
        assert words in text
    found = requests.get(f"{board}/app/api/scalar/tags", timeout=60).json()["data"]
    tags = dict(zip(found["runs"], found["tags"]))
    assert tags["a/train"][:2] == ["metrics/loss", "metrics/accuracy"]
    assert tags["b/valid"] == ["metrics/loss", "metrics/accuracy", "metrics/auc"]
    assert browser.errors() == []
    assert all(address.startswith(board) for address in browser.asked())


def test_the_board_shows_flags_beside_metrics(browser, board):
    browser.open(f"{board}/app/hyper-parameter")
    browser.wait("return document.body.innerText.includes('a/valid')")
    text = browser.text()
    assert "learning_rate" in text and "0.0002" in text and "use_amp" not in text
    browser.open(f"{board}/app/sample/text")
    browser.wait("return document.body.innerText.includes('use_amp false')")
