"""`ernie-pair check --gpu`: the steps one after another, a report of them as JSON and as a page.

The report, FILE.json:

    {"format": 1, "made_by": "ernie-pair 0.1.0", "date": "2026-11-22", "device": "gpu", "quick": false,
     "seconds": 540.2, "passed": false, "summary": "9 steps: ...", "first_failure": "step 2, ...",
     "machine": {"words": ..., "gpus": [{"name": ..., "capability": [8, 0], "memory_gb": 40.0}], ...},
     "steps": [{"number": 2, "title": ..., "verdict": "failed", "seconds": 48.1, "cases": [
         {"name": ..., "verdict": "failed", "said": why, "seconds": 14.9, "figures": {"tokens/s": 1e5}}]}]}

A verdict is passed, failed, needs (said: what is missing here) or not run.
"""

import json
import math
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable, Dict, List, Literal, NamedTuple, Optional, Sequence, Tuple

from ernie_pair.checks.gpu.cases import STEPS, Figures, Planned, SmallData, Step
from ernie_pair.checks.gpu.lab import Lab
from ernie_pair.checks.gpu.machine import Machine, hide_private, machine_of, machine_without_paddle
from ernie_pair.core.cli.options import (
    Options,
    data_option,
    devices_option,
    evaluation_option,
    names_in,
    refuse_empty,
    refuse_unknown_names,
)
from ernie_pair.core.errors import ErniePairError, InputError, Stopped, message_of
from ernie_pair.core.files.atomic_files import published
from ernie_pair.core.files.json_file import write_json
from ernie_pair.core.files.results import refuse_existing
from ernie_pair.report.page import render_page
from ernie_pair.runtime.device import default_device
from ernie_pair.runtime.processes.child_command import BrokenRunError
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.version import __version__

PASSED, FAILED, NEEDS, NOT_RUN = "passed", "failed", "needs", "not run"


class Case(NamedTuple):
    """A case and its verdict, one of the four above; ``said``: why it failed, or what it needs."""

    name: str
    verdict: str
    said: str
    seconds: float = 0.0
    figures: Figures = {}
    error: Optional[BaseException] = None  # the error of a failed case

    def facts(self) -> Dict[str, Any]:
        """Return the part of the report about it; a figure that is no finite number is a text."""
        figures = {
            name: value if isinstance(value, (int, float)) and math.isfinite(value) else str(value)
            for name, value in self.figures.items()
        }
        facts = {**self._asdict(), "seconds": round(self.seconds, 1), "figures": figures}
        del facts["error"]
        return facts


class StepOutcome(NamedTuple):
    """A step of the check: its number in the list, its title, its cases, and how long it took."""

    number: int
    title: str
    cases: List[Case]
    seconds: float

    @property
    def verdict(self) -> str:
        """Return the verdict of the step: the worst of its cases; one that only needs things is 'needs'."""
        verdicts = {case.verdict for case in self.cases}
        return next((verdict for verdict in (FAILED, NOT_RUN, PASSED) if verdict in verdicts), NEEDS)

    def facts(self) -> Dict[str, Any]:
        """Return the part of the report about it."""
        facts = {"number": self.number, "title": self.title, "verdict": self.verdict}
        return {**facts, "seconds": round(self.seconds, 1), "cases": [case.facts() for case in self.cases]}


def first_failure(steps: Sequence[StepOutcome]) -> Optional[str]:
    """Return the first case that failed, in words; None if none did."""
    for step in steps:
        for case in step.cases:
            if case.verdict in (FAILED, NOT_RUN):
                return f"step {step.number}, {step.title}: {case.name}: {case.said}"
    return None


