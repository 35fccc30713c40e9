"""What runs leave in their folders, as tests compare it; runs that nobody trained, and one that dies."""

import json
import math
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence
from unittest.mock import patch

import numpy as np
import pytest

from ernie_pair.checkpoint.checkpoint_folder import MANIFEST
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.checkpoint.run_config import text_of_config
from ernie_pair.checkpoint.run_folder import ensure_run_id
from ernie_pair.core.files.atomic_files import CONFIG_YAML
from ernie_pair.core.files.atomic_folder import MADE, published_folder
from ernie_pair.core.files.results import MAKER
from ernie_pair.training.run_log import MEASURED, RunLog
from ernie_pair.training.step_metrics import PROBABILITY_COUNTS, StepWork, count_probabilities


def publish_folder(folder: Path, fill: Callable[[Path], object]) -> None:
    with published_folder(folder) as draft:
        fill(draft)


def events(folder, split: Optional[str] = None, timing: bool = False) -> List[dict]:
    """The lines of metrics.jsonl, of ``split`` if one is named, without what the clock decides."""
    lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    loaded = [event for event in map(json.loads, lines) if split in (None, event.get("split"))]
    return [{k: v for k, v in event.items() if timing or k not in MEASURED} for event in loaded]


def files_of(folder: Path, without: Sequence[str] = (MANIFEST,)) -> Dict[str, bytes]:
    """The files of a folder but ``without``, who made it and by which flags; a manifest names a moment."""
    left_out = (MADE, CONFIG_YAML, *without)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in left_out}


def write_pair_run(folder, slope=1.0, steps=40, **flags):
    log = RunLog(folder, TrainState(), max_steps=steps)
    for step in range(0, steps + 1, 5):
        gain = 1 - math.exp(-slope * step / 20)
        state = TrainState(step, 8 * step)
        if step:
            log.tick(0.5, 0.1, StepWork(samples=8, tokens=96, padded_tokens=128, flops=10**9))
            found = {"loss": 0.7 - 0.5 * gain, "accuracy": 0.5 + 0.4 * gain, "learning_rate": 1e-4}
            log.scalars("train", found, state)
        judged = {"loss": 0.7 - 0.4 * gain, "accuracy": 0.5 + 0.35 * gain, "auc": 0.5 + 0.4 * gain}
        log.scalars("valid", {**judged, **counts_of(gain)}, state)
    log.close()
    write_flags(folder, {"learning_rate": slope * 1e-4, "seed": 7, "use_amp": False, **flags})
    return folder


def counts_of(gain):
    """The probabilities of class 1 of 200 rows, further apart the more is gained."""
    labels, spread = np.arange(200) % 2, np.linspace(0.05, 0.55, 200)
    given = count_probabilities(spread + 0.4 * gain * labels, labels)
    return {PROBABILITY_COUNTS: given}


def write_flags(folder, flags):
    about = {"made_by": MAKER, "command": "train", "run_id": ensure_run_id(folder)}
    (folder / "config.yaml").write_text(text_of_config(flags, about), encoding="utf-8")


class Killed(BaseException):
    """None of our code catches it."""


@contextmanager
def killed_after(step):
    """A training in the dynamic graph that is started inside dies once it has taken ``step``."""
    from ernie_pair.training.training_step import TrainingStep

    step_of = TrainingStep.step

    def until_killed(job, batches, number, stop):
        if number > step:
            raise Killed
        return step_of(job, batches, number, stop)

    with patch.object(TrainingStep, "step", until_killed), pytest.raises(Killed):
        yield
