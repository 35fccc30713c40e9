"""One run after another with the flags that Optuna draws, and the best of them."""

import json
import logging
import math
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from data_tools.files.atomic_folder import point_link
from data_tools.files.errors import InputError, NumbersError, message_of
from ernie_pair.checkpoint.run_config import keep_config
from ernie_pair.checkpoint.run_folder import BEST, RunLock, best_of, refuse_locked
from ernie_pair.models.labels import Labels
from ernie_pair.models.source import open_model
from ernie_pair.pair.config.pair_config import TrainConfig, chosen_labels
from ernie_pair.pair.targets.metrics import chosen_metric, training_groups
from ernie_pair.pair.train.parts import total_steps
from ernie_pair.series.search_report import FILES, PAGE, lines_of_search, write_search
from ernie_pair.series.search_space import SearchParamsConfig, as_plan, space_of
from ernie_pair.series.series import (
    OneRun,
    Plan,
    Ranks,
    Series,
    pair_source,
    report_series,
    sha256_of_weights,
)
from ernie_pair.series.study import Outcome, Study, Trial, TrialCallback, require_optuna
from ernie_pair.train.run_log import refuse_missing

LOCK, TRIALS = "search.lock", "trials"
OWN_BEST = rf"{TRIALS}/trial-\d{{4,}}/best-[A-Za-z0-9_.-]+"  # where OUT/best leads
MARK = "search space"  # a key that only these plans have
# fmt: off
WITHOUT_EFFECT = (  # on a trial, or only on how many there are
    "output_dir", "report_to", "cache_dir", "overwrite", "trials", "search", "space", "eval_freq",
)
# fmt: on

logger = logging.getLogger(__name__)


class SearchResult(NamedTuple):
    """How a search ended: its trials, the best of them, its run's folder and the flags of that run."""

    trials: List[Outcome]
    best: Outcome
    best_run: Path
    best_config: TrainConfig


def search_params_command(config: SearchParamsConfig) -> None:
    """Run the missing trials, write what they show, print the best. Raises an ErniePairError."""
    search_params(config)


def search_params(config: SearchParamsConfig) -> SearchResult:
    """Run the missing trials, write the results, print the best trial, and return all trials.

    Raises an ErniePairError for whatever the user can fix, NumbersError if no trial has a metric.
    """
    return _Search(config).make()


