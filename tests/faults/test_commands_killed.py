"""Commands killed by SIGKILL midway: started again, they produce the bytes of an uninterrupted run."""

import itertools
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module
from typing import Dict, NamedTuple

import pytest
from launched import QUIET, one_thread
from tiny_pair import write_model, write_pairs
from tiny_search import texts_of, write_lines
from tiny_ship import write_trained

from ernie_pair.__main__ import _run as run_here
from ernie_pair.__main__ import main
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.files.atomic_files import CONFIG_YAML

SERIES = (
    "--model_name_or_path bare --model_type ernie --from_scratch true --train_file train.tsv --max_steps 6 "
    "--learning_rate 5e-3 --batch_size 16 --device cpu --seed 3 --checkpoint_steps 2"
)
# These contain times or the id of a run; what a run learned is compared by weights and predictions.
TIMED = re.compile(
    r".*(metrics\.jsonl|study\.db|MANIFEST\.json|run\.json|\.lock|\.log|best-[^/]+/\.made\.json)"
)
PUBLISHED_LAST = """
    OUT.tsv OUT/export.json OUT/vectors.json OUT/report.json OUT/c.manifest.json OUT/compare.json
""".split()


class Case(NamedTuple):
    """A command, the rename just before which it is killed, and constants that split its work into parts.

    ``name``: of the file or folder that is renamed, or an audit event. ``timed``: what also contains times.
    """

    words: str
    name: str
    time: int = 1
    small: Dict[str, Dict[str, int]] = {}
    timed: str = ""
    alone: bool = False  # each start is a process: Paddle's graph names keep counting in one


MINING, SEARCH = "ernie_pair.mining", "ernie_pair.retrieval"
CASES = {
    "mine": Case(
        "--train_file train.tsv --output_file OUT.tsv --embedding_model model --min_similarity 0.01 "
        "--max_similarity 1",
        r"block-\w+\.json",
        4,
        {f"{MINING}.neighbours": {"BLOCK_BYTES": 4000, "EMBEDDED_AT_ONCE": 30}},
    ),
    "prepare": Case(
        "--input_path texts.txt --output_prefix OUT/c --vocab_file model/vocab.txt --min_doc_length 1",
        r"OUT/c_ids\.npy",
    ),
    "embed": Case("--model_path model --input_file texts.txt --output_dir OUT --dtype int8", "OUT"),
    "index": Case(
        "--input_file texts.txt --embedding_model model --output_dir OUT",
        "OUT",
        small={f"{SEARCH}.build_index": {"CHUNK": 20}},
    ),
    "cross-validate": Case(
        f"{SERIES} --folds 2 --eval_freq 3 --bootstrap 20 --output_dir OUT", r"fold-2/checkpoints/step_0+4"
    ),
    "learning-curve": Case(
        f"{SERIES} --dev_file new.tsv --test_file new.tsv --seeds 2 --bootstrap 20 --output_dir OUT",
        r"share-0\.5-seed-\d+/checkpoints/step_0+4",
    ),
    "compare starts": Case(
        "--starts 'a=model b=other' --train_config train.yaml --seeds 1 --bootstrap 20 --output_dir OUT",
        r"subprocess\.Popen",
        3,
        timed=r"OUT/(compare\.html|plan\.json)",  # its page shows when and how fast each run was
        alone=True,
    ),
    "search-params": Case(
        f"{SERIES} --dev_file new.tsv --space '{{weight_decay: {{suggest: float, low: 0.01, high: 0.2}}}}' "
        "--trials 2 --evaluations 2 --pruner none --output_dir OUT",
        r"trial-0001/checkpoints/step_0+4",
    ),
}


@pytest.fixture(scope="module")
def world(module_path):
    write_trained(module_path / "model")
    write_trained(module_path / "other", hidden_size=48)
    write_model(module_path / "bare")
    write_pairs(module_path / "train.tsv", 60, seed=0)
    write_pairs(module_path / "new.tsv", 90, seed=1)
    write_lines(module_path / "texts.txt", texts_of(90))
    flags = "train_file: train.tsv, dev_file: new.tsv, max_steps: 4, batch_size: 16, device: cpu, seed: 3"
    (module_path / "train.yaml").write_text(f"{{{flags}}}")
    return module_path


