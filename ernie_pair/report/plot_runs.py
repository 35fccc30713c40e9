"""The curves of runs; `ernie-pair plot` draws them as a picture, or as a page that compares the runs."""

import itertools
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ernie_pair.checkpoint.checkpoint_folder import MANIFEST
from ernie_pair.checkpoint.run_config import find_config, read_latest
from ernie_pair.checkpoint.run_folder import CHECKPOINTS, EVENTS, read_run
from ernie_pair.core.cli.options import OverwriteFlag, data_option, names_in
from ernie_pair.core.errors import CheckpointError, InputError, counted
from ernie_pair.core.files.atomic_files import FileRefusedError, read_regular
from ernie_pair.core.files.json_file import JsonError, parse_json_object
from ernie_pair.core.files.results import MAKER, Results, read_own_config
from ernie_pair.report.page import (
    Chart,
    Origin,
    Table,
    draw_chart,
    draw_picture,
    drawn_text,
    format_cell,
    pick_points,
    render_page,
)
from ernie_pair.training.run_log import MEASURED, NOT_CURVES, read_all_events

MAX_MANIFEST_BYTES = 1 << 22
DEPTH = 3  # folders below a given one that are searched for runs
PASSED = ("checkpoints", "vdl", "cache", "log")  # folders of a run that contain no runs
ASIDE = "earlier-"  # prefix of what --fresh_start set aside
Event = Dict[str, Any]


class Run(NamedTuple):
    """A run: its short ``name``, its folder, what it logged, its flags, and when it was started, if known."""

    name: str
    folder: Path
    events: List[Event]
    flags: Dict[str, object]
    started: str

    @property
    def step(self) -> int:
        """Return the last step that was logged."""
        return max(event["step"] for event in self.events)


def open_runs(outs: Sequence[str]) -> List[Run]:
    """Return the runs in the folders ``outs``, or below them, each once; InputError for a folder without."""
    folders: Dict[Path, Path] = {}
    for out in map(Path, outs):
        if not out.is_dir():
            raise InputError(f"{out} is not a folder; give the --output_dir of a run")
        runs = list(_runs_in(out, DEPTH))
        if not runs:
            raise InputError(
                f"{out} holds no run: there is no {EVENTS} with an event in it or below it; give the "
                "--output_dir of pretrain, train, distill or train-embedding"
            )
        folders.update((folder.resolve(), folder) for folder in runs)
    opened = []
    for name, folder in zip(short_names(list(folders)), folders.values()):
        events, started = read_all_events(folder / EVENTS), str(_note_of(folder).get("started", ""))
        opened.append(Run(name, folder.resolve(), events, flags_of(folder), started.replace("T", " ")))
    return opened


def _runs_in(folder: Path, depth: int) -> Iterator[Path]:
    if read_all_events(folder / EVENTS):
        yield folder
    elif depth and not (folder / EVENTS).is_file():
        for inner in sorted(folder.iterdir()):
            is_passed = inner.name in PASSED or inner.name.startswith(ASIDE)
            if inner.is_dir() and not inner.is_symlink() and not is_passed:
                yield from _runs_in(inner, depth - 1)


def short_names(folders: Sequence[Path]) -> List[str]:
    """Return different names for ``folders``: as few of their last parts as distinguish them."""
    for count in itertools.count(1):
        names = ["/".join(folder.parts[-count:]) for folder in folders]
        if len(set(names)) == len(names):
            break
    shown = ("".join(c if c.isprintable() and c != "%" else "_" for c in name) for name in names)
    return [name.lstrip("/") or "run" for name in shown]


def flags_of(folder: Path) -> Dict[str, object]:
    """Return the flags of the last start of a run: those of its config.yaml, whatever its number.

    Without one they are the flags in the fingerprint of its newest checkpoint.
    """
    note = _note_of(folder)
    known_by = {"made_by": MAKER, **({"run_id": note["run_id"]} if note else {})}
    config = read_own_config(find_config(folder, known_by))
    if config is not None:
        return _single_values(read_latest(config)[0])
    for manifest in sorted(folder.glob(f"{CHECKPOINTS}/step_*/{MANIFEST}"), reverse=True):
        try:
            content = parse_json_object(read_regular(manifest, MAX_MANIFEST_BYTES))
        except (FileRefusedError, OSError, JsonError):
            continue
        parts = [content.get(name) for name in ("fingerprint", "topology")]
        return _single_values(*(part for part in parts if isinstance(part, dict)))
    return {}


