"""A kind of training in the dynamic graph, and its run: one engine for classifiers, rankers, encoders.

A `Task` says what is its own: the model, the data, the loss, the evaluation, how the best model is saved.
`run` does the rest: device, processes, lock, fingerprint, resume, best model, early stopping, log, card.
"""

import logging
import math
from abc import ABC, abstractmethod
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Optional, Sequence

from ernie_pair.checkpoint.fingerprint import Fingerprint, compared_options, layout_of, rules_of
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.checkpoint.run_folder import EVENTS, cleanup_on_error
from ernie_pair.core.errors import counted
from ernie_pair.core.files.atomic_files import keep_no_results
from ernie_pair.models.model_card import DataFile, ModelCard, changed_flags, facts_of, write_card
from ernie_pair.models.networks.kernel_path import choose_path
from ernie_pair.runtime.cpu import keep_freed_memory
from ernie_pair.runtime.device import start_training_device
from ernie_pair.runtime.processes.console import GOOD, start_console
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.runtime.processes.world import World, launched_world, local_world
from ernie_pair.training.best_model import BestModel, EarlyStopping
from ernie_pair.training.callbacks import Callbacks, PairCallback, TrainerState
from ernie_pair.training.hooks import Hooks, TrainerControl
from ernie_pair.training.job import LossParts, TaskJob
from ernie_pair.training.process_group import join_process_group
from ernie_pair.training.recompute import freeze, recompute_layers
from ernie_pair.training.run import RunSettings, run_training
from ernie_pair.training.run_log import metrics_in, read_events

EVALUATED = "eval_"  # begins the names of an evaluation in the history
STEPS = "steps in all"
# In the card elsewhere, or of no effect on the model.
NOT_SHOWN = (
    "model_name_or_path", "train_file", "dev_file", "output_dir", "cache_dir", "fresh_start",
    "negatives_file", "teacher", "unlabelled_file", "teacher_logits",
)  # fmt: skip

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


class Task(ABC):
    """A kind of training. ``config``: `TrainingFlags`, with ``best_metric`` and ``max_seq_len`` besides.

    ``open_model`` sets ``model``, an EncoderModel or a PlainModel, ``source``, the ModelSource that it was
    made of, and ``beginning``, what its weights are in words; ``open_data`` sets ``data``, see `TaskData`.
    ``command`` starts such a training with the flags of config.yaml; empty: none is written.
    """

    command = ""
    lower_is_better = False
    model: Any
    source: Any
    beginning: str
    data: Any
    job: Any

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

    def loss(self, batch: Any) -> LossParts:
        """Return the loss of a micro-batch; ``self.job.forward`` calls the model."""
        raise NotImplementedError

    def evaluate(self) -> dict[str, float]:
        """Return the metrics of the model, equal on every rank; best_metric is among them."""
        raise NotImplementedError

    names: Sequence[str] = ("loss",)  # of the numbers of `loss`

    def open_job(self, total_steps: int, process_group: Any) -> TaskJob:
        """Return the steps of this training; a kind with a step of its own has a `TaskJob` of its own."""
        return _JobOfTask(self, total_steps, process_group)

    def describe(self) -> None:
        """Log what is to be known about the models of this run."""
        return None

    def baseline(self) -> Optional[float]:
        """Return the best_metric that needs no learning, greater is better, for rank 0; None: not known."""
        return None

    def facts(self) -> dict[str, object]:
        """Return what the record of the best model says besides its card."""
        return {}

    def known_by(self) -> Fingerprint:
        """Return what must stay for a resume, besides the options that say it of themselves."""
        return {}

    def idle_options(self) -> Sequence[str]:
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
        idle = self.idle_options()
        flags_of_steps = "--max_steps, --epochs" if config.max_steps else "--epochs, --max_steps"
        hashes = {
            f"{name} (sha256, of --model_name_or_path)"
            if name == "vocabulary"
            else f"--{name} (sha256)": value
            for name, value in self.data.hashes.items()
        }
        return {
            **{name: value for name, value in compared_options(config).items() if name not in idle},
            "model_type": self.model.family,
            "warmup_rate (--warmup_rate, --warmup_steps)": warmup,
            "--batch_size x --gradient_accumulation_steps x processes": config.pairs_per_step(world.size),
            f"{STEPS} ({flags_of_steps})": total_steps,
            "config.json (sha256, of --model_name_or_path)": self.source.spec.sha256,
            **hashes,
            **self.known_by(),
        }

    def shown_flags(self, **changes: object) -> dict[str, object]:
        """Return the flags for the card, those that differ from their defaults; ``changes`` replace some."""
        config = self.config
        defaults = {item.name: item.default for item in fields(config) if item.default is not MISSING}
        hidden = {name: getattr(config, name, None) for name in NOT_SHOWN}
        return changed_flags({**asdict(config), **changes}, {**defaults, **hidden})


