"""An interrupted preparation resumes where it stopped, and writes the same bytes as an uninterrupted one."""

import os
import resource
import signal
from pathlib import Path

import pytest
from tiny_corpus import finished, hashes, lines_of, make, start, stop_after, write_vocab
from waiting import until

from data_tools.corpus import shards
from data_tools.corpus.format import Corpus
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.atomic_files import locked

TEXTS = [f"我爱北京{number}。\n学习" for number in range(40)]
LARGE = lines_of(*("我爱北京。\n天安门学习" * 150 for _ in range(1100)))  # about six shards
ENDED = {"out.manifest.json", "out_ids.npy", "out_idx.npz"}


pytestmark = pytest.mark.usefixtures("vocab_file")


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(shards, "SHARD_BYTES", 200)


def stopped(tmp_path, count=3, content=None, **flags):
    content = lines_of(*TEXTS) if content is None else content
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, content, run_map=stop_after(count), **flags)
    assert not finished(tmp_path)


def unlink_all(tmp_path):
    for path in tmp_path.glob("out*"):
        path.unlink()


def numbers_made(tmp_path, monkeypatch, content=None, **flags):
    """Which shards a run encodes, by the first line of each."""
    encode, made = shards.encode_lines, []

    def spy(encoder, line_rules, batch, *settings):
        made.append(batch.first)
        return encode(encoder, line_rules, batch, *settings)

    monkeypatch.setattr(shards, "encode_lines", spy)
    make(tmp_path, lines_of(*TEXTS) if content is None else content, **flags)
    monkeypatch.setattr(shards, "encode_lines", encode)
    assert not (tmp_path / "out.shards").exists()
    return made


MODES = {
    "plain": {},
    "joined": {"join_documents": "short", "join_tokens": 40},
    "marked": {"chinese": True, "cn_whole_word_segment": True, "user_lexicon": "words.txt"},
}


@pytest.mark.parametrize("flags", MODES.values(), ids=MODES)
def test_a_resumed_run_encodes_only_the_missing_shards(tmp_path, monkeypatch, small_shards, flags):
    monkeypatch.chdir(tmp_path)
    Path("words.txt").write_text("北京\tentity\t5", encoding="utf-8")
    all_of_them = numbers_made(tmp_path, monkeypatch, **flags)
    whole = hashes(tmp_path)
    assert len(all_of_them) > 6 and ("out_marks.npy" in whole) == ("user_lexicon" in flags)
    unlink_all(tmp_path)
    stopped(tmp_path, 3, **flags)
    assert numbers_made(tmp_path, monkeypatch, **flags) == all_of_them[3:]
    assert hashes(tmp_path) == whole
    make(tmp_path, lines_of(*TEXTS), workers=2, overwrite=True, **flags)
    assert hashes(tmp_path) == whole


def test_shard_size_does_not_change_the_corpus(tmp_path, monkeypatch):
    make(tmp_path, lines_of(*TEXTS))
    before = hashes(tmp_path)
    monkeypatch.setattr(shards, "SHARD_BYTES", 100)
    make(tmp_path, lines_of(*TEXTS), overwrite=True)
    assert hashes(tmp_path) == before


def test_a_shard_whose_input_changed_is_encoded_again(tmp_path, monkeypatch, small_shards):
    stopped(tmp_path, 4)
    changed = lines_of(*[text.replace("学习", "习学") if n == 0 else text for n, text in enumerate(TEXTS)])
    firsts = numbers_made(tmp_path, monkeypatch, changed)
    assert firsts[0] == 1 and firsts[1] > 4
    assert [Corpus(tmp_path / "out")[n].tolist() for n in (1, 3)] == [[12, 11], [11, 12]]


@pytest.mark.parametrize("flags", [{"chinese": True}, {"max_sentence_length": 3}, {"on_bad_line": "skip"}])
def test_shards_made_with_other_flags_are_not_used(tmp_path, monkeypatch, small_shards, flags):
    stopped(tmp_path, 3)
    assert numbers_made(tmp_path, monkeypatch, **flags)[0] == 1


def test_shards_of_another_vocabulary_or_lexicon_are_not_used(
    tmp_path, monkeypatch, small_shards, vocab_file
):
    words = tmp_path / "words.txt"
    words.write_text("北京", encoding="utf-8")
    flags = {"chinese": True, "cn_whole_word_segment": True, "user_lexicon": str(words)}
    stopped(tmp_path, 3, **flags)
    words.write_text("爱北", encoding="utf-8")
    assert numbers_made(tmp_path, monkeypatch, **flags)[0] == 1
    unlink_all(tmp_path)
    stopped(tmp_path, 3, **flags)
    Path(vocab_file).write_text(Path(vocab_file).read_text("utf-8") + "more\n", encoding="utf-8")
    assert numbers_made(tmp_path, monkeypatch, **flags)[0] == 1


