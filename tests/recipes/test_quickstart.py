"""The complete quickstart: the results it reaches, and that the READMEs show them."""

import json
import os

import pytest
from children import command
from pages import run_shell
from places import ROOT
from quickstart_table import PUBLISHED, render_printed, render_seeds
from readme_block import PAGES, QUICKSTART, SEEDS, between, pages_with

SMALL = ("--max_steps", 20, "--pairs", 900, "--documents", 100, "--epochs", 1, "--device", "cpu")
# Other processors sum in another order, and 2,400 steps magnify it: the tolerance against the READMEs.
TOLERANCE = {"accuracy": 0.04, "flip_rate": 0.06, "valid_lm_loss": 0.25}


@pytest.fixture(scope="module")
def published():
    return json.loads(PUBLISHED.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", pages_with(QUICKSTART))
def test_the_pages_show_the_published_results(published, page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert between(QUICKSTART).search(text)[0] == render_printed(published)
    assert between(SEEDS).search(text)[0] == render_seeds(published, page)


def test_both_readmes_show_what_the_quickstart_prints():
    assert set(pages_with(QUICKSTART)) >= set(PAGES)


def test_both_classifiers_beat_shared_characters_with_each_seed(published):
    assert len({run["seed"] for run in published}) == 3
    for run in published:
        for start in ("pretrained", "from scratch"):
            assert run[start]["interval"][0] > run["shared characters"] + 0.05


@pytest.mark.recipes
def test_a_rerun_of_a_small_quickstart_does_nothing(tmp_path):
    folder = tmp_path / "a run"
    first = command("quickstart", "--output_dir", folder, *SMALL)
    assert first.code == 0 and first.said.count("test accuracy") == 3 and "ernie-pair board" in first.said
    before = _made_in(folder)
    again = command("quickstart", "--output_dir", folder, *SMALL)
    assert again.code == 0
    again = again.said + again.told
    assert again.count("nothing to do") + again.count("skipped") >= 7
    assert _made_in(folder) == before


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_quickstart_reaches_the_results_of_the_pages(published, tmp_path):
    environment = {**os.environ, "DEVICE": "cpu", "OUT": str(tmp_path)}
    run_shell("sh scripts/quickstart.sh", ROOT, environment, timeout=1800)
    results = json.loads((tmp_path / "quickstart.json").read_text(encoding="utf-8"))
    shown = next(run for run in published if run["seed"] == results["seed"])
    assert results["tokens"] == shown["tokens"]
    assert results["valid_lm_loss"] == pytest.approx(shown["valid_lm_loss"], abs=TOLERANCE["valid_lm_loss"])
    assert results["pretrained"]["accuracy"] >= 0.9
    for name in ("accuracy", "flip_rate"):
        expected = pytest.approx(shown["pretrained"][name], abs=TOLERANCE[name])
        assert results["pretrained"][name] == expected, name
        # From scratch, rounding alone decides how far it gets in so few steps.
        reached = [run["from scratch"][name] for run in published]
        least, most = min(reached) - 2 * TOLERANCE[name], max(reached) + 2 * TOLERANCE[name]
        assert least <= results["from scratch"][name] <= most, name


def _made_in(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("model_state.pdparams")}
