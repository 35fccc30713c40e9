"""The runs of experiments.yaml, at the sizes of the flags of run.py."""

import hashlib
import json
from dataclasses import asdict, dataclass, field, make_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Tuple

import yaml

from ernie_pair.core.cli.options import Options, option
from ernie_pair.core.errors import InputError
from proof import figures

TABLE = yaml.safe_load(Path(__file__).with_name("experiments.yaml").read_text(encoding="utf-8"))
TITLES: Dict[str, str] = {group: content["title"] for group, content in TABLE["groups"].items()}
FIRST_SEED, PAIRS_OF_A_STEP = 1234, TABLE["flags"]["of_training"]["batch_size"]
PEER_PYTHON = "$PEER_PYTHON"
Values = Mapping[str, Any]
Words = Tuple[str, ...]
_SIZES = [(name, type(size["default"]), option(**size)) for name, size in TABLE["sizes"].items()]
Sizes = make_dataclass("Sizes", _SIZES, bases=(Options,), frozen=True)


@dataclass(frozen=True)
class Scale(Sizes):
    """The shape of the model, the lengths of the trainings and the sizes of the data."""

    def __post_init__(self):
        super().__post_init__()
        if self.batch % (2 * self.processes):
            raise InputError(
                f"--batch {self.batch} is not a multiple of twice --processes {self.processes}, and some "
                "rows have half the batch; change one of them"
            )


@dataclass(frozen=True)
class Places:
    """The folders: runs write to ``work`` and read ``data``, and ``run`` is that of one run.

    ``peer_python`` has transformers on torch; empty: not needed. Commands name them $WORK, $DATA, $RUN
    and $PEER_PYTHON, so that no path of a machine is published.
    """

    work: Path
    data: Path
    run: Path
    peer_python: str = ""

    def expand(self, text: str) -> str:
        for name, path in vars(self).items():
            text = text.replace(f"${name.upper()}", str(path))
        return text

    def path(self, text: str) -> Path:
        return Path(self.expand(text))


@dataclass(frozen=True)
class Run:
    """One row of the results.

    commands  the words of each, first `ernie-pair` or a script: they resume where they were killed
    read      returns the figures once all commands have ended
    seeds     what differs between repetitions within it
    files     {path: text}, written before the commands, such as the flags of a training
    needs     outputs of other runs: without them this one is left out
    curve     a metrics.jsonl whose evaluations are kept
    links     {link: its target}, made once all commands have ended
    """

    name: str
    title: str
    commands: Tuple[Words, ...]
    read: Callable[[Places], figures.Figures]
    seeds: Tuple[int, ...] = (1234,)
    files: Mapping[str, str] = field(default_factory=dict)
    needs: Tuple[str, ...] = ()
    curve: str = ""
    links: Mapping[str, str] = field(default_factory=dict)

    @property
    def recipe(self) -> Dict[str, Any]:
        """Return what determines the figures: a run whose recipe has changed is made again."""
        return {"commands": [list(words) for words in self.commands], "files": dict(self.files)}


