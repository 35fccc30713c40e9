"""The operator is compiled once, whoever asks, and never stands half-written in the cache."""

import json
import logging
import multiprocessing
import os
import platform
import stat
from types import SimpleNamespace

import paddle
import pytest

from data_tools.files.keyed_cache import user_cache
from ernie_pair.kernels.library import open_kernels
from ernie_pair.kernels.operator import compile_operator, encoder_operator
from ernie_pair.kernels.operator.compile_operator import FOLDER, OperatorError, find_operator

needs_kernels = pytest.mark.skipif(bool(open_kernels().reason), reason=open_kernels().reason or "never")
# Stands for g++: notes each compilation in LOG, and makes an operator, or half of one where it SAYS an error.
COMPILER = """#!/bin/sh
echo compiled >> "$LOG"
while [ "$1" != -o ]; do shift; done
printf 'half of' > "$2"
if [ -n "$SAYS" ]; then echo "In file included from x" >&2; echo "$SAYS" >&2; exit 1; fi
printf ' an operator' >> "$2"
"""


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A compiler that is done at once; the file in which it counts."""
    path, log = tmp_path / "cxx", tmp_path / "log"
    path.write_text(COMPILER)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    for name, value in (("CXX", path), ("LOG", log), ("SAYS", "")):
        monkeypatch.setenv(name, str(value))
    return log


def count(log):
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_the_first_who_asks_compiles_and_says_so(compiler, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    found = find_operator(tmp_path / "cache")
    assert found.read_text() == "half of an operator" and found.suffix == ".so"
    assert [record.message for record in caplog.records] == ["compiling the fused operator, once: about 5 s"]
    assert find_operator(tmp_path / "cache") == found and count(compiler) == 1
    assert len(caplog.records) == 1


def test_the_key_tells_of_paddle_and_the_sources(compiler, tmp_path, monkeypatch):
    first = find_operator(tmp_path)
    (note,) = (json.loads(path.read_text())["key"] for path in (tmp_path / FOLDER).glob("operator-*.json"))
    assert note["paddle"][0] == paddle.__version__
    assert tuple(note["machine"]) == (platform.machine(), *platform.libc_ver())
    assert set(note["sources"]) == {"fused_operator.cc", "adamw_operator.h", "fused.h"}
    monkeypatch.setenv("CXX", str(tmp_path / "absent"))
    assert find_operator(tmp_path) == first  # what is there needs no compiler
    monkeypatch.setattr(compile_operator, "HEADER", first)
    with pytest.raises(OperatorError, match="there is no compiler"):
        find_operator(tmp_path)


def test_processes_that_ask_at_once_compile_once(compiler, tmp_path):
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


def test_a_compiler_that_fails_leaves_nothing_and_is_quoted(compiler, tmp_path, monkeypatch):
    monkeypatch.setenv("SAYS", "x.cc:3: error: no such thing")
    with pytest.raises(OperatorError, match="ends with code 1: x.cc:3: error: no such thing"):
        find_operator(tmp_path / "cache")
    assert {path.suffix for path in (tmp_path / "cache" / FOLDER).iterdir()} == {".lock"}


def test_no_compiler_and_no_cache_are_told_with_their_cure(compiler, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(OperatorError, match="not a folder.*set XDG_CACHE_HOME to another"):
        find_operator(tmp_path / "file")
    monkeypatch.setenv("CXX", str(tmp_path / "absent"))
    with pytest.raises(OperatorError, match="there is no compiler .*absent; install g"):
        find_operator(tmp_path / "cache")


@needs_kernels
def test_what_is_no_operator_is_refused_by_paddle(compiler, tmp_path, monkeypatch):
    monkeypatch.setattr(encoder_operator, "_registered", {})
    with pytest.raises(OperatorError, match="Paddle does not load it"):
        encoder_operator.load_operator(open_kernels(), 1, tmp_path)
    assert count(compiler) == 2  # once more, and no more than that


@needs_kernels
def test_one_that_does_not_load_here_is_compiled_anew(compiler, tmp_path, monkeypatch):
    """As where another machine of the same home has compiled it, with a later C++ library."""
    stale = find_operator(tmp_path)
    monkeypatch.setenv("CXX", str(second_compiler(tmp_path)))
    monkeypatch.setattr(encoder_operator, "_registered", {})
    monkeypatch.setattr(encoder_operator, "register_operators", refuse_half_an_operator)
    opened = SimpleNamespace(fused_operator_open=lambda *given: None)
    monkeypatch.setattr(encoder_operator.ctypes, "CDLL", lambda path: opened)
    encoder_operator.load_operator(open_kernels(), 1, tmp_path)
    assert stale.read_text() == "another operator" and count(compiler) == 1
    assert find_operator(tmp_path) == stale


def second_compiler(folder):
    path = folder / "cxx2"
    path.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nprintf "another operator" > "$2"\n')
    path.chmod(0o755)
    return path


def refuse_half_an_operator(path):
    if path.read_text().startswith("half"):
        raise RuntimeError("version GLIBCXX_3.4.99 not found")


def test_one_that_was_replaced_meanwhile_stays(compiler, tmp_path):
    path = find_operator(tmp_path)
    compile_operator.forget_operator(path, path.stat().st_ino + 1)
    assert path.exists()
    compile_operator.forget_operator(path, path.stat().st_ino)
    compile_operator.forget_operator(path, 0)
    assert {each.suffix for each in (tmp_path / FOLDER).iterdir()} == {".lock"}


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
@pytest.mark.parametrize("of", ["folder", "file"])
def test_code_that_others_may_write_is_not_run(compiler, tmp_path, of, mode):
    path = find_operator(tmp_path)
    wrong = path.parent if of == "folder" else path
    wrong.chmod(mode)
    with pytest.raises(
        OperatorError, match="^[^\n]*others than this user may write there; remove it, or set"
    ):
        find_operator(tmp_path)


def test_code_of_another_user_is_not_run(compiler, tmp_path, monkeypatch):
    find_operator(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(OperatorError, match="others than this user may write there"):
        find_operator(tmp_path)


def test_a_link_to_another_folder_is_not_followed(compiler, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / FOLDER).symlink_to(elsewhere)
    with pytest.raises(OperatorError, match="others than this user may write there"):
        find_operator(tmp_path / "cache")
    assert not list(elsewhere.iterdir())


def test_what_is_made_is_this_users_whatever_the_umask(compiler, tmp_path):
    before = os.umask(0)
    try:
        path = find_operator(tmp_path / "cache")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert find_operator(tmp_path / "cache") == path


def test_the_cache_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache() == tmp_path / "ernie-pair"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the standard has such a one ignored
    assert user_cache().name == "ernie-pair" and user_cache().is_absolute()
