"""The numbers that /metrics tells Prometheus."""

from prometheus_client import CONTENT_TYPE_LATEST as CONTENT_TYPE  # noqa: F401 - read by app
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

NAMESPACE = "ernie_pair"
SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
PAIRS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Numbers:
    """The numbers of one service since its start."""

    def __init__(self):
        self._registry = here = CollectorRegistry()
        self._requests = Counter(
            f"{NAMESPACE}_requests", "Requests to /predict, by status.", ["status"], registry=here
        )
        self._errors = Counter(
            f"{NAMESPACE}_errors", "Those of them that were answered with 4xx or 5xx.", registry=here
        )
        self._pairs = Counter(f"{NAMESPACE}_pairs", "Pairs that were answered.", registry=here)
        self._seconds = Histogram(
            f"{NAMESPACE}_request_seconds", "Time to the answer.", buckets=SECONDS, registry=here
        )
        self._batches = Histogram(
            f"{NAMESPACE}_batch_pairs", "Pairs in one call of the model.", buckets=PAIRS, registry=here
        )
        self._waiting = Gauge(f"{NAMESPACE}_waiting_pairs", "Pairs in the queue.", registry=here)
        ProcessCollector(registry=here)

    def answered(self, status: int, pairs: int, seconds: float) -> None:
        """Count a request to /predict that is done, with its HTTP status, its pairs and its time."""
        self._requests.labels(str(status)).inc()
        self._seconds.observe(seconds)
        if status == 200:
            self._pairs.inc(pairs)
        else:
            self._errors.inc()

    def called(self, pairs: int) -> None:
        """Count a call of the model with so many pairs."""
        self._batches.observe(pairs)

    def text(self, waiting: int) -> bytes:
        """Return the numbers in the text format of Prometheus; ``waiting``: the pairs in the queue."""
        self._waiting.set(waiting)
        return generate_latest(self._registry)
