"""Saving and resuming with several ranks, which are threads here."""

import shutil

import numpy as np
import pytest
from fake_ranks import on_ranks

from ernie_pair.checkpoint.checkpoint_folder import MANIFEST
from ernie_pair.checkpoint.checkpoints import Checkpoints
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.core.errors import CheckpointError, InputError, LostProcessError, MachineError, NumbersError
from ernie_pair.runtime.processes.world import World, gather_results, gather_texts

SAME, TOPOLOGY = {"seed": 1}, {"processes": 3}


def part(rank):
    return [(f"optimizer-{rank:05d}.bin", f"state of {rank}".encode())] if rank < 2 else []


def save_all(folder, *steps, size=3, files=part, local=None):
    """Save each step on every rank; return what each rank returned, or the exception it raised."""

    def one(world, add):
        checkpoints = Checkpoints(folder(world.rank), world, add, local=local and local(world))
        try:
            for step in steps:
                checkpoints.save(TrainState(step), SAME, files(world.rank), TOPOLOGY)
        finally:
            checkpoints.close()

    return on_ranks(size, one)


def newest_of_all(folder, size=3, local=None, fingerprint=lambda rank: SAME):
    """Return the step that each rank resumes from, or the exception it raised."""

    def one(world, add):
        checkpoints = Checkpoints(folder(world.rank), world, add, local=local and local(world))
        try:
            found = checkpoints.resume(fingerprint(world.rank), TOPOLOGY)
            return found and (found.step, found.read("optimizer-00000.bin") if local is None else b"")
        finally:
            checkpoints.close()

    return on_ranks(size, one)


def of_names(path):
    return sorted(entry.name for entry in path.iterdir())


def test_every_rank_gets_the_texts_and_results_of_all():
    texts = ["", "a longer text", "天地"]
    answers = on_ranks(3, lambda world, add: gather_texts(add, world, texts[world.rank]))
    assert answers == [texts] * 3
    assert on_ranks(2, lambda world, add: gather_results(add, world, lambda: world.rank)) == [[0, 1]] * 2


@pytest.mark.parametrize("error", [InputError, CheckpointError, NumbersError, MachineError, LostProcessError])
def test_an_error_on_one_rank_is_raised_on_all_ranks(error):
    def action(world):
        if world.rank == 1:
            raise error("lower --seed 3")

    answers = on_ranks(3, lambda world, add: gather_results(add, world, lambda: action(world)))
    said = [(type(answer), answer.message, str(answer)) for answer in answers]
    assert said == [(error, "rank 1: lower --seed 3", "rank 1: lower seed=3")] * 3


