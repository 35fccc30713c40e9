"""OUT/run.json: the identity of a run, and the folders that the run has published.

{"run_id": "9f...", "started": "2024-05-01T12:00:00", "has_checkpoint": true}
"""

import itertools
import json
import logging
import os
import re
import secrets
import shutil
import socket
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.core.files.atomic_files import (
    ABOUT,
    has_no_locks,
    make_folder,
    open_lock,
    published,
    try_lock,
)
from ernie_pair.core.files.atomic_folder import point_link, published_folder, read_folder_record
from ernie_pair.core.files.json_file import read_json_object
from ernie_pair.core.files.results import read_own_config
from ernie_pair.runtime.processes.world import World

RUN = "run.json"
RUN_ID = re.compile(r"[0-9a-f]{16}")
MAX_RUN = 1 << 16
LOCK = "run.lock"  # in an output folder
BEST, PREFIX = "best", "best-"
OWN_TARGET = r"best-[A-Za-z0-9_-]{1,60}--?(\d+\.\d{4}|inf|nan)(-\d+)?"
LOWER_IS_BETTER = ("loss",)  # for folders that do not say it themselves
CHECKPOINTS, EVENTS, CURVES, LAST = "checkpoints", "metrics.jsonl", "vdl", "model_last"
CACHE = "cache"  # of what the data were made into
OWN_LINK = r"checkpoints/step_\d{8}"  # the target of model_last
PUBLISHED = (PREFIX, "model_")
OWN_CONFIG = re.compile(r"config(-[0-9]+)?\.yaml")

logger = logging.getLogger(__name__)


def read_run(output_dir: Path) -> Dict[str, Any]:
    """Return the note of ``output_dir``, {} if there is none. Raises CheckpointError for another file."""
    path = output_dir / RUN
    if not os.path.lexists(path):
        return {}
    hint = "it is not the note of a run: rename it, or use another --output_dir"
    note = read_json_object(path, hint, CheckpointError, MAX_RUN, follow=False)
    if not (isinstance(note.get("run_id"), str) and RUN_ID.fullmatch(note["run_id"])):
        raise CheckpointError(f"{path}: no run_id in it; {hint}")
    return note


def ensure_run_id(output_dir: Path) -> str:
    """Return the run id of ``output_dir``, which is created and stored at the first start."""
    run = read_run(output_dir)
    if not run:
        run = {"run_id": secrets.token_hex(8), "started": time.strftime("%Y-%m-%dT%H:%M:%S")}
        _write(output_dir, {**run, "has_checkpoint": False})
    return run["run_id"]


def note_checkpoint(output_dir: Path) -> None:
    """Record that the run has published a checkpoint, which must not be lost from now on."""
    run = read_run(output_dir)
    if not run.get("has_checkpoint"):
        _write(output_dir, {**run, "has_checkpoint": True})


@contextmanager
def published_of_run(folder: Path, about: Dict[str, object]) -> Iterator[Tuple[Path, Path]]:
    """Yield ``folder``, one of the run in its parent, and its draft; see `published_folder`.

    It gets another name if the user has something of that name. ``about`` is kept in it.
    """
    own = [path for path, _ in folders_of_run(folder.parent, folder.name)]
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
    names = itertools.chain([folder], numbered)
    chosen = next(name for name in names if name in own or not os.path.lexists(name))
    if chosen != folder:
        logger.warning("%s does not belong to this run and stays; the model goes to %s", folder, chosen)
    about = {**about, "run_id": read_run(folder.parent).get("run_id", "")}
    with published_folder(chosen, lambda draft: about) as draft:
        yield chosen, draft


def folders_of_run(output_dir: Path, start: str) -> List[Tuple[Path, Dict[str, object]]]:
    """Return (folder, its metadata) of what the run in ``output_dir`` published with the prefix ``start``."""
    run_id = read_run(output_dir).get("run_id", "")
    notes = [(folder, read_folder_record(folder)) for folder in sorted(output_dir.glob(f"{start}*"))]
    return [(path, note) for path, note in notes if note is not None and note.get("run_id") == run_id]


def _write(output_dir: Path, run: Dict[str, object]) -> None:
    with published(output_dir / RUN) as (draft,):
        draft.write_text(json.dumps(run))


class RunLock:
    """The lock of a run on ``path``, held until it is released or the process ends, however it ends.

    The file names the holder. Raises InputError when another process has it, or when it is a user's
    file of the same name; OSError if it cannot be opened. A file system without locks gives a warning.
    """

    def __init__(self, path: Path):
        self._descriptor = open_lock(path)
        try:
            _lock(self._descriptor, path)
            if not re.match(rb"(pid \d+ on |\Z)", os.pread(self._descriptor, 200, 0)):
                raise InputError(f"{path} is not the lock of a run; rename it, or use another --output_dir")
        except BaseException:
            os.close(self._descriptor)
            raise
        os.ftruncate(self._descriptor, 0)
        holder = f"pid {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n"
        os.pwrite(self._descriptor, holder.encode(), 0)

    def release(self) -> None:
        """Release the lock; the file stays."""
        os.close(self._descriptor)


