"""An entry is built once per key, by whichever process comes first, and again when it is damaged."""

import json
import multiprocessing
import os

import pytest

from data_tools.files.arrays import sha256_of_file
from data_tools.files.errors import MachineError
from data_tools.files.keyed_cache import KeyedCache, build_once, name_of_key

KEY = {"of": ["a", "b"], "version": 1}


def write(text, draft):
    draft.write_text(text)
    return {"sha256": sha256_of_file(draft), "length": len(text)}


def load(note, path):
    text = path.read_text()
    return text if note["length"] == len(text) else None


def cache_of(folder, key=KEY, load=load):
    return KeyedCache(folder, key, write, load, kind="texts-", ending=".txt")


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_file_names_derive_from_the_key_stored_in_the_note(tmp_path):
    assert cache_of(tmp_path).get(lambda: "text", seconds=0) == "text"
    stem = f"texts-{name_of_key(KEY)}"
    assert names_in(tmp_path) == [f"{stem}.json", f"{stem}.lock", f"{stem}.txt"]
    note = json.loads((tmp_path / f"{stem}.json").read_text())
    assert note["key"] == KEY and note["length"] == 4
    assert cache_of(tmp_path).get(pytest.fail, seconds=0) == "text"
    assert cache_of(tmp_path, {**KEY, "version": 2}).read() is None


@pytest.mark.parametrize("ending", [".txt", ".json"])
@pytest.mark.parametrize(
    "damage",
    [lambda path: path.write_bytes(path.read_bytes()[:-1]), os.unlink, lambda path: path.write_text("[]")],
    ids=["cut short", "gone", "other"],
)
def test_a_damaged_entry_is_built_again(tmp_path, ending, damage):
    cache_of(tmp_path).get(lambda: "text", seconds=0)
    (path,) = tmp_path.glob(f"*{ending}")
    damage(path)
    assert cache_of(tmp_path).read() is None
    assert cache_of(tmp_path).get(lambda: "again", seconds=0) == "again"
    assert cache_of(tmp_path).read() == "again" and len(names_in(tmp_path)) == 3


def test_two_concurrent_processes_build_only_once(tmp_path):
    context = multiprocessing.get_context("fork")
    meeting = context.Barrier(2)

    def build():
        with open(tmp_path / "built", "a") as notes:
            notes.write("x")
        return "text"

    def ask():
        meeting.wait(60)
        assert cache_of(tmp_path / "cache").get(build, seconds=60) == "text"

    processes = [context.Process(target=ask) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert (tmp_path / "built").read_text() == "x"


def test_a_result_that_cannot_be_read_back_is_an_error(tmp_path):
    with pytest.raises(MachineError, match=r"texts-\w+\.txt: cannot be read back as written"):
        cache_of(tmp_path, load=lambda note, path: None).get(lambda: "text", seconds=0)


def test_a_failed_build_leaves_no_result(tmp_path):
    with pytest.raises(ZeroDivisionError):
        cache_of(tmp_path).get(lambda: 1 // 0, seconds=0)
    assert names_in(tmp_path) == [f"texts-{name_of_key(KEY)}.lock"]


def test_a_cache_entry_may_consist_of_the_note_alone(tmp_path):
    cache = KeyedCache(tmp_path, KEY, lambda words: {"words": words}, lambda note: note["words"])
    assert cache.get(lambda: ["一"], seconds=0) == ["一"] == cache.get(pytest.fail, seconds=0)
    assert names_in(tmp_path) == [f"{name_of_key(KEY)}.json", f"{name_of_key(KEY)}.lock"]


def test_an_existing_entry_is_returned_without_a_lock(tmp_path):
    assert build_once(tmp_path / "absent" / "lock", 0, lambda: "found", pytest.fail) == "found"
    assert not list(tmp_path.iterdir())
