"""What a search has shown: best.yaml for `train`, a table, a picture and a page of the trials."""

import json
import math
from collections import Counter
from dataclasses import asdict, fields, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import yaml

from data_tools.files.errors import InputError
from ernie_pair.models.model_card import changed_flags
from ernie_pair.pair.config.pair_config import TrainConfig
from ernie_pair.report.chart import BLUE, GREEN, GREY, ORANGE, Chart, draw_chart, svg_in
from ernie_pair.report.page import Table, render_page, table_line
from ernie_pair.series.search_space import Choice, Range, SearchParamsConfig, Space
from ernie_pair.series.study import Outcome

FILES = ("best.yaml", "trials.tsv", "search.json", "trials.svg", "search.html")
BEST_FLAGS, TABLE, NUMBERS, _, PAGE = FILES
TEMPLATE = Path(__file__).with_name("search.html")
FILES_NAMED = ("model_name_or_path", "train_file", "dev_file")
LEFT_OUT = ("output_dir", "report_to", "cache_dir")
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
    names = [part.name for part in space]
    lines = [table_line(["trial", "state", "value", "evaluations", *names, "reason"])]
    for each in outcomes:
        value = "" if each.value is None else f"{each.value:.6g}"
        params = [str(each.params.get(name, "")) for name in names]
        lines.append(
            table_line([str(each.number), each.state, value, str(len(each.curve)), *params, each.reason])
        )
    table.write_text("".join(lines), encoding="utf-8")
    content: Dict[str, Any] = {"metric": config.best_metric, "lower_is_better": config.lower_is_better}
    content["trials"] = [each._asdict() for each in outcomes]
    numbers.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    charts = charts_of(outcomes, space, config)
    picture.write_bytes(svg_in(charts[0]))
    page.write_text(_page(config, names, outcomes, charts), encoding="utf-8")


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
    written = {name: value for name, value in flags.items() if name not in LEFT_OUT and value is not None}
    return (
        f"# ernie-pair train --config {BEST_FLAGS} --output_dir OUT\n"
        f"# chosen by {config.best_metric} of {config.dev_file}\n"
        f"{yaml.safe_dump(written, allow_unicode=True, sort_keys=False, width=10_000)}"
    )


def _comes_by_itself(best: TrainConfig, name: str, defaults: Dict[str, Any]) -> bool:
    """Return whether the default of a flag becomes its value: --amp_dtype auto, say, on this machine."""
    try:
        return bool(replace(best, **{name: defaults[name]}) == best)
    except InputError:  # it has no default, or other flags need it
        return False


def charts_of(outcomes: List[Outcome], space: Space, config: SearchParamsConfig) -> List[Chart]:
    """Draw the trials in their order, their curves, and each flag against the metric."""
    measured = [each for each in outcomes if each.value is not None and math.isfinite(each.value)]
    metric, better = config.best_metric, min if config.lower_is_better else max

    def scatter(axes, place: Callable[[Outcome], Any]) -> None:
        for state, colour in COLOURS.items():
            picked = [each for each in measured if each.state == state]
            if picked:
                values = [each.value for each in picked]
                axes.plot(list(map(place, picked)), values, "o", color=colour, label=state)

    def draw_trials(axes) -> None:
        scatter(axes, lambda each: each.number)
        complete = [each for each in measured if each.state == "complete"]
        best = list(accumulate([each.value or 0.0 for each in complete], better))
        axes.step([each.number for each in complete], best, where="post", color=BLUE, label="best so far")
        axes.set(xlabel="trial", ylabel=metric)

    def draw_curves(axes) -> None:
        for each in outcomes:
            axes.plot(list(each.curve), list(each.curve.values()), color=COLOURS[each.state], alpha=0.6)
        axes.set(xlabel=f"evaluation, of {config.evaluations}", ylabel=metric)

    def draw_flag(part: Union[Range, Choice], axes) -> None:
        if isinstance(part, Range):
            scatter(axes, lambda each: each.params[part.name])
            axes.set_xscale("log" if part.log else "linear")
        else:
            names = [str(value) for value in part.values]
            scatter(axes, lambda each: names.index(str(each.params[part.name])))
            axes.set_xticks(range(len(names)), names)
        axes.set(xlabel=part.name, ylabel=metric)

    return [
        draw_chart("Trials", draw_trials, "A pruned trial stands at its last evaluation."),
        draw_chart("Curves", draw_curves, "Each line is a trial; the grey ones were pruned."),
        *(draw_chart(part.name, partial(draw_flag, part), "Each point is a trial.") for part in space),
    ]


def _page(config: SearchParamsConfig, names: List[str], outcomes: List[Outcome], charts: List[Chart]) -> str:
    sign = 1 if config.lower_is_better else -1

    def rank(each: Outcome) -> Tuple[bool, float]:
        value = sign * math.inf if each.value is None or math.isnan(each.value) else each.value
        return each.state != "complete", sign * value

    ranked = sorted(outcomes, key=rank)
    rows: List[List[Any]] = [
        [f"trial {e.number}", e.state, e.value, len(e.curve), *(e.params.get(n) for n in names), e.reason]
        for e in ranked
    ]
    heads = ["", "state", config.best_metric, "evaluations", *names, "reason"]
    note = f"Sorted by {config.best_metric}, complete trials first. {TABLE} and {NUMBERS} hold the same."
    return render_page(
        TEMPLATE,
        config=config,
        table=Table("Trials", heads, rows, note),
        charts=charts,
        counts=Counter(each.state for each in outcomes),
        best=next((each for each in ranked if each.state == "complete"), None),
    )


def lines_of_search(outcomes: List[Outcome], best: Outcome, config: SearchParamsConfig) -> Iterator[str]:
    """Yield the lines of a search for the terminal."""
    states = [each.state for each in outcomes]
    counts = ", ".join(f"{states.count(state)} {state}" for state in COLOURS if state in states)
    yield f"{len(outcomes)} trials: {counts}"
    yield f"best {config.best_metric} {best.value:.4f}, trial {best.number}:"
    for name, value in best.params.items():
        yield f"  --{name} {str(value).lower() if isinstance(value, bool) else value}"