def check_unlocked(path: Path) -> None:
    """Raise InputError when another process has the lock on ``path``; nothing is created or changed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        _lock(descriptor, path)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        if not try_lock(descriptor):
            holder = os.read(descriptor, 200).decode("utf-8", "replace").strip()
            raise InputError(
                f"{path.parent} is locked by another run ({holder or 'unknown'}); wait for it, or use "
                "another --output_dir"
            )
    except OSError as error:
        if not has_no_locks(error):
            raise
        logger.warning("%s: no file can be locked there; start no second run in it", path.parent)


def point_best(folder: Path) -> None:
    """Point the link beside a best model to it; all else of that name is set aside. Raises OSError."""
    point_link(folder.with_name(BEST), Path(folder.name), OWN_TARGET)


def is_own_best(link: Path) -> bool:
    """Return whether ``link`` is a link made by `point_best`."""
    return link.is_symlink() and re.fullmatch(OWN_TARGET, os.readlink(link)) is not None


def find_best(output_dir: Path) -> Optional[Path]:
    """Return the folder of a run's best model, by its link or else its metadata; None: there is none."""
    link = output_dir / BEST
    if is_own_best(link) and link.is_dir():
        return output_dir / os.readlink(link)
    found = ranked_models(output_dir)
    return found[0][0] if found else None


def ranked_models(output_dir: Path, metric: str = "") -> List[Tuple[Path, Dict[str, Any]]]:
    """Return (folder, metadata) of a run's best models, best first; with ``metric``, those chosen by it."""
    found = [
        (path, note)
        for path, note in folders_of_run(output_dir, PREFIX)
        if isinstance(note.get("value"), (int, float)) and metric in ("", note.get("metric"))
    ]

    def rank(model: Tuple[Path, Dict[str, Any]]) -> float:
        note = model[1]
        is_lower = note.get("lower_is_better", note.get("metric") in LOWER_IS_BETTER)
        return note["value"] if is_lower else -note["value"]

    return sorted(found, key=rank)


@contextmanager
def cleanup_on_error(output_dir: str, world: World, *written: str) -> Iterator[None]:
    """Return a context of a start; if it is refused, the first rank removes the ``output_dir`` that it made.

    A folder that was there before stays, and so does one with anything in it but what a run writes before its
    first step, or ``written``, the names of what a series does, and one in which another process has a lock:
    of two equal commands started at once, the one that is refused must not remove what the other trains in.
    """
    folder = Path(output_dir)
    is_new = world.is_first and not os.path.lexists(folder)
    try:
        yield
    except (InputError, CheckpointError):
        there = {*os.listdir(folder)} if is_new and folder.is_dir() else {""}
        begun = any((folder / CHECKPOINTS).glob("*"))
        if there <= {CACHE, CHECKPOINTS, LOCK, RUN, *written} and not begun:
            with suppress(InputError, OSError):  # of a lock that is held, or cannot be looked at
                for path in folder.rglob("*lock"):
                    check_unlocked(path)
                shutil.rmtree(folder, ignore_errors=True)
        raise


def check_no_lost_checkpoints(output_dir: Path) -> None:
    """Raise CheckpointError if there is no checkpoint although a run has published one.

    Without its run.json a run is recognized by its metrics. One that was killed before its first checkpoint
    has nothing to lose and starts again.
    """
    run = read_run(output_dir)
    lost = [LAST] if _is_checkpoint_link(output_dir / LAST) else []
    has_published = run.get("has_checkpoint") if run else os.path.lexists(output_dir / EVENTS)
    lost += [RUN if run else EVENTS] if has_published else []
    if lost:
        raise CheckpointError(
            f"{output_dir} was used before ({lost[0]} is there) and its {CHECKPOINTS}/ is empty or gone; put "
            "it back, or pass --fresh_start true, which renames what is left and starts anew, or use another "
            "--output_dir"
        )


def set_aside_run(output_dir: Path) -> None:
    """Move all that a run left in ``output_dir`` into a folder earlier-... in it, and log that.

    run.json is moved last, so that the folder is still recognized as used if this is interrupted.
    """
    run = read_run(output_dir)
    wanted = [Path(CHECKPOINTS), Path(EVENTS)]
    wanted += [Path(path.name) for start in PUBLISHED for path, _ in folders_of_run(output_dir, start)]
    wanted += [Path(BEST)] if is_own_best(output_dir / BEST) else []
    wanted += [Path(LAST)] if _is_checkpoint_link(output_dir / LAST) else []
    if run:  # the config.yaml files of a run, with any number, but not those of the user
        paths = [path for path in sorted(output_dir.glob("config*.yaml")) if OWN_CONFIG.fullmatch(path.name)]
        contents = {path: read_own_config(path) or {ABOUT: {}} for path in paths}
        own = [path for path in paths if contents[path][ABOUT].get("run_id") == run["run_id"]]
        wanted += [*(Path(path.name) for path in own), Path(CURVES) / run["run_id"], Path(RUN)]
    there = {path: output_dir / path for path in wanted if os.path.lexists(output_dir / path)}
    wanted = [path for path, at in there.items() if at.is_symlink() or not at.is_dir() or any(at.iterdir())]
    if not wanted:
        return
    aside = output_dir / f"earlier-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    for path in wanted:
        make_folder((aside / path).parent)
        (output_dir / path).rename(aside / path)
    logger.warning("--fresh_start: %s of an earlier run is now in %s", ", ".join(map(str, wanted)), aside)


def _is_checkpoint_link(link: Path) -> bool:
    return link.is_symlink() and os.readlink(link).startswith(f"{CHECKPOINTS}/")
