"""One checkpoint on disk: its manifest, and how it is read without trusting it.

step_00005000/
    the files of the job    written by one rank or by several
    state.json              the TrainState
    MANIFEST.json           written last
"""

import errno
import logging
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Deque, Dict, List, Sequence, Union

from ernie_pair.checkpoint.fingerprint import Fingerprint, RunRules, check_same_run
from ernie_pair.checkpoint.manifest import (
    Buffer,
    DamagedError,
    TrainState,
    installed_versions,
    parse_manifest,
    parse_state,
    sha256_of,
)
from ernie_pair.core.errors import CheckpointError, MachineError, NumbersError, free_room
from ernie_pair.core.files.atomic_files import FileRefusedError, read_regular
from ernie_pair.weights.weight_files import Arrays, first_not_finite, from_safetensors, safetensors_parts

MANIFEST, STATE = "MANIFEST.json", "state.json"
MAX_MANIFEST = 16 << 20
MAX_PARTS = os.sysconf("SC_IOV_MAX")  # for one writev
Content = Union[bytes, Arrays]  # arrays become a .safetensors file

logger = logging.getLogger(__name__)


class Checkpoint:
    """One published checkpoint. Every read is verified against the manifest."""

    def __init__(self, folder: Path):
        self.folder = folder
        data = _read_regular(folder / MANIFEST, MAX_MANIFEST)
        self.sha256 = sha256_of(data)
        self.manifest = parse_manifest(data, folder / MANIFEST)
        self.step: int = self.manifest["step"]
        self.files = {entry["name"]: entry for entry in self.manifest["files"]}

    def read(self, name: str) -> bytes:
        """Read one file and verify its hash. Raises CheckpointError when it is not as written."""
        path, entry = self.folder / name, self.files.get(name)
        if entry is None:
            raise CheckpointError(f"{self.folder} holds no {name}; it is a checkpoint of something else")
        data = _read_regular(path, entry["size"])
        if len(data) != entry["size"] or sha256_of(data) != entry["sha256"]:
            raise DamagedError(f"{path} does not match {MANIFEST}; remove {self.folder} and start again")
        return data

    def arrays(self, name: str) -> Arrays:
        """Return the arrays of one .safetensors file; bfloat16 comes as uint16. Raises CheckpointError."""
        try:
            return from_safetensors(self.read(name), str(self.folder / name))
        except CheckpointError as error:
            raise DamagedError(error.message) from None

    def state(self) -> TrainState:
        """Return the state of the run. Raises CheckpointError when the file is damaged."""
        state = parse_state(self.read(STATE), self.folder / STATE)
        if state.step != self.step:
            raise DamagedError(f"{self.folder / STATE} is of step {state.step}, {MANIFEST} of {self.step}")
        return state

    def verify(self) -> None:
        """Read everything once. Raises CheckpointError at the first damaged file."""
        for name in self.files:
            if not name.endswith(".safetensors"):
                self.read(name)
                continue
            wrong = first_not_finite(self.arrays(name))
            if wrong is not None:
                raise DamagedError(f"{self.folder / name}: {wrong} holds values that are not finite")
        self.state()

    def check_same_run(self, fingerprint: Fingerprint, allowed: Sequence[str], rules: RunRules) -> List[Dict]:
        """Return the differences from the run that saved, as entries of "changes"; see `fingerprint`.

        Raises InputError for one that is not allowed.
        """
        saved = self.manifest["fingerprint"]
        changes = check_same_run(str(self.folder), saved, fingerprint, allowed, rules)
        return [{**change, "step": self.step} for change in changes]

    def log_other_changes(self, topology: Dict[str, object]) -> None:
        """Log a line about a changed number of processes or changed versions; neither prevents a resume."""
        for what, level, saved, now, nothing in (
            ("continues with", logging.INFO, self.manifest["topology"], topology, "default"),
            ("other versions:", logging.WARNING, self.manifest["versions"], installed_versions(), "absent"),
        ):
            keys = [key for key in sorted({*saved, *now}) if saved.get(key) != now.get(key)]
            changes = [f"{key} {now.get(key, nothing)} (was {saved.get(key, nothing)})" for key in keys]
            if changes:
                logger.log(level, "%s %s", what, ", ".join(changes))


def write_synced(path: Path, *parts: Buffer) -> Dict[str, object]:
    """Write a new file, force it to disk and return its manifest entry, hashed from ``parts`` themselves.

    Raises MachineError naming the file when the disk refuses, or stores less than it was given.
    """
    size = sum(map(len, parts))
    left: Deque[memoryview] = deque(memoryview(part) for part in parts)
    with ThreadPoolExecutor(1) as another:  # hashes while the disk is busy
        sha256 = another.submit(sha256_of, *parts)
        try:
            with open(path, "xb", buffering=0) as file:
                while left:  # many parts at once: one write per small array takes twice as long
                    written = os.writev(file.fileno(), list(islice(left, MAX_PARTS)))
                    while left and written >= len(left[0]):
                        written -= len(left.popleft())
                    if written:
                        left[0] = left[0][written:]
                os.fsync(file.fileno())
                kept = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise MachineError(
                f"{path}: {error.strerror or error}; {size} bytes wanted, {free_room(path)}: make room, then "
                "start the same command again"
            ) from None
    if kept != size:
        raise MachineError(f"{path}: the disk kept {kept} of {size} bytes; fix it and start again")
    return {"name": path.name, "size": size, "sha256": sha256.result()}


def write_content(path: Path, content: Content) -> Dict[str, object]:
    """Write bytes, or arrays as safetensors, as `write_synced` does; NumbersError: one is not finite."""
    if isinstance(content, bytes):
        return write_synced(path, content)
    wrong = first_not_finite(content)
    if wrong is not None:
        raise NumbersError(
            f"{wrong} holds values that are not finite: {path.name} is not saved; lower the learning rate "
            "and start the same command again"
        )
    return write_synced(path, *safetensors_parts(content))


def _read_regular(path: Path, most: int) -> bytes:
    """Read a regular file, or raise DamagedError, CheckpointError (permission), OSError (the machine)."""
    try:
        return read_regular(path, most, follow=False)
    except PermissionError:
        raise CheckpointError(f"{path}: no permission to read it; give it, then start again") from None
    except FileRefusedError as error:
        raise DamagedError(f"{path}: {error}") from None
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise DamagedError(f"{path}: cannot be read ({error.strerror})") from None