class _Search:
    """A search, opened by every rank alike; rank 0 alone knows its study."""

    def __init__(self, config: SearchParamsConfig):
        require_optuna()
        source = open_model(
            config.model_name_or_path, model_type=config.model_type or "", from_scratch=config.from_scratch
        )
        labels = chosen_labels(config, source.spec)
        metric = chosen_metric(config.best_metric, labels.target)
        self.config, self.source = replace(config, best_metric=metric), source
        self.space = space_of(config)
        refuse_missing(config.reporters)
        self.ranks = Ranks(config)
        inputs = {name: getattr(config, name) for name in ("train_file", "dev_file", "space")}
        self.series = Series("search-params", "search", MARK, config, FILES, inputs)
        self.ranks.on_first(self.series.refuse_foreign)
        self.output_dir = self.series.folder
        self.rows_of_epoch = _rows_of_epoch(config, labels)
        self.study: Any = None
        self.trial: Optional[Trial] = None
        self.ranks.on_first(self._begin)

    def _begin(self) -> None:
        refuse_locked(self.output_dir / LOCK)
        self.series.keep(self._plan())
        self._lock = RunLock(self.output_dir / LOCK)
        try:
            keep_config(self.output_dir, "search-params", self.config)
            self.study = Study(self.output_dir, self.config, self.space)
        except BaseException:
            self._lock.release()
            raise

    def _plan(self) -> Plan:
        plan: Plan = {MARK: as_plan(self.space)}
        names = (item.name for item in fields(SearchParamsConfig))
        plan.update((name, getattr(self.config, name)) for name in names if name not in WITHOUT_EFFECT)
        for split in ("train", "dev"):
            plan[f"{split}_file (sha256)"] = pair_source(self.config, split, None).sha256()
        plan["model (sha256)"] = sha256_of_weights(self.source)
        return json.loads(json.dumps(plan))

    def make(self) -> SearchResult:
        try:
            while True:
                drawn = self.ranks.on_first(self._draw)
                if drawn is None:
                    break
                self._make(**drawn)
                self.ranks.on_first(self._publish)
            return self._result(self.ranks.on_first(self._finish))
        finally:
            if self.ranks.world.is_first and self.study is not None:
                self._lock.release()

    def _draw(self) -> Optional[Dict[str, Any]]:
        """Return the next trial: its number, its flags and whether it was pruned; None: all are made."""
        self.trial = trial = self.study.next_trial()
        if trial is None:
            return None
        return {"number": trial.number, "params": trial.params, "is_pruned": trial.is_pruned}

    def _make(self, number: int, params: Dict[str, Any], is_pruned: bool) -> None:
        shown = "  ".join(f"{name} {value}" for name, value in params.items())
        logger.info("trial %d of %d: %s", number, self.config.trials, shown)
        reason = ""
        if not is_pruned:
            callback = TrialCallback(self.trial, self.config.best_metric)
            try:
                config = self._config_of(number, params)
            except InputError as error:  # flags that are sound by themselves, and exclude each other
                reason = message_of(error)
            else:
                try:
                    OneRun(config, [callback]).train()
                except NumbersError as error:
                    reason = message_of(error)
        self.ranks.on_first(partial(self._record, number, reason))

    def _config_of(self, number: int, params: Dict[str, Any]) -> TrainConfig:
        """Return the flags of a trial's run. Raises InputError if they exclude each other."""
        cache = self.config.cache_dir or str(self.output_dir / "cache")  # of encoded pairs, for all trials
        changes = {**params, "output_dir": str(self._folder(number)), "cache_dir": cache}
        config = self.config.config_of(changes)
        steps = total_steps(config, self.rows_of_epoch(config), self.ranks.world)
        freq = max(1, math.ceil(steps / self.config.evaluations))
        return self.config.config_of({**changes, "eval_freq": freq})

    def _folder(self, number: int) -> Path:
        return self.output_dir / TRIALS / f"trial-{number:04d}"

    def _record(self, number: int, reason: str) -> None:
        assert self.trial is not None  # this is rank 0
        value = self.trial.best_value(self.config.lower_is_better)
        if self.trial.is_pruned:
            self.study.prune(number)
            logger.info("trial %d is pruned", number)
        elif reason or value is None or not math.isfinite(value):
            reason = reason or f"its {self.config.best_metric} has no value"
            self.study.fail(number, reason)
            logger.warning("trial %d has failed, and the search continues: %s", number, reason)
        else:
            self.study.complete(number, value)
            logger.info("trial %d: %s %.4f", number, self.config.best_metric, value)

    def _publish(self) -> Optional[Outcome]:
        """Write what the trials so far show, point OUT/best to the best model of them, return its trial."""
        best = self.study.best()
        config = None if best is None else self._config_of(best.number, best.params)
        with self.series.published() as drafts:
            write_search(drafts, self.config, self.space, self.study.outcomes(), config)
        folder = None if best is None else best_of(self._folder(best.number))
        if folder is not None:
            point_link(self.output_dir / BEST, folder.relative_to(self.output_dir), OWN_BEST)
        return best

    def _finish(self) -> Dict[str, Any]:
        """Show the end, and return all trials as JSON values. Raises NumbersError if none is complete."""
        best, outcomes, metric = self._publish(), self.study.outcomes(), self.config.best_metric
        if best is None:
            reason = next((each.reason for each in reversed(outcomes) if each.reason), "all are pruned")
            raise NumbersError(
                f"none of {len(outcomes)} trials has a {metric} ({reason}); search another space"
            )
        points = []
        for each in outcomes:
            values = {**each.params, **({} if each.value is None else {metric: each.value})}
            numbers = {f"search/{n}": v for n, v in values.items() if isinstance(v, (int, float))}
            points.append((each.number, numbers))
        report_series(self.config.reporters, self.output_dir, asdict(self.config), points)
        logger.info("best model: %s; report: %s", self.output_dir / BEST, self.output_dir / PAGE)
        print("\n".join(lines_of_search(outcomes, best, self.config)))
        return {"outcomes": [list(each) for each in outcomes], "best": best.number}

    def _result(self, end: Optional[Dict[str, Any]]) -> SearchResult:
        assert end is not None  # rank 0 has sent it to all
        trials = [Outcome(*each) for each in end["outcomes"]]
        trials = [each._replace(curve={int(n): v for n, v in each.curve.items()}) for each in trials]
        best = trials[end["best"] - 1]
        config = self._config_of(best.number, best.params)
        return SearchResult(trials, best, self._folder(best.number), config)


def _rows_of_epoch(config: SearchParamsConfig, labels: Labels) -> Callable[[TrainConfig], int]:
    """Return what counts the rows of an epoch of a trial: 0 for a stream, for a ranking its queries.

    Raises InputError for a row that a trial would refuse.
    """
    if config.streaming:
        return lambda trial: 0
    train = pair_source(config, "train", labels).read()
    num_pairs, groups, known = len(train), train.groups, train.known_labels
    if groups is None:
        return lambda trial: num_pairs
    return lambda trial: len(training_groups(groups, known, trial.most_candidates))
