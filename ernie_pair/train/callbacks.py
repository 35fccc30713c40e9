"""Callbacks that a user adds to a training run.

They have the names, the arguments and the order of those of the Trainer of Transformers and PaddleNLP.
"""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Set

from data_tools.files.errors import InputError
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.checkpoint.run_folder import EVENTS as EVENTS_FILE
from ernie_pair.runtime.processes.collectives import AllReduce, gather_results
from ernie_pair.runtime.processes.world import World
from ernie_pair.train.best_model import BestModel, EarlyStopping
from ernie_pair.train.hooks import Hooks, TrainerControl
from ernie_pair.train.run_log import metrics_in, read_events

Metrics = Dict[str, float]


@dataclass
class TrainerState:
    """The progress of a run.

    ``epoch``: passes over the training pairs so far; 0 for a stream. ``log_history``: one dictionary per log
    line and evaluation, with step and epoch, from step 0 on, also for a resumed run; metrics of evaluations
    have names that begin with ``eval_``. ``best_metric``, ``best_model_checkpoint``: the metric of the best
    evaluation, and the folder of its model.
    """

    global_step: int = 0
    max_steps: int = 0
    epoch: float = 0.0
    best_metric: Optional[float] = None
    best_model_checkpoint: Optional[str] = None
    log_history: List[Dict[str, Any]] = field(default_factory=list)
    is_world_process_zero: bool = True
    is_local_process_zero: bool = True


class PairCallback:
    """The base class of callbacks. Override the methods that you need.

        class Stop(PairCallback):
            def on_evaluate(self, args, state, control, metrics, **kwargs):
                if metrics["accuracy"] > 0.9:
                    control.should_training_stop = True

    ``args`` is the PairConfig (EmbeddingConfig in an EmbeddingTrainer), ``state`` a copy of the TrainerState,
    ``control`` a TrainerControl, which the method may change in place or return changed. The keyword
    arguments contain ``model`` and ``optimizer``; in ``on_log`` also ``logs``, means over the steps since the
    last call, in ``on_evaluate`` ``metrics``, as ``evaluate`` returns them, and in ``on_save`` ``folder``.
    With several ranks only rank 0 runs the callbacks; the others wait and follow its ``control``. An error in
    a callback ends the run on all ranks. A run stopped by ``control`` is saved; the next call of `train`
    continues from there.
    """

    def on_init_end(
        self, args: Any, state: TrainerState, control: TrainerControl, *, model: Any, **kwargs: Any
    ) -> Optional[TrainerControl]:
        """Handle the end of the construction of a trainer; there is no optimizer yet."""

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, *, model: Any, **kwargs: Any
    ) -> Optional[TrainerControl]:
        """Handle the start of the run, or its resumption."""

    def on_epoch_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, *, model: Any, **kwargs: Any
    ) -> Optional[TrainerControl]:
        """Handle the start of a pass over the training pairs, before the first step in it."""

    def on_step_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, *, model: Any, **kwargs: Any
    ) -> Optional[TrainerControl]:
        """Handle the start of a step."""

    def on_substep_end(
        self, args: Any, state: TrainerState, control: TrainerControl, *, model: Any, **kwargs: Any
    ) -> Optional[TrainerControl]:
        """Handle a micro-batch that is not the last one of its step."""

    def on_pre_optimizer_step(
        self, args: Any, state: TrainerState, control: TrainerControl, *, model: Any, **kwargs: Any
    ) -> Optional[TrainerControl]:
        """Handle gradients that are complete, before the weights move."""

    def on_optimizer_step(
        self, args: Any, state: TrainerState, control: TrainerControl, *, model: Any, **kwargs: Any
    ) -> Optional[TrainerControl]:
        """Handle weights that have moved, before the gradients are cleared."""

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, *, model: Any, **kwargs: Any
    ) -> Optional[TrainerControl]:
        """Handle a step; ``control`` says whether it will be logged, evaluated and saved."""

    def on_epoch_end(
        self, args: Any, state: TrainerState, control: TrainerControl, *, model: Any, **kwargs: Any
    ) -> Optional[TrainerControl]:
        """Handle a step that ends a pass over the training pairs, after ``on_step_end``."""

    def on_log(  # fmt: skip
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: Any,
        logs: Metrics,
        **kwargs: Any,
    ) -> Optional[TrainerControl]:
        """Handle a training log line, every ``logging_freq`` steps."""

    def on_prediction_step(
        self, args: Any, state: TrainerState, control: TrainerControl, *, model: Any, **kwargs: Any
    ) -> Optional[TrainerControl]:
        """Handle a batch of an evaluation or a prediction, of rank 0; ``control`` is not read."""

    def on_evaluate(  # fmt: skip
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: Any,
        metrics: Metrics,
        **kwargs: Any,
    ) -> Optional[TrainerControl]:
        """Handle an evaluation, including the one before the first step."""

    def on_predict(  # fmt: skip
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: Any,
        metrics: Metrics,
        **kwargs: Any,
    ) -> Optional[TrainerControl]:
        """Handle a prediction; ``metrics`` are empty without labels."""

    def on_save(  # fmt: skip
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: Any,
        folder: Path,
        **kwargs: Any,
    ) -> Optional[TrainerControl]:
        """Handle a checkpoint that has been written."""

    def on_train_end(
        self, args: Any, state: TrainerState, control: TrainerControl, *, model: Any, **kwargs: Any
    ) -> Optional[TrainerControl]:
        """Handle the end of the run: finished, stopped early, or interrupted."""


