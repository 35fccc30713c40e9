import errno
import json
import logging
import os
import random
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from run_files import publish_folder
from safetensors.numpy import save as to_safetensors

from ernie_pair.checkpoint import checkpoint_folder as folder_module
from ernie_pair.checkpoint.checkpoint_folder import MANIFEST, STATE
from ernie_pair.checkpoint.checkpoints import Checkpoints
from ernie_pair.checkpoint.fingerprint import RunRules
from ernie_pair.checkpoint.manifest import (
    MANIFEST_FORMAT,
    DamagedError,
    TrainState,
    manifest_bytes,
    parse_state,
    sha256_of,
    state_bytes,
)
from ernie_pair.checkpoint.run_folder import CACHE, LOCK, RunLock, check_unlocked, cleanup_on_error
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import CheckpointError, InputError, MachineError, NumbersError
from ernie_pair.core.files import atomic_files as regular_file
from ernie_pair.core.files.atomic_files import own_name
from ernie_pair.runtime.processes.watchdog import RECORD_BYTES
from ernie_pair.runtime.processes.world import World

FILES = {
    "weights.safetensors": to_safetensors({"w": np.arange(20, dtype=np.float32)}),
    "optimizer.bin": b"o" * 50,
}
SAME = {"seed": 1, "corpus": "abc", "model layers": 2}
TOPOLOGY = {"processes": 1, "micro_batch_size": 4}


def alone(values):
    return values


@pytest.fixture
def checkpoints(tmp_path):
    opened = Checkpoints(tmp_path, World(), alone)
    yield opened
    opened.close()


def save(checkpoints, *steps):
    for step in steps:
        files = {**FILES, "optimizer.bin": FILES["optimizer.bin"] + str(step).encode()}
        checkpoints.save(TrainState(step, step * 8), SAME, iter(files.items()), TOPOLOGY)


def names(checkpoints):
    """Return the names in the folder, without those being deleted in the background."""
    found = (path.name for path in checkpoints.folder.iterdir())
    return sorted(name for name in found if not name.startswith(".trash-"))


def folder_of(checkpoints, step):
    return checkpoints.folder / f"step_{step:08d}"


def patch_os(monkeypatch, **functions):
    """Replace functions of ``os`` in the modules that read and write checkpoints, and nowhere else."""
    for module in (folder_module, regular_file):
        monkeypatch.setattr(module, "os", SimpleNamespace(**{**vars(os), **functions}))


def rewrite_manifest(folder, change):
    manifest = json.loads((folder / MANIFEST).read_text())
    change(manifest)
    (folder / MANIFEST).write_bytes(manifest_bytes(manifest))


def rewrite_file(folder, name, data):
    (folder / name).write_bytes(data)

    def change(manifest):
        (entry,) = (entry for entry in manifest["files"] if entry["name"] == name)
        entry.update(size=len(data), sha256=sha256_of(data))

    rewrite_manifest(folder, change)


def test_a_saved_checkpoint_reads_back_with_its_manifest(checkpoints):
    assert checkpoints.newest() is None
    save(checkpoints, 5)
    newest = checkpoints.newest()
    assert newest.state() == TrainState(5, 40)
    assert newest.read("optimizer.bin") == FILES["optimizer.bin"] + b"5"
    manifest = newest.manifest
    assert manifest["format"] == MANIFEST_FORMAT and manifest["topology"] == TOPOLOGY
    assert manifest["run_id"] == json.loads((checkpoints.output_dir / "run.json").read_text())["run_id"]
    assert {entry["rank"] for entry in manifest["files"]} == {0} and "numpy" in manifest["versions"]


def test_the_newest_three_and_every_nth_checkpoint_are_kept(checkpoints, tmp_path):
    save(checkpoints, 1, 2, 3, 4)
    assert os.readlink(checkpoints.output_dir / "model_last") == "checkpoints/step_00000004"
    checkpoints.close()
    left = sorted(path.name for path in checkpoints.folder.iterdir())
    assert left == ["step_00000002", "step_00000003", "step_00000004"]
    opened = Checkpoints(tmp_path / "other", World(), alone, keep=2, every=4)
    save(opened, *range(1, 11))
    assert [name[-2:] for name in names(opened)] == ["04", "08", "09", "10"]
    opened.close()


