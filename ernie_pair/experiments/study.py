"""The study of a search in OUT/study.db, an SQLite file of Optuna: what is drawn, and what came of it.

Optuna and not Ray Tune: it needs no service and no processes of its own, has wheels for CPython 3.10 to 3.13,
and a killed process leaves its file whole. What a trial draws follows from the seed, its number and what the
trials before it have shown alone, so that a search that was killed draws what it would have drawn.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union, get_args

import yaml

from ernie_pair.core.cli.flag_words import entries_of, read_mapping
from ernie_pair.core.cli.nearest_flags import suggest_flags
from ernie_pair.core.cli.options import Given, hints_of, read_given
from ernie_pair.core.errors import CheckpointError, InputError, MachineError, counted
from ernie_pair.core.installation import import_optional
from ernie_pair.experiments.config import SearchParamsConfig
from ernie_pair.pairs.config.pair_config import TrainConfig
from ernie_pair.runtime.processes.world import seed_of
from ernie_pair.training.callbacks import PairCallback
from ernie_pair.training.hooks import TrainerControl

EXAMPLE = "write learning_rate=1e-5..1e-4:log or batch_size=16,32"
YAML_EXAMPLE = "write {low: 1e-5, high: 1e-4, log: true} or [16, 32]"
KEYS = ("low", "high", "log", "step")
# What says where a run lies, how it is shown or judged, and not how well it learns.
# fmt: off
NOT_SEARCHED = (
    "output_dir", "train_file", "dev_file", "text_a", "text_b", "label", "encoding", "on_bad_row",
    "label_map", "cache_dir", "fresh_start", "allow_change", "report_to", "sync_freq", "device", "seed",
    "best_metric", "greater_is_better", "eval_freq", "logging_freq", "checkpoint_steps", "keep_best",
    "save_format", "streaming", "shuffle_buffer", "deterministic", "on_nan", "model_class", "dry_run",
)
# fmt: on

Number = Union[int, float]


@dataclass(frozen=True)
class Range:
    """Numbers of a flag from ``low`` to ``high``; ``log``: drawn by their logarithm; ``step`` None: any."""

    name: str
    low: Number
    high: Number
    log: bool = False
    step: Any = None

    def suggest(self, trial) -> Number:
        """Return the value of a trial of Optuna, drawn now or before."""
        if isinstance(self.low, int):
            return trial.suggest_int(self.name, self.low, self.high, step=self.step or 1, log=self.log)
        return trial.suggest_float(self.name, self.low, self.high, step=self.step, log=self.log)


@dataclass(frozen=True)
class Choice:
    """The values that a flag may have."""

    name: str
    values: Tuple[Any, ...]

    def suggest(self, trial) -> Any:
        """Return the value of a trial of Optuna, drawn now or before."""
        return trial.suggest_categorical(self.name, self.values)


Space = List[Union[Range, Choice]]


def space_of(config: SearchParamsConfig) -> Space:
    """Return what --search and --space name, in their order.

    Raises InputError, for the file with file:line, where a flag cannot be searched so.
    """
    if not (config.search or config.space):
        raise InputError(
            "--search and --space are empty: there is nothing to search; pass "
            "--search 'learning_rate=1e-5..1e-4:log batch_size=16,32', for example"
        )
    space: Space = []
    for part in (*_in_words(config.search), *_in_file(config.space)):
        if part.name in {other.name for other in space}:
            raise InputError(f"{part.name} is given twice; name it once in --search and --space")
        space.append(part)
    for part in space:
        for value in (part.low, part.high) if isinstance(part, Range) else part.values:
            config.config_of({part.name: value})  # refused in its own words
    return space


def as_plan(space: Space) -> Dict[str, str]:
    """Return the space as the plan of the search keeps it."""
    plan = {}
    for part in space:
        if isinstance(part, Choice):
            plan[part.name] = ",".join(map(str, part.values))
        else:
            how = ":log" if part.log else f":{part.step}" if part.step else ""
            plan[part.name] = f"{part.low}..{part.high}{how}"
    return plan


def _in_words(text: str) -> Iterator[Union[Range, Choice]]:
    for word in text.split():
        name, equals, value = word.partition("=")
        where = f"--search {word}"
        if not (equals and value):
            raise InputError(f"{where}: {word} has no values; {EXAMPLE}")
        _refuse_name(name, where)
        if ".." not in value:
            yield _choice(name, [Given(one, where) for one in value.split(",")], where)
            continue
        low, _, rest = value.partition("..")
        high, _, how = rest.partition(":")
        words = {"low": Given(low, where), "high": Given(high, where)}
        if how == "log":
            words["log"] = Given("true", where)
        elif how:
            words["step"] = Given(how, where)
        yield _range(name, words, where)


def _in_file(path: str) -> Iterator[Union[Range, Choice]]:
    entries = read_mapping(path, "space") if path else []
    if path and not entries:
        raise InputError(f"--space {path}: nothing to search in it; {YAML_EXAMPLE} for a flag")
    for name, value, where in entries:
        where = f"{where}: {name[:40]}"
        _refuse_name(name, where)
        if isinstance(value, yaml.SequenceNode):
            yield _choice(name, [_given(where, one) for one in value.value], where)
        elif isinstance(value, yaml.MappingNode):
            parts = entries_of(path, value)
            scalars = {part.name: _given(f"{where}: {part.name}", part.value) for part in parts}
            unknown = next((key for key in scalars if key not in KEYS), None)
            if unknown is not None:
                raise InputError(f"{where}: {unknown[:40]} is not one of {', '.join(KEYS)}; {YAML_EXAMPLE}")
            yield _range(name, scalars, where)
        else:
            raise InputError(f"{where} has one value, and nothing to search; {YAML_EXAMPLE}")


def _given(where: str, node: yaml.Node) -> Given:
    if not isinstance(node, yaml.ScalarNode):
        raise InputError(f"{where} holds no single value; {YAML_EXAMPLE}")
    return Given(node.value, where)


def _refuse_name(name: str, where: str) -> None:
    known = [each for each in hints_of(TrainConfig) if each not in NOT_SEARCHED]
    if name in NOT_SEARCHED:
        raise InputError(
            f"{where}: --{name} is not a flag to search: it does not improve a model; leave it out"
        )
    if name not in known:
        raise InputError(f"{where}: {name[:40]} is not a flag of train; {suggest_flags([name], known)}")


def _choice(name: str, words: List[Given], where: str) -> Choice:
    values = tuple(read_given(one, hints_of(TrainConfig)[name]) for one in words)
    if len(set(values)) < 2 or len(set(values)) < len(values):
        raise InputError(
            f"{where}: {counted(len(set(values)), 'different value')} of {len(values)}; {EXAMPLE}"
        )
    return Choice(name, values)


def _range(name: str, words: Dict[str, Given], where: str) -> Range:
    hint = hints_of(TrainConfig)[name]
    kind = next((one for one in (hint, *get_args(hint)) if one in (int, float)), None)
    if kind is None:
        raise InputError(f"{where}: a flag that is no number has no range; list its values")
    if not {"low", "high"} <= set(words):
        raise InputError(f"{where}: low or high is missing; {YAML_EXAMPLE}")
    low, high = (read_given(words[end], kind) for end in ("low", "high"))
    log = bool(read_given(words["log"], bool)) if "log" in words else False
    step = read_given(words["step"], kind) if "step" in words else None
    assert isinstance(low, (int, float)) and isinstance(high, (int, float))  # as kind says
    if low >= high:
        raise InputError(f"{where}: low {low} is not below high {high}; swap them, or correct one")
    if log and (low <= 0 or step is not None):
        raise InputError(f"{where}: log needs a low above 0, and no step; leave it or the step out")
    if step is not None and not 0 < float(str(step)) <= high - low:
        raise InputError(f"{where}: step {step} does not lie between 0 and {high - low}; take a smaller one")
    return Range(name, low, high, log, step)


STUDY, NAME = "study.db", "ernie-pair"
NO_ROOM = re.compile(r"disk I/O error|disk is full")  # what SQLite says
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

    Raises CheckpointError when its file is damaged, MachineError when it cannot grow.
    """

    def __init__(self, output_dir: Path, config: SearchParamsConfig, space: Space):
        self._optuna = optuna = require_optuna()
        self._config, self._space = config, space
        path = output_dir.resolve() / STUDY
        pruners = {
            "median": lambda: optuna.pruners.MedianPruner(config.startup_trials, config.prune_after + 1),
            "asha": lambda: optuna.pruners.SuccessiveHalvingPruner(config.prune_after + 1, REDUCTION),
            "none": optuna.pruners.NopPruner,
        }
        try:
            self._storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
            direction = "minimize" if config.lower_is_better else "maximize"
            about = {"study_name": NAME, "direction": direction, "pruner": pruners[config.pruner]()}
            self._study = optuna.create_study(storage=self._storage, load_if_exists=True, **about)
            self._study.get_trials()
        except Exception as error:  # of SQLite, of SQLAlchemy, of Optuna: whatever a damaged file leads to
            reason = " ".join(str(error).split())[:150]
            if NO_ROOM.search(reason):
                raise MachineError(
                    f"{path} cannot be written ({reason}); check the free space, and the limit of file sizes "
                    "(ulimit -f)"
                ) from None
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
        complete = [each for each in self.outcomes() if each.state == "complete"]
        complete.sort(key=lambda each: (sign * (each.value or 0.0), each.number))
        return next(iter(complete), None)


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
        """Return the best finite metric of its evaluations after the first step; None without one."""
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
