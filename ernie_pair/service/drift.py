"""ernie-pair drift: whether what is served is still like what the model was tested on.

Each number of the pairs is compared, those of the log with those of the reference: by a test, whose p is
corrected for their number (Holm), and by the population stability index, PSI, which says how much: below 0.1
little, above 0.25 much. Of a log of several days each day is compared too.
"""

import logging
from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ernie_pair.core.cli.options import OverwriteFlag, data_option, file_option, model_folder_option
from ernie_pair.core.errors import InputError, counted
from ernie_pair.core.files.json_file import (
    JsonError,
    is_number,
    parse_json_object,
    read_json_object,
    write_json,
)
from ernie_pair.core.progress import say
from ernie_pair.evaluation.scorer import results_of
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.pairs.data.pair_records import RowFlags
from ernie_pair.pairs.data.pair_source import PairSource
from ernie_pair.report.page import BLUE, ORANGE, Table, draw_chart, page_of_tables, text_table
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import World
from ernie_pair.service.request_log import FILES, START, headline, read_start

ALPHA = 0.05  # of all tests together
LEAST = 50  # items of either side
BINS, SHOWN = 10, 10  # of PSI; rows of examples
SCORES, CLASSES, LENGTHS, UNKNOWN, CUT = "scores", "classes", "lengths", "unknown tokens", "cut texts"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DriftConfig(RowFlags, OverwriteFlag):
    """Compare a log of requests with pairs that the model was tested on, or with an earlier log."""

    EXAMPLE = "--model_path ship --reference test.tsv --log requests.jsonl --output_file drift.html"

    reference: str = file_option(help="pairs like those of its test, labelled or not; or an earlier log")
    log: str = data_option(
        help="file of serve --log_requests; the older lines beside it, FILE.1 to FILE.9, are read too",
        reads="FILE",
    )
    output_file: str = data_option(
        help="page to write, .html; its numbers are beside it, .json", writes="FILE"
    )
    model_path: str = model_folder_option(
        "", help="the exported classifier that was served; empty: that of the log that is the reference"
    )
    endpoint: str = data_option("/predict", help="the route whose lines are compared")


class Items(NamedTuple):
    """The pairs or texts of one side, N of them; numbers that are not known are NaN."""

    texts: List[Tuple[str, ...]]  # of each, none if they were hashed
    days: List[str]
    labels: List[str]  # '' for none
    numbers: Dict[str, np.ndarray]  # {one of the names: float64 [N]}

    def of_day(self, day: str) -> "Items":
        """Return those of one day."""
        places = [place for place, each in enumerate(self.days) if each == day]
        texts, labels = [self.texts[place] for place in places], [self.labels[place] for place in places]
        numbers = {name: values[places] for name, values in self.numbers.items()}
        return Items(texts, [day] * len(places), labels, numbers)


def drift(config: DriftConfig) -> Dict[str, Any]:
    """Write the page and the numbers, and return these. Raises InputError for what cannot be compared."""
    start_console(World())
    page = Path(config.output_file)
    if page.suffix != ".html":
        raise InputError(f"--output_file {page} is a page; give it the ending .html")
    results = results_of("drift", config, [page.with_suffix(".json")])
    if results.are_done():
        return read_json_object(page.with_suffix(".json"), "remove it")
    with_log = read_start(Path(config.reference)) == START if Path(config.reference).is_file() else False
    if not (with_log or config.model_path):
        raise InputError(f"--reference {config.reference} is no log: name the model with --model_path")
    predictor = PairPredictor(config.model_path) if config.model_path else None
    model = "" if predictor is None else predictor.identity[0]
    if with_log:
        reference, model = read_log(config.reference, config.endpoint, model)
    else:
        assert predictor is not None
        reference = _scored(config, predictor)
    found, _ = read_log(config.log, config.endpoint, model)
    for name, items in ((config.reference, reference), (config.log, found)):
        if len(items.labels) < LEAST:
            raise InputError(f"{name}: {len(items.labels)} rows are too few to compare; give {LEAST} or more")
    tests, days = compare(reference, found), compare_days(reference, found)
    correct([*tests, *chain(*days.values())])
    verdict = _moved(tests) or "nothing moved"
    first = next((day for day, of_day in days.items() if _moved(of_day)), None)
    if first:
        as_a_whole = "" if _moved(tests) else "as a whole "
        verdict = f"{as_a_whole}{verdict}; first on {first}: {_moved(days[first])}"
    tables = [_table_of(tests), *_table_of_days(found, days), _new_texts(reference, found)]
    content = {"verdict": verdict, "model": model, "tests": tests, "days": days}
    content.update({table.title: [dict(zip(table.heads, row)) for row in table.rows] for table in tables[1:]})
    draw = partial(_draw, reference.numbers[SCORES], found.numbers[SCORES])
    chart = draw_chart("Distribution of scores", draw, "")
    with results.published() as (draft, numbers):
        draft.write_text(page_of_tables(f"Drift: {verdict}", tables, [chart]), encoding="utf-8")
        write_json(numbers, content)
    say("\n".join([verdict, text_table(tables[0]), f"wrote {page}"]))
    return content