def _single_values(*mappings: Dict[Any, Any]) -> Dict[str, object]:
    values = ((str(name), value) for mapping in mappings for name, value in mapping.items())
    return {n: v for n, v in values if v is None or isinstance(v, (str, int, float, bool))}


def _note_of(folder: Path) -> Dict[str, Any]:
    try:
        return read_run(folder)
    except (CheckpointError, OSError):
        return {}


SPLITS = ("train", "valid", "test")  # in reading order; others follow
# What people look at first; metrics that are not named here follow in the order of the log.
# fmt: off
FIRST = (
    "loss", "accuracy", "f1", "auc", "mrr", "ndcg", "map", "recall_at_10", "spearman", "pearson", "mse",
    "lm_loss", "lm_accuracy", "sop_loss", "sop_accuracy", "perplexity",
)
# fmt: on
# About the machine and the steps: after the metrics of the quality of a model.
LAST = ("learning_rate", "gradient_norm", "loss_scale", "skipped_updates", "padding_share", *MEASURED)
LOWER_IS_BETTER = ("mse", "mae", "perplexity")  # and every name that ends in "loss"


class Curve(NamedTuple):
    """The points of a metric on a split of a run; ``run`` is its index among the runs."""

    run: int
    split: str
    steps: List[int]
    values: List[float]


def metrics_of(runs: Sequence[Run]) -> List[str]:
    """Return the names of the metrics that any run logged: the most important first, the machine last."""
    names = dict.fromkeys(name for run in runs for event in run.events for name in _numbers(event))
    first = [name for name in FIRST if name in names]
    last = [name for name in LAST if name in names]
    return [*first, *(name for name in names if name not in (*FIRST, *LAST)), *last]


def choose_metrics(runs: Sequence[Run], requested: Sequence[str], most: int) -> List[str]:
    """Return the metrics ``requested``, or the first of all, at most ``most``. Raises InputError."""
    known = metrics_of(runs)
    unknown = next((name for name in requested if name not in known), None)
    if unknown is not None:
        raise InputError(
            f"--metrics {unknown} was not logged by any of the runs; use some of {', '.join(known)}"
        )
    return list(requested) or [name for name in known if name not in LAST][:most] or known[:most]


def curves_of(runs: Sequence[Run], metric: str) -> List[Curve]:
    """Return the curves of ``metric``, those of a run together, training first."""
    curves = []
    for number, run in enumerate(runs):
        points: Dict[str, List[Tuple[int, float]]] = {}
        for event in run.events:
            if metric in _numbers(event):
                points.setdefault(event["split"], []).append((event["step"], float(event[metric])))
        order = [*(split for split in SPLITS if split in points), *(s for s in points if s not in SPLITS)]
        for split in order:
            steps, values = zip(*points[split])
            curves.append(Curve(number, split, list(steps), list(values)))
    return curves


def _numbers(event: Event) -> List[str]:
    return [name for name, value in event.items() if name not in NOT_CURVES and is_finite(value)]


