"""Serialize and parse MANIFEST.json and state.json; what is read is never trusted.

MANIFEST.json is {"format": 2, "run_id", "step", "fingerprint": {key: value}, "topology": {key: value},
"changes": [{"key", "old", "new", "step"}], "versions": {package: version}, "files": [{"name", "size",
"sha256", "rank"}], "checksum"}. The checksum is the sha256 of the manifest itself with 64 zeros in its
place.
"""

import hashlib
import json
import math
import re
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Sequence, Tuple, Union

from ernie_pair.core.errors import CheckpointError
from ernie_pair.core.files.json_file import JsonError, is_number, is_whole_number, parse_json_object

# {metric: (sum of its finite values, their number)}, added in the order of the steps.
Window = Dict[str, Tuple[float, int]]
MANIFEST_FORMAT = 2
MAX_FILES = 100_000
MAX_COUNT = 2**63 - 1
FILE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
SHA256 = re.compile(r"[0-9a-f]{64}")
NO_CHECKSUM = "0" * 64
KEYS = {"format", "step", "fingerprint", "versions", "files", "run_id", "topology", "changes", "checksum"}
Buffer = Union[bytes, memoryview]
VERSIONED = ("paddlepaddle", "paddlepaddle-gpu", "paddlenlp", "numpy", "ernie-pair")


@dataclass
class TrainState:
    """Everything that the loop must remember besides the weights."""

    step: int = 0
    consumed_samples: int = 0
    best_metric: Optional[float] = None
    skipped_updates: int = 0
    evaluation_pending: bool = False  # what was due after the last step has not been done yet
    metric_to_beat: Optional[float] = None  # of early stopping
    stale_evaluations: int = 0  # in a row that have not beaten it
    best_step: Optional[int] = None  # whose evaluation gave best_metric; 0: the initial weights
    window: Window = field(default_factory=dict)  # of the steps since the last training line


class DamagedError(CheckpointError):
    """A checkpoint is damaged; the one before it may be intact."""


def manifest_bytes(manifest: Dict[str, object]) -> bytes:
    """Return the bytes of MANIFEST.json; ``manifest`` has everything except format and checksum."""
    data = as_json({"format": MANIFEST_FORMAT, **manifest, "checksum": NO_CHECKSUM})
    return _with_checksum(data, sha256_of(data), NO_CHECKSUM)


def state_bytes(state: TrainState) -> bytes:
    """Return the content of state.json."""
    return as_json(asdict(state))


def as_json(value) -> bytes:
    """Encode ``value`` as indented JSON in UTF-8. Raises ValueError for NaN and infinity."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False).encode()


def sha256_of(*parts: Buffer) -> str:
    """Return the SHA-256 of the concatenated ``parts``, in hexadecimal."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


@cache
def installed_versions(packages: Sequence[str] = VERSIONED) -> Dict[str, str]:
    """Return {package: version} of the installed ``packages``."""
    installed = {}
    for package in packages:
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return installed


def parse_manifest(data: bytes, path: Path) -> Dict:
    """Parse and check MANIFEST.json. Raises DamagedError, or CheckpointError for a newer format."""
    manifest = _parse_object(data, path)
    written_by = manifest.get("format")
    if isinstance(written_by, int) and written_by > MANIFEST_FORMAT and _matches_checksum(manifest, data):
        raise CheckpointError(
            f"{path} is of format {written_by}, this version reads up to {MANIFEST_FORMAT}; use the newer "
            "version"
        )
    sound = (
        written_by == MANIFEST_FORMAT
        and manifest.keys() == KEYS
        and _matches_checksum(manifest, data)
        and _is_count(manifest["step"])
        and all(isinstance(manifest[key], dict) for key in ("fingerprint", "topology", "versions"))
        and isinstance(manifest["changes"], list)
        and isinstance(manifest["files"], list)
        and len(manifest["files"]) <= MAX_FILES
        and all(map(_is_entry, manifest["files"]))
        and len({entry["name"] for entry in manifest["files"]}) == len(manifest["files"])
    )
    if not sound:
        raise DamagedError(f"{path} is damaged; remove {path.parent} and start again")
    return manifest


def _matches_checksum(manifest: Dict, data: bytes) -> bool:
    checksum = manifest.get("checksum")
    is_one = isinstance(checksum, str) and SHA256.fullmatch(checksum) is not None
    return is_one and sha256_of(_with_checksum(data, NO_CHECKSUM, str(checksum))) == checksum


def _with_checksum(data: bytes, new: str, old: str) -> bytes:
    before, _, after = data.rpartition(old.encode())
    return before + new.encode() + after


def _is_entry(entry) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and FILE_NAME.fullmatch(entry["name"]) is not None
        and _is_count(entry.get("size"))
        and isinstance(entry.get("sha256"), str)
        and SHA256.fullmatch(entry["sha256"]) is not None
    )


def parse_state(data: bytes, path: Path) -> TrainState:
    """Parse state.json. Raises DamagedError when it does not hold the state of a run."""
    defaults = asdict(TrainState())
    values = {**defaults, **_parse_object(data, path)}
    is_sound: Dict[object, Callable[[Any], bool]] = {
        int: _is_count,
        bool: lambda value: type(value) is bool,
        Optional[float]: lambda value: value is None or is_number(value),
        Optional[int]: lambda value: value is None or _is_count(value),
        Window: _is_window,
    }
    if values.keys() != defaults.keys() or not all(
        is_sound[item.type](values[item.name]) for item in fields(TrainState)
    ):
        raise DamagedError(f"{path} does not hold the state of a run; remove {path.parent} and start again")
    window = {name: tuple(part) for name, part in values["window"].items()}
    return TrainState(**{**values, "window": window})


def _parse_object(data: bytes, path: Path) -> Dict:
    try:
        return parse_json_object(data)
    except JsonError as error:
        raise DamagedError(f"{path}:{max(error.line, 1)}: {error}") from None


def _is_window(value) -> bool:
    return isinstance(value, dict) and all(
        type(part) is list
        and len(part) == 2
        and type(part[0]) is float
        and math.isfinite(part[0])
        and _is_count(part[1])
        and part[1] > 0
        for part in value.values()
    )


def _is_count(value) -> bool:
    return is_whole_number(value, 0, MAX_COUNT)
