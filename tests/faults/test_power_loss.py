"""The order in which one save writes, syncs and renames its files, read from its system calls."""

import re
import shutil
import subprocess
import sys

import pytest
from places import ROOT

SAVE = """
import sys
from ernie_pair.checkpoint.checkpoints import Checkpoints
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.runtime.processes.world import World

checkpoints = Checkpoints(sys.argv[1], World(), lambda values: values)
checkpoints.save(TrainState(5), {}, [("a", b"a" * 9000), ("b", b"b")], {})
"""


@pytest.fixture(scope="module")
def calls(module_path):
    """(system call, paths) of each traced call on the output folder, in order; and that folder."""
    trace = module_path / "trace"
    strace = ["strace", "-f", "-y", "-e", "trace=openat,writev,fsync,rename,mkdir,symlink", "-o", str(trace)]
    if shutil.which("strace") is None or subprocess.run([*strace, "true"]).returncode:
        pytest.skip("strace is not here, or may not be used")
    program = [sys.executable, "-c", SAVE, str(module_path / "out")]
    subprocess.run([*strace, *program], check=True, env={"PYTHONPATH": str(ROOT)})
    found = []
    for line in trace.read_text().splitlines():
        call = re.match(r"\d+ +(\w+)\(", line)
        paths = re.findall(r"<([^>]+)>|\"([^\"]+)\"", line)
        if call and str(module_path / "out") in line:
            found.append((call[1], [one or other for one, other in paths if (one or other).startswith("/")]))
    return found, module_path / "out"


def places(calls, call, end):
    found = [place for place, (name, paths) in enumerate(calls) if name == call and paths_end(paths, end)]
    assert found, f"no {call} of {end}"
    return found


def paths_end(paths, end):
    return any(path.endswith(end) or (end.endswith("-") and end in path) for path in paths)


@pytest.mark.parametrize("name", ["/a", "/b", "/state.json", "/MANIFEST.json"])
def test_files_are_synced_before_the_checkpoint_is_renamed(calls, name):
    calls, _ = calls
    (renamed,) = places(calls, "rename", "/step_00000005")
    assert max(places(calls, "writev", name)) < min(places(calls, "fsync", name)) < renamed


@pytest.mark.parametrize("name", ["/a", "/b", "/state.json"])
def test_the_manifest_is_written_after_all_files_are_synced(calls, name):
    calls, _ = calls
    assert max(places(calls, "fsync", name)) < min(places(calls, "writev", "/MANIFEST.json"))


def test_directory_entries_are_synced_before_the_next_step(calls):
    calls, out = calls
    (renamed,) = places(calls, "rename", "/step_00000005")
    (draft,) = {path for path in calls[renamed][1] if "/.tmp-" in path}
    (draft_forced,) = places(calls, "fsync", draft)
    assert max(places(calls, "fsync", "/MANIFEST.json")) < draft_forced < renamed
    assert (
        renamed < max(places(calls, "fsync", "/checkpoints")) < min(places(calls, "symlink", "/.model_last-"))
    )
    assert max(places(calls, "rename", "/model_last")) < max(places(calls, "fsync", str(out)))