def is_finite(value: object) -> bool:
    """Return whether ``value`` is a number that can be drawn."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def find_best(curve: Curve, metric: str, flags: Mapping[str, object]) -> Tuple[float, int]:
    """Return the best value of a curve and the first step that has it; ``flags``: those of its run."""
    greater = flags.get("greater_is_better")
    is_lower_better = metric.endswith("loss") or metric in LOWER_IS_BETTER
    if metric == flags.get("best_metric") and isinstance(greater, bool):
        is_lower_better = not greater
    best = (min if is_lower_better else max)(curve.values)
    return best, curve.steps[curve.values.index(best)]


# Distinguishable with colour blindness: they differ in lightness, and repeat with another line style.
COLOURS = ("#2563eb", "#ea580c", "#16a34a", "#9333ea", "#0e7490", "#be123c", "#a16207", "#475569")
LINES = ("-", "--", ":")
NOTE = "Pale: training, means since the point before. Strong, with dots: validation. Stars: test."
FEW_DOTS = 60  # curves with at most so many points have dots
COLUMNS = 2  # in a picture


def charts_of(runs: Sequence[Run], metrics: Sequence[str]) -> List[Chart]:
    """Draw a chart of each metric, without a legend: the page has one for all."""
    return [draw_chart(metric, partial(_draw, curves_of(runs, metric), {}), "") for metric in metrics]


def colour_of(run: int) -> str:
    """Return the colour of the run with this index, #rrggbb."""
    return COLOURS[run % len(COLOURS)]


