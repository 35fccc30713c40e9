"""Read files of unknown origin, write files that are whole or absent, and lock files.

What is written is a draft, flushed, then renamed. A lock is held by one process at a time; the kernel
releases it when its holder ends, however it ends. It is flock's, like that of the library filelock, and the
two exclude each other. The library itself is not used: it empties the file, in which a run records that it
holds it, follows a planted link, and takes any failure of the disk for another holder.
"""

import errno
import fcntl
import hashlib
import logging
import os
import re
import resource
import secrets
import shutil
import stat
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Callable, Iterator, List, Sequence, Union

from ernie_pair.core.errors import NO_ROOM, InputError, MachineError, dangling, standing_folder

# Errors of open() for something that is not a readable file; any other is a fault of the machine.
NO_FILE = (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.ENAMETOOLONG)

DISK_ERRORS = (*NO_ROOM, errno.EFBIG, errno.EIO)  # full, or failing
MIN_ROOM = 1 << 16  # bytes; with fewer, a library may have cut a file short without a word

CONFIG_YAML = "config.yaml"  # beside the outputs of a command; it contains a time, so no two are equal
ABOUT = "about"  # what a command adds to its config.yaml, below the flags
MAX_CONFIG_BYTES = 1 << 18

logger = logging.getLogger(__name__)


class FileRefusedError(ValueError):
    """A path that is not a regular file, or is too large a one; the message is the reason."""


def read_regular(path: Union[str, Path], most: int, follow: bool = True) -> bytes:
    """Return the content of a regular file of at most ``most`` bytes.

    A pipe, a device or a socket is refused at once instead of being waited for; so is a link, unless
    ``follow``. Raises FileRefusedError, and OSError if a permission is missing or the machine fails.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno not in NO_FILE:
            raise
        raise FileRefusedError(dangling(path) or f"cannot be read ({error.strerror})") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileRefusedError("not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(most + 1)
    finally:
        os.close(descriptor)
    if len(content) > most:
        raise FileRefusedError(f"above {most} bytes")
    return content


_TOKEN = re.compile(r"(?P<stem>.+)-(?P<drawn>[0-9a-f]{16})[0-9a-f]{8}", re.DOTALL)
_KEY = "ernie-pair"
MAX_NAME = 200  # bytes of a name that are part of one made from it; file systems allow 255
DRAFT = ".draft"  # ends the name of a file
FILLING, TRASH, BAD = ".tmp-", ".trash-", ".bad-"  # begin the name of a folder


def shortened(name: str) -> str:
    """Return the beginning of the name of a file, so short that a name made from it is one that can exist."""
    return name.encode("utf-8", "surrogateescape")[:MAX_NAME].decode("utf-8", "surrogateescape")


def own_name(stem: str, drawn: str = "") -> str:
    """Return ``stem`` with a new token at its end, or with the one whose random half is ``drawn``.

    ``drawn``: 16 hexadecimal digits that several processes share, to get the same name.
    """
    drawn = drawn or secrets.token_hex(8)
    words = "\0".join((_KEY, stem, drawn)).encode("utf-8", "surrogateescape")
    return f"{stem}-{drawn}{hashlib.sha256(words).hexdigest()[:8]}"


def stem_of(name: str) -> str:
    """Return the stem that ``own_name`` made ``name`` from; '' for any other name."""
    match = _TOKEN.fullmatch(name)
    return match["stem"] if match and own_name(match["stem"], match["drawn"]) == name else ""


def own_entries(folder: Path, is_meant: Callable[[str], bool]) -> Iterator[Path]:
    """Yield what is in ``folder`` with a name of ``own_name``, if ``is_meant`` is true for its stem."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        stem = stem_of(path.name)
        if stem and is_meant(stem):
            yield path


_state = {"keeps": True}  # of the whole process, its threads included


@contextmanager
def keep_no_results(is_dry: bool = True) -> Iterator[None]:
    """Return a context in which `keeps` returns False; with ``is_dry`` False it changes nothing."""
    before = _state["keeps"]
    _state["keeps"] = before and not is_dry
    try:
        yield
    finally:
        _state["keeps"] = before