def rules_of_task(config_class: type):
    """Return how a run with these options compares its fingerprint with that of a checkpoint."""

    def hint(name: str, old: object) -> str:
        why = " (the learning rate falls to 0 at the last step: it would be another)" if name == STEPS else ""
        return f"pass the old value{why}"

    return rules_of(config_class, ("config.json", "vocabulary"), hint=hint)


class _JobOfTask(TaskJob):
    def __init__(self, task: Task, total_steps: int, process_group: Any):
        more: dict[str, Any] = {"beginning": task.beginning, "vocab_file": task.source.vocab_file}
        super().__init__(task.config, task.model, total_steps, process_group, **more)
        self.task, self.names = task, task.names

    def loss_of(self, batch: Any) -> LossParts:
        return self.task.loss(batch)

    def evaluate(self, split: str) -> dict[str, float]:
        self.read()
        with self.precision.casting():
            return self.task.evaluate()


def run(task_class: type[Task], config: Any) -> TrainState:
    """Train from the newest checkpoint, or the start; return the last state. Raises an ErniePairError."""
    return _train(task_class(config))[1]


def result_of(task: Task, callbacks: Sequence[PairCallback] = ()) -> "TrainResult":
    """Train as `run` does, and return how the run ended, with the metrics of its best model."""
    opened, state = _train(task, callbacks)
    return opened.result(state, {} if task.config.dry_run else opened.metrics_of_best(state))


def _train(task: Task, callbacks: Sequence[PairCallback] = ()) -> tuple["Run", TrainState]:
    world = launched_world()
    start_console(world)
    start = cleanup_on_error(task.config.output_dir, world)
    with start, StopSignals(is_launched=world.size > 1) as stop, keep_no_results(task.config.dry_run):
        device = start_training_device(task.config, world)
        task.open_model()
        if task.model.fused_state is not None:
            keep_freed_memory()
        task.open_data(world)
        opened = Run(task, world, device, callbacks)
        return opened, opened.train(stop)


class TrainResult(NamedTuple):
    """How a run ended: its last step, and its best model with the metrics of that one."""

    step: int
    metrics: dict[str, float]
    best_metric: Optional[float]
    best_model: Optional[Path]
    is_done: bool  # False: stopped early, or by a callback