def read_log(path: str, endpoint: str, model: str) -> Tuple[Items, str]:
    """Return the lines of ``endpoint`` that ``model`` answered, '': the only one, and which model that is.

    Raises InputError if they are all of other models or routes.
    """
    lines = list(log_lines(path))
    wanted = [line for line in lines if line["endpoint"] == endpoint]
    if not wanted:
        routes = ", ".join(sorted({line["endpoint"] for line in lines})) or "none"
        raise InputError(f"{path}: no line of --endpoint {endpoint}; there are: {routes}")
    models = Counter(line["model"] for line in wanted)
    model = model or max(models, key=lambda one: models[one])
    if model not in models:
        other = models.most_common(1)[0][0]
        raise InputError(f"{path} is of the model {other[:12]}, not of {model[:12]}; give its own log")
    if len(models) > 1:
        others = counted(sum(models.values()) - models[model], "line")
        logger.warning("%s: %s of other models than %s are left out", path, others, model[:12])
    kept = [line for line in wanted if line["model"] == model]
    numbers = {
        SCORES: [headline(endpoint, line["scores"]) if line["scores"] else None for line in kept],
        LENGTHS: [sum(line["characters"]) for line in kept],
        UNKNOWN: [line.get("unknown") for line in kept],
        CUT: [line.get("cut") for line in kept],
    }
    texts = [tuple(line.get("texts") or ()) for line in kept]
    days, labels = [line["time"][:10] for line in kept], [str(line.get("label") or "") for line in kept]
    columns = {name: np.array(values, dtype=np.float64) for name, values in numbers.items()}
    return Items(texts, days, labels, columns), model


def log_lines(path: str) -> Iterator[Dict[str, Any]]:
    """Yield the sound lines of a log, and of the older files beside it."""
    files = [Path(path), *(Path(f"{path}.{number}") for number in range(1, FILES))]
    for file in [file for file in files if file.is_file()] or files[:1]:
        yield from _lines(file)


