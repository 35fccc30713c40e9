"""What the pages say about the package is true: links, flags, commands, messages, files.

Nothing is run here: test_readme_blocks.py runs the commands of the pages, and both languages are compared by
test_page_parity.py.
"""

import os
import re
import subprocess
import sys
from functools import cache
from inspect import cleandoc
from pathlib import Path
from pydoc import locate
from xml.etree import ElementTree

import flags_table
import pytest
from pages import FENCE, PAGES, TABLE, blocks, headings, prose_of, text_of
from places import ROOT
from readme_block import FLAGS, between, pages_with

import ernie_pair
from ernie_pair.commands import COMMANDS, WORDS, python_names
from ernie_pair.pairs.train.own_loop import TrainingParts

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
INLINE = re.compile(r"`([^`\n]+)`")
# Flags of launchers, benchmark scripts and other programs, and options that are not a single flag.
FLAGS_OF_OTHERS = set(
    "config help version gpus nproc_per_node nnodes master log_dir processes peer_python language logdir "
    "rounds cases pair_file vocab_file work data results log_level lr model local_dir".split()
)


def slug_of(heading):
    text = re.sub(r"[^\w\s-]", "", heading.lstrip("#").strip().lower())
    return re.sub(r"\s", "-", text)


@pytest.mark.parametrize("page", PAGES)
def test_every_internal_link_has_a_target(page):
    for target in LINK.findall(FENCE.sub("", text_of(page))):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.is_file(), f"{page}: {target}"
        if anchor:
            there = os.path.relpath(file.resolve(), ROOT)
            assert anchor in map(slug_of, headings(there)), f"{page}: {target}"


@pytest.mark.parametrize("page", PAGES)
def test_headings_of_a_page_have_unique_anchors(page):
    anchors = [slug_of(heading) for heading in headings(page)]
    assert sorted(set(anchors)) == sorted(anchors)
    assert "--" not in "".join(anchors)  # mkdocs joins dashes, GitHub does not


def test_every_page_is_in_the_menu_and_in_the_index():
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in [page for page in PAGES if page.startswith(("docs/en/", "docs/zh/"))]:
        language, name = Path(page).parts[1:]
        assert f"{language}/{name}" in menu, page
        assert f"]({name})" in text_of(f"docs/{language}/index.md") or name == "index.md", page


@cache
def flags_of_commands():
    found = {}
    for section in re.split(r"^## ", text_of("docs/en/flags.md"), flags=re.M)[1:]:
        names = set(re.findall(r"^\| `(?:--)?(\w+)` \|", section, re.M))
        found[section.splitlines()[0]] = names | (found["train"] if flags_table.SAME in section else set())
    return found


@pytest.mark.parametrize("page", pages_with(FLAGS))
def test_the_flag_tables_of_the_pages_are_up_to_date(page):
    shown = between(FLAGS).search(text_of(page))[0]
    assert shown == flags_table.render_flags(page), "run python scripts/flags_table.py"


def test_commands_like_train_list_only_the_flags_that_differ():
    page = flags_table.render_flags("docs/en/flags.md")
    assert page.count(flags_table.SAME) >= 3 and flags_table.CHINESE_SAME not in page
    chinese = flags_table.render_flags("docs/zh/flags.md")
    for default, its_chinese in flags_table.CHINESE_DEFAULTS.items():
        assert 0 < page.count(f" | {default} | ") == chinese.count(f" | {its_chinese} | ")
    assert {*flags_of_commands()} == {name.replace("--", "") for name in COMMANDS}


@pytest.mark.parametrize("page", PAGES)
def test_every_flag_that_a_page_names_exists(page):
    known = {flag for flags in flags_of_commands().values() for flag in flags} | FLAGS_OF_OTHERS
    known |= {word[2:] for name in COMMANDS for word in name.split() if word.startswith("--")}
    shown = [one.text for one in blocks() if one.page == page and one.language == "sh"]
    ours = [line for text in shown for line in text.splitlines() if "pip install" not in line]
    code = "\n".join([*INLINE.findall(prose_of(page)), *ours])
    assert set(re.findall(r"--([a-z]\w+)\b(?!-)", code)) - known == set()


@pytest.mark.parametrize("page", PAGES)
def test_every_command_that_a_page_names_exists(page):
    code = [*INLINE.findall(prose_of(page)), *(one.text for one in blocks() if one.page == page)]
    named = re.findall(r"\bernie-pair (?!COMMAND)([a-z][\w-]+)", "\n".join(code))
    known = {name.split()[0] for name in [*COMMANDS, *WORDS]}
    assert {name for name in named if not name.endswith(".yaml")} - known == set()


