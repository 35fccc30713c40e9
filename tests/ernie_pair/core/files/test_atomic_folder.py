"""Renaming, removing and linking folders never loses a user's files."""

import errno
import fcntl
import os
import resource
import signal
from contextlib import suppress

import pytest
from run_files import publish_folder

from ernie_pair.checkpoint.run_config import publish_results
from ernie_pair.checkpoint.run_folder import published_of_run
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.cli.options import Options
from ernie_pair.core.errors import CheckpointError, InputError, MachineError
from ernie_pair.core.files import atomic_files
from ernie_pair.core.files.atomic_files import CONFIG_YAML, locked_once, open_lock, own_name, published
from ernie_pair.core.files.atomic_folder import (
    MADE,
    check_replaceable,
    clear_leftovers,
    is_as_made,
    point_link,
    rename_for_good,
    set_aside,
)
from ernie_pair.core.files.results import Results


def test_a_rename_is_undone_when_fsync_fails(tmp_path, monkeypatch):
    draft = tmp_path / "draft"
    draft.mkdir()

    def failing(descriptor):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as context, pytest.raises(OSError, match="Input/output error"):
        context.setattr(os, "fsync", failing)
        rename_for_good(draft, tmp_path / "final")
    assert [path.name for path in tmp_path.iterdir()] == ["draft"]
    rename_for_good(draft, tmp_path / "final")
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


def test_only_leftovers_of_this_package_are_removed(tmp_path):
    ours = [own_name(f"{kind}step_3") for kind in (".tmp-", ".trash-")]
    theirs = [".tmp-step_mine", ".trash-step_3-" + "0" * 24, own_name(".tmp-best-1"), "step_3"]
    for name in (*ours, *theirs):
        (tmp_path / name).mkdir()
    clear_leftovers(tmp_path, lambda name: name.startswith("step_"))
    assert {path.name for path in tmp_path.iterdir()} == set(theirs)


def test_publishing_removes_the_leftovers_of_this_name_alone(tmp_path):
    """Another process may be filling out-int8, beside out; only names that are equal are leftovers of out."""
    names = [own_name(f".tmp-{name}") for name in ("out", "out-int8")]
    for name in names:
        (tmp_path / name).mkdir()
    publish_folder(tmp_path / "out", lambda draft: (draft / "a").write_text("a"))
    assert {path.name for path in tmp_path.iterdir()} == {"out", names[1]}


def test_content_set_aside_is_never_overwritten(tmp_path):
    for content in ("one", "two"):
        (tmp_path / "notes").write_text(content)
        set_aside(tmp_path / "notes")
    assert {path.read_text() for path in tmp_path.glob(".bad-notes-*")} == {"one", "two"}


def test_our_link_is_updated_and_a_users_link_is_set_aside(tmp_path):
    link, ours = tmp_path / "last", r"step_\d"
    assert point_link(link, "step_1", ours) and not point_link(link, "step_1", ours)
    assert point_link(link, "step_2", ours) and os.readlink(link) == "step_2"
    assert [path.name for path in tmp_path.iterdir()] == ["last"]
    link.unlink()
    link.symlink_to("elsewhere")
    assert point_link(link, "step_3", ours) and os.readlink(link) == "step_3"
    (aside,) = tmp_path.glob(".bad-last-*")
    assert os.readlink(aside) == "elsewhere"


OURS = "seed: 1\nabout: {made_by: ernie-pair, command: embed}\n"


def write_ours(draft):
    (draft / CONFIG_YAML).write_text(OURS)


def test_our_own_config_may_be_replaced(tmp_path):
    publish_folder(tmp_path / "out", write_ours)
    check_replaceable(tmp_path / "out", [CONFIG_YAML])
    assert is_as_made(tmp_path / "out")
    with pytest.raises(InputError, match="holds config.yaml, which would be lost"):
        check_replaceable(tmp_path / "out", [])


@pytest.mark.parametrize(
    "content", ["seed: 1\n", "about: {made_by: me}\n", "about: ernie-pair\n", "a: [\n", ""]
)
def test_a_users_config_is_never_lost(tmp_path, content, caplog):
    publish_folder(tmp_path / "out", write_ours)
    (tmp_path / "out" / CONFIG_YAML).write_text(content)
    with pytest.raises(InputError, match="holds config.yaml, which would be lost; give another folder"):
        check_replaceable(tmp_path / "out", [CONFIG_YAML])
    publish_folder(tmp_path / "out", write_ours)
    (aside,) = tmp_path.glob(".bad-out-*")
    assert (aside / CONFIG_YAML).read_text() == content and "was not made by this command" in caplog.text


def test_a_link_to_our_config_counts_as_the_users(tmp_path):
    (tmp_path / "ours.yaml").write_text(OURS)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / CONFIG_YAML).symlink_to(tmp_path / "ours.yaml")
    with pytest.raises(InputError, match="holds config.yaml, which would be lost"):
        check_replaceable(tmp_path / "out", [CONFIG_YAML])


def test_an_empty_folder_is_replaced_without_a_trace(tmp_path, caplog):
    (tmp_path / "out").mkdir()
    publish_folder(tmp_path / "out", write_ours)
    assert [path.name for path in tmp_path.iterdir()] == ["out"] and caplog.text == ""
    assert (tmp_path / "out" / CONFIG_YAML).read_text() == OURS


