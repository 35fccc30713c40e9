"""A kind of training in the dynamic graph, and its run: one engine for classifiers, rankers, encoders.

A `Task` says what is its own: the model, the data, the loss, the evaluation, how the best model is saved.
`train_task` does the rest: device, processes, fingerprint, resume, best model, early stopping, log, card.
"""

import logging
from abc import abstractmethod
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Optional, Sequence

from ernie_pair.checkpoint.fingerprint import Fingerprint, compared_options, layout_of, rules_of
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.checkpoint.run_folder import EVENTS, cleanup_on_error
from ernie_pair.core.cli.options import defaults_of, paths_in
from ernie_pair.core.errors import counted
from ernie_pair.core.files.atomic_files import keep_no_results
from ernie_pair.models.model_card import DataFile, ModelCard, changed_flags, facts_of, write_card
from ernie_pair.models.networks.kernel_path import choose_path
from ernie_pair.runtime.cpu import keep_freed_memory
from ernie_pair.runtime.device import start_training_device
from ernie_pair.runtime.processes.console import GOOD, start_console
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.runtime.processes.world import World, launched_world, local_world, raised_on_all
from ernie_pair.training.best_model import BestModel, EarlyStopping
from ernie_pair.training.callbacks import CallbackCaller, PairCallback, TrainerControl, TrainerState
from ernie_pair.training.process_group import join_process_group
from ernie_pair.training.recompute import freeze, recompute_layers
from ernie_pair.training.run_log import metrics_in, read_events
from ernie_pair.training.schedule import count_steps
from ernie_pair.training.trainer import Trainer
from ernie_pair.training.training_step import TrainingStep

EVALUATED = "eval_"  # begins the names of an evaluation in the history
STEPS = "steps in all"

logger = logging.getLogger(__name__)


class TaskData(NamedTuple):
    """The data of a run.

    ``updates(consumed)`` are the micro-batches of this rank for every step, from row ``consumed`` on; each
    has ``input_ids`` int64 [B, S]. ``num_rows``: of an epoch. ``hashes``: {flag of a file: SHA-256}.
    """

    updates: Callable[[int], Iterator[list]]
    num_rows: int
    hashes: dict[str, str]
    files: Sequence[DataFile] = ()  # for the model card


class Task(TrainingStep):
    """A kind of training. ``config``: `TrainingFlags`, with ``best_metric`` and ``max_seq_len`` besides.

    ``open_model`` sets ``model``, an EncoderModel or a CustomModel, ``source``, the ModelSource that it was
    made of, and ``beginning``, what its weights are in words; ``open_data`` sets ``data``, see `TaskData`.
    ``command`` starts such a training with the flags of config.yaml; empty: none is written.
    """

    command = ""
    lower_is_better = False
    data: Any

    def __init__(self, config: Any):
        self.config = config

    @abstractmethod
    def open_model(self) -> None:
        """Set ``model``, ``source`` and ``beginning``; all ranks get the same weights."""

    @abstractmethod
    def open_data(self, world: World) -> None:
        """Set ``data``, of the rank of ``world``."""

    @abstractmethod
    def save(self, draft: Path) -> None:
        """Write the model, as it is now, into the folder ``draft``."""

    @abstractmethod
    def card(self, kernels: str, step: int, metrics: dict[str, float]) -> ModelCard:
        """Return the card of the model of ``step``, whose evaluation gave ``metrics``."""

    def pin_batches(self) -> Optional[Callable[[list], list]]:
        """Return what a thread does with the micro-batches of the next step; None: nothing."""
        return None

    def describe(self) -> None:
        """Log what is to be known about the models of this run."""
        return None

    def baseline(self) -> Optional[float]:
        """Return the best_metric that needs no learning, greater is better, for rank 0; None: not known."""
        return None

    def facts(self) -> dict[str, object]:
        """Return what the record of the best model says besides its card."""
        return {}

    def resume_fingerprint(self) -> Fingerprint:
        """Return what must stay for a resume, besides the options that say it of themselves."""
        return {}

    def ignored_options(self) -> Sequence[str]:
        """Return the options whose change is no other run, as they are without effect here."""
        return ()

    def layout(self) -> Mapping[str, object]:
        """Return what may change on a resume, besides the options that say it of themselves."""
        return {}

    def counts(self) -> dict[str, object]:
        """Return what rank 0 logs of an evaluation besides its metrics; see `probability_counts`."""
        return {}

    def on_log(self, line: dict[str, float]) -> None:
        """Take a line of the training log, on rank 0."""
        return None

    def on_evaluate(self, state: TrainState) -> None:
        """Look at an evaluation, on rank 0."""
        return None

    def fingerprint(self, world: World, total_steps: int) -> Fingerprint:
        """Return what must not change between a checkpoint and the run that resumes from it."""
        config, warmup = self.config, self.config.warmup_share
        if config.warmup_steps is not None:
            warmup = f"{config.warmup_steps} steps"
        ignored = self.ignored_options()
        flags_of_steps = "--max_steps, --epochs" if config.max_steps else "--epochs, --max_steps"
        hashes = {
            f"{name} (sha256, of --model_name_or_path)"
            if name == "vocabulary"
            else f"--{name} (sha256)": value
            for name, value in self.data.hashes.items()
        }
        return {
            **{name: value for name, value in compared_options(config).items() if name not in ignored},
            "model_type": self.model.family,
            "warmup_rate (--warmup_rate, --warmup_steps)": warmup,
            "--batch_size x --gradient_accumulation_steps x processes": config.pairs_per_step(world.size),
            f"{STEPS} ({flags_of_steps})": total_steps,
            "config.json (sha256, of --model_name_or_path)": self.source.spec.sha256,
            **hashes,
            **self.resume_fingerprint(),
        }

    def shown_flags(self, **changes: object) -> dict[str, object]:
        """Return the flags for the card, those that differ from their defaults; ``changes`` replace some."""
        config = self.config
        defaults = {item.name: item.default for item in fields(config) if item.default is not MISSING}
        hidden = {name: getattr(config, name) for name in paths_in(config)}
        hidden.update({name: getattr(config, name) for name in defaults_of(config, "start")})
        return changed_flags({**asdict(config), **changes}, {**defaults, **hidden})


