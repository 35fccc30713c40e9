"""The page of results and the table of the READMEs: the templates beside this, from the JSON of the runs."""

import json
import re
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from jinja2 import Environment, FileSystemLoader

from data_tools.files.errors import InputError, counted
from ernie_pair.models.model_card import markdown_table
from ernie_pair.report.chart import BLUE, GREEN, GREY, ORANGE, draw_chart, svg_in
from proof.experiments import TABLE, TITLES

COLOURS = (BLUE, ORANGE, GREEN, GREY)
METRICS = ("accuracy", "f1", "auc", "loss", "calibration_error")
COMPARED_WITH = {"options": "plain", "peer": "ours", "published": "ours"}  # whose difference a row shows
FIRST = "LCQMC"  # the data set of the other comparisons
TITLE = re.compile(r"(\w+), (all|[\d,]+) rows(?:, (\d+) epochs?,)?")
COUNTS = {"rows": re.compile(r"([\d,]+) rows"), "trials": re.compile(r"(\d+) trials")}

Result = Dict[str, Any]
Results = Dict[str, Result]


def read_results(folder: Path) -> Dict[str, Results]:
    """Return {group: {name: result}} in the order of the groups. Raises InputError for what is no result."""
    results: Dict[str, Results] = {}
    for group in TITLES:
        for path in sorted((folder / group).glob("*.json")):
            try:
                result = json.loads(path.read_text(encoding="utf-8"))
                results.setdefault(group, {})[result["name"]] = result
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f"{path}: {error!r}, no result of run.py; remove it") from None
    return results


def render_page(results: Dict[str, Results], order: Dict[str, List[str]]) -> Tuple[str, Dict[str, str]]:
    """Return the page of ``results`` and {name: its picture as SVG}.

    ``order``: {group: the names of its runs, in the order of the page}.
    """
    groups, pictures = [], {}
    for name, found in results.items():
        known = [run for run in order[name] if run in found]
        names = [*known, *(run for run in found if run not in known)]
        rows = [_row_of(found[run]) for run in names]
        curved = [row for row in rows if len(_points(row)) > 1]
        if curved:
            pictures[f"{name}.svg"] = _loss_curves(TITLES[name], curved)
        group = {"name": name, "title": TITLES[name], "rows": rows, "has_curves": bool(curved)}
        groups.append({**group, "as_stored": list(found.values())})
    # Times mean nothing without the machines and versions behind them.
    facts = [{**row["machine"], **row["versions"]} for found in results.values() for row in found.values()]
    machines = sorted({", ".join(f"{name} {value}" for name, value in each.items()) for each in facts})
    summary, same = summary_of(results, in_chinese=False), TABLE["flags"]["published"]
    text = _render("results.md.jinja", groups=groups, machines=machines, summary=summary, same=same)
    return text + "\n", pictures


def summary_of(results: Dict[str, Results], in_chinese: bool) -> str:
    """Return a row for each comparison of the three starts, what these took, and other comparisons.

    ``results``: {group: {name: result}}. Returns '' where there is no such comparison.
    """
    starts = {"continued", "pretrained", "scratch"}
    rows = [each for each in results.get("starts", {}).values() if {*each["figures"]["models"]} == starts]
    if not rows:
        return ""
    rows.sort(key=lambda each: not each["title"].startswith(FIRST))
    titled = [zip(("data_set", "rows", "epochs"), TITLE.match(each["title"]).groups()) for each in rows]
    shown = {
        "rows": [{**each, **dict(words)} for each, words in zip(rows, titled)],
        "pretrained": results.get("pretraining", {}).get("pretrained"),
        "continued": results.get("task", {}).get("lcqmc"),
        "searched": results.get("scratch", {}).get("searched"),
        "ours": results.get("peer", {}).get("ours"),
        "theirs": results.get("peer", {}).get("transformers"),
    }
    if shown["searched"]:
        rows_and_trials = {name: form.search(shown["searched"]["title"])[1] for name, form in COUNTS.items()}
        shown["searched"] = {**shown["searched"], **rows_and_trials}
    for side in ("ours", "theirs") if shown["ours"] and shown["theirs"] else ():
        figures = shown[side]["figures"]
        count = COUNTS["rows"].search(shown["ours"]["title"])[1]
        accuracy = mean_of(figures["models"][shown[side]["name"]], "accuracy")
        speed = f"{mean(figures['pairs_per_second']):,.0f}"
        shown[side] = {**shown[side], "accuracy": accuracy, "speed": speed, "rows": count}
    return _render("summary.md.jinja", in_chinese=in_chinese, **shown)


