"""The study of a search in OUT/study.db, an SQLite file of Optuna: what was drawn, and what came of it.

Optuna and not Ray Tune: it needs no service and no processes of its own, has wheels for CPython 3.9 to 3.12,
and a killed process leaves its file whole. What a trial draws follows from the seed, its number and what the
trials before it have shown alone, so that a search that was killed draws what it would have drawn.
"""

import math
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

from data_tools.files.errors import CheckpointError
from data_tools.files.installation import import_optional
from ernie_pair.runtime.processes.world import seed_of
from ernie_pair.series.search_space import SearchParamsConfig, Space
from ernie_pair.train.callbacks import PairCallback
from ernie_pair.train.hooks import TrainerControl

STUDY, NAME = "study.db", "ernie-pair"
PRUNED_AT, FAILED = "pruned_at", "failed"  # attributes of a trial
REDUCTION = 3  # of asha: one of so many goes on
STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}


class Outcome(NamedTuple):
    """A trial: complete, pruned, failed (then ``reason`` says why) or running.

    ``number``: counted from 1, as people do and Optuna does not. ``params``: {flag: value}; ``value``: its
    best metric, None without one; ``curve``: {evaluation, from 1: the metric}.
    """

    number: int
    state: str
    params: Dict[str, Any]
    value: Optional[float]
    curve: Dict[int, float]
    reason: str = ""


def require_optuna():
    """Return Optuna, which only warns of itself. Raises InputError when it is not installed."""
    optuna = import_optional("optuna", "tune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class Study:
    """The study of the search in ``output_dir``, opened or begun; of one process at a time.

    Raises CheckpointError when its file is damaged.
    """

    def __init__(self, output_dir: Path, config: SearchParamsConfig, space: Space):
        self._optuna = optuna = require_optuna()
        self._config, self._space = config, space
        path = output_dir.resolve() / STUDY
        try:
            self._storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
            self._study = optuna.create_study(
                storage=self._storage,
                study_name=NAME,
                direction="minimize" if config.lower_is_better else "maximize",
                pruner=_pruner_of(optuna, config),
                load_if_exists=True,
            )
            self._study.get_trials()
        except Exception as error:  # of SQLite, of SQLAlchemy, of Optuna: whatever a damaged file leads to
            reason = " ".join(str(error).split())[:150]
            raise CheckpointError(
                f"{path} cannot be read as a study ({reason}); put it back, or give another --output_dir"
            ) from None

    def next_trial(self) -> Optional["Trial"]:
        """Return the trial that a kill has left, or a new one; None when all have been made."""
        trials = self._study.get_trials(deepcopy=False)
        running = [trial.number + 1 for trial in trials if not trial.state.is_finished()]
        if not running and len(trials) >= self._config.trials:
            return None
        if running:
            trial = self._optuna.Trial(self._study, self._id_of(running[0]))
        else:
            self._draw_by(len(trials), 0)
            trial = self._study.ask()
        params = {}
        for place, part in enumerate(self._space):
            self._draw_by(trial.number, place)
            params[part.name] = part.suggest(trial)
        return Trial(self._study, trial, params)

    def _id_of(self, number: int) -> int:
        study_id = self._storage.get_study_id_from_name(NAME)
        return self._storage.get_trial_id_from_study_id_trial_number(study_id, number - 1)

    def _draw_by(self, number: int, place: int) -> None:
        """Let the next value follow from the seed, the number of the trial and the place of the flag."""
        seed = seed_of(self._config.seed, number, place)
        startup = self._config.startup_trials
        self._study.sampler = self._optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup)

    def complete(self, number: int, value: float) -> None:
        """Note that a trial has ended with its best metric ``value``."""
        self._study.tell(number - 1, value)

    def prune(self, number: int) -> None:
        """Note that a trial was ended before its time."""
        self._study.tell(number - 1, state=self._optuna.trial.TrialState.PRUNED)

    def fail(self, number: int, reason: str) -> None:
        """Note that a trial has no metric, and why."""
        self._storage.set_trial_user_attr(self._id_of(number), FAILED, reason)
        self._study.tell(number - 1, state=self._optuna.trial.TrialState.FAIL)

    def outcomes(self) -> List[Outcome]:
        """Return all trials, in the order in which they were begun."""
        return [
            Outcome(
                trial.number + 1,
                STATES.get(trial.state.name, "running"),
                {part.name: trial.params[part.name] for part in self._space if part.name in trial.params},
                trial.value,
                dict(sorted(trial.intermediate_values.items())),
                str(trial.user_attrs.get(FAILED, "")),
            )
            for trial in self._study.get_trials(deepcopy=False)
        ]

    def best(self) -> Optional[Outcome]:
        """Return the complete trial of the best metric, the first of equal ones; None: none is complete."""
        sign = 1 if self._config.lower_is_better else -1
        ranked = [
            (sign * each.value, each.number, each)
            for each in self.outcomes()
            if each.state == "complete" and each.value is not None
        ]
        return min(ranked)[-1] if ranked else None