def test_failing_to_delete_a_checkpoint_is_only_a_warning(checkpoints, monkeypatch, caplog):
    def refuse(path, *rest, **settings):
        raise OSError(13, "Permission denied")

    monkeypatch.setattr("ernie_pair.checkpoint.checkpoints.shutil.rmtree", refuse)
    with caplog.at_level(logging.WARNING):
        save(checkpoints, 1, 2, 3, 4)
        checkpoints.close()
    assert "cannot be deleted" in caplog.text and checkpoints.newest().step == 4


@pytest.mark.parametrize("name", [*FILES, STATE, MANIFEST])
@pytest.mark.parametrize("damage", ["truncate", "empty", "flip", "remove", "pipe", "link", "folder", "grow"])
def test_a_damaged_checkpoint_falls_back_to_the_previous_one(checkpoints, name, damage, caplog):
    save(checkpoints, 5, 10)
    path = folder_of(checkpoints, 10) / name
    data = bytearray(path.read_bytes())
    path.unlink()
    if damage == "pipe":
        os.mkfifo(path)
    elif damage == "link":
        (checkpoints.output_dir / "elsewhere").write_bytes(data)
        path.symlink_to(checkpoints.output_dir / "elsewhere")
    elif damage == "folder":
        path.mkdir()
    elif damage != "remove":
        data[len(data) // 2] ^= damage == "flip"
        kept = {"truncate": data[:-1], "empty": b"", "flip": data, "grow": data + b" "}[damage]
        path.write_bytes(kept)
    with caplog.at_level(logging.WARNING):
        assert checkpoints.newest().state().step == 5
    assert name in caplog.text
    assert any(name.startswith(".bad-step_00000010") for name in names(checkpoints))
    save(checkpoints, 10)
    assert checkpoints.newest().state().step == 10


def damaged(folder, kind):
    """Yield (path, damaged content): files of a checkpoint cut short, or with one bit flipped."""
    paths, rng = sorted(folder.iterdir()), random.Random(0)
    for path in paths if kind == "cut" else paths * (1000 // len(paths)):
        data = path.read_bytes()
        if kind == "cut":
            for length in {0, 1, len(data) // 2, len(data) - 1, *rng.sample(range(len(data)), 20)}:
                yield path, data[:length]
        else:
            broken = bytearray(data)
            broken[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            yield path, broken


@pytest.mark.parametrize("kind", ["cut", "flipped"])
def test_any_damage_to_any_file_is_detected(checkpoints, kind):
    save(checkpoints, 5)
    checkpoint = checkpoints.newest()
    for path, content in damaged(folder_of(checkpoints, 5), kind):
        whole = path.read_bytes()
        path.write_bytes(content)
        with pytest.raises(CheckpointError):
            type(checkpoint)(checkpoint.folder).verify()
        path.write_bytes(whole)
    type(checkpoint)(checkpoint.folder).verify()


def test_a_file_or_a_folder_of_another_step_is_detected(checkpoints):
    save(checkpoints, 5, 10)
    older = (folder_of(checkpoints, 5) / "optimizer.bin").read_bytes()
    (folder_of(checkpoints, 10) / "optimizer.bin").write_bytes(older)
    assert checkpoints.newest().step == 5
    shutil.copytree(folder_of(checkpoints, 5), folder_of(checkpoints, 11))
    assert checkpoints.newest().step == 5
    aside = [".bad-step_00000010", ".bad-step_00000011"]
    assert [name[:18] for name in names(checkpoints)] == [*aside, "step_00000005"]


def test_extra_files_and_mtimes_are_ignored(checkpoints):
    save(checkpoints, 5, 6)
    (folder_of(checkpoints, 6) / "notes.txt").write_text("mine")
    os.utime(folder_of(checkpoints, 5), (4e9, 4e9))
    os.utime(folder_of(checkpoints, 6), (0, 0))
    assert checkpoints.newest().step == 6


@pytest.mark.parametrize("change", [
    {"step": "10"}, {"step": -10}, {"step": 1e30}, {"step": float("nan")}, {"step": 7},
    {"consumed_samples": None}, {"best_metric": float("inf")}, {"best_metric": "high"},
    {"best_step": -1}, {"best_step": "0"}, {"best_step": 0.5}, {"best_step": True},
    {"window": []}, {"window": None}, {"window": {"loss": 1.0}}, {"window": {"loss": [10**200, 1]}},
    {"evaluation_pending": 1}, {"surprise": 1},
], ids=lambda change: str(change)[:40])  # fmt: skip
def test_an_invalid_state_with_a_valid_hash_is_set_aside(checkpoints, change):
    save(checkpoints, 5, 10)
    state = json.loads((folder_of(checkpoints, 10) / STATE).read_text())
    rewrite_file(folder_of(checkpoints, 10), STATE, json.dumps({**state, **change}).encode())
    assert checkpoints.newest().step == 5


@pytest.mark.parametrize("part, is_sound", [
    ([0.5, 1], True), ([-3.0, 9], True),
    *[(part, False) for part in (
        [1, 2], [0.5, 2.0], [0.5, 0], [0.5, -1], [0.5, True], [0.5], [0.5, 1, 1], None, {"0": 0.5, "1": 1},
        [float("nan"), 1], [float("inf"), 1],
    )],
])  # fmt: skip
def test_a_window_holds_sums_and_counts(part, is_sound):
    state = TrainState(5, 40, window={"loss": (2.5, 3), "accuracy": (1.0, 2)})
    assert parse_state(state_bytes(state), Path("state.json")) == state
    values = {**json.loads(state_bytes(state)), "window": {"loss": [2.5, 3], "accuracy": part}}
    if is_sound:
        assert parse_state(json.dumps(values).encode(), Path("state.json")).window["accuracy"] == tuple(part)
    else:
        with pytest.raises(DamagedError, match="state.json"):
            parse_state(json.dumps(values).encode(), Path("state.json"))


@pytest.mark.parametrize("change", [
    lambda m: m.update(step=11),
    lambda m: m.update(step=True),
    lambda m: m.update(files={}),
    lambda m: m.update(files=[*m["files"], m["files"][0]]),
    lambda m: m.update(extra=1),
    lambda m: m.pop("topology"),
    lambda m: m.update(versions=[]),
    lambda m: m["files"][0].update(size=-1),
    lambda m: m["files"][0].update(sha256="x"),
    lambda m: m["files"][0].pop("name"),
    lambda m: m.update(files=[7]),
], ids=range(11))  # fmt: skip
def test_an_invalid_manifest_with_a_valid_checksum_is_set_aside(checkpoints, change):
    save(checkpoints, 5, 10)
    rewrite_manifest(folder_of(checkpoints, 10), change)
    assert checkpoints.newest().step == 5


@pytest.mark.parametrize(
    "name", ["../../secret", "/etc/passwd", "a/../../b", "..", ".", "", "a\0b", "a" * 101, "a b", "\N{BOM}"]
)
def test_file_names_in_a_manifest_cannot_escape_its_folder(checkpoints, name, monkeypatch):
    save(checkpoints, 5, 6)
    rewrite_manifest(folder_of(checkpoints, 6), lambda m: m["files"][0].update(name=name))
    opened = []
    patch_os(monkeypatch, open=lambda path, *rest: opened.append(path) or os.open(path, *rest))
    assert checkpoints.newest().state().step == 5
    inside = str(checkpoints.folder)
    outside = [str(path) for path in opened if not os.path.realpath(path).startswith(inside)]
    run_note = str(checkpoints.output_dir / "run.json")
    assert {*outside} <= {run_note, str(checkpoints.output_dir)}


def test_an_oversized_or_deeply_nested_manifest_is_not_parsed(checkpoints):
    save(checkpoints, 5, 6, 7)
    with open(folder_of(checkpoints, 7) / MANIFEST, "wb") as file:
        file.truncate(1 << 30)
    (folder_of(checkpoints, 6) / MANIFEST).write_bytes(b"[" * 200_000)
    assert checkpoints.newest().step == 5


def test_a_newer_format_is_refused_and_not_set_aside(checkpoints):
    save(checkpoints, 5, 6)
    rewrite_manifest(folder_of(checkpoints, 6), lambda m: m.update(format=9))
    with pytest.raises(CheckpointError, match="format 9"):
        checkpoints.newest()
    assert names(checkpoints) == ["step_00000005", "step_00000006"]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_non_finite_values_are_not_saved(checkpoints, dtype, value):
    fine = {"i": np.array([-1, 2**62]), "b": np.array([True]), "e": np.zeros((0, 3), np.float32)}
    checkpoints.save(TrainState(1), SAME, [("a.safetensors", fine)], TOPOLOGY)
    files = {"weights.safetensors": {"a": np.ones(9, dtype), "b": np.array([1, value], dtype)}}
    with pytest.raises(NumbersError, match="^b holds values that are not finite"):
        checkpoints.save(TrainState(10), SAME, files.items(), TOPOLOGY)
    assert names(checkpoints) == ["step_00000001"] and checkpoints.newest().step == 1


def test_a_checkpoint_with_non_finite_values_is_not_loaded(checkpoints, caplog):
    save(checkpoints, 5, 10)
    broken = to_safetensors({"w": np.array([1, np.nan], np.float32)})
    rewrite_file(folder_of(checkpoints, 10), "weights.safetensors", broken)
    with caplog.at_level(logging.WARNING):
        assert checkpoints.newest().step == 5
    assert "weights.safetensors: w holds values that are not finite" in caplog.text


def test_if_all_checkpoints_are_damaged_or_gone_it_is_an_error(checkpoints):
    save(checkpoints, 5, 6)
    for step in (5, 6):
        (folder_of(checkpoints, step) / "optimizer.bin").unlink()
    for _ in range(2):
        with pytest.raises(CheckpointError, match="no usable checkpoint.*00006/opt.*00005/opt"):
            checkpoints.newest()
    for step in (5, 6):
        shutil.rmtree(folder_of(checkpoints, step), ignore_errors=True)
    (checkpoints.folder / ".bad-step_00000006-0123456789abcdef01234567").mkdir()
    with pytest.raises(CheckpointError, match="was set aside"):
        checkpoints.newest()


@pytest.mark.parametrize("number, error, message", [
    (errno.EACCES, CheckpointError, "no permission to read it"),
    (errno.EMFILE, MachineError, "Too many open files"),
])  # fmt: skip
def test_files_that_cannot_be_read_now_are_not_set_aside(checkpoints, monkeypatch, number, error, message):
    save(checkpoints, 5, 6)

    def refuse(path, *rest):
        if number == errno.EMFILE or "step_00000006" in os.fspath(path):
            raise OSError(number, os.strerror(number), os.fspath(path))
        return os.open(path, *rest)

    patch_os(monkeypatch, open=refuse)
    with pytest.raises(error, match=message):
        checkpoints.newest()
    assert names(checkpoints) == ["step_00000005", "step_00000006"]


def test_only_folders_with_an_exact_step_name_are_read(checkpoints, tmp_path, caplog):
    save(checkpoints, 900)
    for name in ("step_901", "step_1e9", "step_-1", "step_000000902", "step_00000903x"):
        (checkpoints.folder / name).mkdir()
    (checkpoints.folder / "step_00000904").write_text("a file")
    (checkpoints.folder / "step_00000905").symlink_to(folder_of(checkpoints, 900))
    for number in range(10_000):
        (checkpoints.folder / f"junk-{number}").touch()
    checkpoints.close()
    with caplog.at_level(logging.WARNING):
        again = Checkpoints(tmp_path, World(), alone)
        assert again.newest().step == 900
    assert caplog.text.count("are not checkpoints") == 1
    again.close()


@pytest.mark.parametrize("damage", ["dangles", "older", "outside", "is a folder", "is gone"])
def test_a_wrong_model_last_is_ignored_and_repaired(checkpoints, damage, tmp_path, caplog):
    save(checkpoints, 5, 6)
    link = checkpoints.output_dir / "model_last"
    link.unlink()
    if damage == "is a folder":
        link.mkdir()
        (link / "mine").touch()
    elif damage != "is gone":
        link.symlink_to({"dangles": "nowhere", "older": "checkpoints/step_00000005", "outside": "/"}[damage])
    with caplog.at_level(logging.WARNING):
        assert checkpoints.newest().step == 6
    assert os.readlink(link) == "checkpoints/step_00000006" and "model_last" in caplog.text
    assert len(list(tmp_path.glob(".bad-model_last-*/mine"))) == (damage == "is a folder")


def test_a_run_mismatch_names_the_difference_and_the_flag(checkpoints):
    save(checkpoints, 5)
    with pytest.raises(InputError, match="corpus was 'abc' and is now 'xyz'.*allow_change corpus "):
        checkpoints.resume({**SAME, "corpus": "xyz"}, TOPOLOGY)
    with pytest.raises(InputError, match="allow_change corpus,seed"):
        checkpoints.resume({**SAME, "corpus": "xyz", "seed": 2}, TOPOLOGY, allowed=["corpus"])
    with pytest.raises(InputError, match="model layers was 2 and is now 3") as caught:
        checkpoints.resume(
            {**SAME, "model layers": 3}, TOPOLOGY, allowed=["model"], rules=RunRules(fixed=["model "])
        )
    assert "allow_change" not in str(caught.value)
    with pytest.raises(InputError, match="allow_change sead: there is no such key; use .*seed"):
        checkpoints.resume(SAME, TOPOLOGY, allowed=["sead"])


def test_allowed_changes_are_logged_and_recorded(checkpoints, caplog):
    save(checkpoints, 5)
    with caplog.at_level(logging.WARNING):
        assert checkpoints.resume({**SAME, "seed": 2}, TOPOLOGY, allowed=["seed"]).step == 5
    assert "--allow_change: seed was 1, is now 2" in caplog.text
    save(checkpoints, 6)
    changes = [{"key": "seed", "old": 1, "new": 2, "step": 5}]
    assert checkpoints.newest().manifest["changes"] == changes
    checkpoints.resume(SAME, TOPOLOGY)
    save(checkpoints, 7)
    assert checkpoints.newest().manifest["changes"] == changes


def test_a_changed_topology_or_library_version_is_logged(checkpoints, caplog):
    save(checkpoints, 5)
    with caplog.at_level(logging.INFO):
        checkpoints.resume(SAME, {**TOPOLOGY, "processes": 2})
    assert [record.message for record in caplog.records] == ["continues with processes 2 (was 1)"]
    rewrite_manifest(folder_of(checkpoints, 5), lambda m: m["versions"].update(numpy="0.1"))
    with caplog.at_level(logging.WARNING):
        checkpoints.resume(SAME, TOPOLOGY)
    assert "other versions: numpy" in caplog.text and "(was 0.1)" in caplog.text


def test_a_second_run_in_a_folder_is_refused_naming_the_first(checkpoints, tmp_path):
    for _ in range(2):
        with pytest.raises(InputError, match=f"locked by another run .pid {os.getpid()} on "):
            Checkpoints(tmp_path, World(), alone)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EIO])
def test_a_file_system_without_locks_gives_a_warning(tmp_path, monkeypatch, caplog, number):
    def fail(descriptor, how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", fail)
    path, before = tmp_path / "run.lock", len(os.listdir("/proc/self/fd"))
    if number == errno.EIO:
        with pytest.raises(OSError):
            RunLock(path)
        with pytest.raises(OSError):
            check_unlocked(path)
    else:
        RunLock(path).release()
        assert path.read_text().startswith(f"pid {os.getpid()} on ")
        check_unlocked(path)
        assert caplog.text.count(f"{tmp_path}: no file can be locked there; start no second run") == 2
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_lock_file_is_not_written_through_a_symlink(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "out" / "run.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(MachineError):
        Checkpoints(tmp_path / "out", World(), alone)
    assert (tmp_path / "precious").read_text() == "mine"


def fail_at(monkeypatch, moment):
    """Make the ``moment``-th fsync from now on fail; return a list that grows with every fsync."""
    calls, real = [], os.fsync

    def failing(descriptor):
        calls.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        if len(calls) == moment:
            raise OSError(5, "Input/output error")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    return calls


UP_TO_THE_NAME = len(FILES) + len(("state.json", "MANIFEST.json", "the draft", "checkpoints/"))


@pytest.mark.parametrize("moment", range(1, UP_TO_THE_NAME + 2))
def test_a_failed_fsync_aborts_the_save_and_publishes_nothing(checkpoints, moment, monkeypatch, capfd):
    save(checkpoints, 5)
    with monkeypatch.context() as patch:
        calls = fail_at(patch, moment)
        assert exit_code_of(lambda: save(checkpoints, 10)) == 5
    assert len(calls) == moment and "Input/output error" in capfd.readouterr().err
    assert names(checkpoints) == ["step_00000005", "step_00000010"][: 1 + (moment > UP_TO_THE_NAME)]
    if moment <= UP_TO_THE_NAME:
        assert checkpoints.newest().step == 5
        assert os.readlink(checkpoints.output_dir / "model_last") == "checkpoints/step_00000005"


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("moment", range(1, 5))  # the file, its record, the draft, the parent folder
def test_a_failed_fsync_publishes_no_folder(tmp_path, before, moment, monkeypatch):
    if before:
        publish_folder(tmp_path / "best", lambda draft: (draft / "a").write_text("old"))
    with monkeypatch.context() as patch:
        calls = fail_at(patch, moment)
        with pytest.raises(OSError, match="Input/output error"):
            publish_folder(tmp_path / "best", lambda draft: (draft / "a").write_text("new"))
    assert len(calls) == moment
    assert [path.name for path in tmp_path.iterdir()] == ["best"] * before
    assert not before or (tmp_path / "best" / "a").read_text() == "old"


def test_a_full_disk_and_a_short_file_publish_nothing(checkpoints, monkeypatch):
    save(checkpoints, 5)
    size = sum(entry["size"] for entry in checkpoints.newest().files.values())

    patch_os(monkeypatch, fstat=lambda descriptor: SimpleNamespace(st_size=7))
    with pytest.raises(MachineError, match="kept 7 of"):
        save(checkpoints, 10)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=size - 1))
    with pytest.raises(MachineError, match=f"{size - 1} bytes free, a checkpoint takes {size}; make room"):
        save(checkpoints, 10)
    assert names(checkpoints) == ["step_00000005"]


@pytest.mark.parametrize(("most", "count"), [(1, 100), (7, 300), (4096, 2500), (1 << 20, 2500)])
def test_short_writes_do_not_corrupt_a_file_of_many_arrays(checkpoints, monkeypatch, most, count):
    arrays = {f"{number:04d}": np.full(number % 9, number, np.float32) for number in range(count)}
    arrays["large"] = np.arange(2 * count, dtype=np.float64)
    writev = os.writev

    def write_some(descriptor, parts):
        parts = [part for part in parts if len(part)]
        return writev(descriptor, [parts[0][:most]] if len(parts[0]) > most else parts[:2]) if parts else 0

    monkeypatch.setattr(os, "writev", write_some)
    checkpoints.save(TrainState(1), SAME, [("many.safetensors", arrays)], TOPOLOGY)
    assert checkpoints.newest().read("many.safetensors") == to_safetensors(arrays)


def test_each_file_is_written_before_the_next_is_generated(checkpoints):
    def files():
        yield "a", b"a"
        (draft,) = checkpoints.folder.glob(".tmp-step_00000001-*")
        assert (draft / "a").read_bytes() == b"a"
        yield "b", b"b"

    checkpoints.save(TrainState(1), SAME, files(), TOPOLOGY)
    assert checkpoints.newest().step == 1


def test_saving_leaks_no_descriptors_and_keeps_the_run_id(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    opened = Checkpoints(tmp_path, World(), alone)
    save(opened, *range(1, 51))
    opened.newest()
    opened.close()
    again = Checkpoints(tmp_path, World(), alone)
    again.close()
    assert again.run_id == opened.run_id and len(os.listdir("/proc/self/fd")) == before


def test_leftovers_of_a_killed_save_are_cleared_at_next_start(tmp_path):
    for kind in (".tmp-step_00000007", ".trash-step_00000001"):
        (tmp_path / "checkpoints" / own_name(kind)).mkdir(parents=True)
    (tmp_path / "ranks").mkdir()
    record = {"pid": 1, "born": 1, "place": "", "host": "", "counter": 1, "error": ""}
    (tmp_path / "ranks" / "00001.json").write_text(json.dumps(record).ljust(RECORD_BYTES))
    opened = Checkpoints(tmp_path, World(), alone)
    assert not list(opened.folder.iterdir()) and not (tmp_path / "ranks").exists()
    opened.close()


@pytest.mark.parametrize("held", [None, LOCK, f"{CACHE}/train.lock"])
def test_a_refused_start_removes_no_folder_in_use(tmp_path, held):
    """Another start of the same command made it meanwhile, and holds the lock of the run or of its data."""
    folder, lock = tmp_path / "out", None
    with pytest.raises(InputError, match="^refused$"), cleanup_on_error(str(folder), World()):
        (folder / CACHE).mkdir(parents=True)
        lock = None if held is None else RunLock(folder / held)
        raise InputError("refused")
    assert folder.exists() == (held is not None)
    if lock is not None:
        lock.release()