def _render(template: str, **values: object) -> str:
    """Return a page whose paragraphs are one empty line apart."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(shown=shown_difference, mean_of=mean_of)
    functions = (
        table,
        counted,
        mean,
        difference_of,
        models_of,
        seeds_of,
        steps_of,
        ratios,
        lowest,
        weights_of,
    )
    functions += (by_name, texts_in, forgotten, least_forgotten)
    environment.globals.update({function.__name__: function for function in functions})
    return re.sub(r"\n{3,}", "\n\n", environment.get_template(template).render(**values)).strip()


def table(rows: Sequence[Result], columns: Sequence[Tuple[str, str]]) -> str:
    """Return a table in Markdown; ``columns``: the head and the format of a cell, by the names of a row."""
    heads, formats = zip(*columns)
    return markdown_table(heads, [[form.format_map(row) for form in formats] for row in rows])


def _row_of(result: Result) -> Result:
    """Return a result with what the cells of its row say.

    A row of pairs has the mean of each metric, and its gain over that of COMPARED_WITH, if that is another.
    """
    figures, name = result["figures"], result["name"]
    row = {
        **result,
        "command": f"`run.py {result['group']} --only {name}`",
        "runs": len(result["seeds"]),
        # 0 of what trains nothing.
        "steps": max((point["step"] for point in result["curve"].get("valid", [])), default=0),
        "versions_of_peer": ", ".join(f"{key} {value}" for key, value in figures.get("versions", {}).items()),
        "gain": "",
        "has_no_gain": False,
    }
    if name in figures.get("models", {}):
        row.update(_model_row(figures["models"][name]))
        gain = difference_of(result, name, COMPARED_WITH.get(result["group"], ""))
        if gain:
            row["gain"] = shown_difference(gain, "accuracy")
            row["has_no_gain"] = gain["interval"]["accuracy"][0] <= 0
    if "training_seconds" in figures:
        seconds = figures["training_seconds"]
        row["minutes"] = mean(seconds if isinstance(seconds, list) else [seconds]) / 60
        row["seconds"] = _shown_values(seconds, 1) if isinstance(seconds, list) else ""
        row["speed"] = _shown_values(figures["pairs_per_second"], 1) if isinstance(seconds, list) else ""
    order = figures.get("masked", {}).get("corpus", {}).get("sop_accuracy")
    row["sentence_order"] = "" if order is None else f"{order:.3f}"
    return row


def _model_row(model: Result) -> Result:
    return {**{metric: mean_of(model, metric) for metric in METRICS}, "runs": len(model["runs"])}


def by_name(rows: Sequence[Result]) -> Results:
    """Return {name: row}."""
    return {row["name"]: row for row in rows}


def models_of(result: Result) -> List[Result]:
    """Return a row for each model of a comparison."""
    models = result["figures"]["models"].items()
    return [{"name": name, "interval": model["interval"], **_model_row(model)} for name, model in models]


def seeds_of(results: Sequence[Result]) -> Iterator[Result]:
    """Yield a row for each training of each side."""
    for result in results:
        figures, name = result["figures"], result["name"]
        timed = zip(figures["training_seconds"], figures["pairs_per_second"])
        for seed, run, (seconds, speed) in zip(result["seeds"], figures["models"][name]["runs"], timed):
            yield {**run, "name": name, "seed": seed, "seconds": seconds, "speed": speed}


def steps_of(losses: Dict[str, List[float]]) -> Iterator[Result]:
    """Yield a row for each step: its loss on both sides, and their difference."""
    for step, (one, other) in enumerate(zip(*losses.values()), start=1):
        yield {"step": step, **dict(zip(losses, (one, other))), "difference": one - other}


def ratios(ones: Sequence[float], others: Sequence[float]) -> List[float]:
    """Return how many times one is the other."""
    return [one / other for one, other in zip(ones, others)]


def lowest(rows: Sequence[Result]) -> Tuple[float, str]:
    """Return the lowest masked loss, and the title of its row."""
    return min((row["figures"]["masked"]["corpus"]["lm_loss"], row["title"]) for row in rows)


def weights_of(rows: Sequence[Result]) -> List[str]:
    """Return the names and digests of the pretrained weights behind ``rows``."""
    names = {(name, digest) for row in rows for name, digest in row.get("weights", {}).items()}
    return [f"{name} `{digest}`" for name, digest in sorted(names)]


def texts_in(row: Result) -> List[str]:
    """Return the texts on which a masked loss was measured, in two segments."""
    return [text for text in row["figures"]["masked"] if not text.endswith("_one_segment")]


def _changes(row: Result, before: Result) -> Dict[str, float]:
    now, then = row["figures"]["masked"], before["figures"]["masked"]
    return {text: now[text]["lm_loss"] - then[text]["lm_loss"] for text in texts_in(before)}


def forgotten(rows: Sequence[Result]) -> Iterator[Result]:
    """Yield each row with its masked losses in words: how much they have changed since the first row."""
    for row in rows:
        losses = {text: f"{row['figures']['masked'][text]['lm_loss']:.3f}" for text in texts_in(rows[0])}
        if row is not rows[0]:
            changes = _changes(row, rows[0])
            losses = {text: f"{loss} ({changes[text]:+.3f})" for text, loss in losses.items()}
        yield {**row, "losses": losses}


def least_forgotten(rows: Sequence[Result]) -> Tuple[float, str]:
    """Return the largest rise of a loss in the row, after the first, that forgets least, and its title."""
    return min((max(_changes(row, rows[0]).values()), row["title"]) for row in rows[1:])


def difference_of(result: Result, one: str, other: str) -> Optional[Result]:
    """Return the paired difference of two models of a comparison; None where there is none."""
    differences = result["figures"]["differences"]
    return next((each for each in differences if (each["one"], each["other"]) == (one, other)), None)


def shown_difference(difference: Result, metric: str) -> str:
    """Return a difference with its interval."""
    low, high = difference["interval"][metric]
    return f"{difference['mean'][metric]:+.4f} ({low:+.4f} to {high:+.4f})"


def mean_of(model: Result, metric: str) -> str:
    """Return the mean of the runs of a model, with their standard deviation."""
    return _shown_values([run[metric] for run in model["runs"]], 4)


def _shown_values(values: Sequence[float], digits: int) -> str:
    deviation = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{deviation}"


def _points(result: Result) -> List[Result]:
    return [point for point in result["curve"].get("valid", []) if "lm_loss" in point]


def _loss_curves(title: str, results: Sequence[Result]) -> str:
    """Return the SVG of the masked loss on the held-out text over the steps, a curve for each result."""

    def draw(axes) -> None:
        for number, result in enumerate(results):
            points = _points(result)
            style = "-" if number < len(COLOURS) else "--"
            steps, values = [point["step"] for point in points], [point["lm_loss"] for point in points]
            axes.plot(steps, values, style, color=COLOURS[number % len(COLOURS)], label=result["title"])
        axes.set(xlabel="step", ylabel="masked loss, held out")

    return svg_in(draw_chart(title, draw, "")).decode()
