"""What all runs of a series share, kept in OUT/plan.json: a folder with another plan is refused.

A run is a folder. So a series that was killed goes on with the run that it was at, and no run is repeated.
"""

import gc
import logging
import math
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, TypeVar

import numpy as np

from data_tools.files.arrays import sha256_of_file
from data_tools.files.errors import CheckpointError, InputError
from data_tools.files.json_file import read_json_object, write_json
from ernie_pair.checkpoint.run_folder import run_id_of
from ernie_pair.models.source import ModelSource
from ernie_pair.pair.config.pair_config import PairConfig, TrainConfig
from ernie_pair.pair.train.trainer import PairTrainer, TrainResult
from ernie_pair.runtime.amp_flags import without_idle_amp
from ernie_pair.runtime.cpu import keep_freed_memory
from ernie_pair.runtime.device import start_device
from ernie_pair.runtime.processes.collectives import gather_results
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import launched_world
from ernie_pair.train.callbacks import PairCallback
from ernie_pair.train.process_group import join_process_group
from ernie_pair.train.reporters import open_reporters

PLAN, PREDICTIONS = "plan.json", "predictions.tsv"
Plan = Dict[str, object]

logger = logging.getLogger(__name__)


def with_older_plan(path: Path, plan: Plan, mark: str, kind: str, of_older: Plan) -> Plan:
    """Return ``plan``, with what the one at ``path`` says besides.

    ``mark`` is a key that only plans of this ``kind`` of series have; ``of_older``: what plans of before a
    key was there mean. Raises InputError when the folder holds runs of another plan.
    """
    if not path.exists():
        return plan
    before = read_json_object(path, "give another --output_dir, or remove the file")
    if mark not in before:
        raise InputError(f"{path} is not a plan of a {kind}; give another --output_dir")
    plan = dict(plan)
    for key, value in {**of_older, **without_idle_amp(before)}.items():
        if plan.setdefault(key, value) != value:
            raise InputError(f"{path}: {key} was {value} and is now {plan[key]}; give another --output_dir")
    return plan


def write_plan(draft: Path, plan: Plan) -> None:
    """Write ``plan`` as JSON."""
    write_json(draft, plan)


def sha256_of_weights(source: ModelSource) -> str:
    """Return the SHA-256 of the weights, of each file that holds some, in hex."""
    return " ".join(map(sha256_of_file, source.weight_files)) or "random weights"


def unfinished(runs: Sequence[str], is_done: Callable[[int], bool]) -> Iterator[int]:
    """Yield the place of each run that is not done yet, with a line on each and on the time left.

    ``runs`` are what the log calls them. The run is to be done when the next place is asked for.
    """
    seconds: List[float] = []
    for place, run in enumerate(runs):
        if is_done(place):
            logger.info("run %d of %d is done: %s", place + 1, len(runs), run)
            continue
        left = sum(not is_done(later) for later in range(place, len(runs))) if seconds else 0
        told = f"; about {timedelta(seconds=round(left * sum(seconds) / len(seconds)))} left" if left else ""
        logger.info("run %d of %d: %s%s", place + 1, len(runs), run, told)
        started = time.monotonic()
        yield place
        seconds.append(time.monotonic() - started)


Result = TypeVar("Result")


class Ranks:
    """The processes that make the runs of a series, all of them together; one without a launcher."""

    def __init__(self, config: PairConfig):
        self.world = launched_world()
        start_console(self.world)
        start_device(config.device, self.world, config)
        self._group = join_process_group(self.world)

    def by_first(self, action: Callable[[], Result]) -> Optional[Result]:
        """Run ``action`` on rank 0, and return what it returns there, a JSON value, on every rank.

        Raises on all ranks what rank 0 raises.
        """
        first = self.world.is_first
        return gather_results(self._group.all_reduce, self.world, lambda: action() if first else None)[0]


class OneRun:
    """A run of `ernie-pair train` with the flags ``config``; it goes on where its folder stands.

    Made and asked by every rank alike. Raises an ErniePairError for whatever the user can fix.
    """

    def __init__(self, config: TrainConfig, callbacks: Sequence[PairCallback] = ()):
        gc.collect()  # the model of the run before
        self._trainer = PairTrainer(
            config.model_name_or_path, config, config.train_file, config.dev_file, callbacks=callbacks
        )
        if self._trainer.model.fused_state is not None:
            keep_freed_memory()

    def train(self) -> TrainResult:
        """Train to the end, or until a callback stops the run."""
        return self._trainer.train()

    def logits(self, file: str) -> np.ndarray:
        """Return the logits, float32 [N, C], that its best model gives the pairs of ``file``.

        They are scored as the model says, in one order or both: as it will answer once it is shipped.
        Raises CheckpointError when the run has published none.
        """
        result = self._trainer.state.best_model_checkpoint
        if result is None:
            raise CheckpointError(
                f"{self._trainer.config.output_dir} holds no best model; remove it and run the same command "
                "again"
            )
        return self._trainer.predict(file).predictions


Point = Tuple[int, Dict[str, float]]


def report_series(
    names: Sequence[str], output_dir: Path, flags: Dict[str, Any], points: Iterable[Point]
) -> None:
    """Show ``flags`` and ``points``, (step, values by their names), by the reporters ``names``.

    Called once all runs of this start have ended: W&B has one run open at a time. Values that are not finite
    are left out.
    """
    if not names:
        return
    reporters = open_reporters(names, output_dir, run_id_of(output_dir))
    for reporter in reporters:
        reporter.configuration(flags)
    for step, values in points:
        shown = {name: value for name, value in values.items() if math.isfinite(value)}
        for reporter in reporters:
            reporter.scalars(shown, step)
    for reporter in reporters:
        reporter.close()