EVENTS = tuple(name for name in vars(PairCallback) if name.startswith("on_"))


def checked_callback(callback) -> PairCallback:
    """Return a callback, made of its class if that is what is given.

    Raises InputError for one that is not a callback, or that would never be called.
    """
    made = callback() if isinstance(callback, type) else callback
    name = type(made).__name__
    if not isinstance(made, PairCallback):
        raise InputError(f"callbacks: {name} is not a PairCallback; derive it from ernie_pair.PairCallback")
    unknown = [method for method in dir(made) if method.startswith("on_") and method not in EVENTS]
    if unknown:
        raise InputError(
            f"callbacks: nothing calls {name}.{unknown[0]}; use one of {', '.join(EVENTS)}, or rename it"
        )
    return made


class Callbacks:
    """The callbacks of a run, and the state that they see; all ranks call them, at the same places.

    An event that no callback of rank 0 overrides costs nothing, neither a call nor a collective.
    """

    def __init__(
        self,
        callbacks: Sequence[PairCallback],
        args: Any,
        state: TrainerState,
        world: World,
        all_reduce: AllReduce,
    ):
        self.callbacks, self.args, self.state = list(callbacks), args, state
        self.world, self.all_reduce = world, all_reduce
        kinds, base = [type(callback) for callback in self.callbacks], vars(PairCallback)
        own = [name for name in EVENTS if any(getattr(kind, name) is not base[name] for kind in kinds)]
        self.heard = gather_results(all_reduce, world, lambda: own)[0]

    def call(self, event: str, control: TrainerControl, **kwargs) -> None:
        """Call the method ``event`` of every callback, and set ``control`` on all ranks as rank 0 leaves it.

        Raises on all ranks what rank 0 raises.
        """
        if event in self.heard:
            left = gather_results(self.all_reduce, self.world, lambda: self._call(event, control, **kwargs))
            for name, value in left[0].items():
                setattr(control, name, value)

    def call_first(self, event: str, **kwargs) -> None:
        """Call the method ``event`` of every callback on rank 0 alone; ``control`` is not read."""
        self._call(event, TrainerControl(), **kwargs)

    def _call(self, event: str, control: TrainerControl, **kwargs) -> Dict[str, bool]:
        asked = replace(control)
        for callback in self.callbacks if self.world.is_first else ():
            answer = getattr(callback, event)(self.args, replace(self.state), asked, **kwargs)
            asked = answer if isinstance(answer, TrainerControl) else asked
        return {name: bool(value) for name, value in asdict(asked).items()}


