"""Take the screenshots of the README, from real runs on the quickstart's sample.

PICTURES=docs/pictures PICTURES_RUNS=output/quickstart sh scripts/test.sh tests/browser
"""

import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from browser import PICTURES, Browser, start_chromium
from places import ROOT
from ports import free_port

pytestmark = pytest.mark.browser

LARGEST = 200_000  # bytes, so that a clone stays small
SCRATCH = (("scratch", "pair_scratch"),)
NAMES = ("board", "plot", "report", "compare", "try_it")


def test_the_pictures_are_small():
    there = list((ROOT / "docs" / "pictures").glob("*.png"))
    assert {path.stem for path in there} <= set(NAMES)
    assert all(0 < path.stat().st_size < LARGEST for path in there)


@pytest.fixture(scope="module")
def line():
    if not (PICTURES and os.environ.get("PICTURES_RUNS")):
        pytest.skip("PICTURES and PICTURES_RUNS make the pictures of the README")
    fonts = subprocess.run(["fc-list", ":lang=zh"], capture_output=True, text=True).stdout
    assert fonts, "no font has Chinese characters; install fonts-noto-cjk"
    return Path(os.environ["PICTURES_RUNS"]).resolve()


@pytest.fixture(scope="module")
def browser():
    driver = start_chromium()
    yield Browser(driver)
    driver.quit()


def words_of(words):
    return [sys.executable, "-m", "ernie_pair", *map(str, words)]


def place_of(line):
    """Where commands run, so that pages name files as the README does, output/quickstart/..."""
    return {"cwd": line.parents[1], "env": {**os.environ, "PYTHONPATH": str(ROOT)}}


@contextlib.contextmanager
def started(line, *words):
    process = subprocess.Popen(words_of(words), **place_of(line))
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=60)


def run(line, *words):
    subprocess.run(words_of(words), check=True, timeout=300, **place_of(line))


def answers(browser, address, seconds=60):
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(Exception):
            return browser.open(address)
        assert time.monotonic() < end, address
        time.sleep(0.5)


def below(line):
    """Return ``line`` as the commands name it."""
    return Path(*line.parts[-2:])


def test_picture_of_the_runs_page(line, browser, tmp_path):
    run(line, "plot", below(line) / "pair", below(line) / "pair_scratch", "--output", tmp_path / "runs.html")
    browser.open(tmp_path / "runs.html")
    browser.picture("plot", height=900)


def test_picture_of_the_board(line, browser):
    port = free_port()
    with started(line, "board", below(line) / "pair", below(line) / "pair_scratch", "--port", port):
        answers(browser, f"http://127.0.0.1:{port}/app/scalar")
        browser.wait("return document.querySelectorAll('canvas').length >= 4")
        time.sleep(3)  # the curves are drawn one after the other
        browser.picture("board")


def test_picture_of_the_report(line, browser, tmp_path):
    model, test = below(line) / "pair" / "best", below(line) / "sample" / "pairs" / "test.tsv"
    files = ["--input_file", test, "--output_file", tmp_path / "test.json", "--report", tmp_path / "report"]
    run(line, "evaluate", "--model_path", model, *files)
    browser.open(tmp_path / "report" / "report.html")
    assert re.search(r"Date\s+20\d\d-", browser.text())
    browser.picture("report", height=1100)


def test_picture_of_the_model_comparison(line, browser, tmp_path):
    best = {name: below(line) / folder / "best" for name, folder in (("pretrained", "pair"), *SCRATCH)}
    models = " ".join(f"'{name}={path}'" for name, path in best.items())
    test = below(line) / "sample" / "pairs" / "test.tsv"
    run(
        line, "compare", "models", "--models", models, "--input_file", test, "--output_dir", tmp_path / "made"
    )
    browser.open(tmp_path / "made" / "models.html")
    browser.picture("compare", height=420)


def test_picture_of_the_service(line, browser, tmp_path):
    exported, port = tmp_path / "exported", free_port()
    run(line, "export", "--model_path", below(line) / "pair" / "best", "--output_dir", exported)
    with started(line, "serve", "--model", exported, "--port", port):
        answers(browser, f"http://127.0.0.1:{port}/?a=碎屏险能不能退呢&b=请问已经买了的碎屏险可以退吗")
        browser.wait("return !document.getElementById('answer').hidden")
        browser.picture("try_it", height=980)