def rows_of(page, is_of=lambda table: True):
    tables = filter(is_of, TABLE.findall(text_of(page)))
    return [line.strip("| ").split(" | ") for table in tables for line in table.splitlines()[2:]]


def test_coming_from_page_names_flags_of_train_and_pretrain():
    rows = rows_of("docs/en/coming-from.md", lambda table: "num_train_epochs" in table)
    assert rows
    for row in rows:
        _, pairs, pretraining = (set(re.findall(r"--(\w+)", cell)) for cell in row)
        assert pairs <= flags_of_commands()["train"], row
        assert pretraining <= flags_of_commands()["pretrain"], row


def test_steps_of_the_tutorials_name_tests_and_names_that_exist():
    steps = rows_of("docs/en/coming-from.md", lambda table: table.startswith("| step |"))
    assert len(steps) == 54 and all(len(cells) == 4 for cells in steps)
    files = (ROOT / "tests").rglob("test_*.py")
    tests = {name for file in files for name in re.findall(r"^def (test_\w+)\(", file.read_text(), re.M)}
    assert {cells[3].strip("` ") for cells in steps} - tests == set()
    kinds = {"TrainingParts": TrainingParts, **{name: getattr(ernie_pair, name) for name in dir(ernie_pair)}}
    for kind, attribute in re.findall(r"`(\w+)\.(\w+)", " ".join(cells[2] for cells in steps)):
        if kind in kinds:
            assert hasattr(kinds[kind], attribute), f"{kind}.{attribute}"


def test_the_api_page_lists_every_public_name():
    listed = re.findall(r"^::: ([\w.]+)$(?:\n    options: {heading: (\w+),)?", text_of("docs/api.md"), re.M)
    names = {name or place.rpartition(".")[2]: place for place, name in listed}
    assert names.keys() == {*ernie_pair._offered(), *python_names()}
    for name, place in names.items():
        found, shown = getattr(ernie_pair, name), locate(place)
        assert shown is found or found.__doc__.startswith(cleandoc(shown.__doc__)), name


@cache
def sources():
    files = [path for folder in ("data_tools", "ernie_pair") for path in (ROOT / folder).rglob("*.py")]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def test_troubleshooting_messages_appear_in_the_source():
    codes = [code for cells in rows_of("docs/en/troubleshooting.md") for code in INLINE.findall(cells[0])]
    messages = [code for code in codes if " " in code and not code.startswith(("pip ", "--"))]
    assert len(messages) >= 5
    assert [message for message in messages if message not in sources()] == []


def test_file_names_on_the_formats_page_appear_in_the_source():
    file = re.compile(r"\b\w+\.(?:json|jsonl|npy|npz|onnx|pdmodel|pdiparams|faiss|tsv|safetensors)\b")
    codes = INLINE.findall(text_of("docs/en/formats.md"))
    names = {name for code in codes for name in file.findall(code) if not name.startswith(("PREFIX", "NAME"))}
    assert len(names) > 10
    parts = [part for part in names if part not in sources()]
    assert [p for p in parts if not all(f".{end}" in sources() for end in p.split(".")[1:])] == []


@pytest.mark.parametrize(
    "picture", sorted((ROOT / "docs" / "images").glob("*.svg")), ids=lambda path: path.name
)
def test_a_picture_has_a_dark_mode_and_no_external_resources(picture):
    text = picture.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg") and "prefers-color-scheme: dark" in text
    assert not re.search(r"(href|src)=|url\(|@import", text)


def test_the_site_builds_without_a_warning(tmp_path):
    for module in ("mkdocs", "material", "mkdocstrings_handlers"):
        pytest.importorskip(module, reason='needs the extra "docs"')
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    api = (tmp_path / "site" / "api.html").read_text(encoding="utf-8")
    assert "PairTrainer" in api and "PairConfig.learning_rate" in api
    page = tmp_path / "site" / "en" / "fine-tune.html"
    languages = re.findall(r'href="([^"]+)" hreflang', page.read_text(encoding="utf-8"))
    assert languages and all((page.parent / link).is_file() for link in languages)
    site = "".join(path.read_text(encoding="utf-8") for path in (tmp_path / "site").glob("en/*.html"))
    assert not re.search(r'<(?:link|script)[^>]+(?:href|src)="https?://(?!.*canonical)', site)
