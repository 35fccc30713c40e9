"""What a search has shown: best.yaml for `train`, a table, a picture and a page of the trials."""

import json
import math
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence

import yaml

from data_tools.files.errors import InputError
from ernie_pair.models.model_card import changed_flags
from ernie_pair.pair.config.pair_config import TrainConfig
from ernie_pair.report.chart import BLUE, GREEN, GREY, ORANGE, Chart, draw_chart, svg_in
from ernie_pair.report.page import ESCAPES, Table, render_page
from ernie_pair.series.search_space import Range, SearchParamsConfig, Space
from ernie_pair.series.study import Outcome

BEST_FLAGS, TABLE, NUMBERS, PICTURE, PAGE = (
    "best.yaml",
    "trials.tsv",
    "search.json",
    "trials.svg",
    "search.html",
)
FILES = (BEST_FLAGS, TABLE, NUMBERS, PICTURE, PAGE)
TEMPLATE = Path(__file__).with_name("search.html")
COLOURS = {"complete": BLUE, "pruned": GREY, "failed": ORANGE, "running": GREEN}


def write_search(
    files: Sequence[Path],
    config: SearchParamsConfig,
    space: Space,
    outcomes: List[Outcome],
    best: Optional[TrainConfig],
) -> None:
    """Write the report to ``files``, which become FILES. Equal trials give equal bytes. Raises OSError.

    ``best``: the flags of the best trial's run; None: no trial is complete.
    """
    flags, table, numbers, picture, page = files
    flags.write_text(flag_file(best, config), encoding="utf-8")
    table.write_text("".join(_table_lines(outcomes, space)), encoding="utf-8")
    numbers.write_text(_as_json(config, outcomes), encoding="utf-8")
    charts = charts_of(outcomes, space, config)
    picture.write_bytes(svg_in(charts[0]))
    page.write_text(_page(config, space, outcomes, charts), encoding="utf-8")


def flag_file(best: Optional[TrainConfig], config: SearchParamsConfig) -> str:
    """Return the YAML file of flags by which `ernie-pair train` makes the best trial's run again.

    Only --output_dir is left to be said.
    """
    if best is None:
        return "# no trial is complete yet\n"
    defaults = {item.name: item.default for item in fields(TrainConfig)}
    changed = changed_flags(asdict(best), defaults)
    flags = {name: value for name, value in changed.items() if not _comes_by_itself(best, name, defaults)}
    flags.update((name, getattr(best, name)) for name in FILES_NAMED)
    said = {name: value for name, value in flags.items() if name not in LEFT_OUT and value is not None}
    head = f"# ernie-pair train --config {BEST_FLAGS} --output_dir OUT\n"
    return (
        head
        + f"# chosen by {config.best_metric} of {config.dev_file}\n"
        + yaml.safe_dump(said, allow_unicode=True, sort_keys=False, width=10_000)
    )


def _comes_by_itself(best: TrainConfig, name: str, defaults: Dict[str, Any]) -> bool:
    """Return whether the default of a flag becomes its value: --amp_dtype auto, say, on this machine."""
    try:
        return bool(replace(best, **{name: defaults[name]}) == best)
    except InputError:  # it has no default, or other flags need it
        return False


FILES_NAMED = ("model_name_or_path", "train_file", "dev_file")
LEFT_OUT = ("output_dir", "report_to", "cache_dir")


def _table_lines(outcomes: List[Outcome], space: Space) -> Iterator[str]:
    names = [part.name for part in space]
    yield "\t".join(["trial", "state", "value", "evaluations", *names, "reason"]) + "\n"
    for each in outcomes:
        value = "" if each.value is None else f"{each.value:.6g}"
        params = [str(each.params.get(name, "")).translate(ESCAPES) for name in names]
        cells = [str(each.number), each.state, value, str(len(each.curve)), *params]
        yield "\t".join([*cells, each.reason.translate(ESCAPES)]) + "\n"


