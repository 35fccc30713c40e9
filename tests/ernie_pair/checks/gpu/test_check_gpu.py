"""The flow of the check and its report, with fake steps; and what a report never reveals."""

import getpass
import json
import os
import re
import socket
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fake_commands import machine

from ernie_pair.checks.gpu import check_gpu as checking
from ernie_pair.checks.gpu.cases import Planned, Step
from ernie_pair.checks.gpu.check_gpu import FORMAT, CheckGpuConfig, check_gpu, show_figure
from ernie_pair.checks.gpu.lab import Lab
from ernie_pair.checks.gpu.machine import ask_paddle, hide_private, machine_of
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import CheckpointError, InputError, NumbersError


def fails():
    raise CheckpointError(f"{Path.home()}/models/best of {getpass.getuser()}: damaged <b>; --seed 3")


def breaks():
    return {}["loss"]


INSTALL = "pip install x==11.11.3.6 from https://a.org/b/c/"
FIGURES = {"tokens/s": 123456.7, "share": 0.5, "GPU": "A card", "pairs": 1200}


@pytest.fixture
def steps(monkeypatch):
    """Replace the steps of the check; each is a list of (name, run, needs)."""
    monkeypatch.setattr(checking, "read_machine", lambda lab: machine(((8, 0), 80.0)))

    def put(*plans):
        made = [
            Step(number, f"title {number}", 60, lambda lab, data, plan=plan: [Planned(*one) for one in plan])
            for number, plan in enumerate(plans)
        ]
        monkeypatch.setattr(checking, "chosen_steps", lambda numbers: made)

    return put


@pytest.fixture
def config(tmp_path):
    return CheckGpuConfig(output_file=str(tmp_path / "check.json"), device="gpu")


def report_of(config):
    return json.loads(Path(config.output_file).read_text(encoding="utf-8"))


def test_a_passing_check_writes_its_report(steps, config, capsys):
    steps([("works", lambda: FIGURES, "")], [("other", dict, "two GPUs"), ("works", dict, "")])
    assert exit_code_of(lambda: check_gpu(config)) == 0
    report = report_of(config)
    assert (report["format"], report["passed"], report["first_failure"]) == (FORMAT, True, None)
    assert [step["verdict"] for step in report["steps"]] == ["passed", "passed"]
    assert report["steps"][0]["cases"][0]["figures"] == FIGURES
    assert report["steps"][1]["cases"][0]["said"] == "needs two GPUs"
    assert report["machine"]["words"].startswith("A card (8.0, 80 GB), driver 535.1; 8 cores of A processor")
    said = capsys.readouterr().out
    assert re.search(r"\[1/2\] step 0: title 0 \(0:0\d\)", said) and "2 steps: 2 passed" in said
    assert re.search(r"^OK       works", said, re.M) and "--       other: needs two GPUs" in said


def test_the_first_failure_is_reported_and_the_rest_still_runs(steps, config, capsys):
    steps(
        [("works", dict, "")],
        [("damaged", fails, ""), ("broken", breaks, "")],
        [("worse", dict, ""), ("late", lambda: {"a": 1}, "")],
    )
    assert exit_code_of(lambda: check_gpu(config)) == CheckpointError.exit_code
    report = report_of(config)
    assert report["first_failure"].startswith("step 1, title 1: damaged: ") and not report["passed"]
    verdicts = [[case["verdict"] for case in step["cases"]] for step in report["steps"]]
    assert verdicts == [["passed"], ["failed", "failed"], ["passed", "passed"]]
    assert report["steps"][1]["cases"][1]["said"] == "KeyError: 'loss'"
    error = capsys.readouterr().err
    assert (
        error.startswith("error: step 1, title 1: damaged: ") and f"attach {config.output_file} to" in error
    )


def test_the_page_shows_what_the_report_holds(steps, config):
    steps([("works", lambda: FIGURES, ""), ("damaged", fails, "")], [("other", dict, "a GPU")])
    with pytest.raises(CheckpointError):
        check_gpu(config)
    page = Path(config.output_file).with_suffix(".html").read_text(encoding="utf-8")
    shown = _Texts.of(page)
    for words in ("GPU check", "A card", "tokens/s", "123,457", "works", "needs a GPU", "First failure:"):
        assert words in shown, words
    assert "damaged <b>; --seed 3" in shown and "<b>; --seed" not in page  # as text, not as HTML
    assert not re.search(r"<(script|link|img)|https?:", page)


