"""`ernie-pair check-gpu`: the steps one after another, a report of them as JSON and as a page.

The report, FILE.json:

    {"format": 1, "made_by": "ernie-pair 0.1.0", "date": "2026-11-22", "device": "gpu", "quick": false,
     "seconds": 540.2, "passed": false, "summary": "9 steps: ...", "first_failure": "step 2, ...",
     "machine": {"words": ..., "gpus": [{"name": ..., "capability": [8, 0], "memory_gb": 40.0}], ...},
     "steps": [{"number": 2, "title": ..., "verdict": "failed", "seconds": 48.1, "cases": [
         {"name": ..., "verdict": "failed", "said": why, "seconds": 14.9, "figures": {"tokens/s": 1e5}}]}]}

A verdict is passed, failed, needs (said: what is missing here) or not run.
"""

import json
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, List, Literal, Sequence, Tuple

from data_tools.files.atomic_files import published
from data_tools.files.errors import ErniePairError, InputError, Stopped, message_of
from data_tools.files.json_file import write_json
from data_tools.files.results import refuse_existing
from data_tools.options.options import Options, names_in, option, refuse_empty, refuse_unknown_names
from ernie_pair.checks.gpu.kernels_step import plan_kernels, plan_libraries
from ernie_pair.checks.gpu.layouts_step import plan_layouts, plan_stage2
from ernie_pair.checks.gpu.losses_step import plan_losses
from ernie_pair.checks.gpu.models_step import plan_models
from ernie_pair.checks.gpu.resume_step import plan_resumes
from ernie_pair.checks.gpu.run_steps import SmallData, Step, run_step
from ernie_pair.checks.gpu.runs import (
    FAILED,
    NEEDS,
    NOT_RUN,
    PASSED,
    Case,
    Commands,
    Lab,
    Machine,
    StepOutcome,
    first_failure,
    hide_private,
    machine_of,
    machine_without_paddle,
)
from ernie_pair.checks.gpu.speed_step import plan_pair_speed, plan_pretraining_speed
from ernie_pair.runtime.device import default_device
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.version import __version__

STEPS = (
    Step(0, "libraries", 120, plan_libraries),
    Step(1, "kernels against numpy", 180, plan_kernels),
    Step(2, "tiny pretraining, losses as on the CPU", 300, plan_losses),
    Step(3, "resume to the same bits after kill -9", 480, plan_resumes),
    Step(4, "two processes against one", 360, plan_layouts),
    Step(5, "stage 2 and offload against plain data parallelism", 180, plan_stage2),
    Step(6, "converter, export, prediction", 420, plan_models),
    Step(7, "speed of pretraining", 420, plan_pretraining_speed, is_timed=True),
    Step(8, "speed of training pairs", 240, plan_pair_speed, is_timed=True),
)


def chosen_steps(numbers: str) -> List[Step]:
    """Return the steps in ``numbers``, separated by commas; all for ''. Raises InputError for any other."""
    named = names_in(numbers)
    known = {str(step.number): step for step in STEPS}
    refuse_unknown_names("steps", named, known, f" is not a step; use some of {','.join(known)}")
    return [known[number] for number in sorted(named)] if named else list(STEPS)


TEMPLATE = Path(__file__).with_name("page.html")


def page_of(report: Dict[str, Any]) -> str:
    """Return the page of a report, the content of its JSON file."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["figure"] = show_figure
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(report=report)


def show_figure(value: Any) -> str:
    """Return a figure for a reader: large ones with commas, small ones with three digits."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int) or (abs(value) >= 1000 and value == value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


FORMAT, FOLDER = 1, "ernie-pair-check-gpu-"  # of the report; prefix of the temporary folder
MACHINE_SECONDS = 120.0
SHOWN = {PASSED: "OK", FAILED: "FAILED", NEEDS: "--", NOT_RUN: "not run"}


