"""A learning curve: runs on growing shares of the training pairs, and what more labels would give.

The curve is error = a + b * rows^-c (Cortes et al. 1993) with a >= 0; without a, gains are seen that are not.
"""

import logging
from dataclasses import asdict
from itertools import product
from typing import Any, Dict, List, Sequence

import numpy as np

from ernie_pair.checkpoint.run_folder import cleanup_on_error
from ernie_pair.core.files.json_file import write_json
from ernie_pair.core.progress import say
from ernie_pair.experiments.config import LearningCurveConfig
from ernie_pair.experiments.series import WRITTEN_FIRST, ClassRuns, read_logits
from ernie_pair.experiments.split_pairs import check_classes
from ernie_pair.pairs.audit.new_pairs import KnownPairs
from ernie_pair.pairs.targets.metrics import CountedRows, percentile_interval, resamples
from ernie_pair.report.page import Origin, Table, draw_chart, format_range, page_of_tables, text_table
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.runtime.processes.world import launched_world

FILES, PARTS = ("curve.json", "curve.html"), "shares"
POWERS = np.linspace(0.05, 3, 296)  # c
NOTE = "Gain: over the curve at all rows. 95 %: by bootstrap over test rows and seeds, with a curve for each."

logger = logging.getLogger(__name__)


def place_rows(labels: np.ndarray, seed: int) -> np.ndarray:
    """Return the share from which on each row is in, float64 [rows]; each has its part of every class."""
    rng, places = np.random.default_rng(seed), np.zeros(len(labels))
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        places[rows] = (rng.permutation(len(rows)) + 0.5) / len(rows)
    return places