class _Texts(HTMLParser):
    """The text of a page; also checks that its elements are closed in order."""

    ALONE = {"meta", "br"}

    def __init__(self):
        super().__init__()
        self.open, self.texts = [], []

    @classmethod
    def of(cls, page):
        parser = cls()
        parser.feed(page)
        assert parser.open == []
        return " ".join(" ".join(parser.texts).split())

    def handle_starttag(self, tag, attributes):
        self.open += [] if tag in self.ALONE else [tag]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_a_report_reveals_no_user_host_or_folder(steps, config, monkeypatch):
    host, user = "node17.lab.example", "anna"
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    monkeypatch.setattr(getpass, "getuser", lambda: user)
    monkeypatch.setenv("HOME", "/home/anna")

    def tells():
        raise NumbersError(
            f"/home/anna/secret/y: {os.getcwd()}/project/made by {user} on {host}, node17: at 10.0.0.7:6170 "
            "for anna@lab.example; see /data/secret/project/model.pdparams, 1/2 and --max_lr 0.1"
        )

    steps([("tells", tells, "")])
    with pytest.raises(NumbersError):
        check_gpu(config)
    for ending in ("json", "html"):
        text = Path(config.output_file).with_suffix(f".{ending}").read_text(encoding="utf-8")
        for private in ("anna", "node17", "10.0.0.7", "secret", "project", os.getcwd(), str(Path.home())):
            assert private not in text, private
        assert "model.pdparams" in text and "1/2 and --max_lr 0.1" in text


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("no weights in /a/b/model.npz; use /x/y", "no weights in .../model.npz; use .../y"),
        ("a share of 1/2 and tokens/s", "a share of 1/2 and tokens/s"),
        ("of 10.1.2.3:80 and me@here.org", "of <address> and <address>"),
        (INSTALL, INSTALL),
        ('File "/opt/py/x.py", line 3', 'File ".../x.py", line 3'),
    ],
)
def test_folders_and_addresses_are_removed_from_texts(text, wanted):
    assert hide_private(text) == wanted


def test_an_existing_report_is_kept_unless_overwrite_is_set(steps, config):
    steps([("works", dict, "")])
    page = Path(config.output_file).with_suffix(".html")
    page.write_text("mine")
    with pytest.raises(InputError, match="check.html exists; pass overwrite=True to replace it"):
        check_gpu(config)
    assert page.read_text() == "mine" and not Path(config.output_file).exists()
    check_gpu(CheckGpuConfig(output_file=config.output_file, device="gpu", overwrite=True))
    assert "GPU check" in page.read_text()


@pytest.mark.parametrize(
    "name, words",
    [
        ("a/b.json", "its folder .* does not exist"),
        ("c.json", "is a folder"),
        *(
            (name, f"output_file .*{name} does not end in .json; name a FILE.json")
            for name in ("d", "d.html", "d.json.gz")
        ),
    ],
)
def test_a_report_path_that_cannot_be_written_is_refused(steps, tmp_path, name, words):
    (tmp_path / "c.json").mkdir()
    with pytest.raises(InputError, match=words):
        check_gpu(CheckGpuConfig(output_file=str(tmp_path / name), device="gpu", overwrite=True))


def test_a_crash_while_querying_paddle_is_a_finding(tmp_path, monkeypatch):
    class Crashes(Lab):
        def run(self, *words, **more):
            raise CheckpointError("the machine module ended with signal 6")

    found = checking.read_machine(Crashes(tmp_path, "gpu", False))
    assert found.gpus == () and found.why_no_gpu.startswith(
        "Paddle cannot be queried: the machine module ended"
    )
    assert found.cores >= 1 and "ernie-pair" in found.versions


def test_the_facts_of_this_machine_are_read():
    facts = json.loads(json.dumps(ask_paddle("cpu")))
    found = machine_of(facts)
    assert found.gpus == ()
    assert re.fullmatch(r"no GPU; \d+ cores of .+, \d+ GB; Paddle for .+", found.words)
    assert socket.gethostname() not in json.dumps(found.facts())


@pytest.mark.parametrize(
    "value, shown",
    [(123456.7, "123,457"), (1200, "1,200"), (0.000012345, "1.23e-05"), (0.5, "0.5"), ("A card", "A card")],
)
def test_figures_are_formatted_for_reading(value, shown):
    assert show_figure(value) == shown
