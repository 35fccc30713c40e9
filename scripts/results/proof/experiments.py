"""The runs of experiments.yaml, at the sizes of the flags of run.py."""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping

import yaml

from data_tools.files.errors import InputError
from data_tools.options.options import Options, option
from proof import figures
from proof.runner import Run, Words

TABLE = yaml.safe_load(Path(__file__).with_name("experiments.yaml").read_text(encoding="utf-8"))
TITLES: Dict[str, str] = {group: content["title"] for group, content in TABLE["groups"].items()}
FIRST_SEED, PAIRS_OF_A_STEP = 1234, TABLE["flags"]["of_training"]["batch_size"]
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Scale(Options):
    """The shape of the model, the lengths of the trainings and the sizes of the data.

    The defaults take two cores of AVX2 about half a day for all groups.
    """

    layers: int = option(4, help="encoder layers", group="model", unit="layers", at_least=1)
    hidden: int = option(192, help="width of the hidden states", group="model", at_least=1)
    heads: int = option(3, help="heads of each layer", group="model", at_least=1)
    length: int = option(64, help="tokens per sample and per pair", group="data", unit="tokens", at_least=8)
    batch: int = option(128, help="samples per step of pretraining", group="optimisation", at_least=1)
    steps: int = option(2000, help="pretraining steps", group="optimisation", unit="steps", at_least=2)
    ablation_steps: int = option(300, help="steps of a row of the ablation", group="optimisation", at_least=1)
    further_steps: int = option(300, help="steps on one domain", group="optimisation", at_least=1)
    task_steps: int = option(
        1000,
        help="steps of continued pretraining on the texts of pairs, at half the length and twice the batch",
        group="optimisation",
        at_least=1,
    )
    rate: float = option(1e-3, help="highest learning rate of pretraining", group="optimisation", above=0)
    processes: int = option(2, help="processes of pretraining", group="devices", at_least=1)
    precision: str = option(
        "fp32", help="precision of pretraining", group="precision", choices=("bf16", "fp32")
    )
    samples: int = option(4000, help="held-out samples with masked words", group="evaluation", at_least=1)
    domain: str = option(
        "laws", help="the domain to continue on: the name of a file in DATA/text, without .txt", group="data"
    )
    other: str = option("stories", help="another domain, to measure what a model has forgotten", group="data")
    small_rows: int = option(5000, help="training pairs of the small cut of LCQMC", group="data", at_least=1)
    large_rows: int = option(20000, help="training pairs of the large cut of LCQMC", group="data", at_least=1)
    choose: int = option(
        2000, help="held-out training pairs that select the best checkpoint", group="data", at_least=2
    )
    rest: int = option(
        40000, help="pairs whose labels are not used, for distillation", group="data", at_least=1
    )
    epochs: int = option(3, help="epochs of training on pairs", group="optimisation", at_least=1)
    learning_rate: float = option(3e-4, help="highest rate on pairs", group="optimisation", above=0)
    trials: int = option(8, help="trials of each search of flags", group="optimisation", at_least=1)
    seeds: int = option(3, help="runs of each row of pairs", group="optimisation", unit="runs", at_least=1)
    bootstrap: int = option(1000, help="bootstrap resamples of each interval", group="evaluation", at_least=1)

    def __post_init__(self):
        super().__post_init__()
        if self.batch % (2 * self.processes):
            raise InputError(
                f"--batch {self.batch} is not a multiple of twice --processes {self.processes}, and some "
                "rows have half the batch; change one of them"
            )


def sizes_of(scale: Scale) -> Dict[str, Any]:
    """Return what the table calls by name: the flags, and what follows from them."""
    batch, length, processes, rate = scale.batch, scale.length, scale.processes, scale.learning_rate
    parts = f"choose{scale.choose}-rest{scale.rest}"
    plain_steps = -(-scale.large_rows * scale.epochs // PAIRS_OF_A_STEP)
    return {
        **asdict(scale),
        "micro_batch": batch // processes,
        "half_micro": batch // 2 // processes,
        "double_micro": 2 * batch // processes,
        "half_batch": batch // 2,
        "double_batch": 2 * batch,
        "half_length": length // 2,
        "double_length": 2 * length,
        "join_tokens": 4 * length,
        "half_rate": scale.rate / 2,
        "double_rate": 2 * scale.rate,
        "four_hidden": 4 * scale.hidden,
        "half_steps": scale.steps // 2,
        "double_ablation": 2 * scale.ablation_steps,
        "quarter_rate": rate / 4,
        "four_rate": 4 * rate,
        "two_epochs": 2 * scale.epochs,
        "four_epochs": 4 * scale.epochs,
        # Steps and evaluations of the training of `plain`, for those with a larger file.
        "plain_steps": plain_steps,
        "plain_evaluations": -(-plain_steps // scale.epochs),
        # The folders of data sets that are cut, at these sizes, into parts without a common pair.
        "lcqmc": f"$WORK/pairs/lcqmc-{scale.small_rows}-{scale.large_rows}-{parts}",
        "afqmc": f"$WORK/pairs/afqmc-{parts}",
    }


def words_of(program: str, *words: str, **flags: object) -> Words:
    """Return the words of a script, or of a command of ernie-pair; a flag whose value is None is left out."""
    first = (program,) if program.startswith("scripts/") else ("ernie-pair", program)
    named = {name: value for name, value in flags.items() if value is not None}
    return (*first, *words, *(f"--{name}={_shown(value)}" for name, value in named.items()))


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def runs_of(group: str, scale: Scale) -> List[Run]:
    """Return the runs of a group of TITLES, in the order of the page."""
    content, sizes = TABLE["groups"][group], {**sizes_of(scale), "group": group}
    defaults = {"steps": "steps", "number_of_seeds": 1, **content.get("defaults", {})}
    return [_run_of(name, {**defaults, **row}, sizes) for name, row in content["runs"].items()]


def _run_of(name: str, row: Dict[str, Any], sizes: Values) -> Run:
    steps = sizes[row["steps"]]
    tenth, hundredth, half = (max(1, steps // part) for part in (10, 100, 2))
    of_steps = {"run_steps": steps, "tenth": tenth, "hundredth": hundredth, "half_of_steps": half}
    values = {**sizes, **of_steps, **TABLE["flags"], "flags": {}, **row, "name": name}
    for key in row.keys() & {"cut", "text", "number_of_seeds", "train_file"}:
        values[key] = fill(row[key], values)
    values["seed_list"] = seeds = tuple(range(FIRST_SEED, FIRST_SEED + values["number_of_seeds"]))
    if "train" in row:
        values["train"] = fill(row["train"], values)
        judged = json.dumps(
            [values["train"], values.get("test"), len(seeds), values["bootstrap"]], sort_keys=True
        )
        values["settings"] = hashlib.sha256(judged.encode()).hexdigest()[:8]  # of all but the starts
    function, arguments = row["read"]
    files = {path: fill(flags, values).items() for path, flags in row.get("files", {}).items()}
    return Run(
        name,
        fill(row["title"], values),
        tuple(_commands(row["commands"], values)),
        partial(getattr(figures, function), **fill(arguments, values)),
        seeds,
        {path: "".join(f"{key}: {_shown(each)}\n" for key, each in flags) for path, flags in files.items()},
        tuple(fill(row.get("needs", []), values)),
        fill(row.get("curve", ""), values),
        fill(row.get("links", {}), values),
    )


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
    """Return ``value`` of the table with ``values`` in place of their names; a name alone stays what it is.

    The mapping that `+NAME` stands for is put in its place.
    """
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