def sizes_of(scale: Scale) -> Dict[str, Any]:
    """Return what the table calls by name: the flags, and what follows from them."""
    batch, length, processes, rate = scale.batch, scale.length, scale.processes, scale.learning_rate
    parts = f"choose{scale.choose}-rest{scale.rest}"
    plain_steps = -(-scale.large_rows * scale.epochs // PAIRS_OF_A_STEP)
    return {
        **asdict(scale), "micro_batch": batch // processes, "half_micro": batch // 2 // processes,
        "double_micro": 2 * batch // processes, "half_batch": batch // 2, "double_batch": 2 * batch,
        "half_length": length // 2, "double_length": 2 * length, "join_tokens": 4 * length,
        "half_rate": scale.rate / 2, "double_rate": 2 * scale.rate, "four_hidden": 4 * scale.hidden,
        "half_steps": scale.steps // 2, "double_ablation": 2 * scale.ablation_steps, "quarter_rate": rate / 4,
        "four_rate": 4 * rate, "two_epochs": 2 * scale.epochs, "four_epochs": 4 * scale.epochs,
        # Steps and evaluations of the training of `plain`, for those with a larger file.
        "plain_steps": plain_steps, "plain_evaluations": -(-plain_steps // scale.epochs),
        # The folders of data sets that are cut, at these sizes, into parts without a common pair.
        "lcqmc": f"$WORK/pairs/lcqmc-{scale.small_rows}-{scale.large_rows}-{parts}",
        "afqmc": f"$WORK/pairs/afqmc-{parts}",
    }  # fmt: skip


def words_of(program: str, *words: str, **flags: object) -> Words:
    """Return the words of a script, or of a command of ernie-pair; a flag whose value is None is left out."""
    first = (program,) if program.startswith(("scripts/", "python")) else ("ernie-pair", program)
    named = (f"--{name}={_shown(value)}" for name, value in flags.items() if value is not None)
    return (*first, *words, *named)


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def runs_of(group: str, scale: Scale) -> List[Run]:
    content, sizes = TABLE["groups"][group], {**sizes_of(scale), "group": group}
    defaults = {"steps": "steps", "number_of_seeds": 1, **content.get("defaults", {})}
    return [_run_of(name, {**defaults, **row}, sizes) for name, row in content["runs"].items()]


def _run_of(name: str, row: Dict[str, Any], sizes: Values) -> Run:
    steps = sizes[row["steps"]]
    tenth, hundredth, half = (max(1, steps // part) for part in (10, 100, 2))
    of_steps = {"run_steps": steps, "tenth": tenth, "hundredth": hundredth, "half_of_steps": half}
    values = {**sizes, **of_steps, **TABLE["flags"], "flags": {}, **row, "name": name}
    for key in ("cut", "text", "number_of_seeds", "train_file", "choose_file", "test"):  # in this order
        if key in row:
            values[key] = fill(row[key], values)
    values["seed_list"] = seeds = tuple(range(FIRST_SEED, FIRST_SEED + values["number_of_seeds"]))
    for key in row.keys() & {"stages", "train"}:  # with the items of each seed
        values[key] = fill(row[key], values)
    if "train" in row:
        settings = [values["train"], values.get("test"), len(seeds), values["bootstrap"]]  # but the starts
        values["settings"] = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    function, arguments = row["read"]
    files = {path: fill(flags, values).items() for path, flags in row.get("files", {}).items()}
    return Run(
        name, fill(row["title"], values), tuple(_commands(row["commands"], values)),
        partial(getattr(figures, function), **fill(arguments, values)), seeds,
        {path: "".join(f"{key}: {_shown(each)}\n" for key, each in flags) for path, flags in files.items()},
        tuple(fill(row.get("needs", []), values)), fill(row.get("curve", ""), values),
        fill(row.get("links", {}), values),
    )  # fmt: skip


def _commands(entries: List[Any], values: Values) -> Iterator[Words]:
    for entry in entries:
        if isinstance(entry, str):
            yield from _commands(TABLE["commands"][entry.format_map(values)], values)
        elif "use" in entry:
            yield from _commands(TABLE["commands"][entry["use"]], {**values, **fill(entry["with"], values)})
        elif "each_seed" in entry:
            for seed in values["seed_list"]:
                yield from _commands(entry["each_seed"], {**values, "seed": seed})
        else:
            ((program, flags),) = entry.items()
            yield words_of(*program.format_map(values).split(), **fill(flags, values))


def fill(value: Any, values: Values) -> Any:
    """Return ``value`` of the table with ``values`` for their names, and with the mapping for `+NAME`."""
    if isinstance(value, dict):
        filled: Dict[str, Any] = {}
        for key, each in value.items():
            if key.startswith("+"):
                filled.update(fill(values[key[1:]], values))
            else:
                filled[key.format_map(values)] = fill(each, values)
        return filled
    if isinstance(value, list):
        each_seed = [{**values, "seed": seed} for seed in values["seed_list"]]
        return [fill(item, one) for item in value for one in (each_seed if "{seed}" in item else [values])]
    if not isinstance(value, str):
        return value
    alone = value[1:-1] if value.startswith("{") else ""
    return values[alone] if alone in values else value.format_map(values)