def fit_curves(sizes: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Return a, b and c, [3, N], of the curve of least squares to each of ``errors`` [N, sizes]."""
    powers, means = (sizes / sizes[-1]) ** -POWERS[:, None], errors.mean(axis=1, keepdims=True)
    apart = powers - powers.mean(axis=1, keepdims=True)
    slopes = (errors - means) @ (apart / (apart**2).sum(axis=1, keepdims=True)).T
    a = np.maximum(means - slopes * powers.mean(axis=1), 0)
    b = (errors @ powers.T - a * powers.sum(axis=1)) / (powers**2).sum(axis=1)
    misses = a[..., None] + b[..., None] * powers - errors[:, None]
    best = np.arange(len(errors)), (misses**2).sum(axis=2).argmin(axis=1)
    return np.array([a[best], b[best] * sizes[-1] ** POWERS[best[1]], POWERS[best[1]]])


def predict_metric(sizes: Sequence[int], drawn: np.ndarray, seed: int) -> List[Dict[str, Any]]:
    """Return {"rows", "value", "interval"} of each size, and of twice and four times the last the "gain" too.

    ``drawn`` [1 + N, sizes, seeds]: the metric of each run, then on N resamples of the test rows. Seeds are
    drawn here; a mean of k of them lies too near to that of all, and is spread by sqrt(k / (k - 1)).
    """
    seeds, now = drawn.shape[2], sizes[-1]
    picked = np.random.default_rng(seed).integers(seeds, size=drawn.shape)
    of_all, means = drawn.mean(axis=2), np.take_along_axis(drawn, picked, axis=2).mean(axis=2)
    means = np.clip(of_all + (means - of_all) * np.sqrt(seeds / (seeds - 1)), 0, 1)
    means[0] = of_all[0]
    a, b, c = fit_curves(np.array(sizes, dtype=np.float64), 1 - means)
    points, by_curve = [], {n: 1 - a - b * float(n) ** -c for n in (now, 2 * now, 4 * now)}
    for n, values in {**by_curve, **dict(zip(sizes, means.T))}.items():
        points.append({"rows": n, "value": float(values[0]), "interval": percentile_interval(values[1:])})
        if n > now:
            gain = values - by_curve[now]
            points[-1].update(gain=float(gain[0]), interval_of_gain=percentile_interval(gain[1:]))
    return sorted(points, key=lambda point: point["rows"])


def describe_gain(points: List[Dict[str, Any]], metric: str) -> str:
    """Return a line on twice the labels, the last but one of ``points``."""
    now, twice, _ = points[-3:]
    (low, high), (least, most) = twice["interval"], twice["interval_of_gain"]
    line = f"twice the labels ({twice['rows']:,}): {metric} {twice['value']:.3f} ({low:.3f} to {high:.3f})"
    gain = f"{twice['gain']:+.3f} ({least:+.3f} to {most:+.3f}) over {now['rows']:,} rows"
    return f"{line}, {gain}" + ("; more labels are not seen to help" if least <= 0 else "")


def learning_curve(config: LearningCurveConfig) -> Dict[str, Any]:
    """Train on shares of the training pairs, and predict what more labels would give.

    Returns a dictionary, that of curve.json: the ``verdict``, a line, and in ``points`` what is measured of
    each share, and predicted of twice and four times the rows. Raises an ErniePairError.
    """
    start = cleanup_on_error(config.output_dir, launched_world(), *WRITTEN_FIRST, PARTS)
    with start, StopSignals(when="between two runs"):
        return _LearningCurve(config).make()


class _LearningCurve(ClassRuns):
    """The pairs of a curve; opened by every rank alike."""

    def __init__(self, config: LearningCurveConfig):
        super().__init__("learning-curve", config, FILES, "a small share knows more rows than it has")
        tests, labels, known = self.read("test"), self.pairs.known_labels, KnownPairs({"train": self.pairs})
        self.tests = tests.rows(np.flatnonzero(known.unknown(tests.left, tests.right)))
        logger.info("%s", "; ".join(known.lines("test pairs")))
        check_classes(self.tests.known_labels, self.names, config.test_file, "give other pairs to measure on")
        dev, test = (self.output_dir / PARTS / f"{name}.jsonl" for name in ("dev", "test"))
        self.parts, self.runs = {dev: self.dev, test: self.tests}, []
        seeds = range(config.seed, config.seed + config.seeds)
        for share, seed in product(map(float, config.shares.split(",")), seeds):
            rows = np.flatnonzero(place_rows(labels, seed) <= share)
            where = f"share {share:g} of {config.train_file}"
            check_classes(labels[rows], self.names, where, "give more pairs of it, or larger --shares")
            path = dev.with_name(f"share-{share:g}-seed-{seed}.jsonl")
            self.parts[path] = self.pairs.rows(rows)
            run = self.config.config_of(path, dev, self.output_dir / path.stem, seed=seed)
            self.runs.append((run, test))

    def make(self) -> Dict[str, Any]:
        config, labels = self.config, self.tests.known_labels
        self.on_first(lambda: self.begin("learning-curve", self.parts))
        shape = len(labels), len(self.names)
        counted = [CountedRows(read_logits(file, *shape), labels) for file in self.make_missing(self.runs)]
        times = np.ones(len(labels), np.int64), *resamples(len(labels), config.bootstrap, config.seed)
        drawn = np.array([[rows.measure(each)[config.metric] for rows in counted] for each in times])
        sizes = [len(pairs) for pairs in self.parts.values()][2 :: config.seeds]
        points = predict_metric(sizes, drawn.reshape(len(drawn), len(sizes), config.seeds), config.seed)
        result = {"verdict": describe_gain(points, config.metric), "metric": config.metric, "points": points}
        self.on_first(lambda: self._publish(result))
        return result

    def _publish(self, result: Dict[str, Any]) -> None:
        points, metric, rows = result["points"], result["metric"], []
        for point in points:
            gain = [point.get("gain"), format_range(point.get("interval_of_gain"))]
            rows.append([f"{point['rows']:,} rows", point["value"], format_range(point["interval"]), *gain])
        table = Table(result["verdict"], ["", metric, "95 %", "gain", "95 %"], rows, NOTE)

        def draw(axes) -> None:
            for some, name in ((points[:-2], "measured"), (points[-2:], "predicted")):
                sizes, values, ends = (np.array([p[n] for p in some]) for n in ("rows", "value", "interval"))
                axes.errorbar(sizes, values, np.abs(ends.T - values), fmt="o--", capsize=4, label=name)
            axes.set(xscale="log", xlabel="rows", ylabel=metric)

        charts, made = [draw_chart("Learning curve", draw, "")], Origin(asdict(self.config))
        with self.series.published() as (text, page):
            write_json(text, result)
            page.write_text(page_of_tables("Learning curve", [table], charts, made), encoding="utf-8")
        say(text_table(table))
        logger.info("report: %s", self.output_dir / FILES[-1])