def _lines(path: Path) -> Iterator[Dict[str, Any]]:
    """Yield the sound lines of a file; how many others there are, and where the first is, is logged."""
    damaged = []
    try:
        with open(path, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    found = parse_json_object(line)
                    texts = [found[name] for name in ("time", "endpoint", "model")]
                    sizes = [*found["scores"], *found["characters"]]
                    if not all(isinstance(text, str) for text in texts) or not all(map(is_number, sizes)):
                        raise JsonError("not of the log")
                except (JsonError, KeyError, TypeError, UnicodeDecodeError):
                    damaged.append(number)
                    continue
                yield found
    except OSError as error:
        raise InputError(f"--log {path}: {error.strerror}; give that of serve --log_requests") from None
    if damaged:
        logger.warning("%s:%d: damaged; %s left out", path, damaged[0], counted(len(damaged), "such line"))


def _scored(config: DriftConfig, predictor: PairPredictor) -> Items:
    pairs = PairSource.of(config, "reference", None, "test").read()
    texts = list(zip(pairs.left, pairs.right))
    found = predictor.predict(texts)
    assert found.reading is not None
    tokens, unknown, cut = found.reading
    numbers = {
        SCORES: np.array([headline("", row) for row in found.rows.tolist()]),
        LENGTHS: np.array([len(left) + len(right) for left, right in texts], dtype=np.float64),
        UNKNOWN: unknown / np.maximum(tokens, 1),
        CUT: cut.astype(np.float64),
    }
    return Items(list(texts), [""] * len(texts), found.labels or [""] * len(texts), numbers)


def compare(reference: Items, found: Items) -> List[Dict[str, Any]]:
    """Return {name, before, after, psi, p} of all that both sides have; p is to be corrected, `correct`."""
    from scipy.stats import chi2_contingency, ks_2samp

    tests: List[Dict[str, Any]] = []
    names = sorted({*reference.labels, *found.labels})
    for name in (SCORES, CLASSES, LENGTHS, UNKNOWN, CUT):
        if name == CLASSES:  # as numbers
            sides = [np.array([names.index(label) for label in one.labels]) for one in (reference, found)]
        else:
            sides = [one.numbers[name][~np.isnan(one.numbers[name])] for one in (reference, found)]
        if not all(map(len, sides)) or (name == CLASSES and names == [""]):
            continue
        counts = _counts(sides[0], sides[1], name in (CLASSES, CUT))
        if name in (CLASSES, CUT):
            p = float(chi2_contingency(counts)[1]) if counts.shape[1] > 1 else 1.0
        else:
            p = float(ks_2samp(*sides, method="asymp").pvalue)
        means = [float(side.mean()) for side in sides]
        tests.append({"name": name, "before": means[0], "after": means[1], "psi": _psi(counts), "p": p})
    return tests


def compare_days(reference: Items, found: Items) -> Dict[str, List[Dict[str, Any]]]:
    """Return what `compare` says of each day of LEAST rows, where a log has several days."""
    counts = sorted(Counter(found.days).items())
    enough = [day for day, rows in counts if rows >= LEAST and len(counts) > 1]
    return {day: compare(reference, found.of_day(day)) for day in enough}


def correct(tests: Sequence[Dict[str, Any]]) -> None:
    """Correct the p of all ``tests`` for their number, by Holm's method."""
    highest = 0.0
    for place, test in enumerate(sorted(tests, key=lambda test: test["p"])):
        highest = test["p"] = max(highest, min(1.0, (len(tests) - place) * test["p"]))


def _moved(tests: Sequence[Dict[str, Any]]) -> str:
    return "; ".join(f"{test['name']} moved: PSI {test['psi']:.2f}" for test in tests if test["p"] < ALPHA)


def _counts(before: np.ndarray, after: np.ndarray, by_value: bool) -> np.ndarray:
    """Return how many of either side are in each bin, int64 [2, bins]: values, or tenths of ``before``."""
    edges = np.unique([*before, *after] if by_value else np.quantile(before, np.arange(1, BINS) / BINS))
    bins = [np.bincount(np.searchsorted(edges, side), minlength=len(edges) + 1) for side in (before, after)]
    counts = np.array(bins)
    return counts[:, counts.sum(axis=0) > 0]


def _psi(counts: np.ndarray) -> float:
    """Return the population stability index of counts [2, bins], half of one added to each."""
    before, after = (counts + 0.5) / (counts + 0.5).sum(axis=1, keepdims=True)
    return float(((after - before) * np.log(after / before)).sum())


def _table_of(tests: Sequence[Dict[str, Any]]) -> Table:
    rows = [list(test.values()) for test in tests]
    heads = ["", "mean of the reference", "mean of the log", "PSI", "p (Holm)"]
    return Table("What moved", heads, rows, "PSI below 0.1: little, above 0.25: much.")


def _table_of_days(found: Items, days: Mapping[str, Sequence[Dict[str, Any]]]) -> List[Table]:
    """Return a table of the days of a log that spans several, the means of each and what moved."""
    rows: List[List[Optional[object]]] = []
    for day, count in sorted(Counter(found.days).items()):
        numbers = [values[~np.isnan(values)] for values in found.of_day(day).numbers.values()]
        means = [float(values.mean()) if len(values) else None for values in numbers]
        rows.append([day, count, *means, _moved(days[day]) if day in days else "too few rows"])
    heads = ["day (UTC)", "rows", *found.numbers, "moved"]
    return [Table("By day", heads, rows, "")] if len(rows) > 1 else []


def _new_texts(reference: Items, found: Items) -> Table:
    """Return the items of the log with the most unknown tokens, then with characters that are new."""
    known = {character for texts in reference.texts for text in texts for character in text}
    rows: Dict[Tuple[str, ...], List[float]] = {}
    for texts, unknown in zip(found.texts, found.numbers[UNKNOWN].tolist()):
        joined = "".join(texts)
        if joined and texts not in rows:
            new = sum(character not in known for character in joined) / len(joined) if known else 0.0
            rows[texts] = [0.0 if np.isnan(unknown) else unknown, new]
    best = [one for one in sorted(rows.items(), key=lambda one: one[1], reverse=True) if any(one[1])]
    note = "" if rows else "The log holds hashes of the texts: there are no examples."
    shown = [[" | ".join(texts), *values] for texts, values in best[:SHOWN]]
    return Table("New texts", ["text", "unknown tokens", "new characters"], shown, note)


def _draw(before: np.ndarray, after: np.ndarray, axes: Any) -> None:
    both = [side[~np.isnan(side)] for side in (before, after)]
    weights = [np.full(len(side), 1 / max(len(side), 1)) for side in both]
    axes.hist(both, bins=20, weights=weights, color=[BLUE, ORANGE], label=["reference", "log"])