def _pruner_of(optuna, config: SearchParamsConfig):
    if config.pruner == "median":
        return optuna.pruners.MedianPruner(config.startup_trials, config.prune_after + 1)
    if config.pruner == "asha":
        return optuna.pruners.SuccessiveHalvingPruner(config.prune_after + 1, REDUCTION)
    return optuna.pruners.NopPruner()


class Trial:
    """A trial that is being made; ``params``: {flag: value}."""

    def __init__(self, study, trial, params: Dict[str, Any]):
        self._study, self._trial, self.params = study, trial, params
        self.number: int = trial.number + 1

    @property
    def is_pruned(self) -> bool:
        """Return whether it was pruned before this start."""
        return PRUNED_AT in self._trial.user_attrs

    def best_value(self, lower_is_better: bool) -> Optional[float]:
        """Return the best finite metric of its evaluations; None without one.

        That of the untrained model, before the first step, is none of them: all trials share it.
        """
        curve = self._study.get_trials(deepcopy=False)[self.number - 1].intermediate_values
        values = [value for value in curve.values() if math.isfinite(value)]
        return (min if lower_is_better else max)(values, default=None)

    def report(self, evaluation: int, value: float, is_last: bool = False) -> bool:
        """Note the metric of an evaluation, counted from 1, and return whether the trial is to end there.

        A resumed run comes to evaluations that have been noted before; they were not the end. Nothing is
        saved by pruning a trial at its last evaluation: it is complete.
        """
        known = self._study.get_trials(deepcopy=False)[self.number - 1].intermediate_values
        if evaluation not in known:
            self._trial.report(value, evaluation)
        if is_last or evaluation < max(known, default=0) or not self._trial.should_prune():
            return False
        self._trial.set_user_attr(PRUNED_AT, evaluation)
        return True


class TrialCallback(PairCallback):
    """Reports the evaluations of a run to its trial, every ``eval_freq`` steps and the last one.

    Trials of other batch sizes have other steps; their evaluations are counted, so that the n-th of one
    stands for the same share of its training as the n-th of another. ``trial`` is None on ranks that do not
    know the study: they are never called.
    """

    def __init__(self, trial: Optional[Trial], metric: str):
        self.trial, self.metric = trial, metric

    def on_evaluate(
        self, args: Any, state: Any, control: TrainerControl, *, model: Any, metrics: Any, **kwargs: Any
    ) -> None:
        """Report the evaluation, and stop the run where the trial is to end."""
        step, last = state.global_step, state.max_steps
        if self.trial is None or step == 0 or (step % args.eval_freq and step < last):
            return
        evaluation = math.ceil(step / args.eval_freq)
        if self.trial.report(evaluation, float(metrics[self.metric]), is_last=step >= last):
            control.should_training_stop = True
