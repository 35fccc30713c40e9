"""Which experiments are done, what is left, and how long that may take."""

import json
from datetime import timedelta
from statistics import mean
from typing import Dict, List, Tuple

from proof.experiment import Run
from proof.runner import Runner

Groups = Dict[str, Tuple[Runner, List[Run]]]
DONE, CUT_SHORT, LEFT = "done", "cut short", "left"


def status_lines(groups: Groups) -> List[str]:
    """Return a line for each run of {group: its runner and its runs}, one for each group and one for all.

    A run that is left is estimated by the mean of the finished runs of its group, less what was spent on it;
    the runs of a group without any are counted apart.
    """
    lines, known, unknown = [], 0.0, 0
    for group, (runner, runs) in groups.items():
        states = {run.name: _state_of(runner, run) for run in runs}
        taken = [_seconds_of(runner, run) for run in runs if states[run.name] == DONE]
        open_runs = [run for run in runs if states[run.name] != DONE]
        left = [max(0.0, mean(taken) - runner.spent_on(run)) for run in open_runs] if taken else []
        known, unknown = known + sum(left), unknown + len(open_runs) - len(left)
        lines.append(f"{group}: {len(taken)} of {len(runs)} runs are done{_time_left(left, open_runs)}")
        lines += [f"  {run.name:<24}{_describe(runner, run, states[run.name])}" for run in runs]
    more = f"; {unknown} runs have no estimate: their groups have no finished run" if unknown else ""
    return [*lines, f"left in all: about {_clock(known)}{more}"]


def _time_left(left: List[float], open_runs: List[Run]) -> str:
    if not open_runs:
        return ""
    return f", about {_clock(sum(left))} left" if left else ", with no estimate yet"


def _state_of(runner: Runner, run: Run) -> str:
    if runner.is_done(run):
        return DONE
    return CUT_SHORT if runner.spent_on(run) else LEFT


def _describe(runner: Runner, run: Run, state: str) -> str:
    if state == DONE:
        return f"{DONE}, took {_clock(_seconds_of(runner, run))}"
    spent = f" after {_clock(runner.spent_on(run))}" if state == CUT_SHORT else ""
    changed = "; its commands have changed since its figures" if runner.path_of(run).is_file() else ""
    missing = runner.missing_for(run)
    needs = f"; needs {missing[0]}" if missing else ""
    return f"{state}{spent}{changed}{needs}"


def _seconds_of(runner: Runner, run: Run) -> float:
    return float(json.loads(runner.path_of(run).read_text(encoding="utf-8"))["wall_seconds"])


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
