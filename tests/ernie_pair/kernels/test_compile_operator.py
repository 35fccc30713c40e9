"""The operator is compiled once across processes and is never left half-written in the cache."""

import json
import logging
import multiprocessing
import os
import platform
import stat
from types import SimpleNamespace

import paddle
import pytest
from levels import needs_fused

from ernie_pair.core.files.keyed_cache import user_cache
from ernie_pair.kernels import operator
from ernie_pair.kernels.library import open_kernels
from ernie_pair.kernels.operator import FOLDER, OperatorError, find_operator

# A stand-in for g++: logs each compilation to LOG; writes an operator, or half of one if SAYS is set.
COMPILER = """#!/bin/sh
echo compiled >> "$LOG"
while [ "$1" != -o ]; do shift; done
printf 'half of' > "$2"
if [ -n "$SAYS" ]; then echo "In file included from x" >&2; echo "$SAYS" >&2; exit 1; fi
printf ' an operator' >> "$2"
"""


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A stand-in compiler that finishes at once; returns the file in which it logs its calls."""
    path, log = tmp_path / "cxx", tmp_path / "log"
    path.write_text(COMPILER)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    for name, value in (("CXX", path), ("LOG", log), ("SAYS", "")):
        monkeypatch.setenv(name, str(value))
    return log


def count(log):
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_first_use_compiles_the_operator_and_logs_it(compiler, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    found = find_operator(tmp_path / "cache")
    assert found.read_text() == "half of an operator" and found.suffix == ".so"
    assert [record.message for record in caplog.records] == ["compiling the fused operator, once: about 5 s"]
    assert find_operator(tmp_path / "cache") == found and count(compiler) == 1
    assert len(caplog.records) == 1


def test_the_cache_key_covers_paddle_machine_and_sources(compiler, tmp_path, monkeypatch):
    first = find_operator(tmp_path)
    (note,) = (json.loads(path.read_text())["key"] for path in (tmp_path / FOLDER).glob("operator-*.json"))
    assert note["paddle"][0] == paddle.__version__
    assert tuple(note["machine"]) == (platform.machine(), *platform.libc_ver())
    assert set(note["sources"]) == {"fused_operator.cc", "adamw_operator.h", "fused.h"}
    monkeypatch.setenv("CXX", str(tmp_path / "absent"))
    assert find_operator(tmp_path) == first  # a cached operator needs no compiler
    monkeypatch.setattr(operator, "HEADER", first)
    with pytest.raises(OperatorError, match="there is no compiler"):
        find_operator(tmp_path)


def test_concurrent_processes_compile_only_once(compiler, tmp_path):
    context = multiprocessing.get_context("fork")
    asking = [context.Process(target=find_operator, args=(tmp_path / "cache",)) for _ in range(3)]
    for process in asking:
        process.start()
    for process in asking:
        process.join(60)
    assert [process.exitcode for process in asking] == [0, 0, 0] and count(compiler) == 1


@pytest.mark.parametrize("damage", [os.unlink, lambda path: path.write_text("half of")], ids=["gone", "cut"])
def test_a_damaged_operator_is_compiled_again(compiler, tmp_path, damage):
    damage(find_operator(tmp_path))
    assert find_operator(tmp_path).read_text() == "half of an operator" and count(compiler) == 2


def test_compilations_that_fail_are_quoted_with_a_fix(compiler, tmp_path, monkeypatch):
    monkeypatch.setenv("SAYS", "x.cc:3: error: no such thing")
    with pytest.raises(OperatorError, match="failed with code 1: x.cc:3: error: no such thing"):
        find_operator(tmp_path / "cache")
    assert {path.suffix for path in (tmp_path / "cache" / FOLDER).iterdir()} == {".lock"}
    (tmp_path / "file").write_text("")
    with pytest.raises(OperatorError, match="not a folder.*set XDG_CACHE_HOME to another"):
        find_operator(tmp_path / "file")
    monkeypatch.setenv("CXX", str(tmp_path / "absent"))
    with pytest.raises(OperatorError, match="there is no compiler .*absent; install g"):
        find_operator(tmp_path / "cache")


@needs_fused
def test_an_invalid_operator_is_recompiled_once_then_fails(compiler, tmp_path, monkeypatch):
    monkeypatch.setattr(operator, "_registered", {})
    with pytest.raises(OperatorError, match="Paddle cannot load it"):
        operator.load_operator(open_kernels(), 1, tmp_path)
    assert count(compiler) == 2  # one retry, and no more


@needs_fused
def test_an_operator_that_does_not_load_is_recompiled(compiler, tmp_path, monkeypatch):
    """As when another machine sharing the home folder has compiled it with a newer C++ library."""

    def check_surrogates(path):
        if path.read_text().startswith("half"):
            raise RuntimeError("version GLIBCXX_3.4.99 not found")

    stale, second = find_operator(tmp_path), tmp_path / "cxx2"
    second.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nprintf "another operator" > "$2"\n')
    second.chmod(0o755)
    monkeypatch.setenv("CXX", str(second))
    monkeypatch.setattr(operator, "_registered", {})
    monkeypatch.setattr(operator, "register_operators", check_surrogates)
    opened = SimpleNamespace(fused_operator_open=lambda *given: None)
    monkeypatch.setattr(operator.ctypes, "CDLL", lambda path: opened)
    operator.load_operator(open_kernels(), 1, tmp_path)
    assert stale.read_text() == "another operator" and count(compiler) == 1
    assert find_operator(tmp_path) == stale


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
@pytest.mark.parametrize("of", ["folder", "file"])
def test_an_operator_writable_by_other_users_is_rejected(compiler, tmp_path, of, mode):
    path = find_operator(tmp_path)
    wrong = path.parent if of == "folder" else path
    wrong.chmod(mode)
    with pytest.raises(OperatorError, match="^[^\n]*other users may write there; remove it, or set"):
        find_operator(tmp_path)


def test_an_operator_that_others_may_change_is_rejected(compiler, tmp_path, monkeypatch):
    find_operator(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(OperatorError, match="other users may write there"):
        find_operator(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / FOLDER).symlink_to(elsewhere)
    with pytest.raises(OperatorError, match="other users may write there"):
        find_operator(tmp_path / "cache")
    assert not list(elsewhere.iterdir())


def test_the_cache_is_private_and_follows_xdg_cache_home(compiler, tmp_path, monkeypatch):
    before = os.umask(0)
    try:
        path = find_operator(tmp_path / "cache")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert find_operator(tmp_path / "cache") == path
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache() == tmp_path / "ernie-pair"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the XDG specification says to ignore a relative path
    assert user_cache().name == "ernie-pair" and user_cache().is_absolute()
