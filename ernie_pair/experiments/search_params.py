"""A search of flags: one run of `train` after another, with the flags that Optuna suggests.

OUT/study.db is the study, for Optuna itself as well. What a trial draws follows from the seed, its number and
what the trials before it have shown; a killed search goes on with the trial that it was at.
"""

import math
import warnings
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Optional

import numpy as np
import yaml

from ernie_pair.checkpoint.run_folder import BEST, cleanup_on_error, find_best
from ernie_pair.core.cli.options import defaults_of, paths_in
from ernie_pair.core.errors import CheckpointError, InputError, NumbersError, message_of
from ernie_pair.core.files.atomic_files import ABOUT, CONFIG_YAML
from ernie_pair.core.files.atomic_folder import only_writer, point_link
from ernie_pair.core.installation import import_optional
from ernie_pair.core.progress import say
from ernie_pair.experiments.config import SearchParamsConfig
from ernie_pair.experiments.series import WRITTEN_FIRST, PairSeries, TrainingRun, report_series
from ernie_pair.pairs.config.pair_config import TrainConfig
from ernie_pair.pairs.data.pair_source import PairSource
from ernie_pair.pairs.targets.metrics import training_groups
from ernie_pair.report.page import Chart, Origin, Table, chart_of_figure, page_of_tables
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.runtime.processes.world import launched_world, seed_of
from ernie_pair.training.callbacks import PairCallback
from ernie_pair.training.schedule import count_steps

NAME, STUDY, TRIALS, FILES = "ernie-pair", "study.db", "trials", ("best.yaml", "trials.tsv", "search.html")
STARTUP_TRIALS = 5  # drawn at random and not pruned by median
REASON = "reason"  # why a trial has failed
OWN_BEST = rf"{TRIALS}/trial-\d{{4,}}/best-[A-Za-z0-9_.-]+"  # where OUT/best leads
EXAMPLE = "{learning_rate: {suggest: float, low: 1e-5, high: 1e-4, log: true}}"
PICTURES = ("optimization_history", "intermediate_values", "slice", "param_importances")


