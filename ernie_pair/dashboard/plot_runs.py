"""ernie-pair plot OUT...: the curves of runs as a picture, or as a page that compares them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Sequence

from data_tools.base.errors import InputError, counted
from data_tools.base.options import Options, names_in, option
from data_tools.files.results import Results
from ernie_pair.checkpoint.used_folder import EVENTS
from ernie_pair.dashboard.curves import chosen_metrics
from ernie_pair.dashboard.plot_page import page_of
from ernie_pair.dashboard.run_charts import picture_of
from ernie_pair.dashboard.run_folder import Run, open_runs
from ernie_pair.report.page import Made

KINDS = ("html", "svg", "png")
MOST_PANELS = 4  # in a picture
RUNS_HELP = "output folders of runs, or folders that hold some: of pretrain, train, distill, train-embedding"


@dataclass(frozen=True)
class PlotConfig(Options):
    """Draw the curves of runs from their metrics.jsonl: a picture, or a page that compares the runs.

    The page shows results, curves and the flags that differ, and needs no other file. Runs may be unfinished:
    the same command draws the page again once they have gone on.
    """

    EXAMPLE = "output/a output/b --output runs.html"

    outs: List[str] = option(help=RUNS_HELP, positional=True, group="data")
    output: str = option("runs.html", help="the page, *.html, or the picture, *.svg or *.png", group="data")
    metrics: str = option(
        "",
        help="curves to draw, separated by commas: loss,accuracy; empty: the most informative ones",
        group="data",
    )
    overwrite: bool = option(False, help="replace an existing page or picture", group="data")

    def __post_init__(self):
        super().__post_init__()
        if self.kind not in KINDS:
            raise InputError(f"--output {self.output} does not end in .html, .svg or .png; use one of them")

    @property
    def kind(self) -> str:
        """Return the kind of the output, by its file extension: html, svg or png."""
        return Path(self.output).suffix[1:].lower()


def plot(config: PlotConfig) -> None:
    """Write the page or the picture of the runs. Raises InputError if a folder holds no run."""
    runs = open_runs(config.outs)
    asked = names_in(config.metrics)
    chosen_metrics(runs, asked, 1)  # refuses an unknown one before anything is drawn
    results = _results(config, runs)
    if results.are_done():
        return
    content = _drawn(config, runs, asked)
    with results.published() as (draft,):
        draft.write_bytes(content)
    print(f"wrote {config.output}: {counted(len(runs), 'run')}, {', '.join(run.name for run in runs)}")


def _drawn(config: PlotConfig, runs: Sequence[Run], asked: Sequence[str]) -> bytes:
    if config.kind == "html":
        return page_of(runs, asked, Made()).encode("utf-8")
    return picture_of(runs, chosen_metrics(runs, asked, MOST_PANELS), config.kind)


def _results(config: PlotConfig, runs: Sequence[Run]) -> Results:
    """Return the page or the picture, which is drawn again when its runs have more steps."""
    inputs: Dict[str, Sequence[Path]] = {"outs": [run.folder / EVENTS for run in runs]}
    shown = [f"{run.name} ({run.started or run.folder.resolve()})" for run in runs]
    settings: Dict[str, object] = {"metrics": config.metrics, "outs": ", ".join(shown)}
    return Results(
        "plot",
        [config.output],
        inputs,
        settings,
        config.overwrite,
        positional=["outs"],
        inputs_grow=True,
    )