def test_the_current_folder_cannot_be_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="is the current folder, which would be replaced; give a folder in"):
        check_replaceable(tmp_path, [])


def test_a_mount_point_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr("os.path.ismount", lambda path: path == tmp_path)
    with pytest.raises(InputError, match="is a mount point, which cannot be replaced; give a folder in it"):
        check_replaceable(tmp_path, [])
    check_replaceable(tmp_path / "out", [])


def test_a_failed_output_leaves_none_of_the_folders_it_made(tmp_path):
    def fail(draft):
        raise InputError("bad row")

    (tmp_path / "there").mkdir()
    for folder in (tmp_path / "new" / "deep" / "out", tmp_path / "there" / "out"):
        with pytest.raises(InputError, match="bad row"):
            publish_folder(folder, fail)
        with pytest.raises(InputError, match="bad row"), published(folder / "a"):
            fail(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["there"] and not any((tmp_path / "there").iterdir())


def write_slowly(publish, folder):
    """A process of its own that publishes ``folder`` and stops in the middle until it is told to go on.

    Returns its pid, and the end of a pipe that lets it go on.
    """
    (ready, told), (go_on, tell) = os.pipe(), os.pipe()
    child = os.fork()
    if child:
        os.close(told), os.close(go_on)
        assert os.read(ready, 1) == b"x"
        return child, tell

    def fill(draft):
        (draft / "model").write_text("first")
        os.write(told, b"x")
        os.read(go_on, 1)
        assert (draft / "model").read_text() == "first"

    try:
        publish(folder, fill)
        os._exit(0)
    finally:
        os._exit(1)


def publish_as_results(folder, fill):
    results = Results("test", [folder / "model"], {}, {}, overwrite=False, record=folder / MADE)
    publish_results(folder, fill, "test", Options(), results)


def publish_of_its_run(folder, fill):
    with published_of_run(folder, {}) as (_, draft):
        fill(draft)


PUBLISHING = [publish_folder, publish_as_results, publish_of_its_run]


@pytest.mark.parametrize("publish", PUBLISHING)
def test_of_two_that_publish_a_folder_the_second_is_refused(publish, tmp_path):
    folder = tmp_path / "out"
    child, tell = write_slowly(publish, folder)
    drafts = sorted(tmp_path.iterdir())
    for other in PUBLISHING:
        with pytest.raises(MachineError, match="out: another run writes this folder; let it end"):
            other(folder, lambda draft: pytest.fail("it is written twice"))
    assert sorted(tmp_path.iterdir()) == drafts
    publish_folder(tmp_path / "beside", lambda draft: (draft / "a").write_text("a"))
    os.write(tell, b"x")
    assert os.waitpid(child, 0)[1] == 0
    assert (folder / "model").read_text() == "first"
    assert {path.name for path in tmp_path.iterdir()} == {"out", "beside"}


@pytest.mark.parametrize("publish", PUBLISHING)
def test_what_a_killed_process_was_publishing_is_cleared(publish, tmp_path):
    child, _ = write_slowly(publish, tmp_path / "out")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    publish(tmp_path / "out", lambda draft: (draft / "model").write_text("second"))
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


def test_what_was_published_since_the_look_is_not_replaced(tmp_path):
    folder = tmp_path / "out"
    first = Results("another", [folder / "model"], {}, {}, overwrite=False, record=folder / MADE)

    def fill(draft):
        (draft / "model").write_text("first")

    publish_results(folder, fill, "another", Options(), first)
    with pytest.raises(InputError, match="exists; .*it was made by another"):
        publish_as_results(folder, lambda draft: pytest.fail("it is written"))
    assert (folder / "model").read_text() == "first"


def test_where_there_are_no_locks_no_draft_is_cleared(tmp_path, monkeypatch):
    def refuse(descriptor, how):
        raise OSError(errno.ENOLCK, "No locks available")

    (tmp_path / own_name(".tmp-out")).mkdir()
    monkeypatch.setattr(fcntl, "flock", refuse)
    publish_folder(tmp_path / "out", lambda draft: (draft / "a").write_text("a"))
    assert len(list(tmp_path.iterdir())) == 2


def test_a_lock_that_its_holder_has_removed_meanwhile_is_none(tmp_path, monkeypatch):
    def opened_late(path):
        descriptor = open_lock(path)
        path.unlink()
        return descriptor

    monkeypatch.setattr(atomic_files, "open_lock", opened_late)
    with pytest.raises(MachineError, match="busy"), locked_once(tmp_path / "lock", "busy"):
        pytest.fail("it is held")


# Paddle writes a part of a file, says nothing, and fails as it reads it; numpy says how much it has written.
@pytest.mark.parametrize("error", [CheckpointError("parse error"), OSError("9 requested and 8 written")])
def test_a_library_cut_short_by_a_limit_is_an_error_of_the_disk(error, tmp_path, capfd):
    def fill(draft):
        with suppress(OSError), open(draft / "model", "wb", buffering=0) as file:
            file.write(bytes(2000))
        raise error

    def publish():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        publish_folder(tmp_path / "out", fill)

    child = os.fork()
    if not child:
        os._exit(exit_code_of(publish))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    assert "out, where a file may have 1000 bytes; raise the limit (ulimit -f)" in capfd.readouterr().err
    assert not any(tmp_path.iterdir())
