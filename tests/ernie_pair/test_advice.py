"""Commands and flags that errors suggest: each is read by the real parser, and those of models are run."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from children import command
from places import ROOT
from tiny_pair import write_pairs
from tiny_ship import ship, write_trained

from ernie_pair.__main__ import _loaded, main
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import InputError, OpenError, SeveralErrors, for_outer
from ernie_pair.core.files.hub import download_hint
from ernie_pair.training.trainer import log_skipped


@pytest.fixture(scope="module")
def world(module_path):
    """What a pipeline leaves in a folder: an exported model and a run with two best models and their link."""
    service = module_path / "my service"
    run = write_trained(service / "pair" / "best-accuracy-0.8000").parent
    write_trained(run / "best-accuracy-0.7000")
    (run / "best").symlink_to("best-accuracy-0.8000")
    ship(run / "best-accuracy-0.8000", service / "exported")
    write_pairs(module_path / "pairs.tsv", 40)
    (module_path / "texts.txt").write_text("今天天气很好\n你好\n", encoding="utf-8")
    return module_path


@pytest.fixture
def said(world, monkeypatch, capsys):
    """A function that runs a command in the folder, and returns its code and what it told."""

    def run(words):
        monkeypatch.chdir(world)
        (world / "out.tsv").unlink(missing_ok=True)
        monkeypatch.setattr(sys, "argv", ["ernie-pair", *shlex.split(words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, capsys.readouterr().err

    return run


def commands_in(told):
    """The commands of this package in an error, which end it or a clause of it."""
    return [found.strip() for found in re.findall(r"ernie-pair [^;\n]+", told)]


ASK = "--input_file pairs.tsv --output_file out.tsv --device cpu"
BEST = "'my service/pair/best-accuracy-0.{}000'"
PLACES = {
    f"predict --model_path 'my service' {ASK}": "my service/pair",
    "evaluate --model_path='my service' --input_file pairs.tsv --device cpu": "my service/pair",
    f"predict --model_path {BEST.format(7)} {BEST.format(8)} {ASK}": (
        "0.7000 and my service/pair/best-accuracy-0.8000"
    ),
    f"predict {BEST.format(8)} --model_path {BEST.format(7)} {ASK}": ("2 are given"),
    "embed --model_path 'my service/' --input_file texts.txt --output_dir v --device cpu": "my service/pair",
}


@pytest.mark.parametrize("words, names", PLACES.items(), ids=[f"{n}" for n in range(len(PLACES))])
def test_a_model_beside_or_below_is_named_and_its_command_runs(said, world, words, names):
    code, told = said(words)
    assert code == 2 and told.count("\n") == 1 and names in told
    (again,) = commands_in(told)
    assert said(again.removeprefix("ernie-pair "))[0] == 0, again


def test_serve_names_the_exported_model_below(said, world):
    code, told = said("serve --model_path 'my service'")
    assert code == 2 and "a model is in my service/exported: give that folder" in told
    (again,) = commands_in(told)
    assert again == "ernie-pair serve --model_path 'my service/exported'"
    assert _loaded(shlex.split(again)[1:]).args[1].model_path == "my service/exported"


HUB = ("bert-base-chinese", "BAAI/bge-small-zh")


@pytest.mark.parametrize("name", HUB)
@pytest.mark.parametrize("words", [
    f"predict {ASK}",
    "embed --input_file texts.txt --output_dir vectors",
    "evaluate --input_file pairs.tsv",
    "serve",
    "export --output_dir ship",
])  # fmt: skip
def test_the_name_of_a_hub_gets_the_command_that_downloads_it(said, words, name):
    code, told = said(f"{words} --model_path {name}")
    folder = name.rpartition("/")[2]
    assert code == 2 and f"download {name} --local-dir {folder}" in told


def test_the_download_command_is_one_of_the_library():
    """It is read to the end: without a network it fails for want of the model, not of a flag."""
    words = re.findall(r"(?:hf|huggingface-cli) download .+?(?= or )", download_hint(HUB[1]))[0].split()
    words[0] = next(str(path) for path in map(Path, _programs(words[0])) if path.exists())
    done = subprocess.run(
        [*words, "--help"], capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}
    )
    assert done.returncode == 0 and "--local-dir" in done.stdout


def _programs(name):
    return [f"{sys.prefix}/bin/{name}", *(f"{place}/{name}" for place in os.environ["PATH"].split(":"))]


def test_an_inner_command_does_not_advise_flags_of_its_own():
    message = (
        "out/audit exists; pass --overwrite true to replace it, or choose another name (it was made from X)"
    )
    outer = "pipeline train_file output_dir"
    found = for_outer(message, outer)
    assert (
        found == "out/audit exists (it was made from X); give pipeline another --output_dir for what is new"
    )
    assert for_outer("a.tsv:3: no label; correct it", outer) == "a.tsv:3: no label; correct it"
    kept = "a.tsv: no such file; give another --train_file"
    assert for_outer(kept, outer) == kept
    assert "--learning_rate" not in for_outer("the loss is nan; lower --learning_rate", outer)


def test_changed_pairs_of_a_pipeline_get_advice_that_it_has(tmp_path):
    write_pairs(tmp_path / "pairs.tsv", 60, seed=1)
    words = ["audit", "pairs", f"--train_file={tmp_path}/pairs.tsv", f"--output_dir={tmp_path}/audit"]
    assert command(*words).code == 0
    write_pairs(tmp_path / "pairs.tsv", 60, seed=2)
    alone = command(*words)
    assert alone.code == 2 and "--overwrite true" in alone.told
    environment = {**os.environ, "ERNIE_PAIR_OUTER": "pipeline train_file output_dir"}
    inner = subprocess.run(
        [sys.executable, "-m", "ernie_pair", *words],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    last = inner.stderr.splitlines()[-1]
    assert inner.returncode == 2 and "--overwrite" not in last and "content of --train_file" in last
    assert last.endswith("give pipeline another --output_dir for what is new")


def test_several_problems_stand_on_several_lines(capsys):
    def refuse():
        raise SeveralErrors(
            [InputError("a.tsv: one\nline"), SeveralErrors([InputError("b"), InputError("c")])]
        )

    assert exit_code_of(refuse) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "error: 3 things to fix, nothing was written:",
        "  (1) a.tsv: one line",
        "  (2) b",
        "  (3) c",
    ]


def test_the_command_of_all_flags_names_what_no_flag_cures(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/bin/ernie-pair", "pipeline"])

    def refuse():
        raise SeveralErrors([InputError("a"), OpenError("b", {"on_bad_row": "skip"}), InputError("c")])

    assert exit_code_of(refuse) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "  all of it, once (1) and (3) are fixed: ernie-pair pipeline --on_bad_row skip"


@pytest.mark.parametrize("skipped, fails", [(0, False), (1, False), (9, False), (10, True)])
def test_a_run_counts_skipped_steps_and_fails_if_nearly_all(caplog, skipped, fails):
    state = TrainState(step=10, skipped_updates=skipped)

    def run():
        log_skipped(state)

    assert exit_code_of(run) == (4 if fails else 0)
    assert (f"{skipped} of 10 steps were skipped" in caplog.text) == (skipped > 0 and not fails)
