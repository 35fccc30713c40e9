"""The pictures of the README, of real runs on the quickstart's sample.

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
from browser import PICTURES, Browser, Look, start_chromium
from package_command import command
from places import ROOT
from ports import free_port

pytestmark = pytest.mark.browser

LARGEST = 200_000  # bytes, so that a clone stays small
NAMES = ("board", "plot", "report", "compare", "try_it")


def test_the_pictures_are_small():
    there = list((ROOT / "docs" / "pictures").glob("*.png"))
    assert {path.stem for path in there} <= set(NAMES)
    assert all(0 < path.stat().st_size < LARGEST for path in there)


@pytest.fixture(scope="module")
def line():
    """The folder of a quickstart that is done."""
    if not (PICTURES and os.environ.get("PICTURES_RUNS")):
        pytest.skip("PICTURES and PICTURES_RUNS make the pictures of the README")
    return Path(os.environ["PICTURES_RUNS"]).resolve()


@pytest.fixture(scope="module")
def browser():
    driver = start_chromium()
    yield Browser(driver)
    driver.quit()


@contextlib.contextmanager
def started(*words):
    """Run a command that serves; it is stopped at the end."""
    process = subprocess.Popen([sys.executable, "-m", "ernie_pair", *map(str, words)], cwd=ROOT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=60)


def answers(browser, address, seconds=60):
    """Open an address as soon as somebody answers there."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(Exception):
            return browser.open(address)
        assert time.monotonic() < end, address
        time.sleep(0.5)


def told(done):
    assert done.code == 0, done.told


def test_picture_of_the_page_of_runs(line, browser, tmp_path):
    told(command("plot", line / "pair", line / "pair_scratch", "--output", tmp_path / "runs.html"))
    browser.open(tmp_path / "runs.html")
    browser.picture("plot", height=900)


def test_picture_of_the_board(line, browser):
    port = free_port()
    with started("board", line / "pair", line / "pair_scratch", "--port", port):
        answers(browser, f"http://127.0.0.1:{port}/app/scalar")
        browser.wait("return document.querySelectorAll('canvas').length >= 4")
        time.sleep(3)  # the curves are drawn one after the other
        browser.picture("board")


def test_picture_of_the_report(line, browser, tmp_path):
    files = ["--input_file", line / "sample" / "pairs" / "test.tsv", "--output_file", tmp_path / "test.json"]
    told(command("evaluate", "--model_path", line / "pair" / "best", *files, "--report", tmp_path / "report"))
    browser.open(tmp_path / "report" / "report.html")
    assert re.search(r"Date\s+20\d\d-", browser.text())
    browser.picture("report", height=1100)


def test_pictures_of_models_and_of_the_service(line, browser, tmp_path):
    models = f"'pretrained={line / 'pair' / 'best'}' 'scratch={line / 'pair_scratch' / 'best'}'"
    test = line / "sample" / "pairs" / "test.tsv"
    flags = ["--int8", "last", "--output_dir", tmp_path / "compared"]
    told(command("compare-models", "--models", models, "--input_file", test, *flags))
    browser.open(tmp_path / "compared" / "models.html", Look((1280, 420)))
    browser.picture("compare", height=420)
    exported, port = tmp_path / "exported", free_port()
    told(command("export", "--model_path", line / "pair" / "best", "--output_dir", exported))
    with started("serve", "--model", exported, "--port", port):
        answers(browser, f"http://127.0.0.1:{port}/?a=碎屏险能不能退呢&b=请问已经买了的碎屏险可以退吗")
        browser.wait("return !document.getElementById('answer').hidden")
        browser.picture("try_it", height=980)