def import_optuna() -> Any:
    """Return Optuna, which only warns of itself. Raises InputError when it is not installed."""
    optuna = import_optional("optuna", "tune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def suggest_value(trial: Any, name: str, suggest: str, **given: Any) -> Any:
    """Return the value of a flag for a trial of Optuna, drawn now or before, by its suggest_float, say."""
    return getattr(trial, f"suggest_{suggest}")(name, **given)


def _set_here(config: SearchParamsConfig) -> set[str]:
    """Return the flags that are set for each trial, or are of no effect on it."""
    own = ("trials", "space", "eval_freq")
    return {*paths_in(config, "writes"), *defaults_of(config, "shown", "start"), *own}


def read_space(config: SearchParamsConfig) -> dict[str, dict[str, Any]]:
    """Return --space: {flag: {"suggest": float, int or categorical, and what Optuna's suggest_... takes}}.

    Raises InputError for flags that `train` lacks or that the search sets, and for what Optuna refuses.
    """
    set_here = _set_here(config)
    trial, text = import_optuna().create_study().ask(), config.space
    try:
        is_file = not text.lstrip().startswith("{")
        space = yaml.safe_load(Path(text).read_text(encoding="utf-8") if is_file else text)
        if not space:
            raise ValueError("there is nothing to search")
        for name, about in space.items():
            if name not in TrainConfig.__dataclass_fields__ or name in set_here:
                raise ValueError(f"{name} is not a flag to search")
            if about["suggest"] == "float":  # YAML reads 1e-5 as a word
                about.update({end: float(about[end]) for end in ("low", "high", "step") if end in about})
            suggest_value(trial, name, **about)
            for value in about.get("choices") or (about["low"], about["high"]):
                config.config_of({name: value})  # refused in its own words
    except (OSError, ValueError, TypeError, AttributeError, KeyError, yaml.YAMLError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InputError(f"--space {text}: {reason}; write a file of YAML, or {EXAMPLE}") from None
    return space


def open_study(config: SearchParamsConfig) -> tuple[Any, Any]:
    """Return the study of a search, opened or begun, and its storage. Raises CheckpointError for no study."""
    optuna, path = import_optuna(), Path(config.output_dir).resolve() / STUDY
    pruners = {
        "median": optuna.pruners.MedianPruner(STARTUP_TRIALS, n_warmup_steps=2),
        "asha": optuna.pruners.SuccessiveHalvingPruner(min_resource=2, reduction_factor=3),
        "none": optuna.pruners.NopPruner(),
    }
    about: Any = {"study_name": NAME, "load_if_exists": True, "pruner": pruners[config.pruner]}
    about.update(direction="minimize" if config.lower_is_better else "maximize")
    try:
        storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
        study = optuna.create_study(storage=storage, **about)
        study.get_trials()
    except Exception as error:  # of SQLite, of SQLAlchemy, of Optuna: whatever a damaged file leads to
        cure = "check the free space, put it back, or give another --output_dir"
        reason = " ".join(str(error).split())[:150]
        raise CheckpointError(f"{path} cannot be read or written as a study ({reason}); {cure}") from None
    return study, storage


def best_trial(study: Any) -> Any:
    """Return the complete trial of the best value, the first of equal ones; None: none is complete."""
    complete = [trial for trial in study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"]
    sign = 1 if study.direction.name == "MINIMIZE" else -1
    return min(complete, key=lambda trial: sign * trial.value, default=None)


def search_params(config: SearchParamsConfig) -> Any:
    """Search for the best training options, and return all trials and the best of them, on rank 0.

    Runs the missing trials, writes the results and prints the best.

    Raises an ErniePairError for whatever the user can fix, NumbersError if no trial has a metric.
    """
    start = cleanup_on_error(config.output_dir, launched_world(), *WRITTEN_FIRST, STUDY)
    with start, StopSignals(when="between two trials"), ExitStack() as held:
        search = _Search(config)
        search.on_first(lambda: held.enter_context(only_writer(search.output_dir.resolve())))
        search.on_first(search.begin)
        drawn = search.on_first(search.draw)
        while drawn is not None:
            search.train(*drawn)
            drawn = search.on_first(search.draw)
        search.on_first(search.finish)
        return search.study


class _Search(PairSeries):
    """A search, opened by every rank alike; rank 0 alone knows its study."""

    study: Any = None
    storage: Any = None
    trial: Any = None

    def __init__(self, config: SearchParamsConfig):
        self.space = read_space(config)
        super().__init__("search-params", config, FILES)

    def begin(self) -> None:
        set_here = _set_here(self.config)
        plan = {name: value for name, value in asdict(self.config).items() if name not in set_here}
        self.keep("search-params", {"search space": self.space, **plan})
        self.study, self.storage = open_study(self.config)

    def draw(self) -> Optional[tuple[int, dict[str, Any]]]:
        """Return number and flags of the trial that a kill has left, or of the next; None: all are made."""
        optuna, trials = import_optuna(), self.study.get_trials(deepcopy=False)
        running = [trial for trial in trials if not trial.state.is_finished()]
        if not running and len(trials) >= self.config.trials:
            return None
        if running:
            study_id = self.storage.get_study_id_from_name(NAME)
            find_id = self.storage.get_trial_id_from_study_id_trial_number
            self.trial = optuna.Trial(self.study, find_id(study_id, running[0].number))
        else:
            self.trial = self.study.ask()
        for place, (name, about) in enumerate(self.space.items()):
            seed, startup = seed_of(self.config.seed, self.trial.number, place), STARTUP_TRIALS
            self.study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup)
            suggest_value(self.trial, name, **about)
        return self.trial.number, self.trial.params

    def train(self, number: int, params: dict[str, Any]) -> None:
        """Make the run of a trial, which goes on where its folder stands, and tell the study how it ended."""
        callback, reason = TrialCallback(self.trial, self.config.best_metric), ""
        try:
            config = self._config_of(number, params)
        except InputError as error:  # flags that are sound by themselves, and exclude each other
            reason = message_of(error)
        else:
            try:
                TrainingRun(config, [callback]).train()
            except NumbersError as error:
                reason = message_of(error)
        ended = "FAIL" if reason else "PRUNED" if callback.is_pruned else "COMPLETE"
        self.on_first(lambda: self._tell(number, ended, reason))

    def _config_of(self, number: int, params: dict[str, Any]) -> TrainConfig:
        cache = self.config.cache_dir or str(self.output_dir / "cache")  # of encoded pairs, for all trials
        changes = {**params, "output_dir": str(self._folder(number)), "cache_dir": cache}
        config, rows = self.config.config_of(changes), 0
        if not config.streaming:  # of a ranking the queries count
            pairs = PairSource.of(self.config, "train_file", self.labels).read()
            labels, groups = pairs.known_labels, pairs.groups
            rows = len(pairs if groups is None else training_groups(groups, labels, config.most_candidates))
        freq = math.ceil(count_steps(config, rows, self.world.size) / self.config.evaluations)
        return self.config.config_of({**changes, "eval_freq": max(1, freq)})

    def _folder(self, number: int) -> Path:
        return self.output_dir / TRIALS / f"trial-{number:04d}"

    def _tell(self, number: int, ended: str, reason: str) -> None:
        curve = self.study.get_trials(deepcopy=False)[number].intermediate_values.values()
        values = [value for value in curve if math.isfinite(value)]
        if ended == "COMPLETE" and not values:
            ended, reason = "FAIL", f"its {self.config.best_metric} has no value"
        self.trial.set_user_attr(REASON, reason)
        state = import_optuna().trial.TrialState[ended]
        best = (min if self.config.lower_is_better else max)(values, default=None)
        self.study.tell(number, best if ended == "COMPLETE" else None, state=state)
        say(f"trial {number} of {self.config.trials}: {state.name.lower()} {reason or best}")
        self._publish()

    def _publish(self) -> None:
        """Write what the trials so far show, and point OUT/best to the best model of them."""
        best, asked = best_trial(self.study), ("number", "value", "state", "params", "user_attrs")
        table, run = self.study.trials_dataframe(asked), self._folder(best.number) if best else None
        of_best = yaml.safe_load((run / CONFIG_YAML).read_text(encoding="utf-8")) if run else {}
        of_best.pop(ABOUT, None)
        shown = Table("Trials", list(table.columns), table.astype(str).values.tolist(), "")
        page = page_of_tables("Hyper-parameter search", [shown], self._charts(), Origin(asdict(self.config)))
        with self.series.published() as (flags, trials, page_draft):
            flags.write_text(yaml.safe_dump(of_best, allow_unicode=True, sort_keys=False), encoding="utf-8")
            table.to_csv(trials, sep="\t", index=False)
            page_draft.write_text(page, encoding="utf-8")
        model = find_best(run) if run else None
        if model:
            point_link(self.output_dir / BEST, model.relative_to(self.output_dir), OWN_BEST)

    def _charts(self) -> list[Chart]:
        """Return Optuna's pictures, as far as there are trials enough for them."""
        from matplotlib import rc_context

        plots, charts = import_optuna().visualization.matplotlib, []
        with warnings.catch_warnings(), rc_context():  # they set a style for the whole process
            warnings.simplefilter("ignore")
            for name in PICTURES:
                with suppress(ValueError, RuntimeError):  # it wants more trials
                    axes = getattr(plots, f"plot_{name}")(self.study)
                    charts.append(chart_of_figure(name.replace("_", " "), np.ravel(axes)[0].figure))
        return charts

    def finish(self) -> None:
        """Print the best trial. Raises NumbersError if none is complete."""
        best, metric, trials = best_trial(self.study), self.config.best_metric, self.study.trials
        if best is None:
            reason = next((trial.user_attrs[REASON] for trial in trials if trial.user_attrs[REASON]), "")
            raise NumbersError(
                f"no trial has a {metric} ({reason or 'all are pruned'}); search another space"
            )
        points = [(trial.number, {f"search/{metric}": trial.value}) for trial in trials if trial.value]
        report_series(self.config.reporters, self.output_dir, asdict(self.config), points)
        told = "  ".join(f"--{name} {value}" for name, value in best.params.items())
        say(f"best {metric} {best.value:.4f} of {len(trials)} trials, trial {best.number}: {told}")


class TrialCallback(PairCallback):
    """Reports the evaluations of a run to its trial of Optuna, and ends the run where it is to be pruned.

    Evaluations are counted: the n-th of one trial stands for the same share of its training as that of
    another. ``trial`` is None on ranks that do not know the study: they are never called.
    """

    def __init__(self, trial: Any, metric: str):
        self.trial, self.metric, self.is_pruned = trial, metric, False

    def on_evaluate(self, args: Any, state: Any, control: Any, *, metrics: Any, **more: Any) -> None:
        """Report the evaluation; what a resumed run comes to again was not the end."""
        step, last = state.global_step, state.max_steps
        if self.trial is None or step == 0 or (step % args.eval_freq and step < last):
            return
        evaluation = math.ceil(step / args.eval_freq)
        known = self.trial.study.get_trials(deepcopy=False)[self.trial.number].intermediate_values
        if evaluation not in known:
            self.trial.report(float(metrics[self.metric]), evaluation)
        if step < last and evaluation >= max(known, default=0) and self.trial.should_prune():
            self.is_pruned = control.should_training_stop = True