def test_an_unexpected_exception_on_one_rank_ends_the_others():
    answers = on_ranks(2, lambda world, add: gather_results(add, world, lambda: 1 // world.rank))
    assert [type(answer) for answer in answers] == [ZeroDivisionError, LostProcessError]
    assert "rank 0: ZeroDivisionError" in str(answers[1])


def test_each_rank_writes_its_part_and_a_missing_one_is_noticed(tmp_path):
    assert save_all(lambda rank: tmp_path, 5) == [None] * 3
    names = ["optimizer-00000.bin", "optimizer-00001.bin"]
    assert of_names(tmp_path / "checkpoints" / "step_00000005") == sorted([MANIFEST, *names, "state.json"])
    assert newest_of_all(lambda rank: tmp_path) == [(5, b"state of 0")] * 3
    save_all(lambda rank: tmp_path, 10)
    (tmp_path / "checkpoints" / "step_00000010" / "optimizer-00001.bin").unlink()
    assert newest_of_all(lambda rank: tmp_path) == [(5, b"state of 0")] * 3
    (tmp_path / "checkpoints" / "step_00000005" / MANIFEST).unlink()
    assert {type(answer) for answer in newest_of_all(lambda rank: tmp_path)} == {CheckpointError}


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_write_error_on_one_rank_aborts_the_save_on_all(tmp_path, failing):
    save_all(lambda rank: tmp_path, 5)

    def files(rank):
        yield from part(rank)
        if rank == failing:
            raise OSError(28, "No space left on device", "some/file")

    answers = save_all(lambda rank: tmp_path, 10, files=files)
    assert {(type(answer), str(answer)) for answer in answers} == {(MachineError, str(answers[0]))}
    assert f"rank {failing}: No space left on device at some/file" in str(answers[0])
    assert of_names(tmp_path / "checkpoints") == ["step_00000005"]
    assert newest_of_all(lambda rank: tmp_path)[1] == (5, b"state of 0")


def test_what_one_rank_cannot_save_aborts_the_save_on_all(tmp_path):
    def files(rank):
        return [(f"{rank}.safetensors", {"w": np.array([1, np.nan if rank else 0])})]

    answers = save_all(lambda rank: tmp_path, 10, files=files)
    assert {type(answer) for answer in answers} == {NumbersError}
    answers = save_all(lambda rank: tmp_path, 10, files=lambda rank: [("same", b"")])
    assert {type(answer) for answer in answers} == {MachineError}
    assert of_names(tmp_path / "checkpoints") == []


def test_a_held_lock_and_different_flags_stop_all_ranks(tmp_path):
    held = Checkpoints(tmp_path, World(), lambda values: values)
    answers = save_all(lambda rank: tmp_path, 5)
    held.close()
    assert all("rank 0" in str(answer) and "is locked" in str(answer) for answer in answers)
    answers = newest_of_all(lambda rank: tmp_path, fingerprint=lambda rank: {"seed": rank // 2})
    assert {str(answer) for answer in answers} == {
        "rank 2 was started with seed 1 and rank 0 with 0; start all of them with the same flags"
    }


@pytest.mark.parametrize("seen", [5, 10])
def test_a_rank_seeing_a_different_folder_stops_all_ranks(tmp_path, seen):
    def folder(rank):
        return tmp_path / ("old" if rank == 1 else "new")

    save_all(lambda rank: tmp_path / "new", 10)
    save_all(lambda rank: tmp_path / "old", seen)
    answers = newest_of_all(folder)
    assert {type(answer) for answer in answers} == {CheckpointError} and "rank 1" in str(answers[0])


# Two machines with two ranks each, and no shared folder.


def machine_of(tmp_path):
    return lambda rank: tmp_path / f"machine{rank // 2}"


def place_of(world):
    return World(world.rank % 2, 2)


def every_part(rank):
    return [(f"optimizer-{rank:05d}.bin", b"%d" % rank)]


def save_on_machines(tmp_path, *steps):
    return save_all(machine_of(tmp_path), *steps, size=4, files=every_part, local=place_of)


def newest_on_machines(tmp_path):
    return newest_of_all(machine_of(tmp_path), size=4, local=place_of)


def test_without_a_shared_folder_each_machine_keeps_its_parts(tmp_path):
    assert save_on_machines(tmp_path, 5, 10) == [None] * 4
    for machine, names in enumerate(["01", "23"]):
        kept = of_names(tmp_path / f"machine{machine}" / "checkpoints" / "step_00000010")
        assert [name[14] for name in kept if name.startswith("optimizer")] == list(names)
    assert newest_on_machines(tmp_path) == [(10, b"")] * 4


@pytest.mark.parametrize("machine", [0, 1])
def test_without_a_shared_folder_the_newest_common_step_is_used(tmp_path, machine):
    save_on_machines(tmp_path, 5, 10, 15)
    checkpoints = tmp_path / f"machine{machine}" / "checkpoints"
    shutil.rmtree(checkpoints / "step_00000015")
    (checkpoints / "step_00000010" / "state.json").unlink()
    assert newest_on_machines(tmp_path) == [(5, b"")] * 4
    assert save_on_machines(tmp_path, 10, 15) == [None] * 4
    assert newest_on_machines(tmp_path) == [(15, b"")] * 4


def test_a_machine_without_a_checkpoint_stops_all_ranks(tmp_path):
    save_on_machines(tmp_path, 5)
    shutil.rmtree(tmp_path / "machine1")
    answers = newest_on_machines(tmp_path)
    assert {type(answer) for answer in answers} == {CheckpointError}
    assert "none that all have" in str(answers[0])
