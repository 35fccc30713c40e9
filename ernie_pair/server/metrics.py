"""The numbers that /metrics reports to Prometheus."""

import math
from collections import defaultdict, deque
from typing import Deque, Dict, Iterator, Sequence

from prometheus_client import CONTENT_TYPE_LATEST as CONTENT_TYPE  # noqa: F401 - read by app
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

NAMESPACE = "ernie_pair"
SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
PAIRS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
QUANTILES = (0.5, 0.99)
LATEST = 2048  # answers of an endpoint that its quantiles cover


class Numbers:
    """The numbers of one service since its start."""

    def __init__(self):
        self._registry = here = CollectorRegistry()
        self._requests = Counter(
            f"{NAMESPACE}_requests",
            "Requests to /predict, /rank and /search, by status.",
            ["status"],
            registry=here,
        )
        self._errors = Counter(
            f"{NAMESPACE}_errors", "Requests that were answered with 4xx or 5xx.", registry=here
        )
        self._pairs = Counter(f"{NAMESPACE}_pairs", "Pairs that were answered.", registry=here)
        self._seconds = Histogram(
            f"{NAMESPACE}_request_seconds", "Time to the answer.", buckets=SECONDS, registry=here
        )
        self._endpoints = EndpointTimes(here)
        self._batches = Histogram(
            f"{NAMESPACE}_batch_pairs", "Pairs in one call of the model.", buckets=PAIRS, registry=here
        )
        self._waiting = Gauge(f"{NAMESPACE}_waiting_pairs", "Pairs in the queue.", registry=here)
        ProcessCollector(registry=here)

    def answered(self, endpoint: str, status: int, pairs: int, seconds: float) -> None:
        """Count a finished request, with its HTTP status, its pairs and its time."""
        self._requests.labels(str(status)).inc()
        self._seconds.observe(seconds)
        if status == 200:
            self._pairs.inc(pairs)
            self._endpoints.observe(endpoint, seconds)
        else:
            self._errors.inc()

    def called(self, pairs: int) -> None:
        """Count a call of the model with so many pairs."""
        self._batches.observe(pairs)

    def text(self, waiting: int) -> bytes:
        """Return the numbers in the text format of Prometheus; ``waiting``: the pairs in the queue."""
        self._waiting.set(waiting)
        return generate_latest(self._registry)


class EndpointTimes(Collector):
    """The median and the 99th percentile of the latest answers of each endpoint, as a summary.

    prometheus_client's own Summary has no quantiles, and those of a histogram are no finer than its buckets.
    """

    def __init__(self, registry: CollectorRegistry):
        self._latest: Dict[str, Deque[float]] = defaultdict(lambda: deque(maxlen=LATEST))
        self._counts: Dict[str, int] = defaultdict(int)
        self._sums: Dict[str, float] = defaultdict(float)
        registry.register(self)

    def observe(self, endpoint: str, seconds: float) -> None:
        """Count an answer of status 200 and its time."""
        self._latest[endpoint].append(seconds)
        self._counts[endpoint] += 1
        self._sums[endpoint] += seconds

    def collect(self) -> Iterator[Metric]:
        """Yield the summary, when prometheus_client asks for it."""
        words = f"Time to an answer of status 200; the quantiles are those of the latest {LATEST}."
        found = Metric(f"{NAMESPACE}_endpoint_seconds", words, "summary")
        for endpoint, latest in sorted(self._latest.items()):
            labels, ordered = {"endpoint": endpoint}, sorted(latest)
            for share in QUANTILES:
                found.add_sample(found.name, {**labels, "quantile": str(share)}, quantile(ordered, share))
            found.add_sample(f"{found.name}_count", labels, self._counts[endpoint])
            found.add_sample(f"{found.name}_sum", labels, self._sums[endpoint])
        yield found


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest of ascending numbers, at least one, that ``share`` of them do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
