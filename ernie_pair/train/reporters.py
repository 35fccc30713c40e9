"""The tools that show a run besides VisualDL: TensorBoard, Weights & Biases, MLflow.

They follow the usual environment variables: WANDB_PROJECT, WANDB_MODE, MLFLOW_TRACKING_URI and
MLFLOW_EXPERIMENT_NAME. A resumed run continues its earlier run there: the curves of TensorBoard are drawn
again from metrics.jsonl, the other two receive only new points. A tool that fails is dropped with a warning,
and the run continues.
"""

import logging
import os
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Protocol, Sequence

from data_tools.files.atomic_folder import set_aside
from data_tools.files.installation import import_optional

PROJECT = "ernie-pair"  # unless the environment gives another
RUN_TAG = "ernie_pair.run_id"
PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb", "mlflow": "mlflow"}
LONGEST_PARAM = 500  # characters, on older servers of MLflow

logger = logging.getLogger(__name__)


class Reporter(Protocol):
    """A tool that shows one run."""

    draws_again: bool  # whether it needs the events from before a resume

    def configuration(self, flags: Dict[str, Any]) -> None:
        """Show the settings of the run."""

    def scalars(self, values: Dict[str, float], step: int) -> None:
        """Show values, all finite, under names such as train/loss."""

    def close(self) -> None:
        """End the reporting of this start."""


def refuse_missing(names: Sequence[str]) -> None:
    """Raise InputError if the library of a reporter is not installed."""
    for name in names:
        import_optional(PACKAGES[name], name)


def open_reporters(names: Sequence[str], output_dir: Path, run_id: str) -> List[Reporter]:
    """Return the reporters of these names for the run ``run_id``. Raises InputError for a missing library."""
    refuse_missing(names)
    kinds: Dict[str, Callable[[Path, str], Reporter]] = {
        "tensorboard": TensorBoard,
        "wandb": WeightsAndBiases,
        "mlflow": MLflow,
    }
    return [Guarded(name, partial(kinds[name], output_dir, run_id)) for name in names]


class Guarded:
    """A reporter whose failures end the reporter but not the run."""

    def __init__(self, name: str, start: Callable[[], Reporter]):
        self.name = name
        self.reporter: Optional[Reporter] = None
        with self._given_up_on_error():
            self.reporter = start()
        self.draws_again = self.reporter is not None and self.reporter.draws_again

    def configuration(self, flags: Dict[str, Any]) -> None:
        """Show the settings of the run."""
        self._ask("configuration", flags)

    def scalars(self, values: Dict[str, float], step: int) -> None:
        """Show values, all finite, under names such as train/loss."""
        self._ask("scalars", values, step)

    def close(self) -> None:
        """End the reporting of this start."""
        self._ask("close")

    def _ask(self, name: str, *arguments: Any) -> None:
        with self._given_up_on_error():
            if self.reporter is not None:
                getattr(self.reporter, name)(*arguments)

    @contextmanager
    def _given_up_on_error(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each tool has its own errors: of its files, its service, its account
            self.reporter = None
            what = " ".join(str(error).split())[:200] or type(error).__name__
            logger.warning("--report_to %s: %s; the run continues without it", self.name, what)


class TensorBoard:
    """OUT/tensorboard/RUN_ID, by tensorboardX, which needs neither TensorFlow nor PyTorch."""

    draws_again = True

    def __init__(self, output_dir: Path, run_id: str):
        folder = clear_records(output_dir / "tensorboard" / run_id, "events.out.tfevents.*")
        self.writer = import_optional("tensorboardX", "tensorboard").SummaryWriter(str(folder))

    def configuration(self, flags: Dict[str, Any]) -> None:
        """Show the settings as a text."""
        self.writer.add_text(
            "configuration", "  \n".join(f"{name}: {value}" for name, value in flags.items())
        )

    def scalars(self, values: Dict[str, float], step: int) -> None:
        """Draw a point of each curve."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write the last points."""
        self.writer.close()


class WeightsAndBiases:
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

    def configuration(self, flags: Dict[str, Any]) -> None:
        """Show the settings as the configuration of the run."""
        self.run.config.update(flags, allow_val_change=True)

    def scalars(self, values: Dict[str, float], step: int) -> None:
        """Log the values of a step."""
        self.run.log(values, step=step)

    def close(self) -> None:
        """Finish the run."""
        self.run.finish()


class MLflow:
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

    def configuration(self, flags: Dict[str, Any]) -> None:
        """Show the settings of the first start: MLflow does not allow a parameter to change."""
        if self.is_new:
            params = [self.entities.Param(name, str(value)[:LONGEST_PARAM]) for name, value in flags.items()]
            self.client.log_batch(self.run_id, params=params)

    def scalars(self, values: Dict[str, float], step: int) -> None:
        """Log the values of a step."""
        now = int(time.time() * 1000)
        metrics = [self.entities.Metric(name, value, now, step) for name, value in values.items()]
        self.client.log_batch(self.run_id, metrics=metrics)

    def close(self) -> None:
        """Note that this start has ended."""
        self.client.set_terminated(self.run_id)


def clear_records(folder: Path, pattern: str) -> Path:
    """Return ``folder``, used by this run only, created if missing and without the records of ``pattern``.

    A link in its place is set aside with a warning. Raises OSError.
    """
    if folder.is_symlink():
        logger.warning("%s is a link; it is now %s", folder, set_aside(folder).name)
    for record in folder.glob(pattern):
        record.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    return folder