def rules_of_task(config_class: type):
    """Return how a run with these options compares its fingerprint with that of a checkpoint."""

    def hint(name: str, old: object) -> str:
        why = " (the learning rate falls to 0 at the last step: it would be another)" if name == STEPS else ""
        return f"pass the old value{why}"

    return rules_of(config_class, ("config.json", "vocabulary"), hint=hint)


class TrainResult(NamedTuple):
    """How a run ended: its last step, and its best model with the metrics of that one."""

    step: int
    metrics: dict[str, float]
    best_metric: Optional[float]
    best_model: Optional[Path]
    is_done: bool  # False: stopped early, or by a callback


def train_task(task: Task, callbacks: Sequence[PairCallback] = ()) -> TrainResult:
    """Train ``task`` from the newest checkpoint, or the start. Raises an ErniePairError."""
    world = launched_world()
    start_console(world)
    start = cleanup_on_error(task.config.output_dir, world)
    with start, StopSignals(is_launched=world.size > 1) as stop, keep_no_results(task.config.dry_run):
        device = start_training_device(task.config, world)
        task.open_model()
        if task.model.fused_state is not None:
            keep_freed_memory()
        task.open_data(world)
        trainer = TaskTrainer(task, world, device, callbacks)
        trainer.train(stop)
    return trainer.result(trainer.metrics_of_best())


