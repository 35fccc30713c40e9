"""The outputs of a run: metrics.jsonl, VisualDL under vdl/RUN_ID/, the console, and other tools.

The caller never asks the rank.

metrics.jsonl holds one object per logged event with floats in full precision; NaN and infinity, for which
JSON has no number, are the texts "nan", "inf" and "-inf". A "train" event holds means over the steps since
the one before it. The file is authoritative: after a resume it is truncated to the saved step, and the
VisualDL curves are drawn again from it, so that no step occurs twice. A write failure is reported once, and
the run continues.

The other tools follow their usual environment variables. A resumed run continues its earlier run there: the
curves of TensorBoard are drawn again from metrics.jsonl, the others receive only new points.
"""

import json
import logging
import math
import os
import resource
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Sequence

from tqdm import tqdm

from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.checkpoint.run_folder import CURVES, EVENTS, ensure_run_id
from ernie_pair.core.files.atomic_files import published
from ernie_pair.core.files.atomic_folder import set_aside
from ernie_pair.core.files.json_file import JsonError, is_utf8, is_whole_number, parse_json_object
from ernie_pair.core.installation import import_optional
from ernie_pair.core.progress import shows_bars
from ernie_pair.core.user_home import home_given
from ernie_pair.runtime.processes.console import GOOD, PLAIN, EventLines, Improvement, improvement_of
from ernie_pair.runtime.processes.world import World
from ernie_pair.training.step_metrics import PROBABILITY_COUNTS, StepWork, draw_counts, parse_counts

PROJECT = "ernie-pair"  # unless the environment gives another
RUN_TAG = "ernie_pair.run_id"
MAX_PARAM = 500  # characters, on older servers of MLflow