@dataclass(frozen=True)
class CheckGpuConfig(Options):
    """Check a GPU from its libraries to the speed of a base model, and write a report to attach.

    With --device cpu only the checks that need no GPU are run; the others report what they need.
    """

    EXAMPLE = "--output gpu_check.json"

    output: str = option(
        "gpu_check.json",
        help="FILE.json for the results; a report page is written to FILE.html",
        group="data",
    )
    device: Literal["cpu", "gpu"] = option(default_device(), help="device to check", group="devices")
    steps: str = option(
        "",
        help=f"checks to run: numbers from 0 to {STEPS[-1].number}, separated by commas; empty: all",
        group="evaluation",
    )
    quick: bool = option(False, help="fewer and shorter cases", group="evaluation")
    overwrite: bool = option(False, help="replace an existing report", group="data")

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output")
        if Path(self.output).suffix != ".json":
            raise InputError(f"--output {self.output} does not end in .json; name a FILE.json")

    @property
    def outputs(self) -> List[Path]:
        """Return the files that are written: the results and their page."""
        return [Path(self.output), Path(self.output).with_suffix(".html")]


def check_gpu(config: CheckGpuConfig) -> None:
    """Run the steps, print a line for each case, and write the report.

    Raises the first error of a case once the report is there; Stopped, with nothing left, after a signal.
    """
    _refuse_unusable(config)
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
    _say(f"\n{report['summary']}\nreport: {config.outputs[0]}, and as a page {config.outputs[1]}")
    _raise_first(outcomes, config.outputs[0])


def _refuse_unusable(config: CheckGpuConfig) -> None:
    """Raise InputError, before any work, if the report cannot be written."""
    refuse_existing(config.outputs, config.overwrite)
    for path in config.outputs:
        if path.is_dir():
            raise InputError(f"--output {path} is a folder; name a FILE.json")
        if not path.parent.is_dir():
            raise InputError(f"--output {path}: its folder {path.parent} does not exist; make it first")


def _run_check(
    config: CheckGpuConfig, chosen: Sequence[Step], began: float
) -> Tuple[List[StepOutcome], Machine]:
    """Run the steps in a folder that is removed afterwards, as is everything that they started."""
    with tempfile.TemporaryDirectory(prefix=FOLDER) as name, Commands(Path(name)) as commands:
        machine = _read_machine(config.device, commands)
        _say(machine.words)
        lab = Lab(Path(name), config.device, machine, config.quick, commands)
        data, outcomes = SmallData(lab), []
        for place, step in enumerate(chosen, start=1):
            _say(f"\n[{place}/{len(chosen)}] step {step.number}: {step.title} ({_clock(began)})")
            outcomes.append(run_step(step, lab, data, lambda case: _tell(case, began)))
    return outcomes, machine


def _read_machine(device: str, commands: Commands) -> Machine:
    """Return the machine; Paddle is queried in a separate process, which a GPU may crash."""
    try:
        deadline = time.monotonic() + MACHINE_SECONDS
        said = commands.run([device], deadline, module="ernie_pair.checks.gpu.runs").said
        return machine_of(json.loads(said.strip().splitlines()[-1]))
    except (ErniePairError, ValueError, IndexError) as error:
        return machine_without_paddle(hide_private(f"Paddle cannot be queried: {message_of(error)}"))


def _report(
    config: CheckGpuConfig, machine: Machine, outcomes: List[StepOutcome], seconds: float
) -> Dict[str, Any]:
    """Return the content of the report."""
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


def _raise_first(outcomes: List[StepOutcome], report: Path) -> None:
    """Raise the first error of a case, if there is one, as the same kind of error."""
    errors = (case.error for step in outcomes for case in step.cases if case.verdict in (FAILED, NOT_RUN))
    error = next((error for error in errors if isinstance(error, ErniePairError)), None)
    if error is not None:
        raise type(error)(f"{first_failure(outcomes)}; attach {report} to a bug report")


def _tell(case: Case, began: float) -> None:
    why = f": {case.said}" if case.said else ""
    taken = f" ({case.seconds:.0f} s; {_clock(began)} in all)" if case.seconds else ""
    _say(f"{SHOWN[case.verdict]:<8} {case.name}{why}{taken}")


def _clock(began: float) -> str:
    minutes, seconds = divmod(int(time.monotonic() - began), 60)
    return f"{minutes}:{seconds:02d}"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
