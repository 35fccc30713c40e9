"""Names of labels, files and folders that are HTML, Markdown or formulas: nothing written here runs them."""

import csv
from xml.etree import ElementTree

import pytest
from html_page import Page
from tiny_pair import toy_rows, write_model, write_rows

from ernie_pair.__main__ import _run as run_here
from ernie_pair.core.cli.cli import exit_code_of

IMAGE, LINK, FORMULA = "<img src=x onerror=alert(1)>", "[x](javascript:alert(2))", "=1+cmd|' C'!A0"
LABELS = (f"{IMAGE}{LINK}", f"@{LINK}`*|*`")
TEXTS = (f"{IMAGE}好", f"{FORMULA}", "</script><script>alert(3)</script>", "-2+3", f"@{LINK}")


@pytest.fixture(scope="module")
def outputs(module_path):
    """A folder with an output of every command that writes a page, a card, a plot or a table."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(module_path)
        folder = module_path / f"{IMAGE}{LINK}"
        folder.mkdir()
        files = {part: folder / f"{FORMULA}{part}.tsv" for part in ("train", "dev")}
        for seed, path in enumerate(files.values()):
            rows = [[left, right, LABELS[label]] for left, right, label in toy_rows(60, seed)]
            for row, text in zip(rows, TEXTS):
                row[0] = text
            write_rows(path, rows)
        repeated = [(text, other, 1) for text in TEXTS for other in (FORMULA, "你好", "您好")]
        numbered = str(write_rows(folder / "@numbered.tsv", [*repeated, ("我", "他", 0)]))
        label_map = ",".join(f"{number}={name}" for number, name in enumerate(LABELS))
        data = ["--train_file", str(files["train"]), "--dev_file", str(files["dev"])]
        model = ["--model_name_or_path", str(write_model(folder / "model")), "--model_type", "ernie"]
        cpu, choices = ["--device", "cpu"], "{dropout: {suggest: categorical, choices: [0.0, 0.1]}}"
        space = ["--trials", "1", "--space", choices]
        steps = "--from_scratch true --max_steps 2 --batch_size 16 --device cpu".split()
        training = [*model, *data, *steps, "--label_map", label_map]
        run, out = f"{folder.name}/run", f"{folder.name}/"
        best = ["--model_path", f"{run}/best", "--input_file", str(files["dev"])]
        for words in (
            ["train", *training, "--output_dir", run],
            ["evaluate", *best, "--output_file", f"{out}e.json", "--report", f"{out}report", *cpu],
            ["predict", *best, "--output_file", f"{out}p.tsv", "--scores", "true", *cpu],
            ["export", "--model_path", f"{run}/best", "--output_dir", f"{out}ship", "--format", "onnx"],
            ["compare", "models", "--models", f"'a={run}/best' 'b={run}/best'", *best[2:],
             "--output_dir", f"{out}compared"],
            ["plot", run, "--output_file", f"{out}plot.html"],
            ["plot", run, "--output_file", f"{out}plot.svg"],
            ["cross-validate", *training, "--folds", "2", "--bootstrap", "5", "--output_dir", f"{out}folds"],
            ["search-params", *training, *space, "--output_dir", f"{out}search"],
            ["mine", "--train_file", numbered, "--output_file", f"{out}mined.csv"],
            ["mine", "--train_file", numbered, "--output_file", f"{out}mined.tsv"],
        ):  # fmt: skip
            code = exit_code_of(lambda words=words: run_here(words))
            assert code == 0, words
        yield folder


def written(outputs, ending, least):
    found = [path for path in sorted(outputs.rglob(f"*{ending}")) if path.is_file()]
    assert len(found) >= least, found
    return {str(path.relative_to(outputs)): path.read_text(encoding="utf-8") for path in found}


def test_no_page_runs_or_loads_what_a_name_says(outputs):
    for name, text in written(outputs, ".html", 4).items():
        assert Page(text).found in ([], ["script"]), name
        assert "alert(" in text or "search" in name, name  # it is shown as text


def test_no_card_or_table_of_markdown_has_a_tag_or_a_link(outputs):
    markdown = pytest.importorskip("markdown_it").MarkdownIt("commonmark", {"html": True}).enable("table")
    for name, text in written(outputs, ".md", 3).items():
        page = markdown.render(text)
        assert Page(page).found == [] and "javascript:alert(2)" in page, name


def test_no_picture_has_a_script_or_a_link(outputs):
    for name, text in written(outputs, ".svg", 1).items():
        tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(text).iter()}
        assert not tags & {"script", "image", "a", "foreignObject"}, name


def test_the_cells_of_tables_stay_in_their_columns(outputs):
    """They begin with what they are, formulas too: the files are read by programs, see the documentation."""
    for name, text in written(outputs, ".tsv", 5).items():
        widths = {line.count("\t") for line in text.splitlines()}
        assert len(widths) == 1, name
    for name, text in written(outputs, ".csv", 1).items():
        assert {len(row) for row in csv.reader(text.splitlines())} == {4}, name
