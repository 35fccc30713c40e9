"""What is told of answers after they are sent: numbers for /metrics, the log, and a second model's scores.

Nothing here delays or fails an answer. A thread writes the log and another one, of the lowest priority, asks
the model in the shadow; what they have no room for is dropped, and counted.
"""

import hashlib
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from threading import Lock, get_native_id
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
    """A thread that works off what it is offered; at most ``most`` of it waits, by the given sizes."""

    def __init__(self, name: str, most: int, begin: Optional[Callable[[], None]] = None):
        self.thread, self._lock = ThreadPoolExecutor(1, name, begin), Lock()
        self._most, self._waiting = most, 0

    def offer(self, size: int, work: Callable[..., None], *given: Any) -> bool:
        """Return whether there is room for ``work`` of this size; one alone always has it."""
        with self._lock:
            if self._waiting and self._waiting + size > self._most:
                return False
            self._waiting += size
        self.thread.submit(self._do, size, work, *given)
        return True

    def _do(self, size: int, work: Callable[..., None], *given: Any) -> None:
        try:
            work(*given)
        except Exception:
            logger.exception("an answer was not watched")
        finally:
            with self._lock:
                self._waiting -= size

    def close(self) -> None:
        """Wait until all of it is done."""
        self.thread.shutdown()


def _yield_processor() -> None:
    """Give this thread, and those of a model that it opens, the lowest priority, where a system can."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, get_native_id(), 19)


class Shadow:
    """A model that scores the same pairs as the one that answers, in a thread of its own, which opens it."""

    def __init__(self, open_model: Callable[[], PairPredictor]):
        self.aside, self.is_closing = Aside("shadow", MOST_PAIRS, _yield_processor), False
        self.model = self.aside.thread.submit(open_model).result()

    def close(self) -> None:
        """End the thread; pairs that wait are not scored."""
        self.is_closing = True
        self.aside.close()


@dataclass(frozen=True)
class WatchOptions:
    """Where answers are logged; None: nowhere. ``hashes``: instead of texts."""

    log: Optional[RequestLog] = None
    share: float = 1.0  # of the requests
    hashes: bool = False

    def keeps(self, request: str) -> bool:
        """Return whether the lines of a request are written, by the hash of its name."""
        drawn = int.from_bytes(hashlib.sha256(request.encode()).digest()[:8], "big")
        return self.log is not None and drawn < self.share * 2**64


class WatchMetrics:
    """The numbers of /metrics about the answers and their texts."""

    def __init__(self, registry: CollectorRegistry, unit: Optional[ScoreUnit]):
        named: Any = {"namespace": "ernie_pair", "registry": registry}
        count: Any = partial(Counter, **named)
        labels = ["name", "fingerprint", "version", "date"]
        self._models = Gauge("model_info", "The models that are served.", labels, **named)
        words, buckets = "Scores: of two classes the probability of class 1.", _buckets_of(unit)
        self._scores = Histogram("scores", words, ["endpoint"], buckets=buckets, **named)
        self._decisions = count("decisions", "Pairs of each class, as it was decided.", ["label"])
        self._inputs = count("inputs", "Pairs and texts whose tokens were counted.")
        self._cut = count("inputs_cut", "Those of them that were too long and were truncated.")
        self._tokens = count("tokens", "Tokens of these pairs and texts.")
        self._unknown = count("tokens_unknown", "Tokens that stand for what the vocabulary lacks.")
        self.dropped = count("log_dropped_lines", "Lines of the log that were not written.")
        self._shadow = count("shadow_pairs", "Pairs by whether the shadow decides alike.", ["agrees"])
        self.shadow_missed = count("shadow_missed_pairs", "Pairs that the shadow had no time for, or failed.")
        self._apart = Histogram("shadow_difference", "How far both scores are apart.", **named)

    def show(self, models: Iterable[Version]) -> None:
        """Say which models are served now."""
        self._models.clear()
        for model in models:
            self._models.labels(**model.model_dump()).set(1)

    def count(self, answered: Answered) -> None:
        """Count what was answered."""
        histogram = self._scores.labels(answered.endpoint)
        for score in answered.headlines(answered.scores):
            histogram.observe(score)
        for label in answered.labels or ():
            self._decisions.labels(label).inc()
        if answered.reading is not None:
            tokens, unknown, cut = answered.reading
            self._inputs.inc(len(tokens))
            for counter, values in ((self._tokens, tokens), (self._unknown, unknown), (self._cut, cut)):
                counter.inc(int(values.sum()))

    def compare(self, answered: Answered, labels: Optional[Sequence[str]]) -> None:
        """Count what the shadow says of the same pairs, with its ``labels`` if they have classes."""
        assert answered.shadow_scores is not None
        both = map(answered.headlines, (answered.scores, answered.shadow_scores))
        for score, other in zip(*both):
            self._apart.observe(abs(score - other))
        for label, other in zip(answered.labels or (), labels or ()):
            self._shadow.labels(str(label == other).lower()).inc()


class Watch:
    """Tells of answers as ``options`` say, and counts them in ``metrics``."""

    def __init__(self, options: WatchOptions, metrics: WatchMetrics):
        self._options, self._metrics = options, metrics
        self.shadow: Optional[Shadow] = None
        self._writing = Aside("request-log", MOST_CHARACTERS)
        self._is_failing = False

    async def note(self, calls: Sequence[Answered]) -> None:
        """Count an answer that was sent, and hand it to the threads; ``calls``: those of the model for it."""
        for answered in calls:
            self._note(answered)

    def _note(self, answered: Answered) -> None:
        self._metrics.count(answered)
        shadow, pairs = self.shadow, len(answered.texts)
        if shadow is not None and len(answered.texts[0]) > 1:
            if shadow.aside.offer(pairs, self._ask_shadow, shadow, answered):
                return
            self._metrics.shadow_missed.inc(pairs)
        self._log(answered)

    def _ask_shadow(self, shadow: Shadow, answered: Answered) -> None:
        found = None
        try:
            if not shadow.is_closing:
                found = shadow.model.predict(answered.pairs)
        except Exception as error:
            logger.error("the model in the shadow failed: %r", error)
        if found is None:
            self._metrics.shadow_missed.inc(len(answered.texts))
        else:
            answered.shadow_scores = found.rows
            self._metrics.compare(answered, found.labels)
        self._log(answered)

    def _log(self, answered: Answered) -> None:
        if not self._options.keeps(answered.request):
            return
        size = sum(400 + sum(map(len, texts)) for texts in answered.texts)  # about, in characters
        if not self._writing.offer(size, self._write, answered):
            self._metrics.dropped.inc(len(answered.texts))

    def _write(self, answered: Answered) -> None:
        log = self._options.log
        assert log is not None
        try:
            log.write(answered.lines(self._options.hashes))
        except OSError as error:
            self._metrics.dropped.inc(len(answered.texts))
            if not self._is_failing:
                logger.warning("lines of the log are dropped: %s: %s", log.path, describe_os_error(error))
            self._is_failing = True
        else:
            self._is_failing = False

    def close(self) -> None:
        """Write what waits, then close the log."""
        if self.shadow is not None:
            self.shadow.close()
        self._writing.close()
        if self._options.log is not None:
            self._options.log.close()


def _buckets_of(unit: Optional[ScoreUnit]) -> Sequence[float]:
    if unit is None or unit.least is None or unit.most is None:
        return UNBOUNDED
    return np.linspace(unit.least, unit.most, STEPS + 1)[1:].round(6).tolist()