def line_of(run: int) -> str:
    """Return the line style of the run with this index, in matplotlib's notation."""
    return LINES[run // len(COLOURS) % len(LINES)]


def _draw(curves: Sequence[Curve], labels: Dict[int, str], axes) -> None:
    is_only_training = all(curve.split == "train" for curve in curves)
    for curve in curves:
        few = pick_points(len(curve.steps))
        steps, values = [curve.steps[i] for i in few], [curve.values[i] for i in few]
        axes.plot(steps, values, **_style_of(curve, len(few), is_only_training))
    for run in sorted({curve.run for curve in curves}):
        if run in labels:
            axes.plot([], [], line_of(run), color=colour_of(run), label=labels[run])
    axes.set(xlabel="step")
    axes.margins(x=0.03)


def _style_of(curve: Curve, points: int, is_only_training: bool) -> Dict[str, Any]:
    style = {"color": colour_of(curve.run), "linestyle": line_of(curve.run), "markersize": 3.5}
    if curve.split == "test":
        return {**style, "linestyle": "none", "marker": "*", "markersize": 9}
    marker = "o" if points == 1 or (curve.split != "train" and points <= FEW_DOTS) else ""
    if curve.split == "train" and not is_only_training:
        return {**style, "linewidth": 1.2, "alpha": 0.45, "marker": marker}
    return {**style, "marker": marker}


TEMPLATE = Path(__file__).with_name("plot.html")
CSS_LINES = {"-": "solid", "--": "dashed", ":": "dotted"}
MAX_CHARTS, MAX_RESULTS = 9, 4
MINUTES = 16  # length of 2026-01-31 12:00
SPEED = "samples_per_second"
BEST_NOTE = "valid: the best of the curve, and its step in brackets; train and test: the last value."
SAME_NOTE = "The others are equal in all runs, as far as the runs say."


def page_of(
    runs: Sequence[Run],
    requested: Sequence[str],
    made: Origin,
    title: str = "",
    tables: Sequence[Table] = (),
    charts: Sequence[Chart] = (),
) -> str:
    """Return an HTML page of the runs that needs no other file, with the ``requested`` metrics, if any.

    ``title``, ``tables`` and ``charts``: what it shows before the runs.
    """
    group = group_of(runs, requested, "Runs" if title else "Results")
    title = title or ("Run" if len(runs) == 1 else "Runs compared")
    return render_page(TEMPLATE, title=title, tables=tables, charts=charts, group=group, made=made)


def group_of(runs: Sequence[Run], requested: Sequence[str], title: str) -> Dict[str, object]:
    """Return what plot.html shows of runs in common charts; ``title``: above their results."""
    metrics = choose_metrics(runs, requested, MAX_CHARTS)
    machine = [] if requested else [name for name in metrics_of(runs) if name in LAST]
    return {
        "runs": [
            {"name": run.name, "colour": colour_of(number), "line": CSS_LINES[line_of(number)]}
            for number, run in enumerate(runs)
        ],
        "results": results_of(runs, metrics[:MAX_RESULTS])._replace(title=title),
        "curves": charts_of(runs, metrics),
        "machine_curves": charts_of(runs, machine),
        "flags": flag_table(runs),
        "note": NOTE,
    }


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
        speeds = [e[SPEED] for e in run.events if e["split"] == "train" and is_finite(e.get(SPEED))]
        speed = f"{speeds[-1]:,.1f}" if speeds else None
        rows.append([run.name, run.started[:MINUTES], run.step, *cells, speed])
    return Table("Results", heads, rows, BEST_NOTE)


def _cell(curve: Optional[Curve], flags: Mapping[str, object], metric: str) -> object:
    if curve is None:
        return None
    if curve.split != "valid":
        return curve.values[-1]
    value, step = find_best(curve, metric, flags)
    return f"{format_cell(value)} ({step})"


def compared_flags(runs: Sequence[Run]) -> List[str]:
    """Return the flags in which the runs differ, all flags of a single run."""
    names = dict.fromkeys(name for run in runs for name in run.flags)
    return [n for n in names if len(runs) == 1 or len({format_flag(run.flags.get(n)) for run in runs}) > 1]


def flag_table(runs: Sequence[Run]) -> Table:
    """Return the flags in which the runs differ, a column for each run; all flags of a single run."""
    rows = [[name, *(format_flag(run.flags.get(name)) for run in runs)] for name in compared_flags(runs)]
    title = "Flags" if len(runs) == 1 else "Flags that differ"
    note = SAME_NOTE if rows and len(runs) > 1 else "" if rows else "None that the runs tell of."
    return Table(title, ["flag", *(run.name for run in runs)], rows, note)


def format_flag(value: object) -> str:
    """Return the value of a flag as on a command line, a dash if there is none."""
    if isinstance(value, bool):
        return str(value).lower()
    return "–" if value in (None, "") else f"{value:g}" if isinstance(value, float) else str(value)


KINDS = ("html", "svg", "png")
MAX_PANELS = 4  # in a picture
RUNS_HELP = "output folders of runs, or folders that hold some: of pretrain, train, distill, train-embedding"


@dataclass(frozen=True)
class PlotConfig(OverwriteFlag):
    """Draw the curves of runs from their metrics.jsonl: a picture, or a page that compares the runs.

    The page shows results, curves and the flags that differ, and needs no other file. Runs may be unfinished:
    the same command draws the page again once they have gone on.
    """

    EXAMPLE = "output/a output/b --output_file runs.html"
    NEEDS = {"matplotlib": "", "jinja2": ""}

    outs: List[str] = data_option(help=RUNS_HELP, positional=True, reads="FOLDER")
    output_file: str = data_option(
        "runs.html", help="the page, *.html, or the picture, *.svg or *.png", writes="FILE"
    )
    metrics: str = data_option(
        "", help="curves to draw, separated by commas: loss,accuracy; empty: the most informative ones"
    )

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
    choose_metrics(runs, requested, 1)  # refuses an unknown one before anything is drawn
    inputs: Dict[str, Sequence[Path]] = {"outs": [run.folder / EVENTS for run in runs]}
    shown = ", ".join(f"{run.name} ({run.started or run.folder.resolve()})" for run in runs)
    # inputs_grow: it is drawn again when its runs have more steps
    settings: Dict[str, object] = {"metrics": config.metrics, "outs": shown}
    about: Dict[str, Any] = {"positional": ["outs"], "inputs_grow": True}
    results = Results("plot", [config.output_file], inputs, settings, config.overwrite, **about)
    if results.are_done():
        return
    if config.kind == "html":
        content = page_of(runs, requested, Origin()).encode("utf-8")
    else:
        labels = {n: drawn_text(run.name, f"run {n + 1}") for n, run in enumerate(runs)}
        metrics = choose_metrics(runs, requested, MAX_PANELS)
        panels = [(metric, partial(_draw, curves_of(runs, metric), labels)) for metric in metrics]
        content = draw_picture(panels, min(COLUMNS, len(panels)), config.kind)
    with results.published() as (draft,):
        draft.write_bytes(content)
    print(f"wrote {config.output_file}: {counted(len(runs), 'run')}, {', '.join(run.name for run in runs)}")
