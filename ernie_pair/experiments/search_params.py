"""A search of flags: one run after another with the flags that Optuna draws, and the best of them.

What it has shown: best.yaml for `train`, a table, a picture and a page of the trials.
"""

import logging
import math
from collections import Counter
from dataclasses import asdict, fields, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import yaml

from ernie_pair.checkpoint.run_config import keep_config
from ernie_pair.checkpoint.run_folder import BEST, RunLock, best_of, gone_if_refused, refuse_locked
from ernie_pair.core.errors import InputError, NumbersError, message_of
from ernie_pair.core.files.atomic_folder import point_link
from ernie_pair.core.files.json_file import write_json
from ernie_pair.core.progress import say
from ernie_pair.experiments.config import SearchParamsConfig
from ernie_pair.experiments.series import WRITTEN_FIRST, OneRun, PairSeries, pair_source, report_series
from ernie_pair.experiments.study import (
    STUDY,
    Choice,
    Outcome,
    Range,
    Space,
    Study,
    Trial,
    TrialCallback,
    as_plan,
    require_optuna,
    space_of,
)
from ernie_pair.models.labels import Labels
from ernie_pair.models.model_card import changed_flags
from ernie_pair.pairs.config.pair_config import TrainConfig
from ernie_pair.pairs.targets.metrics import chosen_metric, training_groups
from ernie_pair.pairs.train.parts import total_steps
from ernie_pair.report.chart import BLUE, GREEN, GREY, ORANGE, Chart, draw_chart, svg_in
from ernie_pair.report.page import Table, render_page, table_line
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.runtime.processes.world import launched_world

LOCK, TRIALS = "search.lock", "trials"
OWN_BEST = rf"{TRIALS}/trial-\d{{4,}}/best-[A-Za-z0-9_.-]+"  # where OUT/best leads
MARK = "search space"  # a key that only these plans have
# fmt: off
WITHOUT_EFFECT = (  # on a trial, or only on how many there are
    "output_dir", "report_to", "cache_dir", "overwrite", "trials", "search", "space", "eval_freq",
)
# fmt: on

logger = logging.getLogger(__name__)


class SearchResult(NamedTuple):
    """How a search ended: its trials, the best of them, its run's folder and the flags of that run."""

    trials: List[Outcome]
    best: Outcome
    best_run: Path
    best_config: TrainConfig


def search_params(config: SearchParamsConfig) -> SearchResult:
    """Run the missing trials, write the results, print the best trial, and return all trials.

    Raises an ErniePairError for whatever the user can fix, NumbersError if no trial has a metric.
    """
    start = gone_if_refused(config.output_dir, launched_world(), *WRITTEN_FIRST, LOCK, STUDY)
    with start, StopSignals(when="between two trials"):
        return _Search(config).make()


class _Search(PairSeries):
    """A search, opened by every rank alike; rank 0 alone knows its study."""

    def __init__(self, config: SearchParamsConfig):
        require_optuna()
        self.space = space_of(config)
        super().__init__(("search-params", "search", MARK), config, FILES, "train_file", "dev_file", "space")
        metric = chosen_metric(config.best_metric, self.labels.target)
        self.config = replace(config, best_metric=metric, label_map=self.label_map)
        self.rows_of_epoch = _rows_of_epoch(config, self.labels)
        self.study: Any = None
        self.trial: Optional[Trial] = None
        self.on_first(self._begin)

    def _begin(self) -> None:
        refuse_locked(self.output_dir / LOCK)
        flags = asdict(self.config).items()
        plan = {name: value for name, value in flags if name not in WITHOUT_EFFECT}
        self.keep(self.config, {MARK: as_plan(self.space), **plan})
        self._lock = RunLock(self.output_dir / LOCK)
        try:
            keep_config(self.output_dir, "search-params", self.config)
            self.study = Study(self.output_dir, self.config, self.space)
        except BaseException:
            self._lock.release()
            raise

    def make(self) -> SearchResult:
        try:
            while True:
                drawn = self.on_first(self._draw)
                if drawn is None:
                    break
                self._make(**drawn)
                self.on_first(self._publish)
            end = self.on_first(self._finish)
            assert end is not None  # rank 0 has sent it to all, as JSON
            trials = [Outcome(*each) for each in end["outcomes"]]
            trials = [each._replace(curve={int(n): v for n, v in each.curve.items()}) for each in trials]
            best = trials[end["best"] - 1]
            config = self._config_of(best.number, best.params)
            return SearchResult(trials, best, self._folder(best.number), config)
        finally:
            if self.world.is_first and self.study is not None:
                self._lock.release()

    def _draw(self) -> Optional[Dict[str, Any]]:
        """Return the next trial: its number, its flags and whether it was pruned; None: all are made."""
        self.trial = trial = self.study.next_trial()
        names = ("number", "params", "is_pruned")
        return None if trial is None else {name: getattr(trial, name) for name in names}

    def _make(self, number: int, params: Dict[str, Any], is_pruned: bool) -> None:
        shown = "  ".join(f"{name} {value}" for name, value in params.items())
        logger.info("trial %d of %d: %s", number, self.config.trials, shown)
        reason = ""
        if not is_pruned:
            try:
                config = self._config_of(number, params)
            except InputError as error:  # flags that are sound by themselves, and exclude each other
                reason = message_of(error)
            else:
                try:
                    OneRun(config, [TrialCallback(self.trial, self.config.best_metric)]).train()
                except NumbersError as error:
                    reason = message_of(error)
        self.on_first(partial(self._record, number, reason))

    def _config_of(self, number: int, params: Dict[str, Any]) -> TrainConfig:
        cache = self.config.cache_dir or str(self.output_dir / "cache")  # of encoded pairs, for all trials
        changes = {**params, "output_dir": str(self._folder(number)), "cache_dir": cache}
        config = self.config.config_of(changes)
        steps = total_steps(config, self.rows_of_epoch(config), self.world)
        freq = max(1, math.ceil(steps / self.config.evaluations))
        return self.config.config_of({**changes, "eval_freq": freq})

    def _folder(self, number: int) -> Path:
        return self.output_dir / TRIALS / f"trial-{number:04d}"

    def _record(self, number: int, reason: str) -> None:
        assert self.trial is not None  # this is rank 0
        value = self.trial.best_value(self.config.lower_is_better)
        if self.trial.is_pruned:
            self.study.prune(number)
            logger.info("trial %d is pruned", number)
        elif reason or value is None or not math.isfinite(value):
            reason = reason or f"its {self.config.best_metric} has no value"
            self.study.fail(number, reason)
            logger.warning("trial %d has failed, and the search continues: %s", number, reason)
        else:
            self.study.complete(number, value)
            logger.info("trial %d: %s %.4f", number, self.config.best_metric, value)

    def _publish(self) -> Optional[Outcome]:
        """Write what the trials so far show, point OUT/best to the best model of them, return its trial."""
        best = self.study.best()
        config = None if best is None else self._config_of(best.number, best.params)
        with self.series.published() as drafts:
            write_search(drafts, self.config, self.space, self.study.outcomes(), config)
        folder = best and best_of(self._folder(best.number))
        if folder:
            point_link(self.output_dir / BEST, folder.relative_to(self.output_dir), OWN_BEST)
        return best

    def _finish(self) -> Dict[str, Any]:
        """Show the end, and return all trials as JSON values. Raises NumbersError if none is complete."""
        best, outcomes, metric = self._publish(), self.study.outcomes(), self.config.best_metric
        if best is None:
            reason = next((each.reason for each in reversed(outcomes) if each.reason), "all are pruned")
            raise NumbersError(
                f"none of {len(outcomes)} trials has a {metric} ({reason}); search another space"
            )
        points = []
        for each in outcomes:
            values = {**each.params, **({} if each.value is None else {metric: each.value})}
            numbers = {f"search/{n}": v for n, v in values.items() if isinstance(v, (int, float))}
            points.append((each.number, numbers))
        report_series(self.config.reporters, self.output_dir, asdict(self.config), points)
        logger.info("best model: %s; report: %s", self.output_dir / BEST, self.output_dir / PAGE)
        say("\n".join(lines_of_search(outcomes, best, self.config)))
        return {"outcomes": [list(each) for each in outcomes], "best": best.number}


