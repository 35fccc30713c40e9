"""Take the screenshots of the README, from real runs on the quickstart's sample.

PICTURES=docs/pictures PICTURES_RUNS=output/quickstart sh scripts/test.sh tests/browser
"""

import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from browser import PICTURES
from places import ROOT
from waiting import free_port, until

pytestmark = pytest.mark.browser

LARGEST = 200_000  # bytes, so that a clone stays small
NAMES = ("pipeline", "board", "plot", "report", "compare", "try_it", "ask")
FAQ = (
    "question,answer",
    "信用卡丢了怎么补办,先在手机上挂失，再带身份证到柜台补办。",
    "信用卡怎么挂失,在手机上点“挂失”，立即生效。",
    "怎么还信用卡,在手机上点“还款”，或在自动取款机上存入。",
    "怎么开户,带身份证到柜台办理，当天就能用。",
)
RUNS = Path(os.environ.get("PICTURES_RUNS", "")).resolve()
LINE = Path(*RUNS.parts[-2:])  # output/quickstart, as the commands and so the pages name it


def test_the_pictures_are_small():
    there = list((ROOT / "docs" / "pictures").glob("*.png"))
    assert {path.stem for path in there} <= {*NAMES, "side_by_side"}  # drawn by side_by_side_table.py
    assert all(0 < path.stat().st_size < LARGEST for path in there)


@pytest.fixture
def start():
    if not (PICTURES and "PICTURES_RUNS" in os.environ):
        pytest.skip("PICTURES and PICTURES_RUNS make the pictures of the README")
    fonts = subprocess.run(["fc-list", ":lang=zh"], capture_output=True, text=True).stdout
    assert fonts, "no font has Chinese characters; install fonts-noto-cjk"
    started, environment = [], {**os.environ, "PYTHONPATH": str(ROOT)}

    def start(*words):
        line = [sys.executable, "-m", "ernie_pair", *map(str, words)]
        started.append(subprocess.Popen(line, cwd=RUNS.parents[1], env=environment))
        return started[-1]

    yield start
    for process in started:
        process.terminate()
        process.wait(timeout=60)


@pytest.fixture
def run(start):
    def run(*words):
        assert start(*words).wait(timeout=900) == 0

    return run


@pytest.fixture
def serve(start, browser):
    """A function that starts a command that serves, and opens a page of it as soon as it answers."""

    def serve(page, *words):
        port = free_port()
        start(*words, "--port", port)

        def is_open():
            with suppress(Exception):
                browser.open(f"http://127.0.0.1:{port}/{page}")
                return True

        until(is_open)

    return serve


def test_picture_of_the_runs_page(run, browser, tmp_path):
    run("plot", LINE / "pair", LINE / "pair_scratch", "--output_file", tmp_path / "runs.html")
    browser.open(tmp_path / "runs.html")
    browser.picture("plot", height=900)


def test_picture_of_the_pipeline(run, browser):
    text, folder = LINE / "sample" / "corpus.txt", LINE.with_name("my_service")
    files = ["--train_file", LINE / "sample" / "pairs" / "train.tsv", "--input_path", text]
    run("pipeline", *files, "--output_dir", folder, "--minutes", "1", "--device", "cpu")
    browser.open(RUNS.parents[1] / folder / "report.html")
    browser.picture("pipeline", height=760)


def test_picture_of_an_answered_question(run, serve, browser, tmp_path):
    (tmp_path / "faq.csv").write_text("\n".join(FAQ), encoding="utf-8")
    flags = ["--input_file", tmp_path / "faq.csv", "--payload_columns", "answer", "--retrieval", "bm25"]
    run("index", *flags, "--text_column", "question", "--output_dir", tmp_path / "faq")
    serve("?q=信用卡丢了怎么办", "serve", "--index", tmp_path / "faq")
    browser.wait("return !document.getElementById('found').hidden")
    browser.picture("ask", height=720)


def test_picture_of_the_board(serve, browser):
    serve("app/scalar", "board", LINE / "pair", LINE / "pair_scratch")
    browser.wait("return document.querySelectorAll('canvas').length >= 4")
    time.sleep(3)  # the curves are drawn one after the other
    browser.picture("board")


def test_picture_of_the_report(run, browser, tmp_path):
    files = ["--output_file", tmp_path / "test.json", "--report", tmp_path / "report"]
    files += ["--input_file", LINE / "sample" / "pairs" / "test.tsv"]
    run("evaluate", "--model_path", LINE / "pair" / "best", *files)
    browser.open(tmp_path / "report" / "report.html")
    assert re.search(r"Date\s+20\d\d-", browser.text())
    browser.picture("report", height=1100)


def test_picture_of_the_model_comparison(run, browser, tmp_path):
    models = f"'pretrained={LINE}/pair/best' 'scratch={LINE}/pair_scratch/best'"
    files = ["--input_file", LINE / "sample" / "pairs" / "test.tsv", "--output_dir", tmp_path / "made"]
    run("compare", "models", "--models", models, *files)
    browser.open(tmp_path / "made" / "models.html")
    browser.picture("compare", height=420)


def test_picture_of_the_service(run, serve, browser, tmp_path):
    exported = tmp_path / "exported"
    run("export", "--model_path", LINE / "pair" / "best", "--output_dir", exported)
    serve("?a=碎屏险能不能退呢&b=请问已经买了的碎屏险可以退吗", "serve", "--model_path", exported)
    browser.wait("return !document.getElementById('answer').hidden")
    browser.picture("try_it", height=980)