@contextmanager
def keep_results() -> Iterator[None]:
    """Return a context in which `keeps` returns True even in a dry run: for what is only used from a file."""
    with keep_no_results(False):
        _state["keeps"] = True
        yield


def keeps() -> bool:
    """Return whether results may be stored for later."""
    return _state["keeps"]


@contextmanager
def naming(path: Union[str, Path], written: Sequence[Path] = ()) -> Iterator[None]:
    """Let an error of a full or failing disk name ``path`` if it names no file, as one of writing.

    On a full disk an error of a library is one of those: Paddle writes a part of a file, says nothing, and
    fails when it reads it. So it is where a file of ``written``, or in a folder of it, has the largest size
    that a process may write.
    """
    try:
        yield
    except (InputError, MachineError):
        raise
    except OSError as error:
        if error.errno is None and " written" in str(error):
            error.strerror = f"not written whole ({error})"
            error.errno = errno.EFBIG if any(map(_is_at_size_limit, written)) else errno.ENOSPC
        if error.errno in DISK_ERRORS:
            # Of a copy, the file that is read is the first of its two.
            error.filename = error.filename2 or error.filename or str(path)
        raise
    except Exception as error:
        if any(map(_is_at_size_limit, written)):
            reason = errno.EFBIG
        elif shutil.disk_usage(standing_folder(Path(path))).free < MIN_ROOM:
            reason = errno.ENOSPC
        else:
            raise
        raise OSError(reason, os.strerror(reason), str(path)) from error


def _is_at_size_limit(written: Path) -> bool:
    """Return whether a file is as long as a process may write one, or one in a folder is."""
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    files = (path for path in (written, *written.rglob("*")) if path.is_file())
    return most != resource.RLIM_INFINITY and any(path.stat().st_size >= most for path in files)


_LEFT_BEHIND = re.compile(r"(?P<name>.+-[0-9a-f]{24})\.draft(\..+)?", re.DOTALL)


@contextmanager
def published(*finals: Path, forced: bool = True) -> Iterator[List[Path]]:
    """Yield draft paths to fill, one per final path; on exit they are renamed to these, in this order.

    An exception removes the drafts and touches no final path. A reader that has the old file open or
    mapped keeps it: nothing is written in place. A draft has a unique name, so that writers do not
    collide and no planted link is followed. Without ``forced`` there is no fsync, and a crash of the
    machine may damage a file: only for files whose reader detects it.
    Raises MachineError if a folder cannot be made, OSError if the disk fails.
    """
    with ExitStack() as stack:
        for final in finals:
            stack.enter_context(folder_made(final.parent))
            if forced:
                _clear_drafts(final)
        drafts: List[Path] = []
        with naming(finals[-1], drafts):
            drafts += [stack.enter_context(_draft_of(final)) for final in finals]
            yield drafts
            for draft in drafts if forced else ():
                to_disk(draft)
            for draft, final in zip(drafts, finals):
                os.replace(draft, final)
            for folder in {final.parent for final in finals if forced}:
                to_disk(folder)


@contextmanager
def _draft_of(final: Path) -> Iterator[Path]:
    """Make an empty file beside ``final``, locked while it is used; again if it is taken for a left one."""
    flags, is_ours = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, False
    while not is_ours:
        draft = final.with_name(own_name(f".{shortened(final.name)}") + DRAFT)
        descriptor = os.open(draft, flags, 0o666)
        try:
            is_ours = try_lock(descriptor) and draft.exists()
        except OSError:  # a file system without locks: then its drafts are never cleared
            is_ours = True
        if not is_ours:
            os.close(descriptor)
    try:
        yield draft
    finally:
        draft.unlink(missing_ok=True)
        os.close(descriptor)


