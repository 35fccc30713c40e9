"""One run of distillation from its flags to its best student; the engine is that of training."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence, Union

import numpy as np

from ernie_pair.core.errors import InputError
from ernie_pair.models.labels import CLASSIFICATION, Labels
from ernie_pair.pairs.config.distill_config import StudentConfig
from ernie_pair.pairs.config.pair_config import refuse_unfit_flags
from ernie_pair.pairs.data.in_memory_pairs import ARGUMENTS, PairDataset, held, open_source
from ernie_pair.pairs.distill.models import DistillLoss, StateDistance, Teacher, open_student
from ernie_pair.pairs.targets.metrics import choose_metric
from ernie_pair.pairs.train.datasets import PairData, open_pairs
from ernie_pair.pairs.train.train_pair import PairTask
from ernie_pair.runtime.processes.world import World
from ernie_pair.training.callbacks import PairCallback, checked_callback
from ernie_pair.training.process_group import join_process_group
from ernie_pair.training.task import TrainResult, train_task

Datasets = Mapping[str, Optional[PairDataset]]

logger = logging.getLogger(__name__)


def distill_pair(
    config: StudentConfig,
    datasets: Optional[Datasets] = None,
    callbacks: Sequence[Union[PairCallback, type[PairCallback]]] = (),
) -> TrainResult:
    """Distil from the newest checkpoint of ``output_dir``, or from the student's beginning.

    ``datasets``: {train, dev or unlabelled: its pairs}, in place of the files. Raises an ErniePairError for
    whatever the user can fix.
    """
    kept = {
        split: pairs if split == "train" and config.streaming else held(pairs)
        for split, pairs in (datasets or {}).items()
    }
    return train_task(DistillTask(config, kept), list(map(checked_callback, callbacks)))


class DistillTask(PairTask):
    """The training of a student; ``datasets``: {split: its pairs} of Python, in place of the flags'."""

    command = "distill"

    def __init__(self, config: StudentConfig, datasets: Optional[Datasets] = None):
        metric = choose_metric(config.best_metric, CLASSIFICATION)
        to_static = False if config.hidden_weight else config.to_static
        super().__init__(replace(config, best_metric=metric, to_static=to_static))
        self._datasets: Datasets = datasets or {}

    def open_model(self) -> None:
        """Open the teacher, and the student with its initial weights."""
        config = self.config
        self.teacher = Teacher(config)
        refuse_unfit_flags(config, self.teacher.source.spec.labels)
        self.take(open_student(config, self.teacher))

    def open_data(self, world: World) -> None:
        """Open the pairs, and ask the teacher about those to train on what is to be kept of its answers."""
        config, teacher = self.config, self.teacher
        distance = None
        if config.hidden_weight:
            distance = StateDistance(self.model, teacher.model, config.layer_map, config.seed)
        data = open_pairs(config, _sources_of(config, teacher, self._datasets), self.source, world)
        self.data = data._replace(hashes={**data.hashes, "teacher": teacher.sha256})
        size = self.initial.facts["student size"]
        logger.info("teacher %s: %s; student: %s", teacher.name, teacher.describe(), size)
        group = join_process_group(world)
        teacher.prepare(group)
        if not config.asks_in_each_step:
            _keep_logits(config, self.data, teacher, group)
        self.overrides.loss = DistillLoss(config, teacher, data.class_weights, distance)

    def layout(self) -> dict[str, object]:
        """Return when the teacher is asked."""
        return {"teacher_logits": "on the fly" if self.config.asks_in_each_step else "cached"}


def _sources_of(config: StudentConfig, teacher: Teacher, datasets: Datasets) -> dict[str, Any]:
    labels = teacher.source.spec.labels
    optional = replace(labels, are_optional=True)
    if config.streaming and datasets.get("unlabelled") is not None:
        raise InputError(
            "unlabelled_dataset is read whole, and streaming reads one dataset; put the pairs into "
            "train_dataset, where a row needs no label"
        )
    known: dict[str, Optional[Labels]] = {"train": optional, "unlabelled": None, "dev": labels}
    sources: dict[str, Any] = {}
    for split, known_labels in known.items():
        dataset = datasets.get(split)
        given = getattr(config, f"{split}_file", "") if dataset is None else dataset
        if not isinstance(given, (str, Path)) or str(given):
            sources[split] = open_source(config, split, given, known_labels)
        elif split != "unlabelled":
            raise InputError(f"there is no {ARGUMENTS[split]}; give it to distill, or pass a DistillConfig")
    return sources


def _keep_logits(config: StudentConfig, data: PairData, teacher: Teacher, group) -> None:
    if data.train is None:
        raise InputError("--teacher_logits cached needs all rows at once; leave --streaming out")
    if config.dry_run:
        data.train.teacher_logits = np.zeros((len(data.train), teacher.num_classes), np.float32)
        logger.info("the teacher scores %d pairs before the first step", len(data.train))
        return
    logger.info("the teacher scores %d training pairs, except those in the cache", len(data.train))
    cache_dir = Path(config.cache_dir or Path(config.output_dir) / "cache")
    data.train.teacher_logits = teacher.logits_of_rows(data.train, cache_dir, group)
