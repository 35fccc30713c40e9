"""Make docs/RESULTS.md and its pictures of the tables beside them, and the short table of the READMEs.

python scripts/results/write_results.py
python scripts/results/write_results.py --results output/results/figures
python scripts/results/write_results.py --results my_results --output my_results/RESULTS.md

In the folder `results` beside the page lie its figures, a CSV for each table, and its pictures. `--results`
puts finished runs of run.py into these tables first, in place of earlier figures of the same runs.
"""

import csv
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from jinja2 import Environment, FileSystemLoader
from proof.experiments import TABLE, TITLES, Scale, runs_of
from proof.figures import OF_SEARCH

from ernie_pair.core.cli.cli import run_command
from ernie_pair.core.cli.options import Options, data_option
from ernie_pair.core.errors import InputError, counted
from ernie_pair.core.files.atomic_files import published
from ernie_pair.report.page import BLUE, GREEN, GREY, ORANGE, draw_chart, svg_in

sys.path.append(str(Path(__file__).parents[1]))  # Python adds only the folder of the launched file
import readme_block

PAGE = readme_block.ROOT / "docs" / "RESULTS.md"
COLOURS = (BLUE, ORANGE, GREEN, GREY)
METRICS = ("accuracy", "f1", "auc", "loss", "calibration_error")
COMPARED_WITH = {"options": "plain", "peer": "ours", "published": "ours"}  # whose difference a row shows
FIRST = "LCQMC"  # the data set of the other comparisons
TITLE = re.compile(r"(\w+), (all|[\d,]+) rows(?:, (\d+) epochs?,)?")
COUNTS = {"rows": re.compile(r"([\d,]+) rows"), "trials": re.compile(r"(\d+) trials")}

Result = Dict[str, Any]  # of one run: its numbers and texts, and {table: its rows}
Results = Dict[str, Result]


@dataclass(frozen=True)
class WriteConfig(Options):
    """Make the page of the results of its tables; what was not run is not on it."""

    results: str = data_option(
        "", help="a folder of GROUP/NAME.json of run.py whose figures are put in first"
    )
    output: str = data_option(
        str(PAGE),
        help="the page; of the page of the project a table goes into its READMEs too",
        writes="PATH",
    )


def write_results(config: WriteConfig) -> None:
    """Write tables, page and pictures. Raises InputError where there is no result."""
    output = Path(config.output)
    folder, scale = output.parent / "results", Scale()
    known = [(group, run.name) for group in TITLES for run in runs_of(group, scale)]
    results = read_tables(folder)
    for group, runs in read_runs(Path(config.results)).items() if config.results else ():
        results.setdefault(group, {}).update(runs)
    if not results:
        raise InputError(f"--results {config.results}: no run is there; make some with run.py")
    results = in_order(results, known)
    text, pictures = render_page(results)
    write_tables(folder, results)
    contents = {output: text, **{folder / name: svg for name, svg in pictures.items()}}
    with published(*contents) as drafts:
        for draft, content in zip(drafts, contents.values()):
            draft.write_text(content, encoding="utf-8")
    print(f"wrote {output}, {len(pictures)} pictures")
    if output.resolve() == PAGE:
        show_in_readmes(results)


def show_in_readmes(results: Dict[str, Results]) -> None:
    readme_block.replace_block(
        readme_block.RESULTS, lambda page: render_summary(results, readme_block.is_chinese(page))
    )


def in_order(results: Dict[str, Results], known: Sequence[Tuple[str, str]]) -> Dict[str, Results]:
    """Return ``results`` in the order of the ``known`` runs, (group, name), and others behind them."""
    ordered: Dict[str, Results] = {}
    for group, name in [*known, *((group, name) for group, runs in results.items() for name in runs)]:
        if name in results.get(group, {}):
            ordered.setdefault(group, {})[name] = results[group][name]
    return ordered


def read_runs(folder: Path) -> Dict[str, Results]:
    """Return {group: {name: result}} of the JSON of run.py. Raises InputError for what is none."""
    results: Dict[str, Results] = {}
    for path in sorted(folder.glob("*/*.json")):
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
            results.setdefault(result["group"], {})[result["name"]] = result
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: {error!r}, no result of run.py; remove it") from None
    return results


def read_tables(folder: Path) -> Dict[str, Results]:
    """Return {group: {name: result}} of the tables in ``folder``; {} if it has none."""
    results: Dict[str, Results] = {}
    for row in readme_block.read_table(folder / "runs.csv") if (folder / "runs.csv").exists() else ():
        results.setdefault(row["group"], {})[row["name"]] = row
    for path in sorted(folder.glob("*.csv")):
        with open(path, encoding="utf-8") as file:
            if next(csv.reader(file))[:2] != ["group", "run"]:  # a table of another page
                continue
        for row in readme_block.read_table(path):
            results[row.pop("group")][row.pop("run")].setdefault(path.stem, []).append(row)
    return results


