"""The page of the results, from their JSON alone: what was not run is not on it."""

import json
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple

from data_tools.base.errors import InputError
from proof.charts import has_curve, loss_curves
from proof.groups import GROUPS
from proof.groups.peer import OURS
from proof.groups.starts import ALL_STARTS
from proof.tables import (
    command_of,
    difference_lines,
    forgetting_table,
    masked_table,
    models_table,
    options_table,
    seeds_table,
    sides_table,
    trials_table,
    without_gain,
)

PLAIN, BEFORE = "plain", "before"
LONG = ("pretrained", "characters", "gram")
INTRODUCTION = """# Results

Does pretraining on one's own text help, and by how much? Small models, pretrained by this package on Chinese
text and trained on labelled pairs, beside the same nets from random weights. This page is made by
`python scripts/results/write_results.py` of the JSON in `scripts/results/runs`; what was not run is not here.

Each row is made again by its command, on a folder of your data
([what it holds](../scripts/results/run.py)):

```sh
python scripts/results/run.py GROUP --work output/results --data my_data [--only NAME]
python scripts/results/write_results.py
```

The best model of a run is chosen on pairs of the training file that no run trains on, and measured on the
file that the data set calls dev, of which no pair is trained on. ± is the standard deviation of the runs,
which differ in their seed; intervals are 95 % of a bootstrap that draws rows and seeds, differences are of
the same rows and seeds."""

Result = Dict[str, Any]
Results = Dict[str, Result]


class Page(NamedTuple):
    """The text of the page, and {name: its picture as SVG}."""

    text: str
    pictures: Dict[str, str]


def read_results(folder: Path) -> Dict[str, Results]:
    """Return {group: {name: result}} in the order of the groups. Raises InputError for what is no result."""
    found: Dict[str, Results] = {}
    for group in GROUPS:
        for path in sorted((folder / group).glob("*.json")):
            try:
                result = json.loads(path.read_text(encoding="utf-8"))
                found.setdefault(group, {})[result["name"]] = result
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f"{path}: {error!r}, no result of run.py; remove it") from None
    return found


def render_page(results: Dict[str, Results], order: Dict[str, List[str]]) -> Page:
    """Return the page of ``results``; ``order``: {group: the names of its runs as they are to stand}."""
    parts, pictures = [INTRODUCTION], {}
    for group, found in results.items():
        names = [name for name in order[group] if name in found]
        rows = [found[name] for name in [*names, *(name for name in found if name not in names)]]
        parts.append(f"## {GROUPS[group].TITLE}")
        parts += SECTIONS[group](rows)
        curved = [row for row in rows if has_curve(row)]
        if curved:
            pictures[f"{group}.svg"] = loss_curves(GROUPS[group].TITLE, curved)
            parts.append(f"![{GROUPS[group].TITLE}](results/{group}.svg)")
    parts += [*_machines(results), *_commands(results)]
    return Page("\n\n".join(parts) + "\n", pictures)


def _pretraining(rows: List[Result]) -> List[str]:
    long = [row for row in rows if row["name"] in LONG]
    short = [row for row in rows if row["name"] not in LONG]
    parts = [
        "All models are asked for the same masked words of documents that none has read (`evaluate-mlm`)."
    ]
    parts += [masked_table(long)] if long else []
    if short:
        parts += [
            "Each row of the ablation changes one thing, and reads as many tokens:",
            masked_table(short),
        ]
    return parts


def _rates(rows: List[Result]) -> List[str]:
    note = (
        "As many trainings of either start, of one seed; accuracy on the pairs that choose the best model, "
        "at the best and at the last evaluation. The other groups train by what is best from the pretrained "
        "weights, and the group scratch searches for each start further."
    )
    chosen = [
        f"- best {row['title']}: "
        + ", ".join(f"{flag} {value:g}" for flag, value in row["figures"]["chosen"].items())
        for row in rows
    ]
    return [note, trials_table(rows), "\n".join(chosen)]