class Run:
    """One run of a task that is opened; made and trained by every rank alike."""

    def __init__(self, task: Task, world: World, device: str, callbacks: Sequence[PairCallback] = ()):
        config = task.config
        self.task, self.config, self.data, self.world = task, config, task.data, world
        self._rows_per_step = config.pairs_per_step(world.size)
        self.process_group = group = join_process_group(world)
        group.barrier()  # reading and tokenising take each process its own time
        logger.info("on %s, %s", device, counted(world.size, "process", "processes"))
        logger.info("%s", freeze(task.model, config))
        task.describe()
        self.kernels = choose_path(task.model, config, config.device, group.size, group.all_reduce)
        if config.device == "cpu":
            logger.info("%s", self.kernels.describe())
        recompute_layers(task.model, config.use_recompute)
        steps = config.max_steps or math.ceil(config.epochs * self.data.num_rows / self._rows_per_step)
        self.job: Any = task.open_job(steps, group)
        task.job = self.job
        self.state = TrainerState(
            max_steps=steps,
            is_world_process_zero=world.is_first,
            is_local_process_zero=local_world().is_first,
        )
        callbacks = () if config.dry_run else callbacks
        self.hooks = RunHooks(self, Callbacks(callbacks, config, self.state, world, group.all_reduce))

    def train(self, stop: StopSignals) -> TrainState:
        """Train to the end, from wherever ``output_dir`` stands, and return the last state."""
        config, task, job, num_rows = self.config, self.task, self.job, self.data.num_rows
        sync_freq = config.sync_freq_on(config.device)
        settings = RunSettings(
            flags=config,
            schedule=config.schedule(job.total_steps, self._rows_per_step, num_rows, sync_freq),
            rates=job.rates,
            fingerprint=task.fingerprint(self.world, job.total_steps),
            topology=layout_of(config, self.world, self.kernels.name, **task.layout()),
            rules=rules_of_task(type(config)),
            samples_per_epoch=num_rows,
            place=job.placer(),
            command=task.command,
            num_parameters=sum(int(each.size) for each in task.model.parameters()),
            world=self.world,
            local=self.world,
            all_reduce=self.process_group.all_reduce,
        )
        return run_training(job, self.data, settings, self.hooks, stop)

    def result(self, state: TrainState, metrics: dict[str, float]) -> TrainResult:
        """Return how the run ended in ``state``; a dry run has no best model."""
        best = None if self.config.dry_run else self.hooks.best.folder()
        return TrainResult(state.step, metrics, state.best_metric, best, state.step == self.job.total_steps)

    def metrics_of_best(self, state: TrainState) -> dict[str, float]:
        """Return the metrics of the best model; without the log of its start, only what chose it."""
        if self.hooks.best_metrics or state.best_metric is None:
            return dict(self.hooks.best_metrics)
        for each in reversed(self.state.log_history):
            if each["step"] == state.best_step and f"{EVALUATED}loss" in each:
                names = [name for name in each if name.startswith(EVALUATED)]
                return {name.removeprefix(EVALUATED): each[name] for name in names}
        return {self.config.best_metric: state.best_metric}