def output_of(command):
    return command.replace(" ", "-")


def words_of(command, case, output):
    return [*command.split(), *shlex.split(case.words.replace("OUT", output))]


def start(words, code):
    done = subprocess.run([sys.executable, *words], env=one_thread(), capture_output=True, text=True)
    assert done.returncode == code, done.stderr


def make_small(case, setattr=setattr):
    for module, values in case.small.items():
        for name, value in values.items():
            setattr(import_module(module), name, value)


def run_killed(command):
    """Run a command that kills itself just before a file or folder gets the final name of its case."""
    case, count, output = CASES[command], itertools.count(1), output_of(command)
    ending = re.compile(f"(?:.*/)?{case.name.replace('OUT', output)}")

    def hook(event, arguments):
        happened = os.fspath(arguments[1]) if event == "os.rename" else event
        if ending.fullmatch(happened) and next(count) == case.time:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    make_small(case)
    sys.argv = ["ernie-pair", *words_of(command, case, output)]
    main()


def made(folder, name):
    """The files of an output, with its name replaced by OUT, and those a killed run keeps beside it."""
    return {
        str(path.relative_to(folder)).replace(name, "OUT"): path.read_bytes().replace(name.encode(), b"OUT")
        for path in folder.rglob("*")
        if name in path.relative_to(folder).parts[0]
        and path.is_file()
        and not path.is_symlink()
        and "vdl" not in path.parts
        and path.name != CONFIG_YAML
    }


@pytest.fixture
def in_world(world, monkeypatch):
    monkeypatch.chdir(world)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")  # the date on pages, to the minute
    return world


def assert_same_result(case, cut, whole):
    assert sorted(whole) == sorted(cut)  # nothing half-written is left
    unlike = {name for name in whole if whole[name] != cut[name]}
    assert not [name for name in unlike if not (TIMED.fullmatch(name) or re.fullmatch(case.timed, name))]


@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=[pytest.mark.slow] * (name == "compare starts")) for name in CASES]
)
def test_a_killed_command_resumes_to_the_same_result(in_world, tmp_path, monkeypatch, command):
    case = CASES[command]
    make_small(case, monkeypatch.setattr)
    output, found = output_of(command), []
    words = words_of(command, case, output)
    for is_cut in (True, False):
        if is_cut:
            start([__file__, command], -signal.SIGKILL)
            begun = set(made(in_world, output))
            assert begun and not set(PUBLISHED_LAST) & begun
        if case.alone:
            start(["-m", "ernie_pair", *words], 0)
        else:
            assert exit_code_of(lambda: run_here(words)) == 0
        found.append(made(in_world, output))
        for path in in_world.glob(f"*{output}*"):  # whose name is in what the next one writes
            path.rename(tmp_path / path.name) if is_cut else None
    assert_same_result(case, *found)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["cross-validate", "search-params", "compare starts"])
def test_a_series_killed_at_random_ends_as_a_whole_one(in_world, tmp_path, monkeypatch, command):
    monkeypatch.setenv("COLD", "1")  # what is killed is the program itself
    rng, case, output, kills, found = random.Random(2024), CASES[command], output_of(command) + "-r", 0, []
    words = ["-m", "ernie_pair", *words_of(command, case, output)]
    begin = time.monotonic()
    start(words, 0)
    whole = time.monotonic() - begin
    found.append(made(in_world, output))
    (in_world / output).rename(tmp_path / "whole")
    while kills < 10:
        run = subprocess.Popen([sys.executable, *words], env=one_thread(), start_new_session=True, **QUIET)
        with suppress(subprocess.TimeoutExpired):  # most of its time it starts; it gets on from kill to kill
            assert run.wait(rng.uniform(0.1, whole / 3)) == 0
            break
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        kills += 1
    start(words, 0)
    assert kills and made(in_world, output).keys()
    assert_same_result(case, made(in_world, output), *found)


if __name__ == "__main__":
    run_killed(*sys.argv[1:])
