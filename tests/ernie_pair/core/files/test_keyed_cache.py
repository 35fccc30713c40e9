"""An entry is built once per key; several processes and damage are tested with the sample maps."""

import json

import pytest

from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.core.files.keyed_cache import KeyedCache, build_once, hash_key

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
    stem = f"texts-{hash_key(KEY)}"
    assert names_in(tmp_path) == [f"{stem}.json", f"{stem}.lock", f"{stem}.txt"]
    note = json.loads((tmp_path / f"{stem}.json").read_text())
    assert note["key"] == KEY and note["length"] == 4
    assert cache_of(tmp_path).get(pytest.fail, seconds=0) == "text"
    assert cache_of(tmp_path, {**KEY, "version": 2}).read() is None


def test_a_failed_build_leaves_no_result(tmp_path):
    with pytest.raises(ZeroDivisionError):
        cache_of(tmp_path).get(lambda: 1 // 0, seconds=0)
    assert names_in(tmp_path) == [f"texts-{hash_key(KEY)}.lock"]


def test_a_cache_entry_may_consist_of_the_note_alone(tmp_path):
    cache = KeyedCache(tmp_path, KEY, lambda words: {"words": words}, lambda note: note["words"])
    assert cache.get(lambda: ["一"], seconds=0) == ["一"] == cache.get(pytest.fail, seconds=0)
    assert names_in(tmp_path) == [f"{hash_key(KEY)}.json", f"{hash_key(KEY)}.lock"]


def test_an_existing_entry_is_returned_without_a_lock(tmp_path):
    assert build_once(tmp_path / "absent" / "lock", 0, lambda: "found", pytest.fail) == "found"
    assert not list(tmp_path.iterdir())
