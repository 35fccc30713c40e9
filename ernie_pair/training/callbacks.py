"""Callbacks that a user adds to a training run.

They have the names, the arguments and the order of those of the Trainer of Transformers and PaddleNLP.
"""

from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Optional, Sequence

from ernie_pair.core.errors import InputError
from ernie_pair.runtime.processes.world import AllReduce, World, gather_results
from ernie_pair.training.schedule import Schedule

Metrics = dict[str, float]


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
    log_history: list[dict[str, Any]] = field(default_factory=list)
    is_world_process_zero: bool = True
    is_local_process_zero: bool = True


@dataclass
class TrainerControl:
    """What the loop will do after a step; a callback may switch each action on or off.

    The loop logs, evaluates and saves, in this order, and checks each flag again before its turn: one that is
    set after its turn is discarded at the next step. The last step is always saved. ``should_training_stop``
    ends the run after the step and saves it.
    """

    should_training_stop: bool = False
    should_log: bool = False
    should_evaluate: bool = False
    should_save: bool = False

    def begin_step(self, step: int, schedule: Schedule) -> None:
        """Set the actions that ``schedule`` gives for this step."""
        self.should_log = schedule.logs_at(step)
        self.should_evaluate = schedule.evaluates_at(step)
        self.should_save = schedule.saves_at(step)


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

    def on_init_end(self, args, state: TrainerState, control: TrainerControl, *, model, **kwargs):
        """Handle the end of the construction of a trainer; there is no optimizer yet."""

    def on_train_begin(self, args, state: TrainerState, control: TrainerControl, *, model, **kwargs):
        """Handle the start of the run, or its resumption."""

    def on_epoch_begin(self, args, state: TrainerState, control: TrainerControl, *, model, **kwargs):
        """Handle the start of a pass over the training pairs, before the first step in it."""

    def on_step_begin(self, args, state: TrainerState, control: TrainerControl, *, model, **kwargs):
        """Handle the start of a step."""

    def on_substep_end(self, args, state: TrainerState, control: TrainerControl, *, model, **kwargs):
        """Handle a micro-batch that is not the last one of its step."""

    def on_pre_optimizer_step(self, args, state: TrainerState, control: TrainerControl, *, model, **kwargs):
        """Handle gradients that are complete, before the weights move."""

    def on_optimizer_step(self, args, state: TrainerState, control: TrainerControl, *, model, **kwargs):
        """Handle weights that have moved, before the gradients are cleared."""

    def on_step_end(self, args, state: TrainerState, control: TrainerControl, *, model, **kwargs):
        """Handle a step; ``control`` says whether it will be logged, evaluated and saved."""

    def on_epoch_end(self, args, state: TrainerState, control: TrainerControl, *, model, **kwargs):
        """Handle a step that ends a pass over the training pairs, after ``on_step_end``."""

    def on_log(self, args, state: TrainerState, control: TrainerControl, *, model, logs: Metrics, **kwargs):
        """Handle a training log line, every ``logging_freq`` steps."""

    def on_prediction_step(self, args, state: TrainerState, control: TrainerControl, *, model, **kwargs):
        """Handle a batch of an evaluation or a prediction, of rank 0; ``control`` is not read."""

    def on_evaluate(
        self, args, state: TrainerState, control: TrainerControl, *, model, metrics: Metrics, **kwargs
    ):
        """Handle an evaluation, including the one before the first step."""

    def on_predict(
        self, args, state: TrainerState, control: TrainerControl, *, model, metrics: Metrics, **kwargs
    ):
        """Handle a prediction; ``metrics`` are empty without labels."""

    def on_save(self, args, state: TrainerState, control: TrainerControl, *, model, folder: Path, **kwargs):
        """Handle a checkpoint that has been written."""

    def on_train_end(self, args, state: TrainerState, control: TrainerControl, *, model, **kwargs):
        """Handle the end of the run: finished, stopped early, or interrupted."""


EVENTS = tuple(name for name in vars(PairCallback) if name.startswith("on_"))


def checked_callback(callback) -> PairCallback:
    """Return a callback, or one of a class. Raises InputError for another, or one that nothing calls."""
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


class CallbackCaller:
    """Calls the callbacks of a run with ``state``; all ranks call it, and follow what rank 0 leaves.

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
        base = vars(PairCallback)
        own = [name for name in EVENTS if any(getattr(type(c), name) is not base[name] for c in callbacks)]
        self.overridden = gather_results(all_reduce, world, lambda: own)[0]

    def __call__(self, event: str, control: TrainerControl, **kwargs) -> None:
        """Call ``event`` of every callback; all ranks get the ``control``, or the error, of rank 0."""
        if event in self.overridden:
            call = partial(self.call_on_first_rank, event, control, **kwargs)
            for name, value in gather_results(self.all_reduce, self.world, call)[0].items():
                setattr(control, name, value)

    def call_on_first_rank(self, event: str, control: TrainerControl, **kwargs) -> dict[str, bool]:
        """Call ``event`` of every callback on rank 0 alone, and return how they leave the control."""
        changed = replace(control)
        for callback in self.callbacks if self.world.is_first else ():
            answer = getattr(callback, event)(self.args, replace(self.state), changed, **kwargs)
            changed = answer if isinstance(answer, TrainerControl) else changed
        return {name: bool(value) for name, value in asdict(changed).items()}
