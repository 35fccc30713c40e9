"""What all runs of a series share, kept in OUT/plan.json: a folder with another plan is refused.

A run is a folder. So a series that was killed goes on with the run that it was at, and no run is repeated.
"""

import logging
import time
from datetime import timedelta
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Sequence

from data_tools.base.errors import InputError
from data_tools.files.json_file import read_json_object, write_json
from data_tools.files.npy_stream import sha256_of_file
from ernie_pair.device.amp_flags import without_idle_amp
from ernie_pair.model_files.source import ModelSource

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
