"""Output folders of runs that nobody trained, with all that a run logs."""

import math

import numpy as np

from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.checkpoint.run_config import text_of_config
from ernie_pair.checkpoint.run_folder import run_id_of
from ernie_pair.core.files.results import MAKER
from ernie_pair.training import probability_counts
from ernie_pair.training.run_log import RunLog
from ernie_pair.training.step_work import StepWork


def write_pair_run(folder, slope=1.0, steps=40, **flags):
    """Log a run of pairs as training does, and its flags."""
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
    given = probability_counts.count_probabilities(spread + 0.4 * gain * labels, labels)
    return {probability_counts.NAME: given}


def write_flags(folder, flags):
    about = {"made_by": MAKER, "command": "train", "run_id": run_id_of(folder)}
    (folder / "config.yaml").write_text(text_of_config(flags, about), encoding="utf-8")