def _comparisons(rows: List[Result]) -> List[str]:
    parts = []
    shown = {row["name"] for row in rows}
    for row in rows:
        if f"{row['name']}{ALL_STARTS}" in shown:
            continue  # the same comparison with more starts
        majority = (
            f"{row['figures']['rows']:,} test rows, the commoner class is {row['figures']['majority']:.4f}"
        )
        parts += [f"### {row['title']}", f"{command_of(row)}: {majority}.", models_table(row)]
        parts += ["\n".join(_searched(row) + difference_lines(row))]
    return parts


def _searched(row: Result) -> List[str]:
    """Return a line for each search of the flags of training."""
    return [
        f"- best flags of {name}, of {each['complete']} complete trials: "
        + ", ".join(f"{flag} {value}" for flag, value in each["params"].items())
        for name, each in row["figures"].get("searched", {}).items()
    ]


def _options(rows: List[Result]) -> List[str]:
    parts = [options_table(rows, PLAIN)]
    found = [without_gain(row, row["name"], PLAIN) for row in rows if row["name"] != PLAIN]
    failed = [f"- {each[0]}: accuracy {each[1]}" for each in found if each is not None]
    return [*parts, "What did not help: its interval is not above 0.", "\n".join(failed)] if failed else parts


def _peer(rows: List[Result]) -> List[str]:
    if rows[0]["name"] != OURS:
        return [f"`run.py peer --only {OURS}` is yet to be made."]
    versions = next((row["figures"]["versions"] for row in rows if row["figures"]["versions"]), {})
    of_peer = ", ".join(f"{name} {value}" for name, value in versions.items()) or "not run yet"
    note = (
        "The same pretrained weights, by `ernie-pair convert --to hf`, the same pairs, rates, warm-up, "
        "dropout, epochs, batch size, length and AdamW; either side draws its own head and order from the "
        f"seed, and makes batches of like length. {rows[0]['figures']['threads']} thread(s) on both sides. "
        "Seconds are of the steps of a training, minutes of all trainings of a row from their start to the "
        f"last answer. The peer: {of_peer}."
    )
    differences = [line for row in rows for line in difference_lines(row)]
    told = ["\n".join(differences)] if differences else []
    return [note, sides_table(rows, OURS), *told, "Seed by seed:", seeds_table(rows)]


def _forgetting(rows: List[Result]) -> List[str]:
    if rows[0]["name"] != BEFORE:
        return [f"`run.py forgetting --only {BEFORE}` is yet to be made."]
    note = (
        "The texts are parts of what the model was pretrained on first; losses are of the test part of each."
    )
    return [note, forgetting_table(rows)]


SECTIONS: Dict[str, Callable[[List[Result]], List[str]]] = {
    "pretraining": _pretraining,
    "rates": _rates,
    "starts": _comparisons,
    "scratch": _comparisons,
    "options": _options,
    "peer": _peer,
    "forgetting": _forgetting,
}


def _machines(results: Dict[str, Results]) -> List[str]:
    """Return what the figures were made with; times mean nothing without it."""
    lines = {
        ", ".join(f"{name} {value}" for name, value in {**row["machine"], **row["versions"]}.items())
        for found in results.values()
        for row in found.values()
    }
    return ["## Machines and versions", "\n".join(f"- {line}" for line in sorted(lines))] if lines else []


def _commands(results: Dict[str, Results]) -> List[str]:
    """Return the commands behind each row, folded."""
    parts = ["## Commands"] if results else []
    for group, found in results.items():
        for name, row in found.items():
            words = "\n".join(" ".join(map(_quoted, command)) for command in row["commands"])
            files = "".join(f"\n# {path}\n{text}" for path, text in row["files"].items())
            shown = f"```sh\n{words}\n{files}```" if files else f"```sh\n{words}\n```"
            parts.append(f"<details><summary>{group} {name}</summary>\n\n{shown}\n\n</details>")
    return parts


def _quoted(word: str) -> str:
    return f'"{word}"' if " " in word else word