def run_step(step: Step, lab: Lab, data: SmallData, show: Callable[[Case], None]) -> StepOutcome:
    """Run the cases of a step, and ``show`` each as it ends. A failed case does not stop the others."""
    began = time.monotonic()
    planned = step.plan(lab, data)
    lab.deadline = began + step.limit
    cases: Dict[str, Case] = {}
    if lab.is_lost and step.number > 0:
        reason = hide_private(f"there is no GPU to check: {lab.machine.why_no_gpu}")
        cases = {one.name: Case(one.name, NOT_RUN, reason) for one in planned}
    else:
        cases = {one.name: Case(one.name, NEEDS, f"needs {one.needs}") for one in planned if one.needs}
    for case in cases.values():
        show(case)
    due = [one for one in planned if one.name not in cases]
    executor = ThreadPoolExecutor(1 if step.is_timed else lab.lanes)
    try:
        for future in as_completed([executor.submit(_run, one) for one in due]):
            ended = future.result()
            cases[ended.name] = ended
            show(ended)
    except BaseException:
        lab.stop()  # a thread waits for a command, which would have to end first
        raise
    finally:
        executor.shutdown(cancel_futures=True)
    in_order = [cases[one.name] for one in planned]
    return StepOutcome(step.number, step.title, in_order, time.monotonic() - began)


def _run(planned: Planned) -> Case:
    began = time.monotonic()
    try:
        figures = planned.run()
    except Exception as error:
        # An error that is not ours is a bug of the check itself, or of what a run left: the case fails.
        ours = isinstance(error, ErniePairError)
        text = message_of(error) if ours else f"{type(error).__name__}: {error}"
        text, kind = hide_private(" ".join(text.split())), type(error) if ours else BrokenRunError
        return Case(planned.name, FAILED, text, time.monotonic() - began, {}, kind(text))
    return Case(planned.name, PASSED, "", time.monotonic() - began, figures)


def chosen_steps(numbers: str) -> List[Step]:
    """Return the steps in ``numbers``, separated by commas; all for ''. Raises InputError for any other."""
    named = names_in(numbers)
    known = {str(step.number): step for step in STEPS}
    refuse_unknown_names("steps", named, known, f" is not a step; use some of {','.join(known)}")
    return [known[number] for number in sorted(named)] if named else list(STEPS)


def page_of(report: Dict[str, Any]) -> str:
    """Return the page of a report, the content of its JSON file."""
    return render_page(TEMPLATE, report=report, figure=show_figure)


