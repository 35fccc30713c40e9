"""Make docs/RESULTS.md and its pictures of the JSON of the runs, and the short table of the READMEs.

python scripts/results/write_results.py
python scripts/results/write_results.py --results my_results --output my_results/RESULTS.md

The pages are the templates in the folder proof; a table in them is made of its rows and columns.
"""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from jinja2 import Environment, FileSystemLoader
from proof.experiments import TABLE, TITLES, Scale, of_today, runs_of
from run import RESULTS, ROOT

from ernie_pair.core.cli.cli import run_command
from ernie_pair.core.cli.options import Options, data_option, refuse_empty
from ernie_pair.core.errors import InputError, counted
from ernie_pair.core.files.atomic_files import published
from ernie_pair.report.chart import BLUE, GREEN, GREY, ORANGE, draw_chart, svg_in

sys.path.append(str(ROOT / "scripts"))  # Python adds only the folder of the launched file
import readme_block

PAGE = ROOT / "docs" / "RESULTS.md"
COLOURS = (BLUE, ORANGE, GREEN, GREY)
METRICS = ("accuracy", "f1", "auc", "loss", "calibration_error")
COMPARED_WITH = {"options": "plain", "peer": "ours", "published": "ours"}  # whose difference a row shows
GAIN = "nDCG@10"  # of a search, in which its stages are compared
FIRST = "LCQMC"  # the data set of the other comparisons
TITLE = re.compile(r"(\w+), (all|[\d,]+) rows(?:, (\d+) epochs?,)?")
COUNTS = {"rows": re.compile(r"([\d,]+) rows"), "trials": re.compile(r"(\d+) trials")}

Result = Dict[str, Any]
Results = Dict[str, Result]


@dataclass(frozen=True)
class WriteConfig(Options):
    """Make the page of the results of their JSON; what was not run is not on it."""

    results: str = data_option(str(RESULTS), help="GROUP/NAME.json of run.py")
    output: str = data_option(
        str(PAGE),
        help="the page; its pictures go into the folder results beside it, and the table of the page of the "
        "project goes into its READMEs too",
    )


def write_results(config: WriteConfig) -> None:
    """Write the page and its pictures. Raises InputError where there is no result."""
    refuse_empty(config, "output")
    results = read_results(Path(config.results))
    if not results:
        raise InputError(f"--results {config.results}: no run is there; make some with run.py")
    order = {group: [run.name for run in runs_of(group, Scale())] for group in TITLES}
    text, drawn = render_page(results, order)
    output = Path(config.output)
    pictures = {output.parent / "results" / name: svg for name, svg in drawn.items()}
    with published(output, *pictures) as drafts:
        for draft, content in zip(drafts, [text, *pictures.values()]):
            draft.write_text(content, encoding="utf-8")
    print(f"wrote {output}, {len(pictures)} pictures")
    if output.resolve() == PAGE:
        show_in_readmes(results)


def show_in_readmes(results: Dict[str, Results]) -> None:
    readme_block.replace_block(
        readme_block.RESULTS, lambda page: summary_of(results, readme_block.is_chinese(page))
    )


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
    """Return the page of ``results``, in the ``order`` of their groups, and {name: its picture as SVG}."""
    groups, pictures = [], {}
    for name, stored in results.items():
        known = [run for run in order[name] if run in stored]
        rows = [_row_of(stored[run]) for run in [*known, *(run for run in stored if run not in known)]]
        curved = [row for row in rows if len(_points(row)) > 1]
        if curved:
            pictures[f"{name}.svg"] = _loss_curves(TITLES[name], curved)
        group = {"name": name, "title": TITLES[name], "rows": rows, "has_curves": bool(curved)}
        groups.append({**group, "as_stored": list(stored.values())})
    # Times mean nothing without the machines and versions behind them.
    facts = [{**row["machine"], **row["versions"]} for each in results.values() for row in each.values()]
    machines = sorted({", ".join(f"{name} {value}" for name, value in each.items()) for each in facts})
    summary, same = summary_of(results, in_chinese=False), TABLE["flags"]["published"]
    text = _render("results.md.jinja", groups=groups, machines=machines, summary=summary, same=same)
    return text + "\n", pictures


def summary_of(results: Dict[str, Results], in_chinese: bool) -> str:
    """Return rows of {group: {name: result}}: comparisons of the three starts, and others; '' without one."""
    starts = {"continued", "pretrained", "scratch"}
    rows = [each for each in results.get("starts", {}).values() if {*each["figures"]["models"]} == starts]
    if not rows:
        return ""
    rows.sort(key=lambda each: not each["title"].startswith(FIRST))
    titled = [zip(("data_set", "rows", "epochs"), TITLE.match(each["title"]).groups()) for each in rows]
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
        figures = peer[name]["figures"]
        shown[side] = {
            **peer[name],
            "accuracy": mean_of(figures["models"][name], "accuracy"),
            "speed": f"{mean(figures['pairs_per_second']):,.0f}",
            "rows": COUNTS["rows"].search(peer["ours"]["title"])[1],
        }
    return _render("summary.md.jinja", in_chinese=in_chinese, **shown)


