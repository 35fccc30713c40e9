"""Freed memory that a process keeps for its next step, measured by its page faults."""

import os
import subprocess
import sys

import pytest
from places import ROOT

from ernie_pair.runtime import cpu as malloc

TOUCHES = """
import resource
from threading import Thread
from ernie_pair.runtime.cpu import keep_freed_memory
print(keep_freed_memory() if {kept} else None)

def touch():
    pages = []
    for _ in range(6):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [bytearray({mb} << 20) for _ in range(3)]
        del blocks
        pages.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    print(*pages)

if {in_thread}:
    thread = Thread(target=touch)
    thread.start()
    thread.join()
else:
    touch()
"""
CHOSEN = {
    "LD_PRELOAD": "/usr/lib/libjemalloc.so.2",
    "GLIBC_TUNABLES": "glibc.malloc.arena_max=1",
    "MALLOC_ARENA_MAX": "1",
}


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch):
    for name in [*CHOSEN, *(name for name in os.environ if name.startswith("MALLOC_"))]:
        monkeypatch.delenv(name, raising=False)


def touched(kept, mb=48, in_thread=False):
    """Return what keep_freed_memory returned, and the page faults of each of six rounds."""
    done = subprocess.run(
        [sys.executable, "-c", TOUCHES.format(kept=kept, mb=mb, in_thread=in_thread)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said, pages = done.stdout.splitlines()
    return said, [int(count) for count in pages.split()]


# Also with more than 2 GB in total, and in a second thread, as in Paddle's executor.
@pytest.mark.parametrize("mb, in_thread", [(48, False), (800, False), (48, True)])
def test_freed_memory_is_reused_without_page_faults(mb, in_thread):
    said, pages = touched(True, mb, in_thread)
    assert said == "True" and pages[0] > 10_000 and max(pages[2:]) < 1_000
    if mb < 800:  # as it comes, each round is given its pages anew
        assert min(touched(False, mb, in_thread)[1]) > 10_000


@pytest.mark.parametrize("name", CHOSEN)
def test_the_users_malloc_settings_are_kept(name, monkeypatch):
    assert not malloc.is_chosen_by_user()
    monkeypatch.setenv(name, CHOSEN[name])
    monkeypatch.setattr(malloc.ctypes, "CDLL", None)
    assert malloc.keep_freed_memory() is False


@pytest.mark.parametrize(
    "name, value", [("LD_PRELOAD", "/usr/lib/libfaketime.so"), ("GLIBC_TUNABLES", "glibc.pthread.rseq=0")]
)
def test_unrelated_preloads_and_tunables_are_ignored(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    assert not malloc.is_chosen_by_user()


def test_c_libraries_other_than_glibc_are_left_alone(monkeypatch):
    monkeypatch.setattr(malloc.platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(malloc.ctypes, "CDLL", None)
    assert malloc.keep_freed_memory() is False
