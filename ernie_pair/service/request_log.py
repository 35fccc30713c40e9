"""The log of requests, JSON lines: written by `serve --log_requests`, read by `drift`.

A line is a pair, a text of /v1/embeddings, or a query of /search, whose scores are those of its hits:

    {"time": "2026-11-30T08:15:02.123+00:00", "request": "4f1c...", "endpoint": "/predict",
     "model": SHA-256, "texts": ["怎么开户", "如何开户"], "characters": [4, 4], "scores": [0.02, 0.98],
     "label": "1", "milliseconds": 8.1, "tokens": 8, "unknown": 0.0, "cut": false,
     "shadow_scores": [0.1, 0.9]}

``sha256`` stands in place of ``texts`` where these are not kept. ``unknown``: the share of the tokens that
stand for what the vocabulary lacks. ``shadow_scores``: of --shadow_model_path, if it scored the pair.
FILE.1 to FILE.9 are older lines, FILE.9 the oldest.
"""

import errno
import hashlib
import json
import logging
import os
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence

import numpy as np

from ernie_pair.core.errors import InputError, counted, describe_os_error
from ernie_pair.core.files.atomic_files import try_lock
from ernie_pair.core.files.json_file import is_number, parse_json_object
from ernie_pair.inference.token_rows import Reading

FILES = 10  # in all
DIGITS = 6
SEARCH = "/search"
START = b'{"time": "'  # of a line

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Answered:
    """What a model answered to the N items of a request: pairs, texts, or a query."""

    texts: Sequence[Any]  # [N], one or two texts each
    model: str  # its fingerprint
    scores: np.ndarray  # float64 [N, C]; of vectors [N, 0]
    labels: Optional[Sequence[str]] = None
    reading: Optional[Reading] = None
    request: str = ""
    endpoint: str = ""
    seconds: float = 0.0  # to the answer
    shadow_scores: Optional[np.ndarray] = None  # float64 [N, C]
    time: datetime = field(default_factory=lambda: datetime.now(timezone.utc))

    def headlines(self, scores: np.ndarray) -> List[float]:
        """Return the `headline` of each item, of none without scores."""
        return [headline(self.endpoint, row) for row in scores.tolist() if row]

    def lines(self, hashes: bool) -> bytes:
        """Return a line of the log for each item; ``hashes``: with the SHA-256 of each text in its place."""
        found = []
        for row, texts in enumerate(self.texts):
            kept = list(texts)
            if hashes:
                encoded = (text.encode("utf-8", "backslashreplace") for text in texts)
                kept = [hashlib.sha256(each).hexdigest() for each in encoded]
            line = {
                "time": self.time.isoformat(timespec="milliseconds"),
                "request": self.request,
                "endpoint": self.endpoint,
                "model": self.model,
                "sha256" if hashes else "texts": kept,
                "characters": list(map(len, texts)),
                "scores": self.scores[row].round(DIGITS).tolist(),
                "label": None if self.labels is None else self.labels[row],
                "milliseconds": round(self.seconds * 1000, 2),
            }
            if self.reading is not None:
                tokens, unknown, cut = (values[row].item() for values in self.reading)
                line.update(tokens=tokens, unknown=round(unknown / max(tokens, 1), DIGITS), cut=cut)
            if self.shadow_scores is not None:
                line["shadow_scores"] = self.shadow_scores[row].round(DIGITS).tolist()
            found.append(json.dumps(line, ensure_ascii=False) + "\n")
        return "".join(found).encode("utf-8", "backslashreplace")


def headline(endpoint: str, scores: Sequence[float]) -> float:
    """Return the score that stands for an item: of two classes that of class 1, otherwise the best."""
    return scores[1] if len(scores) == 2 and endpoint != SEARCH else max(scores)


class RequestLog:
    """The files of a log, ``most`` bytes together, which their owner alone may read; one service writes them.

    Raises InputError for a file that is no log, that another service writes, or that cannot be written.
    """

    def __init__(self, path: Path, most: int):
        self.path, self._most = path, most // FILES
        self._places = [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, FILES))]
        try:
            for place in filter(os.path.lexists, self._places):
                if not place.is_file() or _start_of(place) not in (b"", START):
                    raise InputError(f"--log_requests: {place} is no log of requests; choose another name")
            self._file = self._open()
        except OSError as error:
            raise InputError(f"--log_requests {path}: {describe_os_error(error)}; choose another") from None

    def write(self, lines: bytes) -> None:
        """Append whole lines; a file that is full is renamed first. Raises OSError: then none is written.

        One that was moved or deleted meanwhile is begun anew.
        """
        if not self.path.exists() or not os.path.samestat(os.stat(self.path), os.fstat(self._file)):
            gone, self._file = self._file, self._open()
            os.close(gone)
        size = os.fstat(self._file).st_size
        if size and size + len(lines) > self._most:
            for older, newer in zip(self._places[:0:-1], self._places[-2::-1]):
                if self.path.exists() and newer.exists():
                    newer.replace(older)
            full, self._file, size = self._file, self._open(), 0
            os.close(full)
        try:
            if os.write(self._file, lines) < len(lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.ftruncate(self._file, size)
            raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _open(self) -> int:
        found = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.fchmod(found, 0o600)
        if not try_lock(found):
            os.close(found)
            raise InputError(f"--log_requests {self.path}: another service writes it; choose another name")
        return found


def is_log(path: Path) -> bool:
    """Return whether a file begins as a log."""
    return path.is_file() and _start_of(path) == START


def _start_of(path: Path) -> bytes:
    with open(path, "rb") as content:
        return content.read(len(START))


def log_lines(path: str) -> Iterator[Dict[str, Any]]:
    """Yield the sound lines of a log, and of the older files beside it; how many are not is logged."""
    files = [Path(path), *(Path(f"{path}.{number}") for number in range(1, FILES))]
    for file in [file for file in files if file.is_file()] or files[:1]:
        damaged = []
        try:
            with open(file, "rb") as lines:
                for number, line in enumerate(lines, start=1):
                    with suppress(KeyError, TypeError, ValueError):
                        found = parse_json_object(line)
                        texts = [found[name] for name in ("time", "endpoint", "model")]
                        sizes = [*found["scores"], *found["characters"]]
                        datetime.fromisoformat(texts[0])
                        if all(isinstance(text, str) for text in texts) and all(map(is_number, sizes)):
                            yield found
                            continue
                    damaged.append(number)
        except OSError as error:
            raise InputError(f"--log {file}: {error.strerror}; give that of serve --log_requests") from None
        if damaged:
            left_out = counted(len(damaged), "such line")
            logger.warning("%s:%d: damaged; %s left out", file, damaged[0], left_out)