def _render(template: str, **values: object) -> str:
    loader = FileSystemLoader(Path(__file__).with_name("proof"))
    environment = Environment(loader=loader, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(shown=shown_difference, mean_of=mean_of)
    functions = (table, counted, mean, zip, difference_of, models_of, seeds_of, steps_of, weights_of)
    functions += (stages_of, texts_in, forgotten, of_today)
    environment.globals.update({function.__name__: function for function in functions})
    return re.sub(r"\n{3,}", "\n\n", environment.get_template(template).render(**values)).strip()


def table(rows: Sequence[Result], columns: Sequence[Tuple[str, str]]) -> str:
    """Return a table in Markdown; ``columns``: the head and the format of a cell, by the names of a row."""
    heads, formats = zip(*columns)
    return readme_block.plain_rows(heads, [[form.format_map(row) for form in formats] for row in rows])


def _row_of(result: Result) -> Result:
    """Return a result with what the cells of its row say: of pairs means, and the gain over COMPARED_WITH."""
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


def models_of(result: Result) -> List[Result]:
    models = result["figures"]["models"].items()
    return [{"name": name, "interval": model["interval"], **_model_row(model)} for name, model in models]


def seeds_of(results: Sequence[Result]) -> Iterator[Result]:
    for result in results:
        figures, name = result["figures"], result["name"]
        timed = zip(figures["training_seconds"], figures["pairs_per_second"])
        for seed, run, (seconds, speed) in zip(result["seeds"], figures["models"][name]["runs"], timed):
            yield {**run, "name": name, "seed": seed, "seconds": seconds, "speed": speed}


def steps_of(losses: Dict[str, List[float]]) -> Iterator[Result]:
    for step, (one, other) in enumerate(zip(*losses.values()), start=1):
        yield {"step": step, **dict(zip(losses, (one, other))), "difference": one - other}


def stages_of(result: Result) -> Iterator[Result]:
    """Yield a row for each stage of a search: means over the seeds, with 95 % intervals.

    ``gain``: in GAIN over the first stage; ``has_no_gain``: its interval includes or lies below 0.
    """
    first: Optional[float] = None
    for name, stage in result["figures"]["stages"].items():
        row = {"name": name, "runs": len(stage["runs"]), "gain": "", "has_no_gain": False}
        means = {metric: mean(run[metric] for run in stage["runs"]) for metric in stage["interval"]}
        for metric, (low, high) in stage["interval"].items():
            row[metric] = f"{means[metric]:.3f} ({low:.3f} to {high:.3f})"
        if first is not None:
            low, high = stage["gain"][GAIN]
            row["gain"] = f"{means[GAIN] - first:+.3f} ({low:+.3f} to {high:+.3f})"
            row["has_no_gain"] = low <= 0
        first = means[GAIN] if first is None else first
        yield row


def weights_of(rows: Sequence[Result]) -> List[str]:
    names = {(name, digest) for row in rows for name, digest in row.get("weights", {}).items()}
    return [f"{name} `{digest}`" for name, digest in sorted(names)]


def texts_in(row: Result) -> List[str]:
    """Return the texts on which a masked loss was measured, in two segments."""
    return [text for text in row["figures"]["masked"] if not text.endswith("_one_segment")]


def forgotten(rows: Sequence[Result]) -> Iterator[Result]:
    """Yield each row with its masked losses, their changes since the first row, and the largest, rise."""
    texts = texts_in(rows[0])
    losses = [[row["figures"]["masked"][text]["lm_loss"] for text in texts] for row in rows]
    for row, its_own in zip(rows, losses):
        changes = [now - before for now, before in zip(its_own, losses[0])]
        cells = [f"{loss:.3f} ({change:+.3f})" for loss, change in zip(its_own, changes)]
        cells = cells if row is not rows[0] else [f"{loss:.3f}" for loss in its_own]
        yield {**row, "losses": dict(zip(texts, cells)), "rise": max(changes)}


def difference_of(result: Result, one: str, other: str) -> Optional[Result]:
    differences = result["figures"]["differences"]
    return next((each for each in differences if (each["one"], each["other"]) == (one, other)), None)


def shown_difference(difference: Result, metric: str) -> str:
    low, high = difference["interval"][metric]
    return f"{difference['mean'][metric]:+.4f} ({low:+.4f} to {high:+.4f})"


def mean_of(model: Result, metric: str) -> str:
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


if __name__ == "__main__":
    run_command(write_results, WriteConfig)