def _clear_drafts(final: Path) -> None:
    """Remove what killed runs left of ``final``; a draft is locked meanwhile, so that none publishes it."""
    for entry in os.listdir(final.parent):
        match = _LEFT_BEHIND.fullmatch(entry)
        if not match or stem_of(match["name"]) != f".{shortened(final.name)}":
            continue
        draft, descriptor = final.with_name(match["name"] + DRAFT), -1
        try:
            descriptor = os.open(draft, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            is_left = try_lock(descriptor)
        except OSError as error:
            is_left = isinstance(error, FileNotFoundError)
        try:
            if is_left:
                final.with_name(entry).unlink(missing_ok=True)
        finally:
            if descriptor >= 0:
                os.close(descriptor)


@contextmanager
def scratch(*paths: Path) -> Iterator[List[Path]]:
    """Yield ``paths`` for working files; whatever is there is removed before and after."""
    for path in paths:
        path.unlink(missing_ok=True)
    try:
        yield list(paths)
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Make ``folder`` and the folders above it. Raises MachineError if a file is in the way."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise MachineError(f"{folder}: not a folder; choose another output path") from None


@contextmanager
def folder_made(folder: Path) -> Iterator[None]:
    """Make ``folder`` as `make_folder` does; an exception removes what was made, if nothing is in it."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    make_folder(folder)
    try:
        yield
    except BaseException:
        for each in missing:
            with suppress(OSError):
                each.rmdir()
        raise


def to_disk(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk (fsync). Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


POLL_SECONDS, NOTICE_SECONDS = 0.05, 30.0
WORK_LOCK = "lock"  # in a folder of unfinished work
_NO_LOCKS_HERE = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


@contextmanager
def locked(path: Path, seconds: float, refusal: str = "") -> Iterator[bool]:
    """Lock ``path``, which is created if it is missing; its content does not matter.

    Yields whether the lock is exclusive: False on a file system without locks. Raises MachineError, with
    ``refusal`` as its message, if another process still holds it after ``seconds``.
    """
    descriptor = open_lock(path)
    try:
        yield _wait_for_lock(descriptor, path, seconds, refusal)
    finally:
        os.close(descriptor)


@contextmanager
def working_folder(folder: Path, is_ours: Callable[[str], bool], busy: str) -> Iterator[Callable[[], None]]:
    """Make and lock ``folder``, in which a run keeps what a later one may go on with; yield what removes it.

    ``is_ours``: whether a name is one that is made there; ``WORK_LOCK`` must be. Raises MachineError if it
    holds another one, or, with the message ``busy``, if another process holds the folder.
    """
    with folder_made(folder):
        strange = sorted(p.name for p in folder.iterdir() if p.is_symlink() or not is_ours(p.name))
        if strange:
            raise MachineError(
                f"{folder} holds {strange[0]}, which no run made there; rename the folder, or choose another "
                "output"
            )

        def remove() -> None:
            for path in folder.iterdir():
                if is_ours(path.name):
                    path.unlink()
            with suppress(OSError):  # something else is in it by now
                folder.rmdir()

        with locked(folder / WORK_LOCK, seconds=0, refusal=busy):
            yield remove


@contextmanager
def locked_once(path: Path, refusal: str) -> Iterator[bool]:
    """Lock ``path`` as `locked` does, without waiting; at the end the file is gone."""
    descriptor = open_lock(path)
    try:
        is_exclusive = _wait_for_lock(descriptor, path, 0, refusal)
        if not path.exists() or not os.path.samestat(os.fstat(descriptor), os.stat(path)):
            raise MachineError(refusal)  # another process held it when this one opened it, and removed it
        try:
            yield is_exclusive
        finally:
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def open_lock(path: Path) -> int:
    """Open or make ``path``, no link, nothing in it changed; closing it releases it. Raises OSError."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def try_lock(descriptor: int) -> bool:
    """Lock an open file; False if another process holds it. Raises OSError if there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def has_no_locks(error: OSError) -> bool:
    """Return whether `try_lock` failed because the file system has no locks."""
    return error.errno in _NO_LOCKS_HERE


def _wait_for_lock(descriptor: int, path: Path, seconds: float, refusal: str) -> bool:
    begun = told = time.monotonic()
    while True:
        try:
            if try_lock(descriptor):
                return True
        except OSError as error:
            if not has_no_locks(error):
                raise
            return False
        now = time.monotonic()
        if now - begun >= seconds:
            busy = f"{path}: another process holds it; wait for that, or stop it, then run again"
            raise MachineError(refusal or busy)
        if now - told >= NOTICE_SECONDS:
            logger.warning("waiting for the process that holds %s", path)
            told = now
        time.sleep(POLL_SECONDS)
