"""What is told of answers after they are sent: numbers for /metrics, the log, and a second model's scores.

Nothing here delays or fails an answer. A thread writes the log and another one, of the lowest priority, asks
the model in the shadow; what they have no room for is dropped, and counted.
"""

import hashlib
import logging
import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Callable, Iterable, Optional, Sequence

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ernie_pair.core.errors import describe_os_error
from ernie_pair.core.files.json_file import read_json_object
from ernie_pair.inference.exported_model import EXPORT_MANIFEST
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.inference.scores import ScoreUnit
from ernie_pair.models.embedding_json import EMBEDDING
from ernie_pair.service.bodies import Version
from ernie_pair.service.request_log import Answered, RequestLog

MOST_CHARACTERS = 1 << 24  # of lines that wait to be written
MOST_PAIRS = 1 << 12  # that wait for the model in the shadow
STEPS = 20  # of the histogram of scores between the least and the most
UNBOUNDED = (-10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 50, 100)

logger = logging.getLogger(__name__)


def version_of(name: str, fingerprint: str, folder: Path) -> Version:
    """Return which model is in ``folder``; what is not known of it is empty."""
    version = date = ""
    path = next(filter(Path.is_file, (folder / EXPORT_MANIFEST, folder / EMBEDDING)), None)
    if path is not None:
        date = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc).isoformat(timespec="seconds")
        version = read_json_object(path, "export it again").get("versions", {}).get("ernie-pair", "")
    return Version(name=name, fingerprint=fingerprint, version=version, date=date)


class Aside:
    """A thread that works off what it is offered; at most ``most`` of it waits, by the given sizes.

    ``niceness``: by how much its priority, and that of the threads it starts, is lowered.
    """

    def __init__(self, name: str, most: int, niceness: int = 0):
        self.thread, self._lock = ThreadPoolExecutor(1, name, os.nice, (niceness,)), Lock()
        self._most, self._waiting = most, 0

    def offer(self, size: int, work: Callable[..., None], *given: Any) -> bool:
        """Return whether there is room for ``work`` of this size; one alone always has it."""
        with self._lock:
            if self._waiting and self._waiting + size > self._most:
                return False
            self._waiting += size
        self.thread.submit(work, *given).add_done_callback(partial(self._end, size))
        return True

    def _end(self, size: int, done: Future) -> None:
        if done.exception() is not None:
            logger.error("an answer was not watched", exc_info=done.exception())
        with self._lock:
            self._waiting -= size

    def close(self) -> None:
        """Wait until all of it is done."""
        self.thread.shutdown()


class Shadow:
    """A model that scores the same pairs as the one that answers, in a thread of its own, which opens it."""

    def __init__(self, open_model: Callable[[], PairPredictor]):
        self.aside, self.is_closing = Aside("shadow", MOST_PAIRS, 19), False
        self.model = self.aside.thread.submit(open_model).result()

    def close(self) -> None:
        """End the thread; pairs that wait are not scored."""
        self.is_closing = True
        self.aside.close()


@dataclass(frozen=True)
class WatchOptions:
    """Where answers are logged; None: nowhere. ``share``: of the requests; ``hashes``: instead of texts."""

    log: Optional[RequestLog] = None
    share: float = 1.0
    hashes: bool = False


class Watch:
    """Tells of answers as ``options`` say, and counts them in ``registry``; ``unit``: of their scores."""

    def __init__(self, options: WatchOptions, registry: CollectorRegistry, unit: Optional[ScoreUnit]):
        self._options, self._writing, self._is_failing = options, Aside("request-log", MOST_CHARACTERS), False
        self.shadow: Optional[Shadow] = None
        named: Any = {"namespace": "ernie_pair", "registry": registry}
        count: Any = partial(Counter, **named)
        self._models = Gauge("model_info", "The models that are served.", [*Version.model_fields], **named)
        words, buckets = "Scores: of two classes the probability of class 1.", UNBOUNDED
        if unit is not None and unit.least is not None and unit.most is not None:
            buckets = np.linspace(unit.least, unit.most, STEPS + 1)[1:].round(6).tolist()
        self._scores = Histogram("scores", words, ["endpoint"], buckets=buckets, **named)
        self._decisions = count("decisions", "Pairs of each class, as it was decided.", ["label"])
        self._inputs = count("inputs", "Pairs and texts whose tokens were counted.")
        self._readings = [
            count("tokens", "Tokens of these pairs and texts."),
            count("tokens_unknown", "Tokens that stand for what the vocabulary lacks."),
            count("inputs_cut", "Those of them that were too long and were truncated."),
        ]
        self._dropped = count("log_dropped_lines", "Lines of the log that were not written.")
        self._agrees = count("shadow_pairs", "Pairs by whether the shadow decides alike.", ["agrees"])
        self._missed = count("shadow_missed_pairs", "Pairs that the shadow had no time for, or failed.")
        self._apart = Histogram("shadow_difference", "How far both scores are apart.", **named)

    def show(self, models: Iterable[Version]) -> None:
        """Say which models are served now."""
        self._models.clear()
        for model in models:
            self._models.labels(**model.model_dump()).set(1)

    async def note(self, calls: Sequence[Answered]) -> None:
        """Count an answer that was sent, and hand it to the threads; ``calls``: those of the model for it."""
        for answered in calls:
            for score in answered.headlines(answered.scores):
                self._scores.labels(answered.endpoint).observe(score)
            for label in answered.labels or ():
                self._decisions.labels(label).inc()
            if answered.reading is not None:
                self._inputs.inc(len(answered.reading.tokens))
                for counter, values in zip(self._readings, answered.reading):
                    counter.inc(int(values.sum()))
            shadow, pairs = self.shadow, len(answered.texts)
            if shadow is not None and len(answered.texts[0]) > 1:
                if shadow.aside.offer(pairs, self._ask_shadow, shadow, answered):
                    continue
                self._missed.inc(pairs)
            self._log(answered)

    def _ask_shadow(self, shadow: Shadow, answered: Answered) -> None:
        try:
            found = None if shadow.is_closing else shadow.model.predict(answered.texts)
        except Exception as error:
            logger.error("the model in the shadow failed: %r", error)
            found = None
        if found is None:
            self._missed.inc(len(answered.texts))
        else:
            answered.shadow_scores = found.rows
            for score, other in zip(*map(answered.headlines, (answered.scores, found.rows))):
                self._apart.observe(abs(score - other))
            for label, other in zip(answered.labels or (), found.labels or ()):
                self._agrees.labels(str(label == other).lower()).inc()
        self._log(answered)

    def _log(self, answered: Answered) -> None:
        """Hand an answer to the thread that writes the log, if the hash of its request falls to the share."""
        drawn = int.from_bytes(hashlib.sha256(answered.request.encode()).digest()[:8], "big")
        if self._options.log is None or drawn >= self._options.share * 2**64:
            return
        size = sum(400 + sum(map(len, texts)) for texts in answered.texts)  # about, in characters
        if not self._writing.offer(size, self._write, self._options.log, answered):
            self._dropped.inc(len(answered.texts))

    def _write(self, log: RequestLog, answered: Answered) -> None:
        try:
            log.write(answered.lines(self._options.hashes))
            self._is_failing = False
        except OSError as error:
            self._dropped.inc(len(answered.texts))
            if not self._is_failing:
                logger.warning("lines of the log are dropped: %s: %s", log.path, describe_os_error(error))
            self._is_failing = True

    def close(self) -> None:
        """Write what waits, then close the log."""
        if self.shadow is not None:
            self.shadow.close()
        self._writing.close()
        if self._options.log is not None:
            self._options.log.close()