class Reporter:
    """A tool that shows one run; its failures end the reporter but not the run.

    ``draws_again``: whether it needs the events from before a resume.
    """

    def __init__(self, name: str, output_dir: Path, run_id: str):
        self.name = name
        self.tool: Any = None
        with self._dropped_on_error():
            self.tool = TOOLS[name](output_dir, run_id)
        self.draws_again = self.tool is not None and self.tool.draws_again

    def configuration(self, flags: dict[str, Any]) -> None:
        """Show the settings of the run."""
        self._ask("configuration", flags)

    def scalars(self, values: dict[str, float], step: int) -> None:
        """Show values, all finite, under names such as train/loss."""
        self._ask("scalars", values, step)

    def close(self) -> None:
        """End the reporting of this start."""
        self._ask("close")

    def _ask(self, name: str, *arguments: Any) -> None:
        with self._dropped_on_error():
            if self.tool is not None:
                getattr(self.tool, name)(*arguments)

    @contextmanager
    def _dropped_on_error(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each tool has its own errors: of its files, its service, its account
            self.tool = None
            what = " ".join(str(error).split())[:200] or type(error).__name__
            logger.warning("--report_to %s: %s; the run continues without it", self.name, what)


class _TensorBoard:
    """OUT/tensorboard/RUN_ID, by tensorboardX, which needs neither TensorFlow nor PyTorch."""

    draws_again = True

    def __init__(self, output_dir: Path, run_id: str):
        folder = clear_records(output_dir / "tensorboard" / run_id, "events.out.tfevents.*")
        self.writer = import_optional("tensorboardX", "tensorboard").SummaryWriter(str(folder))

    def configuration(self, flags: dict[str, Any]) -> None:
        lines = (f"{name}: {value}" for name, value in flags.items())
        self.writer.add_text("configuration", "  \n".join(lines))

    def scalars(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class _WeightsAndBiases:
    """A run of W&B whose id is ours, so that a resumed one is the same there; its files are in OUT/wandb."""

    draws_again = False

    def __init__(self, output_dir: Path, run_id: str):
        self.run = import_optional("wandb", "wandb").init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=run_id,
            name=os.environ.get("WANDB_NAME", output_dir.resolve().name),
            dir=str(output_dir),
            resume="allow",
            settings={"console": "off"},  # the console is ours, with its progress bar
        )

    def configuration(self, flags: dict[str, Any]) -> None:
        self.run.config.update(flags, allow_val_change=True)

    def scalars(self, values: dict[str, float], step: int) -> None:
        self.run.log(values, step=step)

    def close(self) -> None:
        self.run.finish()


class _MLflow:
    """A run of MLflow, found by a tag; through the client, so an active run of the caller stays active."""

    draws_again = False

    def __init__(self, output_dir: Path, run_id: str):
        mlflow = import_optional("mlflow", "mlflow")
        self.entities, self.client = mlflow.entities, mlflow.MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self.client.get_experiment_by_name(name)
        where = experiment.experiment_id if experiment else self.client.create_experiment(name)
        found = self.client.search_runs([where], f"tags.`{RUN_TAG}` = '{run_id}'")
        self.is_new = not found
        if found:
            self.run_id = found[0].info.run_id
            self.client.set_terminated(self.run_id, "RUNNING")
        else:
            run = self.client.create_run(where, tags={RUN_TAG: run_id}, run_name=output_dir.resolve().name)
            self.run_id = run.info.run_id

    def configuration(self, flags: dict[str, Any]) -> None:
        if self.is_new:  # MLflow does not allow a parameter to change
            params = [self.entities.Param(name, str(value)[:MAX_PARAM]) for name, value in flags.items()]
            self.client.log_batch(self.run_id, params=params)

    def scalars(self, values: dict[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [self.entities.Metric(name, value, now, step) for name, value in values.items()]
        self.client.log_batch(self.run_id, metrics=metrics)

    def close(self) -> None:
        self.client.set_terminated(self.run_id)


TOOLS: dict[str, Any] = {"tensorboard": _TensorBoard, "wandb": _WeightsAndBiases, "mlflow": _MLflow}


def clear_records(folder: Path, pattern: str) -> Path:
    """Return a run's own ``folder`` without records of ``pattern``; a link is set aside. Raises OSError."""
    if folder.is_symlink():
        logger.warning("%s is a link; it is now %s", folder, set_aside(folder).name)
    for record in folder.glob(pattern):
        record.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


RECORDS = "vdlrecords.*.log"
MAX_STEP = 2**63 - 1
NOT_CURVES = ("split", "step", "consumed_samples", PROBABILITY_COUNTS)
NOT_FINITE = ("nan", "inf", "-inf")  # texts, in metrics.jsonl
# Measurements of the machine: no two runs agree in them.
MEASURED = (
    "samples_per_second", "tokens_per_second", "real_tokens_per_second", "tera_flops_per_second",
    "product_share", "data_wait_share", "memory_gb",
)  # fmt: skip

logger = logging.getLogger("ernie_pair")


class RunLog:
    """The log of one run: its scalars, from the resumed step on.

    ``samples_per_epoch``: samples in one pass over the training data; 0 if not known.
    ``product_rate``: see `StepWork.speeds`.
    """

    def __init__(
        self,
        output_dir: Path,
        resumed: TrainState,
        max_steps: int,
        product_rate: float = 0,
        samples_per_epoch: float = 0,
        report_to: Sequence[str] = (),
    ):
        self.path, self.product_rate = output_dir / EVENTS, product_rate
        self.lines, self.remaining = EventLines(max_steps, samples_per_epoch), RemainingTime(max_steps)
        self.improvement = Improvement()
        self.kept = kept = _cut_back(self.path, resumed)
        run_id = ensure_run_id(output_dir)
        self.writer = _open_curves(output_dir / CURVES / run_id)
        self.reporters = [Reporter(name, output_dir, run_id) for name in report_to]
        for event in kept:
            self._draw(event, [reporter for reporter in self.reporters if reporter.draws_again])
        self.file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 - open as long as the run
        self.bar = tqdm(
            initial=resumed.step, total=max_steps, unit="step", disable=not shows_bars(), leave=False
        )
        self.seconds, self.waited, self.work = 0.0, 0.0, StepWork()
        self.is_writable = True

    def tick(self, seconds: float, waited: float, work: StepWork) -> None:
        """Count a step that did ``work`` in ``seconds``, of which it ``waited`` for its data."""
        self.bar.update(1)
        self.seconds += seconds
        self.waited += waited
        self.work = self.work.plus(work)
        self.remaining.tick(seconds)

    def texts(self, name: str, texts: Iterable[str]) -> None:
        """Show ``texts`` on a page of VisualDL's text tab."""
        for number, text in enumerate(texts):
            self.writer.add_text(name, text, step=number)

    def configuration(self, config) -> None:
        """Show flags as on a command line; from here on their ``best_metric`` compares evaluations."""
        self.improvement = improvement_of(config)
        for event in self.kept:  # of earlier starts
            self._is_better(event)
        self.kept = []
        for reporter in self.reporters:
            reporter.configuration(asdict(config))
        set_flags = ((name, value) for name, value in asdict(config).items() if value not in ("", None))
        words = (
            f"--{name} {str(value).lower() if isinstance(value, bool) else value}"
            for name, value in set_flags
        )
        self.texts("configuration", [" ".join(words)])

    def scalars(self, split: str, values: Mapping[str, Any], state: TrainState) -> None:
        """Log an event of numbers and of `probability_counts`; speeds are since the last training line."""
        event = {"split": split, "step": state.step, **values, "consumed_samples": state.consumed_samples}
        if split == "train":
            seconds = max(self.seconds, 1e-9)
            event.update(self.work.speeds(seconds, self.product_rate), data_wait_share=self.waited / seconds)
            event["memory_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
            self.seconds, self.waited, self.work = 0.0, 0.0, StepWork()
        self._write(_line_of(event))
        self._draw(event, self.reporters)
        shown = {name: value for name, value in event.items() if name not in NOT_CURVES}
        if split == "train":
            shown["remaining"] = self.remaining.after(state.step)
        self.lines.log_metrics(split, state, shown, GOOD if self._is_better(event) else PLAIN)

    def close(self) -> None:
        """Close the files; VisualDL may write the last curves only now."""
        self.bar.close()
        with suppress(OSError):
            self.file.close()
        for reporter in self.reporters:
            reporter.close()
        self.writer.close()  # VisualDL writes late: a run that is not closed may lose its tail

    def _is_better(self, event: dict) -> bool:
        return event["split"] == "valid" and self.improvement.judge(event)

    def _write(self, line: str) -> None:
        try:
            self.file.write(line)
            self.file.flush()
        except OSError as error:
            if self.is_writable:
                logger.warning("%s: %s; metrics are lost from here on", self.path, error.strerror)
            self.is_writable = False

    def _draw(self, event: dict, reporters: Iterable[Reporter]) -> None:
        values = {
            f"{event['split']}/{name}": value
            for name, value in event.items()
            if name not in NOT_CURVES and isinstance(value, (int, float)) and math.isfinite(value)
        }
        for name, value in values.items():
            self.writer.add_scalar(name, value, event["step"])
        counts = parse_counts(event.get(PROBABILITY_COUNTS))
        if counts is not None:
            draw_counts(self.writer, event["split"], counts, event["step"])
        for reporter in reporters:
            reporter.scalars(values, event["step"])


class RemainingTime:
    """The remaining time of a run, estimated from the time since the first step of this start."""

    def __init__(self, max_steps: int):
        self.max_steps, self.steps, self.started = max_steps, 0, time.monotonic()

    def tick(self, seconds: float) -> None:
        """Record that a step that took ``seconds`` has just ended."""
        if not self.steps:
            self.started = time.monotonic() - seconds
        self.steps += 1

    def after(self, step: int) -> str:
        """Return the time from ``step`` to the end as h:mm:ss, including evaluations and checkpoints."""
        seconds = (time.monotonic() - self.started) / max(self.steps, 1) * (self.max_steps - step)
        return str(timedelta(seconds=round(seconds)))


class Silent:
    """What does nothing, whatever it is asked to do."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments, **named: None


def _open_curves(folder: Path):
    """Open VisualDL's writer in ``folder``, used by this run only: its records are drawn again."""
    with home_given():  # it makes folders there
        from visualdl import LogWriter  # only the rank that writes needs it

    try:
        return LogWriter(str(clear_records(folder, RECORDS)))
    except OSError as error:
        logger.warning("%s: %s; this run draws no curves, %s has its numbers", folder, error.strerror, EVENTS)
        return Silent()


def open_log(output_dir: Path, world: World, **settings):
    """Open the log of this rank: one that writes on the first rank, one that does nothing elsewhere."""
    return RunLog(output_dir, **settings) if world.is_first else Silent()


def read_all_events(path: Path) -> list[dict]:
    """Return the events in a metrics.jsonl, in order; none if there is no such file."""
    if path.is_symlink() or not path.is_file():
        return []
    return [event for event in map(_event_of, path.read_bytes().split(b"\n")) if event]


def read_events(path: Path, resumed: TrainState) -> list[dict]:
    """Return the events in a metrics.jsonl that a run resumed at ``resumed`` does not log again."""
    is_repeated = resumed.step == 0 or resumed.evaluation_pending  # what the resumed step logs besides
    return [
        event
        for event in read_all_events(path)
        if event["step"] < resumed.step
        or (event["step"] == resumed.step and (event["split"] == "train" or not is_repeated))
    ]


def metrics_in(event: dict) -> dict[str, Any]:
    """Return the metrics of an event as they were logged, without what differs from machine to machine."""
    metrics = {name: value for name, value in event.items() if name not in (*NOT_CURVES, *MEASURED)}
    return {name: float(value) if value in NOT_FINITE else value for name, value in metrics.items()}


def _cut_back(path: Path, resumed: TrainState) -> list[dict]:
    """Drop the events that will be logged again, and a last line that a kill cut short."""
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        logger.warning("%s is not a file of this run; it is now %s", path, set_aside(path).name)
    if not path.exists():
        return []
    kept = read_events(path, resumed)
    with published(path) as (draft,):
        draft.write_text("".join(map(_line_of, kept)), encoding="utf-8")
    return kept


def _event_of(line: bytes) -> Optional[dict]:
    try:
        event = parse_json_object(line)
    except JsonError:
        return None
    sound = is_whole_number(event.get("step"), 0, MAX_STEP) and isinstance(event.get("split"), str)
    return event if sound and is_utf8(event) else None


def _line_of(event: dict) -> str:
    finite = {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in event.items()
    }
    return json.dumps(finite, allow_nan=False) + "\n"
