"""One run of distillation from its flags to its best student; the engine is that of training."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Dict

from data_tools.base.errors import InputError
from ernie_pair.checkpoint.train_state import TrainState
from ernie_pair.device.device import start_training_device
from ernie_pair.device.malloc import keep_freed_memory
from ernie_pair.pair.config.distill_config import DistillConfig
from ernie_pair.pair.data.pair_columns import Columns
from ernie_pair.pair.data.pair_records import RowRules
from ernie_pair.pair.data.pair_source import PairSource
from ernie_pair.pair.distill.distill_loss import DistillLoss, known_by
from ernie_pair.pair.distill.hidden_states import StateDistance
from ernie_pair.pair.distill.student import open_student
from ernie_pair.pair.distill.teacher import Teacher
from ernie_pair.pair.process_group import join_process_group
from ernie_pair.pair.step.loss import SuppliedLoss
from ernie_pair.pair.train.datasets import PairData, open_pairs
from ernie_pair.pair.train.train_pair import PairRun
from ernie_pair.pair.train.trainer import TrainResult
from ernie_pair.processes.console import start_console, start_missing_console
from ernie_pair.processes.stop_signals import StopSignals, call_with_signals
from ernie_pair.processes.world import World, launched_world

logger = logging.getLogger(__name__)


def distill_pair(config: DistillConfig) -> None:
    """Distil from the newest checkpoint of ``output_dir``, or from the student's beginning.

    Raises an ErniePairError for whatever the user can fix.
    """
    world = launched_world()
    with StopSignals(is_launched=world.size > 1) as stop:
        start_console(world)
        _open_run(config, world).train(stop)


def distill(config: DistillConfig) -> TrainResult:
    """Distil as the command does, and return how the run ended: its best model is the student.

        from ernie_pair import DistillConfig, distill

        config = DistillConfig(
            "small", teacher="output/best", layers=4, train_file="train.tsv", dev_file="dev.tsv"
        )
        print(distill(config).best_model)

    In a process of `paddle.distributed.launch` or `notebook_launcher` all processes make the same call.
    Ctrl-C ends the step it is in, saves, and raises KeyboardInterrupt. Raises an ErniePairError for whatever
    the user can fix.
    """
    world = launched_world()

    def train(stop: StopSignals) -> TrainResult:
        start_missing_console(world)
        run = _open_run(config, world)
        state = run.train(stop)
        is_done = state.step == run.job.total_steps
        return TrainResult(
            state.step, _metrics_of_best(run, state), state.best_metric, run.hooks.best.folder(), is_done
        )

    return call_with_signals(train, is_launched=world.size > 1)


def _metrics_of_best(run: PairRun, state: TrainState) -> Dict[str, float]:
    """Return the metrics of the best model, seen by this start or one before it."""
    start = "eval_"
    told = [
        each for each in run.state.log_history if each["step"] == state.best_step and f"{start}loss" in each
    ]
    before = {name[len(start) :]: value for name, value in told[-1].items() if name.startswith(start)}
    return dict(run.hooks.best_metrics) or before


def _open_run(config: DistillConfig, world: World) -> PairRun:
    """Open teacher, student and data, and ask the teacher what is to be kept of it."""
    if config.hidden_weight:
        config = replace(config, to_static=False)
    device = start_training_device(config, world)
    teacher = Teacher(config)
    student = open_student(config, teacher)
    if student.model.fused_state is not None:
        keep_freed_memory()
    distance = None
    if config.hidden_weight:
        distance = StateDistance(student.model, teacher.model, config.layer_map, config.seed)
    data = open_pairs(config, _sources_of(config, teacher), student.source, world)
    data = data._replace(hashes={**data.hashes, "teacher": teacher.sha256})
    logger.info(
        "teacher %s: %s; student: %s", teacher.name, teacher.describe(), student.facts["student size"]
    )
    group = join_process_group(world)
    teacher.prepare(group)
    if not config.asks_in_each_step:
        _keep_logits(config, data, teacher, group)
    supplied = SuppliedLoss(
        DistillLoss(config, teacher, data.class_weights, distance),
        known_by(config),
        {"teacher_logits": "on the fly" if config.asks_in_each_step else "cached"},
    )
    return PairRun(config, student, data, world, device, supplied=supplied)


def _sources_of(config: DistillConfig, teacher: Teacher) -> Dict[str, PairSource]:
    labels = teacher.source.spec.labels
    columns, rules = Columns(config.text_a, config.text_b, config.label), RowRules.of(config)
    optional = replace(labels, are_optional=True)
    sources = {"train": PairSource("train_file", config.train_file, "train", optional, columns, rules)}
    if config.unlabelled_file:
        name = config.unlabelled_file
        sources["unlabelled"] = PairSource("unlabelled_file", name, "train", None, columns, rules)
    return {**sources, "dev": PairSource("dev_file", config.dev_file, "dev", labels, columns, rules)}


def _keep_logits(config: DistillConfig, data: PairData, teacher: Teacher, group) -> None:
    """Give the training rows the logits of the teacher, asked once or found in the cache."""
    if data.train is None:
        raise InputError("--teacher_logits cached needs all rows at once; leave --streaming out")
    logger.info("the teacher is asked about %d pairs, where the cache has no answer", len(data.train))
    cache_dir = Path(config.cache_dir or Path(config.output_dir) / "cache")
    data.train.teacher_logits = teacher.logits_of_rows(data.train, cache_dir, group)
