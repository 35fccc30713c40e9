"""The runs of a comparison: every start with every seed, each in a process of its own.

OUT/
    plan.json               what all runs share; a folder with another plan is refused
    test.jsonl              the pairs that all of them are asked about
    NAME-seed-1234/         the output_dir of one run, and its predictions.tsv: then it is done
    NAME-seed-1234.log      what it said
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Dict, List, NamedTuple

import numpy as np

from data_tools.base.errors import CheckpointError
from data_tools.files.atomic_files import published
from ernie_pair.checkpoint.best_link import best_of
from ernie_pair.model_files.source import ModelSource
from ernie_pair.pair.config.pair_config import TrainConfig
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.data.pair_source import PairSource
from ernie_pair.pair.evaluation.prediction_file import read_log_probabilities
from ernie_pair.pair.series.plan import (
    PLAN,
    PREDICTIONS,
    Plan,
    sha256_of_weights,
    unfinished,
    with_older_plan,
    write_plan,
)
from ernie_pair.processes.child_command import ChildCommand
from ernie_pair.processes.stop_signals import StopSignals

TEST = "test.jsonl"
TEST_KEY = "test_file (sha256)"
OF_ASKING = ("batch_size", "max_seq_len", "device", "model_class", "kernels", "precision")
OF_A_RUN = ("model_name_or_path", "from_scratch", "seed", "output_dir")  # what differs from run to run


class Candidate(NamedTuple):
    """A start of the comparison; ``source`` has no weights when its runs begin with random ones."""

    name: str
    path: str
    source: ModelSource


class Runs:
    """The runs of a comparison; ``train`` holds their flags.

    Those of OF_A_RUN in it mean nothing but the first seed. ``symmetric``, as in prediction, says how every
    model has to predict the test pairs.
    """

    def __init__(
        self,
        output_dir: Path,
        train_config: str,
        train: TrainConfig,
        seeds: int,
        num_classes: int,
        symmetric: str = "none",
    ):
        self.output_dir, self.train_config, self.train = output_dir, train_config, train
        self.num_classes, self.symmetric = num_classes, symmetric
        self.seeds = range(train.seed, train.seed + seeds)

    def plan(self, starts: List[Candidate], test: Pairs) -> None:
        """Keep what is to be made. Raises InputError when the folder holds other runs, or another's files."""
        self._keep_plan(self._plan(starts, test), test)

    def make(self, starts: List[Candidate]) -> None:
        """Train and predict what is not there yet. Raises an ErniePairError as a run that fails does."""
        wanted = [(start, seed) for seed in self.seeds for start in starts]
        folders = [self.folder(*run) for run in wanted]
        named = [f"{folder}; see {_log_of(folder)}" for folder in folders]
        with StopSignals():
            for place in unfinished(named, lambda place: (folders[place] / PREDICTIONS).is_file()):
                self._make(*wanted[place], folders[place])

    def is_begun(self) -> bool:
        """Return whether a plan has been kept in the folder."""
        return (self.output_dir / PLAN).is_file()

    def folder(self, start: Candidate, seed: int) -> Path:
        """Return the output_dir of the run from ``start`` with ``seed``."""
        return self.output_dir / f"{start.name}-seed-{seed}"

    def logits(self, start: Candidate, seed: int, num_rows: int) -> np.ndarray:
        """Return log p of every row of a run, float64 [N, C], which serve as logits.

        Raises CheckpointError when its predictions are damaged.
        """
        path = self.folder(start, seed) / PREDICTIONS
        try:
            logs = read_log_probabilities(path, self.num_classes)
        except ValueError:
            logs = np.empty((0, self.num_classes))
        if len(logs) != num_rows:
            raise CheckpointError(f"{path} is damaged; remove it and start the same command again")
        return logs

    def _make(self, start: Candidate, seed: int, folder: Path) -> None:
        log = _log_of(folder)
        log.parent.mkdir(parents=True, exist_ok=True)
        run = {"model_name_or_path": start.path, "seed": seed, "output_dir": folder}
        run["from_scratch"] = "true" if start.source.weights is None else "false"
        _call(["train", f"--config={self.train_config}", *_flags(run)], log)
        best = _best_of(folder)
        asked = {name: getattr(self.train, name) for name in OF_ASKING}
        asked["symmetric"] = self.symmetric
        asked.update(model_path=best, input_file=self.output_dir / TEST, output_file=folder / PREDICTIONS)
        _call(["predict", *_flags({**asked, "scores": "true"})], log)

    def _keep_plan(self, plan: Plan, test: Pairs) -> None:
        """Write the plan and the test pairs. Raises InputError when the folder holds other runs."""
        path = self.output_dir / PLAN
        plan = with_older_plan(path, plan, TEST_KEY, "comparison", {"symmetric": "none"})
        rows = [{"sentence1": left, "sentence2": right} for left, right in zip(test.left, test.right)]
        with published(path, self.output_dir / TEST) as (draft, pairs):
            pairs.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            write_plan(draft, plan)

    def _plan(self, starts: List[Candidate], test: Pairs) -> Plan:
        flags = {name: value for name, value in asdict(self.train).items() if name not in OF_A_RUN}
        flags["symmetric of training"] = flags.pop("symmetric")
        if self.train.warmup_steps is None:
            flags["warmup_rate"] = self.train.warmup_share  # as older plans say it
        files = [PairSource(f"{s}_file", getattr(self.train, f"{s}_file"), s, None) for s in ("train", "dev")]
        hashes = {f"{file.flag} (sha256)": file.sha256() for file in files}
        weights = {f"start {start.name} (sha256)": sha256_of_weights(start.source) for start in starts}
        return {**flags, **hashes, TEST_KEY: test.sha256, **weights, "symmetric": self.symmetric}


def _flags(values: Dict[str, object]) -> List[str]:
    return [f"--{name}={value}" for name, value in values.items()]


def _log_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.log")


def _best_of(folder: Path) -> Path:
    """Return the best model of a run. Raises CheckpointError when there is none."""
    best = best_of(folder)
    if best is None:
        raise CheckpointError(f"{folder} holds no best model; remove it and run the same command again")
    return best


def _call(words: List[str], log: Path) -> None:
    """Run `ernie-pair WORDS`. Raises the error that it ends with."""
    with ChildCommand(words, f"{words[0]} of {log.stem}", log) as child:
        child.finish()
