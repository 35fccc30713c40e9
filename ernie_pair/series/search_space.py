"""The flags of ernie-pair search-params, and the values of flags that it draws from."""

from dataclasses import dataclass, fields
from typing import Any, Dict, Iterator, List, Literal, Tuple, Union, get_args

import yaml

from data_tools.files.errors import InputError, counted
from data_tools.options.flag_words import Entry, entries_of, read_mapping
from data_tools.options.foreign_flags import nearest
from data_tools.options.options import Given, hints_of, option, read_given, refuse_empty
from ernie_pair.pair.config.pair_config import TrainConfig


@dataclass(frozen=True)
class SearchParamsConfig(TrainConfig):
    """Train with one set of flags after another, and find the best set. Start it again to resume."""

    EXAMPLE = (
        "--model_name_or_path ernie-gram-zh --train_file lcqmc --dev_file lcqmc --output_dir searched "
        "--search 'learning_rate=1e-5..1e-4:log batch_size=16,32'"
    )

    output_dir: str = option(
        help="a folder per trial, the study, best.yaml, best and the report go here", group="data"
    )
    search: str = option(
        "",
        help="flags to search: 'learning_rate=1e-5..1e-4:log batch_size=16,32 dropout=0..0.3:0.1' (:step)",
        group="optimisation",
    )
    space: str = option(
        "",
        help="a YAML file of flags to search: learning_rate: {low: 1e-5, high: 1e-4, log: true}, batch_size: "
        "[16, 32]",
        group="optimisation",
    )
    trials: int = option(
        20,
        help="total number of trials, over all starts of the command",
        group="optimisation",
        unit="trials",
        at_least=1,
    )
    evaluations: int = option(
        10,
        help="evaluations per trial, evenly spaced over its steps, instead of --eval_freq; a trial may be "
        "pruned at each of them",
        group="evaluation",
        unit="evaluations",
        at_least=1,
    )
    pruner: Literal["median", "asha", "none"] = option(
        "median",
        help="stop a trial that is worse than the median of earlier ones (median), or not in the best third "
        "(asha)",
        group="optimisation",
    )
    startup_trials: int = option(
        5,
        help="first trials, drawn at random; median never prunes them and compares later trials with them",
        group="optimisation",
        unit="trials",
        at_least=1,
    )
    prune_after: int = option(
        1,
        help="evaluations before a trial may be pruned",
        group="optimisation",
        unit="evaluations",
        at_least=0,
    )
    overwrite: bool = option(
        False, help="replace files that this command did not make, or that have changed since", group="data"
    )

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output_dir")
        if self.fresh_start:
            raise InputError(
                "--fresh_start true is for a single run; give another --output_dir to start again"
            )
        if self.dry_run:
            raise InputError("--dry_run true is for a single run; try it with ernie-pair train")
        if self.evaluation_strategy in ("epoch", "no"):
            raise InputError(
                f"--evaluation_strategy {self.evaluation_strategy}: trials are compared at --evaluations of "
                "each; leave it out"
            )

    def config_of(self, changes: Dict[str, Any]) -> TrainConfig:
        """Return these flags with ``changes``, for one run. Raises InputError for invalid values."""
        own = {item.name: getattr(self, item.name) for item in fields(TrainConfig)}
        idle = self.idle_in({**own, **changes})  # of a trial without AMP
        return TrainConfig(**{**{name: own[name] for name in own if name not in idle}, **changes})


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
            yield _choice(name, [_given(Entry(name, one, where)) for one in value.value], where)
        elif isinstance(value, yaml.MappingNode):
            inner = [entry._replace(where=f"{where}: {entry.name}") for entry in entries_of(path, value)]
            scalars = {entry.name: _given(entry) for entry in inner}
            unknown = next((key for key in scalars if key not in KEYS), None)
            if unknown is not None:
                raise InputError(f"{where}: {unknown[:40]} is not one of {', '.join(KEYS)}; {YAML_EXAMPLE}")
            yield _range(name, scalars, where)
        else:
            raise InputError(f"{where} has one value, and nothing to search; {YAML_EXAMPLE}")


def _given(entry: Entry) -> Given:
    if not isinstance(entry.value, yaml.ScalarNode):
        raise InputError(f"{entry.where} holds no single value; {YAML_EXAMPLE}")
    return Given(entry.value.value, entry.where)


def _refuse_name(name: str, where: str) -> None:
    known = [each for each in hints_of(TrainConfig) if each not in NOT_SEARCHED]
    if name in NOT_SEARCHED:
        raise InputError(
            f"{where}: --{name} is not a flag to search: it does not improve a model; leave it out"
        )
    if name not in known:
        raise InputError(f"{where}: {name[:40]} is not a flag of train; {nearest([name], known)}")


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
