"""With several processes, after a kill, or on Ray: the corpus is the same, and so are the errors."""

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny_corpus import ROOT, finished, hashes, leftovers, lines_of, write_vocab
from waiting import free_port, until

from data_tools.corpus import shards
from data_tools.prepare import PrepareConfig, SharedMaker, prepare
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import MachineError
from ernie_pair.core.installation import install_command
from ernie_pair.core.process_pool import ray_map

LARGE = lines_of(*("我爱北京。\n天安门学习" * 150 for _ in range(1100)))  # about six shards
ENDED = {"out.manifest.json", "out_ids.npy", "out_idx.npz"}
WORDS = "--chinese=false --input_path in.jsonl --output_prefix out --vocab_file model/vocab.txt".split()
QUIET = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
# Only looked up, not imported: the tool must import it in its own way.
HAS_RAY, WITHOUT_RAY = find_spec("ray") is not None, "ray is not installed"
needs_ray = pytest.mark.skipif(not HAS_RAY, reason=WITHOUT_RAY)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working folder, so that the paths in a manifest are the same in every test."""
    write_vocab(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(folder, *flags):
    (folder / "in.jsonl").write_bytes(LARGE)
    command = [sys.executable, "-m", "ernie_pair", "prepare", *WORDS, *flags]
    return subprocess.Popen(
        command, cwd=folder, env=QUIET, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(run):
    """Its stdout and stderr, once it has exited with code 0."""
    streams = run.communicate(timeout=120)
    assert run.returncode == 0, streams[1]
    return streams


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    write_vocab(folder)
    ended(start(folder))
    assert set(hashes(folder)) == ENDED
    return hashes(folder)


def test_two_processes_write_the_same_bytes_as_one(folder, whole):
    ended(start(folder, "--engine", "local", "--workers", "2"))
    assert hashes(folder) == whole


def test_a_killed_run_started_again_writes_the_same_bytes(folder, whole):
    run = start(folder)
    until(lambda: len(list(folder.glob("out.shards/*.shard"))) >= 2)
    run.kill()
    run.communicate()
    assert run.returncode == -signal.SIGKILL and not finished(folder)
    ended(start(folder, "--workers", "2"))
    assert hashes(folder) == whole


@needs_ray
def test_ray_writes_the_same_bytes_and_shows_no_logs_of_ray(folder, whole):
    output, errors = ended(start(folder, "--engine", "ray", "--workers", "2"))
    assert hashes(folder) == whole
    assert output == "" and errors.startswith("out: 1100 documents") and len(errors.splitlines()) == 1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """HOST:PORT of a Ray cluster that was started in another folder than the tool."""
    if not HAS_RAY:
        pytest.skip(WITHOUT_RAY)
    address = f"127.0.0.1:{free_port()}"
    port = address.rpartition(":")[2]
    words = ["--head", "--block", "--num-cpus", "2", "--port", port, "--include-dashboard", "false"]
    head = subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", "start", *words],
        cwd=tmp_path_factory.mktemp("elsewhere"),
        env={**QUIET, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert any("Ray runtime started" in line for line in head.stdout)
    yield address
    head.terminate()
    head.communicate(timeout=60)


def make(content, **flags):
    Path("in.jsonl").write_bytes(content)
    places = {"input_path": "in.jsonl", "output_prefix": "out", "vocab_file": "model/vocab.txt"}
    settings = {**places, "chinese": False, **flags}
    return exit_code_of(lambda: prepare(PrepareConfig(workers=2, **settings)))


def by_both(content, cluster, folder, capsys, **flags):
    """(exit code, message, leftover files) of the two engines."""
    ends = []
    for engine in ({"engine": "local"}, {"engine": "ray", "ray_address": cluster}):
        ends.append((make(content, **engine, **flags), capsys.readouterr().err, leftovers(folder)))
    return ends


def test_a_cluster_resolves_paths_relative_to_the_tool(folder, cluster, monkeypatch):
    monkeypatch.setattr(shards, "SHARD_BYTES", 2000)
    Path("words.txt").write_text("爱北京", encoding="utf-8")
    content = lines_of(*(f"我爱北京{number}。\n学习" for number in range(200)))
    flags = {"chinese": True, "cn_whole_word_segment": True, "user_lexicon": "words.txt"}
    assert make(content, **flags) == 0
    local = hashes(folder)
    assert make(content, engine="ray", ray_address=cluster, overwrite=True, **flags) == 0
    assert hashes(folder) == local and not Path("out.shards").exists()


def test_a_bad_line_gives_the_same_error_with_ray(folder, cluster, monkeypatch, capsys):
    monkeypatch.setattr(shards, "SHARD_BYTES", 200)
    lines = [lines_of(f"我爱{number}") for number in range(100)]
    lines[44], lines[60] = b"[]\n", b"oops\n"
    local, ray = by_both(b"".join(lines), cluster, folder, capsys)
    assert local == ray == (2, 'error: in.jsonl:45: a list, not an object; write {"text": "..."}\n', [])


def test_exceeding_max_bad_lines_gives_the_same_error_with_ray(folder, cluster, monkeypatch, capsys):
    monkeypatch.setattr(shards, "SHARD_BYTES", 20_000)
    lines = [lines_of("我爱北京。\n天安门学习" * 50) for _ in range(600)]
    lines[44] = lines[60] = b"[]\n"
    skip = {"on_bad_line": "skip", "max_bad_lines": 1}
    local, ray = by_both(b"".join(lines), cluster, folder, capsys, **skip)
    assert local == ray and local[0] == 2 and local[2] == []
    assert local[1].startswith("error: in.jsonl:61: a list") and "--max_bad_lines 1" in local[1]


def test_the_task_of_a_lost_worker_is_retried(folder, cluster):
    def work(item):
        if item == 3 and not Path(mark).exists():
            Path(mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return item * item

    mark = str(folder / "died")
    assert list(ray_map(work, range(9), 2, cluster)) == [item * item for item in range(9)]
    assert Path(mark).exists()


def test_a_task_that_kills_every_worker_gives_exit_code_5(cluster, capfd):
    def work(item):
        if item == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    results = ray_map(work, range(9), 2, cluster)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    assert exit_code_of(lambda: next(results)) == 5
    # Ray forwards its own log, sometimes only after the end.
    lines = map(str.splitlines, capfd.readouterr())
    output, told = ([line for line in each if "(raylet" not in line] for each in lines)
    assert output == [] and len(told) == 1 and told[0].startswith("error: Ray gave up on a task")


@needs_ray
def test_an_unreachable_cluster_gives_exit_code_5_and_no_files(folder, capsys):
    nobody = f"127.0.0.1:{free_port()}"
    assert make(lines_of("我"), engine="ray", ray_address=nobody) == 5
    assert capsys.readouterr().err.startswith(f"error: no Ray cluster at --ray_address {nobody} (")
    assert leftovers(folder) == []


def test_missing_ray_is_reported_and_existing_shards_are_kept(folder, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    kept = folder / "out.shards" / "00000000.shard"
    kept.parent.mkdir()
    kept.touch()
    assert make(lines_of("我"), engine="ray") == 2
    assert capsys.readouterr().err == f"error: ray is not installed; {install_command('ray')}\n"
    assert kept.exists()


@pytest.mark.parametrize("missing", ["out.shards", "vocab.txt", "words.txt"])
def test_a_file_not_seen_by_a_machine_is_reported(folder, missing):
    for name in {"out.shards", "vocab.txt", "words.txt"} - {missing}:
        (folder / name).touch()
    rules = SimpleNamespace(vocab_file=str(folder / "vocab.txt"), lexicon=str(folder / "words.txt"))
    maker = SharedMaker(SimpleNamespace(folder=folder / "out.shards", rules=rules))
    with pytest.raises(MachineError, match=f"{missing}: not seen by .*; put it where all machines"):
        maker(None)