class TaskTrainer(Trainer):
    """One run of a task that is opened: keeps the best model, stops early, calls the user's callbacks."""

    def __init__(self, task: Task, world: World, device: str, callbacks: Sequence[PairCallback] = ()):
        config, data = task.config, task.data
        group = join_process_group(world)
        group.barrier()  # reading and tokenising take each process its own time
        logger.info("on %s, %s", device, counted(world.size, "process", "processes"))
        logger.info("%s", freeze(task.model, config))
        task.describe()
        kernels = choose_path(task.model, config, config.device, group.size, group.all_reduce)
        if config.device == "cpu":
            logger.info("%s", kernels.describe())
        recompute_layers(task.model, config.use_recompute)
        steps, batch_size = count_steps(config, data.num_rows, world.size), config.pairs_per_step(world.size)
        task.prepare(steps, group)
        super().__init__(
            job=task,
            updates=data.updates,
            schedule=config.schedule(steps, batch_size, data.num_rows, config.sync_freq_on(config.device)),
            flags=config,
            fingerprint=task.fingerprint(world, steps),
            rules=rules_of_task(type(config)),
            layout=layout_of(config, world, kernels.name, **task.layout()),
            lr_kwargs=task.lr_kwargs,
            samples_per_epoch=data.num_rows,
            pin_batches=task.pin_batches(),
            command=task.command,
            num_parameters=sum(int(each.size) for each in task.model.parameters()),
            world=world,
            local=world,
            all_reduce=group.all_reduce,
        )
        self.task, self._kernels = task, kernels.describe(with_notes=False)
        self.progress = TrainerState(
            max_steps=steps,
            is_world_process_zero=world.is_first,
            is_local_process_zero=local_world().is_first,
        )
        callbacks = () if config.dry_run else callbacks
        self._callbacks = CallbackCaller(callbacks, config, self.progress, world, group.all_reduce)
        self.overridden_events = set(self._callbacks.overridden)
        task.on_event = self.call
        if "on_prediction_step" in self.overridden_events:
            task.on_batch = lambda rows: self._callbacks.call_on_first_rank(
                "on_prediction_step", TrainerControl(), model=task.model
            )
        self.best = BestModel(
            self.output_dir,
            metric=config.best_metric,
            lower_is_better=task.lower_is_better,
            keep=config.keep_best,
            baseline=task.baseline(),
        )
        self.best_metrics: dict[str, float] = {}  # of the best model, if this start has seen it
        self.stopping = EarlyStopping(config.early_stopping_patience, task.lower_is_better)

    def result(self, metrics: dict[str, float]) -> TrainResult:
        """Return how the run ended, with the ``metrics`` of its best model; a dry run has no such model."""
        state, is_dry = self.state, self.flags.dry_run
        best, metrics = (None, {}) if is_dry else (self.best.folder(), metrics)
        return TrainResult(
            state.step, metrics, state.best_metric, best, state.step == self.schedule.max_steps
        )

    def metrics_of_best(self) -> dict[str, float]:
        """Return the metrics of the best model; without the log of its start, only what chose it."""
        state = self.state
        if self.best_metrics or state.best_metric is None:
            return dict(self.best_metrics)
        for each in reversed(self.progress.log_history):
            if each["step"] == state.best_step and f"{EVALUATED}loss" in each:
                names = [name for name in each if name.startswith(EVALUATED)]
                return {name.removeprefix(EVALUATED): each[name] for name in names}
        return {self.flags.best_metric: state.best_metric}

    def call(self, event: str, **about: Any) -> None:
        """Call the method ``event`` of the user's callbacks, with the progress of the run."""
        progress, state, task = self.progress, self.state, self.task
        progress.global_step, progress.best_metric = state.step, state.best_metric
        progress.epoch = self._epoch_of(state.consumed_samples)
        self._callbacks(event, self.control, model=task.model, optimizer=task.optimizer, **about)

    def _remember(self, split: str, step: int, metrics: dict[str, Any], samples: int) -> dict[str, Any]:
        """Add a training line or an evaluation to the history, and return it."""
        start = "" if split == "train" else EVALUATED
        named = {f"{start}{name}": value for name, value in metrics.items()}
        self.progress.log_history.append({**named, "epoch": self._epoch_of(samples), "step": step})
        return dict(self.progress.log_history[-1])

    def _epoch_of(self, samples: int) -> float:
        return samples / self.samples_per_epoch if self.samples_per_epoch else 0.0

    def on_train_begin(self) -> None:
        """Restore the link OUT/best and the history of a resumed run, and call ``on_train_begin``."""
        if self.world.is_first:
            self.best.restore_link()
        for event in read_events(self.output_dir / EVENTS, self.state):
            samples = event.get("consumed_samples", 0)
            self._remember(event["split"], event["step"], metrics_in(event), samples)
        if self.flags.evaluation_strategy == "no" and self.best.folder() is None and self.world.is_first:
            logger.info("no evaluation: the model of the last step is the result, in model_last")
        self._note_best()
        self.call("on_train_begin")

    def _note_best(self) -> None:
        folder = self.best.folder()
        self.progress.best_model_checkpoint = None if folder is None else str(folder)

    def counts(self) -> dict[str, object]:
        """Return what is logged besides the metrics of the last evaluation."""
        return self.task.counts() if self.world.is_first else {}

    def on_log(self, metrics: dict[str, float]) -> None:
        """Call ``on_log`` of the user's callbacks, and of the task on rank 0."""
        line = self._remember("train", self.state.step, metrics, self.state.consumed_samples)
        self.call("on_log", logs=dict(line))
        if self.world.is_first:
            self.task.on_log(line)

    def on_evaluate(self, metrics: dict[str, float]) -> None:
        """Keep the best model, count towards early stopping, call ``on_evaluate`` of the user's callbacks."""
        state = self.state
        self._remember("valid", state.step, metrics, state.consumed_samples)
        if self.best.improves(state, metrics):
            with raised_on_all(self.all_reduce, self.world):
                if self.world.is_first:
                    card = self.task.card(self._kernels, state.step, metrics)
                    facts = {**facts_of(card), **self.task.facts()}
                    if self.best.learned_nothing:
                        card = replace(card, facts={**card.facts, "caution": self.best.learned_nothing})
                    with self.best.published(state, facts) as draft:
                        self.task.save(draft)
                        write_card(draft, card)
            self.best_metrics = metrics
            self.lines.log_event("best", state, self.best.describe(state), GOOD)
            self._note_best()
        self.stopping.judge(state, metrics[self.flags.best_metric])
        if self.world.is_first:
            self.task.on_evaluate(state)
        self.call("on_evaluate", metrics=dict(metrics))

    def should_stop(self) -> bool:
        """Return whether the run is to end: early, or because a callback asks for it."""
        return self.stopping.is_due(self.state) or self.control.should_training_stop

    def on_train_end(self) -> None:
        """Log why the run ended before its last step, if it did, and which of its models is the best."""
        state = self.state
        if state.step < self.schedule.max_steps:
            why = "by a callback; train again to continue"
            if self.stopping.is_due(state):
                why = self.stopping.reason(state, self.best.metric)
            self.lines.log_event("stop", state, why)
        if state.best_metric is not None:
            self.lines.log_end(state, f"best {self.best.describe(state)}")
            if self.world.is_first:
                self.best.warn_of_nothing(state)
        self.call("on_train_end")