class RunHooks(Hooks):
    """The hooks of a task: keep the best model, stop early, call the user's functions."""

    def __init__(self, run: Run, callbacks: Callbacks):
        super().__init__()
        self.run, self.task, self.config, config = run, run.task, run.config, run.config
        self._callbacks, self._last_state = callbacks, TrainState(0, 0)
        self.heard = set(callbacks.heard)  # the events that the user's callbacks override
        job, lower = run.job, self.task.lower_is_better
        job.on_event = lambda event: self.call(event, self._last_state)
        if "on_prediction_step" in self.heard:
            job.on_batch = lambda rows: callbacks.call_first(
                "on_prediction_step", TrainerControl(), model=job.model
            )
        place = Path(config.output_dir), self._write_best, run.world, run.process_group.all_reduce
        self.best = BestModel(
            *place,
            metric=config.best_metric,
            lower_is_better=lower,
            keep=config.keep_best,
            baseline=self.task.baseline(),
            facts=self._facts,
        )
        self.best_metrics: dict[str, float] = {}  # of the best model, if this start has seen it
        self.judged: tuple[int, dict[str, float]] = (0, {})  # step and metrics of the last evaluation
        self.stopping = EarlyStopping(config.early_stopping_patience, config.early_stopping_min_delta, lower)

    def call(self, event: str, state: TrainState, **kwargs: Any) -> None:
        """Call the method ``event`` of the user's callbacks, with the progress of the run."""
        progress, job = self.run.state, self.run.job
        progress.global_step, progress.best_metric = state.step, state.best_metric
        progress.epoch = self._epoch_of(state.consumed_samples)
        self._callbacks.call(event, self.control, model=job.model, optimizer=job.optimizer, **kwargs)

    def remember(self, split: str, step: int, metrics: dict[str, Any], samples: int) -> dict[str, Any]:
        """Add a training line or an evaluation to the history, and return it."""
        start = "" if split == "train" else EVALUATED
        named = {f"{start}{name}": value for name, value in metrics.items()}
        self.run.state.log_history.append({**named, "epoch": self._epoch_of(samples), "step": step})
        return dict(self.run.state.log_history[-1])

    def _epoch_of(self, samples: int) -> float:
        return samples / self.run.data.num_rows if self.run.data.num_rows else 0.0

    def on_start(self, state: TrainState, log) -> None:
        """Restore the link OUT/best and the history of a resumed run, and call ``on_train_begin``."""
        self.best.restore_link()
        output_dir = Path(self.config.output_dir)
        for event in read_events(output_dir / EVENTS, state):
            samples = event.get("consumed_samples", 0)
            self.remember(event["split"], event["step"], metrics_in(event), samples)
        if self.config.evaluation_strategy == "no" and self.best.folder() is None and self.run.world.is_first:
            logger.info("no evaluation: the model of the last step is the result, in model_last")
        self._note_best()
        self.call("on_train_begin", state)

    def _note_best(self) -> None:
        folder = self.best.folder()
        self.run.state.best_model_checkpoint = None if folder is None else str(folder)

    def on_epoch_begin(self, state: TrainState) -> None:
        """Call ``on_epoch_begin`` of the user's callbacks."""
        self.call("on_epoch_begin", state)

    def on_step_begin(self, state: TrainState) -> None:
        """Call ``on_step_begin`` of the user's callbacks."""
        self._last_state = state
        self.call("on_step_begin", state)

    def on_step_end(self, state: TrainState) -> None:
        """Call ``on_step_end`` of the user's callbacks."""
        self.call("on_step_end", state)

    def on_epoch_end(self, state: TrainState) -> None:
        """Call ``on_epoch_end`` of the user's callbacks."""
        self.call("on_epoch_end", state)

    def counts(self) -> dict[str, object]:
        """Return what is logged besides the metrics of the last evaluation."""
        return self.task.counts() if self.run.world.is_first else {}

    def on_log(self, state: TrainState, metrics: dict[str, float]) -> None:
        """Call ``on_log`` of the user's callbacks, and of the task on rank 0."""
        line = self.remember("train", state.step, metrics, state.consumed_samples)
        self.call("on_log", state, logs=dict(line))
        if self.run.world.is_first:
            self.task.on_log(line)

    def on_evaluate(self, state: TrainState, metrics: dict[str, float]) -> None:
        """Keep the best model, count towards early stopping, call ``on_evaluate`` of the user's callbacks."""
        self.remember("valid", state.step, metrics, state.consumed_samples)
        self.judged = state.step, metrics
        if self.best.judge(state, metrics):
            self.best_metrics = metrics
            self.lines.log_event("best", state, self.best.describe(state), GOOD)
            self._note_best()
        self.stopping.judge(state, metrics[self.config.best_metric])
        if self.run.world.is_first:
            self.task.on_evaluate(state)
        self.call("on_evaluate", state, metrics=dict(metrics))

    def _facts(self) -> dict[str, object]:
        self._card = self.task.card(self.run.kernels.describe(with_notes=False), *self.judged)
        return {**facts_of(self._card), **self.task.facts()}

    def _write_best(self, draft: Path) -> None:
        self.task.save(draft)
        card = self._card
        if self.best.learned_nothing:
            card = replace(card, facts={**card.facts, "caution": self.best.learned_nothing})
        write_card(draft, card)

    def on_save(self, state: TrainState, folder: Path) -> None:
        """Call ``on_save`` of the user's callbacks."""
        self.call("on_save", state, folder=folder)

    def should_stop(self, state: TrainState) -> bool:
        """Return whether the run is to end: early, or because a callback asks for it."""
        return self.stopping.is_due(state) or self.control.should_training_stop

    def on_end(self, state: TrainState) -> None:
        """Log why the run ended before its last step, if it did, and which of its models is the best."""
        if state.step < self.lines.max_steps:
            why = "by a callback; train again to continue"
            if self.stopping.is_due(state):
                why = self.stopping.reason(state, self.best.metric)
            self.lines.log_event("stop", state, why)
        if state.best_metric is not None:
            self.lines.log_end(state, f"best {self.best.describe(state)}")
            self.best.warn_of_nothing(state)
        self.call("on_train_end", state)