class CallingHooks(Hooks):
    """Hooks that call the user's callbacks, and keep the state that these are told.

    ``job`` has a model and an optimizer; ``num_rows``: rows of a pass over the training data, 0: a stream.
    """

    def __init__(self, callbacks: Callbacks, job: Any, num_rows: int):
        super().__init__()
        self._callbacks, self._job, self._num_rows = callbacks, job, num_rows
        self._state = TrainState(0, 0)
        job.on_event = lambda event: self.call(event, self._state)
        if "on_prediction_step" in callbacks.heard:
            job.on_batch = lambda rows: callbacks.call_first("on_prediction_step", model=job.model)

    def on_epoch_begin(self, state: TrainState) -> None:
        """Call ``on_epoch_begin`` of the user's callbacks."""
        self.call("on_epoch_begin", state)

    def on_step_begin(self, state: TrainState) -> None:
        """Call ``on_step_begin`` of the user's callbacks."""
        self._state = state
        self.call("on_step_begin", state)

    @property
    def heard(self) -> Set[str]:
        """Return the events that the user's callbacks override."""
        return set(self._callbacks.heard)

    @property
    def told(self) -> TrainerState:
        """Return the state that the callbacks are told."""
        return self._callbacks.state

    def on_step_end(self, state: TrainState) -> None:
        """Call ``on_step_end`` of the user's callbacks."""
        self.call("on_step_end", state)

    def on_epoch_end(self, state: TrainState) -> None:
        """Call ``on_epoch_end`` of the user's callbacks."""
        self.call("on_epoch_end", state)

    def on_log(self, state: TrainState, metrics: Dict[str, float]) -> None:
        """Call ``on_log`` of the user's callbacks."""
        self.remember("train", state, metrics)
        self.call("on_log", state, logs=dict(self.told.log_history[-1]))

    def on_save(self, state: TrainState, folder: Path) -> None:
        """Call ``on_save`` of the user's callbacks."""
        self.call("on_save", state, folder=folder)

    def call(self, event: str, state: TrainState, **kwargs: Any) -> None:
        """Call the method ``event`` of the user's callbacks, who are told how far the run is."""
        told, job = self.told, self._job
        told.global_step, told.best_metric = state.step, state.best_metric
        told.epoch = self._epoch_of(state.consumed_samples)
        self._callbacks.call(event, self.control, model=job.model, optimizer=job.optimizer, **kwargs)

    def remember(self, split: str, state: TrainState, metrics: Dict[str, float]) -> None:
        """Add a training line or an evaluation to the history."""
        entry = history_entry(split, metrics, state.step, self._epoch_of(state.consumed_samples))
        self.told.log_history.append(entry)

    def restore_history(self, output_dir: Path, state: TrainState) -> None:
        """Take the history of a resumed run from what it has logged up to ``state``."""
        self.told.log_history = [
            history_entry(
                event["split"],
                metrics_in(event),
                event["step"],
                self._epoch_of(event.get("consumed_samples", 0)),
            )
            for event in read_events(output_dir / EVENTS_FILE, state)
        ]

    def tell_end(self, state: TrainState, best: "BestModel", stopping: "EarlyStopping") -> None:
        """Log why the run ended before its last step, if it did, and which of its models is the best."""
        if state.step < self.lines.max_steps:
            is_early = stopping.is_due(state)
            why = (
                stopping.reason(state, best.metric) if is_early else "by a callback; train again to continue"
            )
            self.lines.tell("stop", state, why)
        if state.best_metric is not None:
            self.lines.tell_end(state, f"best {best.describe(state)}")
            best.warn_of_the_start(state)

    def note_the_best(self, folder: Optional[Path]) -> None:
        """Tell the callbacks from now on where the best model lies."""
        self.told.best_model_checkpoint = None if folder is None else str(folder)

    def _epoch_of(self, samples: int) -> float:
        return samples / self._num_rows if self._num_rows else 0.0


def history_entry(split: str, metrics: Dict[str, Any], step: int, epoch: float) -> Dict[str, Any]:
    """Return the entry of ``log_history`` for a training line or an evaluation."""
    start = "" if split == "train" else "eval_"
    return {**{f"{start}{name}": value for name, value in metrics.items()}, "epoch": epoch, "step": step}