def show_figure(value: Any) -> str:
    """Return a figure for a reader: large ones with commas, small ones with three digits."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int) or (abs(value) >= 1000 and value == value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


TEMPLATE = Path(__file__).with_name("page.html")
FORMAT, FOLDER = 1, "ernie-pair-check-gpu-"  # of the report; prefix of the temporary folder
MACHINE_SECONDS = 120.0
SHOWN = {PASSED: "OK", FAILED: "FAILED", NEEDS: "--", NOT_RUN: "not run"}


@dataclass(frozen=True)
class CheckGpuConfig(Options):
    """Check a GPU from its libraries to the speed of a base model, and write a report to attach.

    With --device cpu only the checks that need no GPU are run; the others report what they need.
    """

    EXAMPLE = "--output_file gpu_check.json"

    output_file: str = data_option(
        "gpu_check.json", help="FILE.json for the results; a report page is written to FILE.html"
    )
    device: Literal["cpu", "gpu"] = devices_option(default_device(), help="device to check")
    steps: str = evaluation_option(
        "", help=f"checks to run: numbers from 0 to {STEPS[-1].number}, separated by commas; empty: all"
    )
    quick: bool = evaluation_option(False, help="fewer and shorter cases")
    overwrite: bool = data_option(False, help="replace an existing report")

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output_file")
        if Path(self.output_file).suffix != ".json":
            raise InputError(f"--output_file {self.output_file} does not end in .json; name a FILE.json")

    @property
    def outputs(self) -> List[Path]:
        """Return the files that are written: the results and their page."""
        return [Path(self.output_file), Path(self.output_file).with_suffix(".html")]


def check_gpu(config: CheckGpuConfig) -> None:
    """Run the steps, print a line for each case, and write the report.

    Raises the first error of a case once the report is there; Stopped, with nothing left, after a signal.
    """
    refuse_existing(config.outputs, config.overwrite)
    for path in config.outputs:  # before any work
        if path.is_dir():
            raise InputError(f"--output_file {path} is a folder; name a FILE.json")
        if not path.parent.is_dir():
            raise InputError(f"--output_file {path}: its folder {path.parent} does not exist; make it first")
    chosen, began = chosen_steps(config.steps), time.monotonic()
    with StopSignals():
        try:
            outcomes, machine = _run_check(config, chosen, began)
        except Stopped as stop:
            raise Stopped("stopped; nothing is left of the check, nor a report", stop.exit_code) from None
        report = _report(config, machine, outcomes, time.monotonic() - began)
        with published(*config.outputs) as (results, page):
            write_json(results, report)
            page.write_text(page_of(report), encoding="utf-8")
    print(
        f"\n{report['summary']}\nreport: {config.outputs[0]}, and as a page {config.outputs[1]}", flush=True
    )
    errors = (case.error for step in outcomes for case in step.cases if case.verdict in (FAILED, NOT_RUN))
    error = next((error for error in errors if isinstance(error, ErniePairError)), None)
    if error is not None:
        raise type(error)(f"{report['first_failure']}; attach {config.outputs[0]} to a bug report")


def _run_check(
    config: CheckGpuConfig, chosen: Sequence[Step], began: float
) -> Tuple[List[StepOutcome], Machine]:
    """Run the steps in a folder that is removed afterwards, as is everything that they started."""

    def clock() -> str:
        minutes, seconds = divmod(int(time.monotonic() - began), 60)
        return f"{minutes}:{seconds:02d}"

    def show(case: Case) -> None:
        why = f": {case.said}" if case.said else ""
        taken = f" ({case.seconds:.0f} s; {clock()} in all)" if case.seconds else ""
        print(f"{SHOWN[case.verdict]:<8} {case.name}{why}{taken}", flush=True)

    folder = tempfile.TemporaryDirectory(prefix=FOLDER)
    with folder as name, Lab(Path(name), config.device, config.quick) as lab:
        lab.machine = read_machine(lab)
        print(lab.machine.words, flush=True)
        data, outcomes = SmallData(lab), []
        for place, step in enumerate(chosen, start=1):
            print(f"\n[{place}/{len(chosen)}] step {step.number}: {step.title} ({clock()})", flush=True)
            outcomes.append(run_step(step, lab, data, show))
    return outcomes, lab.machine


def read_machine(lab: Lab) -> Machine:
    """Return the machine; Paddle is queried in a separate process, which a GPU may crash."""
    lab.deadline = time.monotonic() + MACHINE_SECONDS
    try:
        output = lab.run([lab.device], module="ernie_pair.checks.gpu.machine").output
        return machine_of(json.loads(output.strip().splitlines()[-1]))
    except (ErniePairError, ValueError, IndexError) as error:
        return machine_without_paddle(hide_private(f"Paddle cannot be queried: {message_of(error)}"))


def _report(
    config: CheckGpuConfig, machine: Machine, outcomes: List[StepOutcome], seconds: float
) -> Dict[str, Any]:
    counts = {verdict: sum(step.verdict == verdict for step in outcomes) for verdict in SHOWN}
    words = {PASSED: "passed", FAILED: "failed", NEEDS: "cannot run here", NOT_RUN: "were not run"}
    shown = ", ".join(f"{count} {words[verdict]}" for verdict, count in counts.items() if count)
    failure = first_failure(outcomes)
    return {
        "format": FORMAT,
        "made_by": f"ernie-pair {__version__}",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "device": config.device,
        "quick": config.quick,
        "seconds": round(seconds, 1),
        "passed": failure is None,
        "summary": f"{len(outcomes)} steps: {shown}; {seconds / 60:.1f} minutes",
        "first_failure": failure,
        "machine": machine.facts(),
        "steps": [step.facts() for step in outcomes],
    }
