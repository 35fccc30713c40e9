"""The table of several models on the same labelled pairs, as numbers, as Markdown and as a page.

models.json    {"input_file": ..., "sha256": ..., "rows": 8802, "threads": 2, "models": [{"name": "teacher",
               "size": "12 x 768", "precision": "fp32", "accuracy": 0.91, "accuracy_interval": [0.90, 0.92],
               "difference": 0.0, "difference_interval": [0.0, 0.0], "agreement": 1.0,
               "pairs_per_second": 95.1, "times_as_fast": 1.0, "latency_ms": {"p50": 11.2, "p95": 12.9},
               "bytes": 409000000}, ...]}
models.md, models.html    the same for a reader
"""

import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Sequence

import numpy as np

from data_tools.base.errors import counted
from data_tools.base.progress import CountProgress
from data_tools.files.json_file import write_json
from ernie_pair.inference.exported_model import FILES_OF
from ernie_pair.inference.predictor import PairPredictor, TextPair
from ernie_pair.model_files.model_card import markdown_table
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.export.judge_precision import answer_in_turn
from ernie_pair.pair.targets.bootstrap import percentile_interval, resamples
from ernie_pair.report.page import Made, Table, render_page

FILES = ("models.json", "models.md", "models.html")
TEMPLATE = Path(__file__).with_name("models.html")
WARM_UP = 8  # pairs that are asked alone before the clock runs
HEADS = (
    *("model", "layers", "precision", "accuracy", "95 %"),
    *("difference (points)", "95 %", "same class", "pairs/s"),
)
NOTE = "Difference, same class and speedup: against the first model. Intervals: bootstrap over the pairs."
MORE_HEADS = ("speedup", "one pair p50", "p95", "size")


class Column(NamedTuple):
    """A model of the table; ``size``: its layers and their width, in words."""

    name: str
    size: str
    predictor: PairPredictor


def compare(
    columns: Sequence[Column], pairs: Pairs, alone: int, samples: int, seed: int
) -> List[Dict[str, Any]]:
    """Return what models.json says of every model, the first of which is the measure of the others.

    ``alone``: so many pairs are asked one by one as well. The accuracy is that of the likeliest class; the
    intervals are a bootstrap of ``samples`` resamples, of the same rows for all.
    """
    texts = list(zip(pairs.left, pairs.right))
    predictors = {column.name: column.predictor for column in columns}
    with CountProgress(len(texts) * len(columns), "pair") as progress:
        logits, seconds = answer_in_turn(predictors, texts, progress.advance)
    latencies = _latencies(predictors, texts[:alone])
    classes = {name: each.argmax(axis=1) for name, each in logits.items()}
    hits = {name: (each == pairs.known_labels).astype(np.float64) for name, each in classes.items()}
    drawn = list(resamples(len(pairs), samples, seed))
    first = columns[0].name
    found = []
    for name, size, predictor in columns:
        files = FILES_OF[predictor.backend]
        found.append(
            {
                "name": name,
                "size": size,
                "precision": predictor.precision,
                **_with_interval("accuracy", hits[name], drawn),
                **_with_interval("difference", hits[name] - hits[first], drawn),
                "agreement": float(np.mean(classes[name] == classes[first])),
                "pairs_per_second": round(len(texts) / seconds[name], 1),
                "times_as_fast": round(seconds[first] / seconds[name], 2),
                "latency_ms": latencies[name],
                "bytes": sum((predictor.exported.folder / file).stat().st_size for file in files),
            }
        )
    return found


def _with_interval(name: str, values: np.ndarray, drawn: Sequence[np.ndarray]) -> Dict[str, Any]:
    """Return the mean of ``values`` float64 [N], and the interval of that of the resampled rows."""
    means = np.array([values @ counts / len(values) for counts in drawn])
    return {name: float(values.mean()), f"{name}_interval": percentile_interval(means)}


def _latencies(
    predictors: Dict[str, PairPredictor], pairs: Sequence[TextPair]
) -> Dict[str, Dict[str, float]]:
    """Return {model: {p50, p95}}, the milliseconds of one pair from texts to logits; they take turns."""
    taken: Dict[str, List[float]] = {name: [] for name in predictors}
    for predictor in predictors.values():
        for pair in pairs[:WARM_UP]:
            predictor.logits([pair])
    for pair in pairs:
        for name, predictor in predictors.items():
            started = time.perf_counter()
            predictor.logits([pair])
            taken[name].append(1000 * (time.perf_counter() - started))
    shares = {name: np.percentile(each, [50, 95]) for name, each in taken.items()}
    return {n: dict(zip(("p50", "p95"), (round(float(v), 3) for v in both))) for n, both in shares.items()}


def write_table(files: Sequence[Path], content: Dict[str, Any]) -> str:
    """Write ``content`` to ``files``, which become FILES, and return the Markdown. Raises OSError."""
    numbers, text, page = files
    write_json(numbers, content)
    heads, rows = [*HEADS, *MORE_HEADS], list(map(_cells, content["models"]))
    threads = counted(content["threads"], "thread")
    told = f"{content['rows']} pairs of {content['input_file']}, ONNX Runtime, {threads}"
    markdown = f"{told}\n\n{markdown_table(heads, rows)}\n"
    text.write_text(markdown, encoding="utf-8")
    table = Table(told, heads, rows, NOTE)
    page.write_text(render_page(TEMPLATE, table=table, made=Made()), encoding="utf-8")
    return markdown


def _cells(model: Dict[str, Any]) -> List[str]:
    """Return the cells of a row as a reader sees them; a point is a hundredth of the accuracy."""
    low, high = model["accuracy_interval"]
    lower, higher = (100 * value for value in model["difference_interval"])
    latency = model["latency_ms"]
    return [
        *(model["name"], model["size"], model["precision"]),
        *(f"{model['accuracy']:.4f}", f"{low:.4f} to {high:.4f}"),
        *(f"{100 * model['difference']:+.2f}", f"{lower:+.2f} to {higher:+.2f}"),
        *(f"{model['agreement']:.4f}", f"{model['pairs_per_second']:,.0f}", f"{model['times_as_fast']:.2f}"),
        *(f"{latency['p50']:.2f} ms", f"{latency['p95']:.2f} ms", f"{model['bytes'] / 1e6:.1f} MB"),
    ]