def _rows_of_epoch(config: SearchParamsConfig, labels: Labels) -> Callable[[TrainConfig], int]:
    """Return what counts the rows of an epoch of a trial: 0 for a stream, for a ranking its queries."""
    if config.streaming:
        return lambda trial: 0
    train = pair_source(config, "train", labels).read()
    num_pairs, groups, known = len(train), train.groups, train.known_labels
    if groups is None:
        return lambda trial: num_pairs
    return lambda trial: len(training_groups(groups, known, trial.most_candidates))


FILES = ("best.yaml", "trials.tsv", "search.json", "trials.svg", "search.html")
BEST_FLAGS, TABLE, NUMBERS, _, PAGE = FILES
TEMPLATE = Path(__file__).with_name("search.html")
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
    rows: List[List[object]] = [["trial", "state", "value", "evaluations", *names, "reason"]]
    for each in outcomes:
        value = "" if each.value is None else f"{each.value:.6g}"
        params = (each.params.get(name, "") for name in names)
        rows.append([each.number, each.state, value, len(each.curve), *params, each.reason])
    table.write_text("".join(table_line(map(str, row)) for row in rows), encoding="utf-8")
    trials = [each._asdict() for each in outcomes]
    judged = {"metric": config.best_metric, "lower_is_better": config.lower_is_better}
    write_json(numbers, {**judged, "trials": trials})
    charts = charts_of(outcomes, space, config)
    picture.write_bytes(svg_in(charts[0]))
    page.write_text(_page(config, names, outcomes, charts), encoding="utf-8")


def flag_file(best: Optional[TrainConfig], config: SearchParamsConfig) -> str:
    """Return the YAML file of the flags of the best trial's run for `train`, all but --output_dir."""
    if best is None:
        return "# no trial is complete yet\n"
    defaults = {item.name: item.default for item in fields(TrainConfig)}
    changed = changed_flags(asdict(best), defaults)
    flags = {name: value for name, value in changed.items() if not _comes_by_itself(best, name, defaults)}
    flags.update((name, getattr(best, name)) for name in ("model_name_or_path", "train_file", "dev_file"))
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
    counts = Counter(each.state for each in outcomes)
    best = next((each for each in ranked if each.state == "complete"), None)
    table = Table("Trials", heads, rows, note)
    return render_page(TEMPLATE, config=config, table=table, charts=charts, counts=counts, best=best)


def lines_of_search(outcomes: List[Outcome], best: Outcome, config: SearchParamsConfig) -> Iterator[str]:
    """Yield the lines of a search for the terminal."""
    states = [each.state for each in outcomes]
    counts = ", ".join(f"{states.count(state)} {state}" for state in COLOURS if state in states)
    yield f"{len(outcomes)} trials: {counts}"
    yield f"best {config.best_metric} {best.value:.4f}, trial {best.number}:"
    for name, value in best.params.items():
        yield f"  --{name} {str(value).lower() if isinstance(value, bool) else value}"
