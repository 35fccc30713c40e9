"""Checkpoints: a step_NNNNNNNN/ folder is complete if its MANIFEST.json says so, and immutable.

output_dir/
    run.lock                        held by the first rank for the life of the run
    checkpoints/step_00005000/      the files of the job, state.json, and MANIFEST.json written last
    model_last -> checkpoints/step_00005000

MANIFEST.json is {"format": 1, "step", "fingerprint": {key: value}, "versions": {package: version},
"files": [{"name", "size", "sha256"}]}. Everything is written into checkpoints/.tmp-step_N first,
forced to disk, and renamed; hashes are taken from the bytes in memory, never from what landed on
the disk. Nothing here knows a model or a framework.
"""

import hashlib
import json
import logging
import os
import re
import shutil
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Callable, Dict, Iterable, List, Optional, Tuple

from filelock import FileLock, Timeout

from data_tools.errors import CheckpointError, InputError
from data_tools.publish import to_disk
from ernie_pair.loop import TrainState
from ernie_pair.world import World

FORMAT = 1
MANIFEST, STATE = "MANIFEST.json", "state.json"
STEP_FOLDER = re.compile(r"step_(\d{8})")
VERSIONED = ("paddlepaddle", "paddlepaddle-gpu", "paddlenlp", "numpy", "ernie-pair")

logger = logging.getLogger(__name__)