def write_tables(folder: Path, results: Dict[str, Results]) -> None:
    """Write a row for each run into runs.csv, and the rows of its tables into theirs."""
    folder.mkdir(parents=True, exist_ok=True)
    tables: Dict[str, List[Result]] = {"runs": []}
    for group, runs in results.items():
        for name, result in runs.items():
            tables["runs"].append({})
            for key, value in result.items():
                if isinstance(value, list):
                    tables.setdefault(key, []).extend({"group": group, "run": name, **row} for row in value)
                elif not isinstance(value, dict):  # the recipe stays with the run
                    tables["runs"][-1][key] = value
    for table, rows in tables.items():
        readme_block.write_table(folder / f"{table}.csv", rows)


def render_page(results: Dict[str, Results]) -> Tuple[str, Dict[str, str]]:
    """Return the page of ``results``, in their order, and {name: its picture as SVG}."""
    groups, pictures = [], {}
    for name, stored in results.items():
        rows = [_row_of(result) for result in stored.values()]
        curved = [row for row in rows if len(row.get("curves", ())) > 1]
        if curved:
            pictures[f"{name}.svg"] = _loss_curves(TITLES[name], curved)
        groups.append({"name": name, "title": TITLES[name], "rows": rows, "has_curves": bool(curved)})
    # Times mean nothing without the machines and versions behind them.
    machines = sorted({result["machine"] for each in results.values() for result in each.values()})
    summary, same = render_summary(results, in_chinese=False), TABLE["flags"]["published"]
    text = _render("results.md.jinja", groups=groups, machines=machines, summary=summary, same=same)
    return text + "\n", pictures


def render_summary(results: Dict[str, Results], in_chinese: bool) -> str:
    """Return rows of {group: {name: result}}: comparisons of the three starts, and others; '' without one."""
    starts = {"continued", "pretrained", "scratch"}
    rows = [each for each in results.get("starts", {}).values() if {*_seeds_by_model(each)} == starts]
    if not rows:
        return ""
    rows.sort(key=lambda each: (not each["title"].startswith(FIRST), each["name"]))
    titled = [zip(("data_set", "labelled", "epochs"), TITLE.match(each["title"]).groups()) for each in rows]
    peer, searched = results.get("peer", {}), results.get("scratch", {}).get("searched")
    shown = {
        "rows": [{**each, **dict(words)} for each, words in zip(rows, titled)],
        "pretrained": results.get("pretraining", {}).get("pretrained"),
        "continued": results.get("task", {}).get("lcqmc"),
    }
    if searched:
        counts = {name: form.search(searched["title"])[1] for name, form in COUNTS.items()}
        shown["searched"] = {**searched, **counts}
    sides = {"ours": "ours", "theirs": "transformers"}
    for side, name in sides.items() if peer.keys() >= {*sides.values()} else ():
        shown[side] = {
            **peer[name],
            "accuracy": mean_of(peer[name], name, "accuracy"),
            "speed": f"{mean(run['speed'] for run in peer[name]['seeds']):,.0f}",
            "rows": COUNTS["rows"].search(peer["ours"]["title"])[1],
        }
    return _render("summary.md.jinja", in_chinese=in_chinese, **shown)


