"""ernie-pair plot OUT...: the curves of runs as a picture, or as a page that compares them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

from data_tools.files.errors import InputError, counted
from data_tools.files.results import Results
from data_tools.options.options import Options, names_in, option
from ernie_pair.checkpoint.run_folder import EVENTS
from ernie_pair.dashboard.curves import (
    LAST,
    NOTE,
    Curve,
    Run,
    best_of,
    charts_of,
    chosen_metrics,
    colour_of,
    curves_of,
    last_of,
    line_of,
    metrics_of,
    open_runs,
    picture_of,
)
from ernie_pair.report.chart import Chart
from ernie_pair.report.page import Made, Table, render_page, shown_cell

TEMPLATE = Path(__file__).with_name("plot.html")
CSS_LINES = {"-": "solid", "--": "dashed", ":": "dotted"}
MOST_CHARTS, MOST_RESULTS = 9, 4
MINUTES = 16  # length of 2026-01-31 12:00
SPEED = "samples_per_second"
BEST_NOTE = "valid: the best of the curve, and its step in brackets; train and test: the last value."
SAME_NOTE = "The others are equal in all runs, as far as the runs say."


class First(NamedTuple):
    """What a page shows before the runs: its ``title``, tables and charts."""

    title: str = ""
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()


RUNS_ALONE = First()


def page_of(runs: Sequence[Run], requested: Sequence[str], made: Made, first: First = RUNS_ALONE) -> str:
    """Return an HTML page of the runs that needs no other file, with the ``requested`` metrics, if any."""
    metrics = chosen_metrics(runs, requested, MOST_CHARTS)
    machine = [] if requested else [name for name in metrics_of(runs) if name in LAST]
    return render_page(
        TEMPLATE,
        title=first.title or ("Run" if len(runs) == 1 else "Runs compared"),
        first=first,
        runs=[
            {"name": run.name, "colour": colour_of(number), "line": CSS_LINES[line_of(number)]}
            for number, run in enumerate(runs)
        ],
        results=results_of(runs, metrics[:MOST_RESULTS])._replace(title="Runs" if first.title else "Results"),
        charts=charts_of(runs, metrics),
        machine_charts=charts_of(runs, machine),
        flags=flag_table(runs),
        note=NOTE,
        made=made,
    )


def results_of(runs: Sequence[Run], metrics: Sequence[str]) -> Table:
    """Return a row for each run: its steps, its metrics on each split, and its speed."""
    drawn = {
        (curve.split, metric, curve.run): curve for metric in metrics for curve in curves_of(runs, metric)
    }
    columns = dict.fromkeys((split, metric) for split in ("valid", "test", "train") for metric in metrics)
    columns = {key: None for key in columns if any(name[:2] == key for name in drawn)}
    heads = ["run", "started", "steps", *(f"{split} {metric}" for split, metric in columns), "samples/s"]
    rows: List[List[object]] = []
    for number, run in enumerate(runs):
        cells = [_cell(drawn.get((split, metric, number)), run.flags, metric) for split, metric in columns]
        speed = last_of(run, "train", SPEED)
        rows.append(
            [run.name, run.started[:MINUTES], run.step, *cells, None if speed is None else f"{speed:,.1f}"]
        )
    return Table("Results", heads, rows, BEST_NOTE)


def _cell(curve: Optional[Curve], flags: Mapping[str, object], metric: str) -> object:
    if curve is None:
        return None
    if curve.split != "valid":
        return curve.values[-1]
    value, step = best_of(curve, metric, flags)
    return f"{shown_cell(value)} ({step})"


def flag_table(runs: Sequence[Run]) -> Table:
    """Return the flags in which the runs differ, a column for each run; all flags of a single run."""
    names = dict.fromkeys(name for run in runs for name in run.flags)
    if len(runs) > 1:
        names = {n: None for n in names if len({shown_flag(run.flags.get(n)) for run in runs}) > 1}
    rows = [[name, *(shown_flag(run.flags.get(name)) for run in runs)] for name in names]
    title = "Flags" if len(runs) == 1 else "Flags that differ"
    note = SAME_NOTE if rows and len(runs) > 1 else "" if rows else "None that the runs tell of."
    return Table(title, ["flag", *(run.name for run in runs)], rows, note)


def shown_flag(value: object) -> str:
    """Return the value of a flag as on a command line, a dash if there is none."""
    if isinstance(value, bool):
        return str(value).lower()
    return "–" if value in (None, "") else f"{value:g}" if isinstance(value, float) else str(value)


KINDS = ("html", "svg", "png")
MOST_PANELS = 4  # in a picture
RUNS_HELP = "output folders of runs, or folders that hold some: of pretrain, train, distill, train-embedding"


@dataclass(frozen=True)
class PlotConfig(Options):
    """Draw the curves of runs from their metrics.jsonl: a picture, or a page that compares the runs.

    The page shows results, curves and the flags that differ, and needs no other file. Runs may be unfinished:
    the same command draws the page again once they have gone on.
    """

    EXAMPLE = "output/a output/b --output_file runs.html"

    outs: List[str] = option(help=RUNS_HELP, positional=True, group="data")
    output_file: str = option(
        "runs.html", help="the page, *.html, or the picture, *.svg or *.png", group="data"
    )
    metrics: str = option(
        "",
        help="curves to draw, separated by commas: loss,accuracy; empty: the most informative ones",
        group="data",
    )
    overwrite: bool = option(False, help="replace an existing page or picture", group="data")

    def __post_init__(self):
        super().__post_init__()
        if self.kind not in KINDS:
            raise InputError(
                f"--output_file {self.output_file} does not end in .html, .svg or .png; use one of them"
            )

    @property
    def kind(self) -> str:
        """Return the kind of the output, by its file extension: html, svg or png."""
        return Path(self.output_file).suffix[1:].lower()


def plot(config: PlotConfig) -> None:
    """Write the page or the picture of the runs. Raises InputError if a folder holds no run."""
    runs = open_runs(config.outs)
    requested = names_in(config.metrics)
    chosen_metrics(runs, requested, 1)  # refuses an unknown one before anything is drawn
    inputs: Dict[str, Sequence[Path]] = {"outs": [run.folder / EVENTS for run in runs]}
    shown = ", ".join(f"{run.name} ({run.started or run.folder.resolve()})" for run in runs)
    settings: Dict[str, object] = {"metrics": config.metrics, "outs": shown}
    # inputs_grow: it is drawn again when its runs have more steps
    results = Results(
        "plot",
        [config.output_file],
        inputs,
        settings,
        config.overwrite,
        positional=["outs"],
        inputs_grow=True,
    )
    if results.are_done():
        return
    if config.kind == "html":
        content = page_of(runs, requested, Made()).encode("utf-8")
    else:
        content = picture_of(runs, chosen_metrics(runs, requested, MOST_PANELS), config.kind)
    with results.published() as (draft,):
        draft.write_bytes(content)
    print(f"wrote {config.output_file}: {counted(len(runs), 'run')}, {', '.join(run.name for run in runs)}")
