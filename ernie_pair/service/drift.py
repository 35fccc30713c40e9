"""ernie-pair drift: whether what is served is still like what the model was tested on.

Each number of the pairs is compared, those of the log with those of the reference: by a test, whose p is
corrected for their number (Holm), and by the population stability index, PSI, which says how much: below 0.1
little, above 0.25 much. Of a log of several days each day is compared too.
"""

import logging
from collections import Counter
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Sequence, Tuple

import numpy as np

from ernie_pair.core.cli.options import OverwriteFlag, data_option, file_option, model_folder_option
from ernie_pair.core.errors import InputError, counted
from ernie_pair.core.files.json_file import read_json_object, write_json
from ernie_pair.core.progress import say
from ernie_pair.evaluation.scorer import results_of
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.pairs.data.pair_records import RowFlags
from ernie_pair.pairs.data.pair_source import PairSource
from ernie_pair.report.page import BLUE, ORANGE, Table, draw_chart, page_of_tables, text_table
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import World
from ernie_pair.service.request_log import headline, is_log, log_lines

if TYPE_CHECKING:
    from pandas import DataFrame

ALPHA = 0.05  # of all tests together
LEAST = 50  # items of either side
BINS, SHOWN = 10, 10  # of PSI; rows of examples
TEXTS, DAY, CLASSES = "texts", "day", "classes"
NUMBERS = SCORES, LENGTHS, UNKNOWN, CUT = "scores", "lengths", "unknown tokens", "cut texts"

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


def items_of(rows: Iterable[Sequence[Any]]) -> "DataFrame":
    """Return pairs or texts: TEXTS, () if they were hashed, DAY, CLASSES, the labels, and the NUMBERS."""
    from pandas import DataFrame

    return DataFrame(rows, columns=[TEXTS, DAY, CLASSES, *NUMBERS]).astype(dict.fromkeys(NUMBERS, float))


def drift(config: DriftConfig) -> Dict[str, Any]:
    """Compare a log of requests with pairs that the model was tested on, and say what moved.

    Writes the page and the numbers, and returns these, of which the ``verdict`` is a line. Raises InputError
    for what cannot be compared.
    """
    start_console(World())
    page = Path(config.output_file)
    if page.suffix != ".html":
        raise InputError(f"--output_file {page} is a page; give it the ending .html")
    results = results_of("drift", config, [page.with_suffix(".json")])
    if results.are_done():
        return read_json_object(page.with_suffix(".json"), "remove it")
    predictor = PairPredictor(config.model_path) if config.model_path else None
    model = "" if predictor is None else predictor.identity[0]
    if is_log(Path(config.reference)):
        reference, model = read_log(config.reference, config.endpoint, model)
    elif predictor is None:
        raise InputError(f"--reference {config.reference} is no log: name the model with --model_path")
    else:
        reference = _scored(config, predictor)
    found, _ = read_log(config.log, config.endpoint, model)
    for name, items in ((config.reference, reference), (config.log, found)):
        if len(items) < LEAST:
            raise InputError(f"{name}: {len(items)} rows are too few to compare; give {LEAST} or more")
    tests, days = compare(reference, found), compare_days(reference, found)
    correct([*tests, *chain(*days.values())])
    verdict = _moved(tests) or "nothing moved"
    first = next((day for day, of_day in days.items() if _moved(of_day)), None)
    if first:
        as_a_whole = "" if _moved(tests) else "as a whole "
        verdict = f"{as_a_whole}{verdict}; first on {first}: {_moved(days[first])}"
    heads = ["", "mean of the reference", "mean of the log", "PSI", "p (Holm)"]
    rows = [list(test.values()) for test in tests]
    moved = Table("What moved", heads, rows, "PSI below 0.1: little, above 0.25: much.")
    tables = [*_table_of_days(found, days), _new_texts(reference, found)]
    content = {"verdict": verdict, "model": model, "tests": tests, "days": days}
    content.update({table.title: [dict(zip(table.heads, row)) for row in table.rows] for table in tables})

    def draw(axes: Any) -> None:
        both = [side[SCORES].dropna() for side in (reference, found)]
        weights = [np.full(len(side), 1 / max(len(side), 1)) for side in both]
        axes.hist(both, bins=20, weights=weights, color=[BLUE, ORANGE], label=["reference", "log"])

    charts = [draw_chart("Distribution of scores", draw, "")]
    with results.published() as (draft, numbers):
        draft.write_text(page_of_tables(f"Drift: {verdict}", [moved, *tables], charts), encoding="utf-8")
        write_json(numbers, content)
    say("\n".join([verdict, text_table(moved), f"wrote {page}"]))
    return content


