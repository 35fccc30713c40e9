"""The notebooks in notebooks/ run from the first cell to the last, and are stored with what they gave.

STORE_NOTEBOOKS=1 sh scripts/test.sh -m slow tests/ernie_pair/launch/test_stored_notebooks.py
"""

import json
import os
import re
import sys

import pytest
from places import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SECONDS = 900  # per cell, on a busy machine
# The number of pictures that each notebook draws.
PICTURES = {"recipe": 3, "pairs_and_search": 1}
# How a quick run shortens the cells.
SHORTER = {
    "documents=1000, pairs=10000": "documents=100, pairs=1200",
    "max_steps=2400": "max_steps=240",
    "logging_freq=200": "logging_freq=40",
    "eval_freq=400": "eval_freq=120",
}


def cells_of(path, kind):
    book = json.loads(path.read_text(encoding="utf-8"))
    return [cell for cell in book["cells"] if cell["cell_type"] == kind]


def texts_of(cell):
    """Return what a cell printed with the value of its last line, and the MIME types of its outputs."""
    outputs = sorted(
        cell["outputs"], key=lambda output: output.get("name") == "stderr"
    )  # as they come, by chance
    printed = "".join(output.get("text", "") for output in outputs)
    printed = re.sub(r"[^\n]*\r", "", printed)  # bars, as what follows them hides them
    given = [output["data"] for output in outputs if "data" in output]
    return printed + "".join(data.get("text/plain", "") for data in given), [
        kind for data in given for kind in data
    ]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a notebook in its own folder, and return its code cells with their outputs."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "ernie-pair"  # this checkout's command, as in its activated environment
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ernie_pair "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    kernel = {"argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]}
    spec = tmp_path / "jupyter" / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({**kernel, "display_name": "Python 3", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))

    def execute(name, shorter):
        path = ROOT / "notebooks" / f"{name}.ipynb"
        text = path.read_text(encoding="utf-8")
        for words, others in shorter.items():
            assert words in text or name != "recipe", words
            text = text.replace(words, others)
        book = nbformat.reads(text, as_version=4)
        place = {"metadata": {"path": str(tmp_path)}}
        nbclient.NotebookClient(book, timeout=SECONDS, resources=place).execute()
        cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
        if "STORE_NOTEBOOKS" in os.environ and not shorter:
            store(path, cells, tmp_path)
        return cells

    return execute


def store(path, cells, here):
    """Write what the code cells of a notebook gave in the folder ``here`` into its file."""
    book = json.loads(path.read_text(encoding="utf-8"))
    of_file = (cell for cell in book["cells"] if cell["cell_type"] == "code")
    for number, (stored, cell) in enumerate(zip(of_file, cells, strict=True), start=1):
        printed, outputs = texts_of(cell)[0], []
        pictures = [output for output in cell["outputs"] if "image/png" in output.get("data", {})]
        printed = printed.replace("<Figure size 640x480 with 1 Axes>", "").replace(f"{here}/", "")
        lines = [line for line in printed.rstrip().splitlines(True) if "%|" not in line]  # no bars
        if lines:
            outputs.append({"output_type": "stream", "name": "stdout", "text": lines})
        outputs += [
            {"output_type": "display_data", "metadata": {}, "data": {"image/png": each["data"]["image/png"]}}
            for each in pictures
        ]
        stored.update(execution_count=number, outputs=outputs)
    path.write_text(json.dumps(book, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def test_notebooks_are_stored_with_what_they_gave():
    said = []
    for path in NOTEBOOKS:
        cells = cells_of(path, "code")
        assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
        printed = ["".join("".join(each.get("text", ())) for each in cell["outputs"]) for cell in cells]
        assert not re.search(r"(?<![\w.])/(tmp|root|home|work|usr)\b|0x[0-9a-f]{6}|Warning", "".join(printed))
        assert len(re.findall('"image/png"', json.dumps(cells))) == PICTURES[path.stem]
        said.append(printed)
    search, recipe = said
    assert "train step 2400/2400  100.0%" in recipe[2] and len(recipe[-1].splitlines()) == 2
    assert_search_went_well(search)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_each_markdown_cell_is_in_both_languages(path):
    for cell in cells_of(path, "markdown"):
        text = "".join(cell["source"])
        assert re.search("[\u4e00-\u9fff]", text) and re.search("[A-Za-z]{3}", text), text


def draw_count(cells):
    return sum(kind == "image/png" for cell in cells for kind in texts_of(cell)[1])


def validation_losses(path):
    events = [json.loads(line) for line in path.read_text().splitlines()]
    return [event["lm_loss"] for event in events if event["split"] == "valid"]


@pytest.mark.parametrize(
    "shorter", [SHORTER, pytest.param({}, marks=pytest.mark.slow)], ids=["short", "whole"]
)
@pytest.mark.timeout(1800)
def test_the_notebooks_run_one_after_the_other(run, tmp_path, shorter):
    """The second begins with the model and the pairs of the first."""
    pytest.importorskip("faiss")
    recipe, search = run("recipe", shorter), run("pairs_and_search", shorter)
    said = [texts_of(cell)[0] for cell in recipe + search]
    assert [text for text in said if "Warning" in text] == []
    assert draw_count(recipe) == PICTURES["recipe"] and draw_count(search) == PICTURES["pairs_and_search"]
    assert_recipe_went_well("\n".join(said), tmp_path / "output" / "recipe", 240 if shorter else 2400)
    assert_search_went_well(said[len(recipe) :])
    if not shorter:
        assert_both_learned(said[len(recipe) :], tmp_path / "output" / "recipe")


def assert_recipe_went_well(said, output, steps):
    assert f"train step {steps}/{steps}  100.0%" in said and "end   step" in said
    losses = validation_losses(output / "pretrain" / "metrics.jsonl")
    assert losses[-1] < losses[0]
    assert (output / "report" / "report.html").is_file() and (output / "ship" / "model.onnx").is_file()
    assert len(re.findall(r"^\d\.\d{3} 怎么申请退货 ", said, re.M)) == 2


def assert_search_went_well(said):
    assert re.search(r"^recall at 10: (.+)$", said[1], re.M)
    assert re.search(r"^accuracy on the dev pairs: (\S+) of ", said[2], re.M)
    hits = [re.match(r"(\d\.\d+)  (-?\d\.\d+)  ", line) for line in said[-1].splitlines()]
    scores = [float(hit[1]) for hit in hits if hit]
    by_vectors, by_both = scores[:5], scores[5:]
    assert len(by_both) == 5
    assert [by_vectors, by_both] == [sorted(by_vectors, reverse=True), sorted(by_both, reverse=True)]


def assert_both_learned(said, output):
    losses = validation_losses(output / "pretrain" / "metrics.jsonl")
    assert losses[-1] < losses[0] - 2
    assert json.loads((output / "test.json").read_text())["accuracy"] > 0.75
    assert float(re.search(r"^recall at 10: (.+)$", said[1], re.M)[1]) > 0.9
    assert float(re.search(r"^accuracy on the dev pairs: (\S+) of ", said[2], re.M)[1]) > 0.75
    equal, other = (float(line.split()[0]) for line in said[3].splitlines())
    assert equal > 0.5 > other
    assert float(said[-1].split()[0]) > 0.6 and "退货" in said[-1]
