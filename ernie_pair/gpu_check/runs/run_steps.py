"""Run the cases of the steps, one after another or in parallel, each with its verdict."""

import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Callable, Dict, List, NamedTuple, Optional

from data_tools.base.errors import ErniePairError, message_of
from ernie_pair.gpu_check.runs.lab import Lab
from ernie_pair.gpu_check.runs.outcome import FAILED, NEEDS, NOT_RUN, PASSED, Case, Planned, StepOutcome
from ernie_pair.gpu_check.runs.privacy import hide_private
from ernie_pair.gpu_check.runs.small_data import SmallData
from ernie_pair.processes.child_command import BrokenRunError

Plan = Callable[[Lab, SmallData], List[Planned]]
Tell = Callable[[Case], None]


class Step(NamedTuple):
    """A step: its number and title, its time limit in seconds, and the function that makes its cases.

    ``is_timed``: its cases run one by one, with all cores.
    """

    number: int
    title: str
    limit: float
    plan: Plan
    is_timed: bool = False


def run_step(step: Step, lab: Lab, data: SmallData, tell: Tell) -> StepOutcome:
    """Run the cases of a step, and ``tell`` each as it ends. A failed case does not stop the others."""
    began = time.monotonic()
    planned = step.plan(lab, data)
    lab.deadline = began + step.limit
    cases: Dict[str, Optional[Case]] = {one.name: _left_out(one, step, lab) for one in planned}
    for case in cases.values():
        if case is not None:
            tell(case)
    due = [one for one in planned if cases[one.name] is None]
    executor = ThreadPoolExecutor(1 if step.is_timed else lab.lanes)
    try:
        for future in as_completed([executor.submit(_run, one) for one in due]):
            ended = future.result()
            cases[ended.name] = ended
            tell(ended)
    except BaseException:
        lab.stop()  # a thread waits for a command, which would have to end first
        raise
    finally:
        executor.shutdown(cancel_futures=True)
    found = [case for case in cases.values() if case is not None]
    return StepOutcome(step.number, step.title, found, time.monotonic() - began)


def _left_out(planned: Planned, step: Step, lab: Lab) -> Optional[Case]:
    """Return the case if it cannot be run here, else None."""
    if lab.is_lost and step.number > 0:
        reason = f"there is no GPU to check: {lab.machine.why_no_gpu}"
        return Case(planned.name, NOT_RUN, hide_private(reason), 0.0, {})
    return Case(planned.name, NEEDS, f"needs {planned.needs}", 0.0, {}) if planned.needs else None


def _run(planned: Planned) -> Case:
    began = time.monotonic()
    try:
        figures = planned.run()
    except Exception as error:
        # An error that is not ours is a bug of the check itself, or of what a run left: the case fails.
        ours = isinstance(error, ErniePairError)
        said = message_of(error) if ours else f"{type(error).__name__}: {error}"
        said, kind = hide_private(" ".join(said.split())), type(error) if ours else BrokenRunError
        return Case(planned.name, FAILED, said, time.monotonic() - began, {}, kind(said))
    return Case(planned.name, PASSED, "", time.monotonic() - began, figures)