def _as_json(config: SearchParamsConfig, outcomes: List[Outcome]) -> str:
    content = {
        "metric": config.best_metric,
        "lower_is_better": config.lower_is_better,
        "trials": [each._asdict() for each in outcomes],
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def charts_of(outcomes: List[Outcome], space: Space, config: SearchParamsConfig) -> List[Chart]:
    """Draw the trials in their order, their curves, and each flag against the metric."""
    with_value = [each for each in outcomes if each.value is not None and math.isfinite(each.value)]
    charts = [_trials_chart(with_value, config), _curves_chart(outcomes, config)]
    return [*charts, *(_flag_chart(part, with_value, config) for part in space)]


def _scatter(axes, outcomes: List[Outcome], place) -> None:
    for state, colour in COLOURS.items():
        picked = [each for each in outcomes if each.state == state]
        if picked:
            axes.plot([place(e) for e in picked], [e.value for e in picked], "o", color=colour, label=state)


def _value_of(outcome: Outcome) -> float:
    assert outcome.value is not None  # those without one are not drawn
    return outcome.value


def _trials_chart(outcomes: List[Outcome], config: SearchParamsConfig) -> Chart:
    def draw(axes) -> None:
        _scatter(axes, outcomes, lambda each: each.number)
        complete = [each for each in outcomes if each.state == "complete"]
        better = min if config.lower_is_better else max
        so_far: List[float] = []
        for each in complete:
            so_far.append(better([*so_far[-1:], _value_of(each)]))
        axes.step([e.number for e in complete], so_far, where="post", color=BLUE, label="best so far")
        axes.set(xlabel="trial", ylabel=config.best_metric)

    return draw_chart("Trials", draw, "A pruned trial stands at its last evaluation.")


def _curves_chart(outcomes: List[Outcome], config: SearchParamsConfig) -> Chart:
    def draw(axes) -> None:
        for each in outcomes:
            axes.plot(list(each.curve), list(each.curve.values()), color=COLOURS[each.state], alpha=0.6)
        axes.set(xlabel=f"evaluation, of {config.evaluations}", ylabel=config.best_metric)

    return draw_chart("Curves", draw, "Each line is a trial; the grey ones were pruned.")


def _flag_chart(part, outcomes: List[Outcome], config: SearchParamsConfig) -> Chart:
    is_range = isinstance(part, Range)

    def draw(axes) -> None:
        names = [] if is_range else [str(value) for value in part.values]
        if is_range:
            _scatter(axes, outcomes, lambda each: each.params[part.name])
            axes.set_xscale("log" if part.log else "linear")
        else:
            _scatter(axes, outcomes, lambda each: names.index(str(each.params[part.name])))
            axes.set_xticks(range(len(names)), names)
        axes.set(xlabel=part.name, ylabel=config.best_metric)

    return draw_chart(part.name, draw, "Each point is a trial.")


def _page(config: SearchParamsConfig, space: Space, outcomes: List[Outcome], charts: List[Chart]) -> str:
    names = [part.name for part in space]
    sign = 1 if config.lower_is_better else -1
    ranked = sorted(outcomes, key=lambda each: (each.state != "complete", sign * _or_worst(each, sign)))
    rows: List[List[Any]] = [
        [f"trial {e.number}", e.state, e.value, len(e.curve), *(e.params.get(n) for n in names), e.reason]
        for e in ranked
    ]
    heads = ["", "state", config.best_metric, "evaluations", *names, "reason"]
    note = f"Sorted by {config.best_metric}, complete trials first. {TABLE} and {NUMBERS} hold the same."
    counts: Dict[str, int] = {}
    for each in outcomes:
        counts[each.state] = counts.get(each.state, 0) + 1
    return render_page(
        TEMPLATE,
        config=config,
        table=Table("Trials", heads, rows, note),
        charts=charts,
        counts=counts,
        best=next((each for each in ranked if each.state == "complete"), None),
    )


def _or_worst(outcome: Outcome, sign: int) -> float:
    return sign * math.inf if outcome.value is None or math.isnan(outcome.value) else outcome.value


def lines_of_search(outcomes: List[Outcome], best: Outcome, config: SearchParamsConfig) -> Iterator[str]:
    """Yield the lines of a search for the terminal."""
    states = [each.state for each in outcomes]
    told = ", ".join(f"{states.count(state)} {state}" for state in COLOURS if state in states)
    yield f"{len(outcomes)} trials: {told}"
    yield f"best {config.best_metric} {best.value:.4f}, trial {best.number}:"
    for name, value in best.params.items():
        yield f"  --{name} {str(value).lower() if isinstance(value, bool) else value}"