class Checkpoint:
    """One published checkpoint. Every read is verified against the manifest."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.manifest = _read_manifest(folder)
        self.files = {entry["name"]: entry for entry in self.manifest["files"]}

    def read(self, name: str) -> bytes:
        """The bytes of one file. Raises CheckpointError when they are not the bytes that were written."""
        path, entry = self.folder / name, self.files.get(name)
        if entry is None:
            raise CheckpointError(f"{self.folder} holds no {name}; it is a checkpoint of something else")
        data = path.read_bytes() if path.is_file() else b""
        if len(data) != entry["size"] or hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise CheckpointError(
                f"{path} is not what {MANIFEST} promises; remove {self.folder} and start again"
            )
        return data

    def state(self) -> TrainState:
        return TrainState(**json.loads(self.read(STATE)))

    def verify(self) -> None:
        for name in self.files:
            self.read(name)

    def refuse_other_run(self, fingerprint: Dict[str, object]) -> None:
        """Raises InputError naming the first key in which this run differs from the one that saved."""
        saved = self.manifest["fingerprint"]
        for key in sorted({*saved, *fingerprint}):
            if saved.get(key) != fingerprint.get(key):
                raise InputError(
                    f"{self.folder} is a checkpoint of another run: {key} was {saved.get(key)!r} and is now "
                    f"{fingerprint.get(key)!r}; pass the old value, or another --output_dir"
                )


class Checkpoints:
    """The checkpoints of one run, as seen by one of its ranks."""

    def __init__(self, output_dir: Path, world: World, barrier: Callable[[], None], keep: int = 3):
        if keep < 2:
            raise ValueError("keep at least two checkpoints: the newest may turn out to be damaged")
        self.output_dir, self.folder = Path(output_dir), Path(output_dir) / "checkpoints"
        self.world, self.barrier, self.keep = world, barrier, keep
        self.lock = self._open() if world.is_first else None
        barrier()

    def newest(self) -> Optional[Checkpoint]:
        """The newest checkpoint whose every byte is right; None when there never was one.

        A damaged one is set aside with a warning and the one before it is taken. Raises
        CheckpointError when all are damaged: a run never starts afresh silently.
        """
        damaged = {}
        for folder in reversed(self._published()):
            try:
                checkpoint = Checkpoint(folder)
                checkpoint.verify()
                break
            except CheckpointError as error:
                damaged[folder] = str(error)
        else:
            checkpoint = None
        self.barrier()  # nobody sets a folder aside while another rank still looks at it
        if damaged and checkpoint is None:
            reason = next(iter(damaged.values()))
            raise CheckpointError(
                f"no usable checkpoint in {self.folder}: {reason}; use another --output_dir"
            )
        self._set_aside(damaged)
        return checkpoint

    def _set_aside(self, damaged: Dict[Path, str]) -> None:
        for folder, reason in damaged.items() if self.world.is_first else ():
            aside = folder.with_name(f".bad-{folder.name}-{os.getpid()}")
            folder.rename(aside)
            logger.warning("%s; it is now %s, and the checkpoint before it is taken", reason, aside)

    def save(
        self, state: TrainState, fingerprint: Dict[str, object], files: Iterable[Tuple[str, bytes]]
    ) -> None:
        """Publish ``files`` (name, content) as the checkpoint of ``state``; called by every rank.

        Only the first rank writes; replicated state is the same everywhere. Raises OSError when the
        disk refuses: then nothing is published and the checkpoints before stay.
        """
        if self.world.is_first:
            self._publish(f"step_{state.step:08d}", state, fingerprint, files)
            self._retire()
        self.barrier()

    def close(self) -> None:
        if self.lock is not None:
            self.lock.release()

    def _open(self) -> FileLock:
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.output_dir / "run.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise InputError(
                f"{self.output_dir} is locked by another run; wait for it, or use another --output_dir"
            ) from None
        for leftover in [*self.folder.glob(".tmp-*"), *self.folder.glob(".trash-*")]:
            shutil.rmtree(leftover)
        return lock

    def _published(self) -> List[Path]:
        return sorted(path for path in self.folder.iterdir() if STEP_FOLDER.fullmatch(path.name))

    def _publish(self, name: str, state: TrainState, fingerprint, files: Iterable[Tuple[str, bytes]]) -> None:
        draft, final = self.folder / f".tmp-{name}", self.folder / name
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        try:
            entries = [write_synced(draft / file, data) for file, data in files]
            entries.append(write_synced(draft / STATE, _as_json(asdict(state))))
            manifest = {
                "format": FORMAT,
                "step": state.step,
                "fingerprint": fingerprint,
                "versions": _versions(),
                "files": entries,
            }
            write_synced(draft / MANIFEST, _as_json(manifest))
            to_disk(draft)
            draft.rename(final)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        to_disk(self.folder)
        self._point_model_last_to(final)

    def _point_model_last_to(self, final: Path) -> None:
        link = self.output_dir / ".model_last"
        link.unlink(missing_ok=True)
        link.symlink_to(final.relative_to(self.output_dir))
        link.rename(self.output_dir / "model_last")
        to_disk(self.output_dir)

    def _retire(self) -> None:
        """Only after a success; renamed first, so that a half-deleted folder is never taken for whole."""
        for folder in self._published()[: -self.keep]:
            folder.rename(trash := self.folder / f".trash-{folder.name}")
            shutil.rmtree(trash)
        for trash in self.folder.glob(".trash-*"):
            shutil.rmtree(trash)


def write_synced(path: Path, data: bytes) -> Dict[str, object]:
    """Write a new file, force it to disk and return its manifest entry. Raises OSError."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return {"name": path.name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def publish_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Let ``fill`` write into a draft beside ``folder``, then put it in place of what is there.

    A reader sees the old folder, no folder for an instant, or the new one; never half of one.
    """
    draft, old = folder.with_name(f".tmp-{folder.name}"), folder.with_name(f".trash-{folder.name}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    for leftover in (draft, old):
        shutil.rmtree(leftover, ignore_errors=True)
    draft.mkdir()
    try:
        fill(draft)
        for path in draft.iterdir():
            to_disk(path)
        to_disk(draft)
        if folder.exists():
            folder.rename(old)
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    to_disk(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _read_manifest(folder: Path) -> Dict:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
        written_by, files = manifest["format"], manifest["files"]
        sound = all(isinstance(entry["name"], str) and "/" not in entry["name"] for entry in files)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error.__class__.__name__}); {folder} is not complete"
        ) from None
    if written_by != FORMAT or not sound:
        raise CheckpointError(
            f"{path} is of format {written_by!r}, this version reads {FORMAT}; use that version"
        )
    return manifest


def _as_json(value) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False).encode()


def _versions() -> Dict[str, str]:
    installed = {}
    for package in VERSIONED:
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return installed