def read_log(path: str, endpoint: str, model: str) -> Tuple["DataFrame", str]:
    """Return the lines of ``endpoint`` that ``model`` answered, '': the only one, and which model that is.

    Raises InputError if they are all of other models or routes.
    """
    lines = list(log_lines(path))
    models = Counter(line["model"] for line in lines if line["endpoint"] == endpoint)
    if not models:
        routes = ", ".join(sorted({line["endpoint"] for line in lines})) or "none"
        raise InputError(f"{path}: no line of --endpoint {endpoint}; there are: {routes}")
    most = models.most_common(1)[0][0]
    model = model or most
    if model not in models:
        raise InputError(f"{path} is of the model {most[:12]}, not of {model[:12]}; give its own log")
    if len(models) > 1:
        others = counted(models.total() - models[model], "line")
        logger.warning("%s: %s of other models than %s are left out", path, others, model[:12])
    return items_of(
        (
            tuple(line.get("texts") or ()),
            line["time"][:10],
            line.get("label"),
            headline(endpoint, line["scores"]) if line["scores"] else None,
            sum(line["characters"]),
            line.get("unknown"),
            line.get("cut"),
        )
        for line in lines
        if (line["endpoint"], line["model"]) == (endpoint, model)
    ), model


def _scored(config: DriftConfig, predictor: PairPredictor) -> "DataFrame":
    pairs = PairSource.of(config, "reference", None, "test").read()
    texts = list(zip(pairs.left, pairs.right))
    found = predictor.predict(texts)
    assert found.reading is not None
    tokens, unknown, cut = found.reading
    scores, lengths = (headline("", row) for row in found.rows.tolist()), (len(a + b) for a, b in texts)
    labels = found.labels or repeat(None)
    return items_of(zip(texts, repeat(""), labels, scores, lengths, unknown / np.maximum(tokens, 1), cut))


def compare(reference: "DataFrame", found: "DataFrame") -> List[Dict[str, Any]]:
    """Return {name, before, after, psi, p} of all that both sides have; p is to be corrected, `correct`."""
    from scipy.stats import chi2_contingency, ks_2samp

    tests: List[Dict[str, Any]] = []
    for name in (SCORES, CLASSES, LENGTHS, UNKNOWN, CUT):
        sides = [side[name].dropna().to_numpy() for side in (reference, found)]
        if not all(map(len, sides)):
            continue
        both = np.concatenate(sides)
        if name == CLASSES:  # as numbers
            both = np.unique(both.astype(str), return_inverse=True)[1]
        before, after = np.split(both, [len(sides[0])])
        by_value = name in (CLASSES, CUT)  # or by tenths of the reference
        edges = np.unique(both if by_value else np.quantile(before, np.arange(1, BINS) / BINS))
        bins = [np.searchsorted(edges, side) for side in (before, after)]
        counts = np.array([np.bincount(each, minlength=len(edges) + 1) for each in bins])
        counts = counts[:, counts.sum(axis=0) > 0]
        p = (chi2_contingency(counts) if by_value else ks_2samp(before, after, method="asymp")).pvalue
        old, new = (counts + 0.5) / (counts + 0.5).sum(axis=1, keepdims=True)
        values = (before.mean(), after.mean(), ((new - old) * np.log(new / old)).sum(), p)
        tests.append({"name": name, **dict(zip(("before", "after", "psi", "p"), map(float, values)))})
    return tests


def compare_days(reference: "DataFrame", found: "DataFrame") -> Dict[str, List[Dict[str, Any]]]:
    """Return what `compare` says of each day of LEAST rows, where a log has several days."""
    days = found.groupby(DAY)
    enough = [(day, rows) for day, rows in days if len(rows) >= LEAST and len(days) > 1]
    return {day: compare(reference, rows) for day, rows in enough}


def correct(tests: Sequence[Dict[str, Any]]) -> None:
    """Correct the p of all ``tests`` for their number, by Holm's method."""
    highest = 0.0
    for place, test in enumerate(sorted(tests, key=lambda test: test["p"])):
        highest = test["p"] = max(highest, min(1.0, (len(tests) - place) * test["p"]))


def _moved(tests: Sequence[Dict[str, Any]]) -> str:
    return "; ".join(f"{test['name']} moved: PSI {test['psi']:.2f}" for test in tests if test["p"] < ALPHA)


def _table_of_days(found: "DataFrame", days: Mapping[str, Sequence[Dict[str, Any]]]) -> List[Table]:
    """Return a table of the days of a log that spans several, the means of each and what moved."""
    rows = []
    for day, items in found.groupby(DAY):
        means = [None if np.isnan(mean) else mean for mean in items[[*NUMBERS]].mean().tolist()]
        rows.append([day, len(items), *means, _moved(days[day]) if day in days else "too few rows"])
    return [Table("By day", ["day (UTC)", "rows", *NUMBERS, "moved"], rows, "")] if len(rows) > 1 else []


def _new_texts(reference: "DataFrame", found: "DataFrame") -> Table:
    """Return the items of the log with the most unknown tokens, then with characters that are new."""
    known = {*chain.from_iterable(chain.from_iterable(reference[TEXTS]))}
    told = found[found[TEXTS].map(bool)].drop_duplicates(TEXTS).fillna({UNKNOWN: 0.0})
    joined = told[TEXTS].map("".join)
    told["new"] = [float(np.mean([c not in known for c in text])) if known else 0.0 for text in joined]
    best = told[told[UNKNOWN] + told["new"] > 0].sort_values([UNKNOWN, "new"], ascending=False)[:SHOWN]
    note = "" if len(told) else "The log holds hashes of the texts: there are no examples."
    shown = [[" | ".join(texts), *values] for texts, *values in best[[TEXTS, UNKNOWN, "new"]].values.tolist()]
    return Table("New texts", ["text", "unknown tokens", "new characters"], shown, note)