@pytest.mark.parametrize(
    "damage", [lambda c: c[: len(c) // 2], lambda c: b"", lambda c: c.replace(b"in.jsonl", b"on.jsonl")]
)
def test_a_damaged_shard_is_made_again(tmp_path, monkeypatch, small_shards, damage):
    make(tmp_path, lines_of(*TEXTS))
    whole = hashes(tmp_path)
    unlink_all(tmp_path)
    stopped(tmp_path, 3)
    shard = tmp_path / "out.shards" / "00000001.shard"
    shard.write_bytes(damage(shard.read_bytes()))
    numbers_made(tmp_path, monkeypatch)
    assert hashes(tmp_path) == whole


def test_a_second_run_on_the_same_output_is_refused(tmp_path, capsys):
    (tmp_path / "out.shards").mkdir()
    with locked(tmp_path / "out.shards" / "lock", seconds=0):
        assert exit_code_of(lambda: make(tmp_path, lines_of("我"))) == 5
    assert "another run is making this corpus" in capsys.readouterr().err


def test_rerunning_finishes_a_run_killed_while_publishing(tmp_path, monkeypatch):
    replace = os.replace

    def replace_until_the_index(source, target):
        if str(target).endswith("_idx.npz"):
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace_until_the_index)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, lines_of(*TEXTS))
    assert finished(tmp_path) == ["out_ids.npy"]
    monkeypatch.setattr(os, "replace", replace)
    assert len(make(tmp_path, lines_of(*TEXTS))) == 40
    whole = hashes(tmp_path)
    with pytest.raises(InputError, match="exists; pass overwrite"):
        make(tmp_path, lines_of(*TEXTS[1:]))
    assert len(make(tmp_path, lines_of(*TEXTS))) == 40 and hashes(tmp_path) == whole


def num_shards(tmp_path):
    return len(list((tmp_path / "out.shards").glob("*.shard")))


@pytest.fixture(scope="module")
def whole(module_path):
    write_vocab(module_path)
    (module_path / "in.jsonl").write_bytes(LARGE)
    assert start(module_path).wait() == 0
    return hashes(module_path)


@pytest.mark.parametrize(("shards_before", "workers"), [(0, 1), (1, 1), (2, 2), (4, 1)])
def test_a_tool_killed_at_any_time_and_rerun_gives_same_bytes(tmp_path, whole, shards_before, workers):
    (tmp_path / "in.jsonl").write_bytes(LARGE)
    run = start(tmp_path, "--workers", str(workers))
    until(lambda: num_shards(tmp_path) >= shards_before)
    run.kill()
    run.communicate()
    assert not finished(tmp_path)
    again = start(tmp_path, "--workers", str(3 - workers))
    assert (again.wait(), hashes(tmp_path)) == (0, whole)
    assert set(whole) == ENDED and not (tmp_path / "out.shards").exists()


def workers_of(pid):
    pids = [p for file in Path(f"/proc/{pid}/task").glob("*/children") for p in file.read_text().split()]
    return [int(p) for p in pids if b"spawn_main" in commandline(p)]


def commandline(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_dead_worker_gives_exit_code_5_and_a_rerun_resumes(tmp_path, whole):
    (tmp_path / "in.jsonl").write_bytes(LARGE)
    run = start(tmp_path, "--workers", "2")
    until(lambda: num_shards(tmp_path) >= 1)
    os.kill(workers_of(run.pid)[0], signal.SIGKILL)
    errors = run.communicate(timeout=30)[1]
    assert run.returncode == 5 and errors.startswith("error: a worker died (killed, or out of memory)")
    assert not finished(tmp_path) and num_shards(tmp_path) >= 1
    assert (start(tmp_path).wait(), hashes(tmp_path)) == (0, whole)


def test_workers_do_not_outlive_a_killed_tool(tmp_path):
    (tmp_path / "in.jsonl").write_bytes(LARGE)
    run = start(tmp_path, "--workers", "2")
    until(lambda: num_shards(tmp_path) >= 1)
    workers = workers_of(run.pid)
    run.kill()
    run.communicate()
    assert len(workers) == 2
    until(lambda: not any(commandline(worker) for worker in workers), seconds=20)


@pytest.mark.parametrize("most_bytes", [300_000, 3_000_000], ids=["shard", "corpus"])
def test_a_full_disk_gives_exit_code_5_and_no_partial_corpus(tmp_path, whole, most_bytes):
    (tmp_path / "in.jsonl").write_bytes(LARGE)
    limit = (most_bytes, most_bytes)
    run = start(tmp_path, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    errors = run.communicate()[1]
    assert run.returncode == 5 and len(errors.splitlines()) == 1 and errors.startswith("error: ")
    assert not finished(tmp_path) and not list(tmp_path.glob("*.draft"))
    assert (start(tmp_path).wait(), hashes(tmp_path)) == (0, whole)