def _render(template: str, **values: object) -> str:
    loader = FileSystemLoader(Path(__file__).with_name("proof"))
    environment = Environment(loader=loader, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(shown=show_difference, mean_of=mean_of)
    functions = (table, counted, mean, zip, find_difference, models_of, losses_of, seeds_of)
    functions += (stages_of, weights_of, texts_in, forgotten)
    environment.globals.update({function.__name__: function for function in functions})
    return re.sub(r"\n{3,}", "\n\n", environment.get_template(template).render(**values)).strip()


def table(rows: Sequence[Result], columns: Sequence[Tuple[str, str]]) -> str:
    """Return a table in Markdown; ``columns``: the head and the format of a cell, by the names of a row."""
    heads, formats = zip(*columns)
    return readme_block.plain_rows(heads, [[form.format_map(row) for form in formats] for row in rows])


def _row_of(result: Result) -> Result:
    """Return a result with what the cells of its row say: of pairs means, and the gain over COMPARED_WITH."""
    name, seeds = result["name"], _seeds_by_model(result).get(result["name"], [])
    row = {
        **result,
        "command": f"`run.py {result['group']} --only {name}`",
        "peer": result.get("peer", ""),
        "gain": "", "has_no_gain": False, "seconds": "", "speed": "", "sentence_order": "",
    }  # fmt: skip
    for when in ("before", "after"):
        row[when] = {each["text"]: each for each in result.get("masked", ()) if each["when"] == when}
    if seeds:
        row.update(_model_row(seeds))
        gain = find_difference(result, name, COMPARED_WITH.get(result["group"], ""))
        if gain:
            row["gain"] = show_difference(gain, "accuracy")
            row["has_no_gain"] = gain["accuracy_low"] <= 0
    if seeds and "seconds" in seeds[0]:
        row.update({key: _shown_values([run[key] for run in seeds], 1) for key in ("seconds", "speed")})
    if "training_seconds" in result:
        row["minutes"] = result["training_seconds"] / 60
    order = row["after"].get("corpus", {}).get("sop_accuracy")
    row["sentence_order"] = "" if order is None else f"{order:.3f}"
    return row


def _seeds_by_model(result: Result) -> Dict[str, List[Result]]:
    models: Dict[str, List[Result]] = {}
    for row in result.get("seeds", ()):
        models.setdefault(row["model"], []).append(row)
    return models


def _model_row(seeds: Sequence[Result]) -> Result:
    shown = {metric: _shown_values([run[metric] for run in seeds], 4) for metric in METRICS}
    return {**shown, "runs": len(seeds)}


def models_of(result: Result) -> List[Result]:
    seeds, rows = _seeds_by_model(result), []
    for row in result["models"]:
        runs = seeds[row["model"]]
        chosen = {"chosen": mean(run["chosen"] for run in runs)} if "chosen" in runs[0] else {}
        rows.append({**row, **_model_row(runs), **chosen})
    return rows


def losses_of(result: Result) -> Iterator[Result]:
    for row in result["losses"]:
        yield {**row, "difference": row["ours"] - row["transformers"]}


def seeds_of(results: Sequence[Result]) -> Iterator[Result]:
    for result in results:
        yield from _seeds_by_model(result)[result["name"]]


def stages_of(result: Result) -> Iterator[Result]:
    """Yield a row for each stage of a search: means over the seeds, with 95 % intervals.

    ``gain``: in nDCG over the first stage; ``has_no_gain``: its interval includes or lies below 0.
    """
    first = result["stages"][0][OF_SEARCH[-1]]
    for number, stage in enumerate(result["stages"]):
        row = {**stage, "gain": "", "has_no_gain": bool(number) and stage["gain_low"] <= 0}
        for metric in OF_SEARCH:
            row[metric] = "{:.3f} ({:.3f} to {:.3f})".format(*_with_interval(stage, metric))
        if number:
            gain = (stage[OF_SEARCH[-1]] - first, stage["gain_low"], stage["gain_high"])
            row["gain"] = "{:+.3f} ({:+.3f} to {:+.3f})".format(*gain)
        yield row


def weights_of(rows: Sequence[Result]) -> List[str]:
    found = {weights for row in rows for weights in row.get("weights", "").split(", ") if weights}
    return ["{} `{}`".format(*weights.split()) for weights in sorted(found)]


def texts_in(row: Result) -> List[str]:
    """Return the texts on which a masked loss was measured, in two segments."""
    return [text for text in row["after"] if not text.endswith("_one_segment")]


def forgotten(rows: Sequence[Result]) -> Iterator[Result]:
    """Yield each row with its masked losses, their changes since the first row, and the largest, rise."""
    texts = texts_in(rows[0])
    losses = [[row["after"][text]["lm_loss"] for text in texts] for row in rows]
    for row, its_own in zip(rows, losses):
        changes = [now - before for now, before in zip(its_own, losses[0])]
        cells = [f"{loss:.3f} ({change:+.3f})" for loss, change in zip(its_own, changes)]
        cells = cells if row is not rows[0] else [f"{loss:.3f}" for loss in its_own]
        yield {**row, "losses": dict(zip(texts, cells)), "rise": max(changes)}


def find_difference(result: Result, one: str, other: str) -> Optional[Result]:
    differences = result.get("differences", ())
    return next((each for each in differences if (each["one"], each["other"]) == (one, other)), None)


def show_difference(difference: Result, metric: str) -> str:
    return "{:+.4f} ({:+.4f} to {:+.4f})".format(*_with_interval(difference, metric))


def _with_interval(row: Result, metric: str) -> Tuple[float, float, float]:
    return row[metric], row[f"{metric}_low"], row[f"{metric}_high"]


def mean_of(result: Result, model: str, metric: str) -> str:
    return _shown_values([run[metric] for run in _seeds_by_model(result)[model]], 4)


def _shown_values(values: Sequence[float], digits: int) -> str:
    deviation = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{deviation}"


def _loss_curves(title: str, results: Sequence[Result]) -> str:
    """Return the SVG of the masked loss on the held-out text over the steps, a curve for each result."""

    def draw(axes) -> None:
        for number, result in enumerate(results):
            style = "-" if number < len(COLOURS) else "--"
            steps, values = zip(*((point["step"], point["lm_loss"]) for point in result["curves"]))
            axes.plot(steps, values, style, color=COLOURS[number % len(COLOURS)], label=result["title"])
        axes.set(xlabel="step", ylabel="masked loss, held out")

    return svg_in(draw_chart(title, draw, "")).decode()


if __name__ == "__main__":
    run_command(write_results, WriteConfig)
