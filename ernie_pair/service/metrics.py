"""The numbers of a service since its start, which /metrics reports to Prometheus."""

from collections import Counter as Counts
from collections import defaultdict, deque
from typing import Deque, Dict, Iterator

import numpy as np
from prometheus_client import CONTENT_TYPE_LATEST as CONTENT_TYPE  # noqa: F401 - of the text
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

NAMESPACE = "ernie_pair"
SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
PAIRS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
QUANTILES = (0.5, 0.99)
LATEST = 2048  # answers of an endpoint that its quantiles cover


class ServiceMetrics(Collector):
    """The numbers of one service since its start, which /metrics reports to Prometheus.

    It collects one of them itself, the median and the 99th percentile of the latest answers of each endpoint:
    prometheus_client's own Summary has no quantiles, and those of a histogram are no finer than its buckets.
    """

    def __init__(self):
        self._registry = here = CollectorRegistry()

        def new(kind, name: str, words: str, *labels: str, **more):
            return kind(f"{NAMESPACE}_{name}", words, labels, registry=here, **more)

        routes = "Requests to /predict, /rank, /search, embeddings and rerank, by status."
        self._requests = new(Counter, "requests", routes, "status")
        self._errors = new(Counter, "errors", "Requests that were answered with 4xx or 5xx.")
        self.pairs = new(Counter, "pairs", "Pairs that were answered.")
        self._seconds = new(Histogram, "request_seconds", "Time to the answer.", buckets=SECONDS)
        self._latest: Dict[str, Deque[float]] = defaultdict(lambda: deque(maxlen=LATEST))
        self._counts: Counts[str] = Counts()
        self._sums: Dict[str, float] = defaultdict(float)
        here.register(self)
        self.texts = new(Counter, "texts", "Texts that were embedded.")
        self.batches = new(Histogram, "batch_pairs", "Pairs in one call of the model.", buckets=PAIRS)
        self._waiting = new(Gauge, "waiting_pairs", "Pairs and texts in the queue.")
        ProcessCollector(registry=here)

    def count(self, endpoint: str, status: int, seconds: float) -> None:
        """Count a finished request, with its HTTP status and its time."""
        self._requests.labels(str(status)).inc()
        self._seconds.observe(seconds)
        if status != 200:
            self._errors.inc()
            return
        self._latest[endpoint].append(seconds)
        self._counts[endpoint] += 1
        self._sums[endpoint] += seconds

    def collect(self) -> Iterator[Metric]:
        """Yield the summary of the endpoints, when prometheus_client asks for it."""
        words = f"Time to an answer of status 200; the quantiles are those of the latest {LATEST}."
        summary = Metric(f"{NAMESPACE}_endpoint_seconds", words, "summary")
        for endpoint, latest in sorted(self._latest.items()):
            labels = {"endpoint": endpoint}
            for share in QUANTILES:
                value = np.quantile(latest, share, method="inverted_cdf")
                summary.add_sample(summary.name, {**labels, "quantile": str(share)}, float(value))
            summary.add_sample(f"{summary.name}_count", labels, self._counts[endpoint])
            summary.add_sample(f"{summary.name}_sum", labels, self._sums[endpoint])
        yield summary

    def text(self, waiting: int) -> bytes:
        """Return the numbers in the text format of Prometheus; ``waiting``: the pairs in the queue."""
        self._waiting.set(waiting)
        return generate_latest(self._registry)
