"""The benchmark: training, pretraining, prediction, the service, commands, beside transformers on torch.

python scripts/bench.py --pair_file lcqmc/train.tsv --vocab_file ernie/vocab.txt \
    --peer_python peer/bin/python --output side_by_side.json

It prints a table for each case and writes the figures of all, as JSON. The published cases
took 2 hours and 20 minutes on two cores with --rounds 9 --steps 1 --warmup 1; --cases selects some, and the
flags of the model and the batch replace the sizes of the cases. Random weights: the speed is the same.
"""

import platform
import tempfile
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Dict, List, Literal

from other_libraries.client import open_peer
from readme_block import render_rows
from side_by_side.cases import CASES_OF_STEPS, Bench, Shape
from side_by_side.lanes import TurnPlan, case_figures
from side_by_side.waiting import CASES_OF_WAITING

from ernie_pair.checkpoint.run_config import machine
from ernie_pair.core.cli.cli import run_command
from ernie_pair.core.cli.options import (
    OverwriteFlag,
    check_names,
    data_option,
    devices_option,
    evaluation_option,
    model_option,
    names_in,
    option,
)
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.atomic_files import published
from ernie_pair.core.files.json_file import write_json
from ernie_pair.core.files.results import check_absent
from ernie_pair.runtime.cpu import cpu_level
from ernie_pair.runtime.device import default_device, start_device
from ernie_pair.runtime.processes.world import World

CASES = {**CASES_OF_STEPS, **CASES_OF_WAITING}
OF_RATIO = ("cpu", "cpu_low", "cpu_high", "wall", "wall_low", "wall_high")
RATIO_HEAD = ("ours", "against", "CPU", "from", "to", "by the clock", "from", "to")
COLUMNS = {  # head: a figure of a lane, and how it is shown
    "lane": ("name", "{}", 1),
    "ms of CPU a step": ("step_cpu_seconds", "{:,.1f}", 1e3),
    "ms a step": ("step_seconds", "{:,.1f}", 1e3),
    "GB": ("memory_gb", "{:.2f}", 1),
}
Figures = Dict[str, Any]


@dataclass(frozen=True)
class BenchConfig(OverwriteFlag):
    """Measure cases side by side; nothing but --output is left on the disk."""

    EXAMPLE = (
        "--pair_file lcqmc/train.tsv --vocab_file ernie/vocab.txt --peer_python peer/bin/python "
        "--output side_by_side.json"
    )

    pair_file: str = data_option(help="pairs: text TAB text TAB label", reads="FILE")
    vocab_file: str = data_option(help="the vocab.txt of the models", reads="FILE")
    cases: str = evaluation_option("", help=f"some of {', '.join(CASES)}, with commas; empty: all")
    peer_python: str = option(
        "", help="a Python that has torch and transformers, to compare with; empty: none"
    )
    output: str = evaluation_option(
        "",
        help="a file for the figures, JSON, of which side_by_side_table.py makes the tables of the pages",
        writes="PATH",
    )
    lanes: str = evaluation_option(
        "", help="names of lanes, with commas; empty: all, of the training of a base model the best"
    )
    num_hidden_layers: int = model_option(0, help="layers; 0: those of the case", at_least=0)
    hidden_size: int = model_option(0, help="width of the model; 0: that of the case", at_least=0)
    batch_size: int = data_option(0, help="pairs or samples of a step; 0: those of the case", at_least=0)
    max_seq_len: int = data_option(0, help="tokens of each; 0: those of the case", at_least=0)
    pairs: int = data_option(0, help="pairs predicted in a step; 0: those of the case", at_least=0)
    threads: int = devices_option(
        1, help="threads of every lane", unit="threads", at_least=1, affects="speed"
    )
    rounds: int = evaluation_option(7, help="turns of every lane, of which the median is shown", at_least=1)
    steps: int = evaluation_option(
        5, help="steps of a turn; a step of prediction is one pass over all pairs", unit="steps", at_least=1
    )
    warmup: int = evaluation_option(2, help="steps of a lane not counted", unit="steps", at_least=1)
    device: Literal["cpu", "gpu"] = devices_option(default_device(), help="where to run", affects="speed")

    @property
    def plan(self) -> TurnPlan:
        return TurnPlan(self.warmup, self.steps, self.rounds)

    def chosen_cases(self) -> List[str]:
        names = names_in(self.cases)
        check_names("cases", names, CASES, f" is not a case; use some of {', '.join(CASES)}")
        return names or list(CASES)


def compare(config: BenchConfig) -> None:
    """Measure the cases, print their tables, and write them where --output says. Raises InputError."""
    names = config.chosen_cases()
    check_absent([Path(config.output)] if config.output else [], config.overwrite)
    facts = machine_facts(config)
    cases = []
    for name in names:
        case = CASES[name]
        of_flags = {item.name: getattr(config, item.name, 0) for item in fields(Shape)}
        shape = replace(case.shape, **{size: number for size, number in of_flags.items() if number})
        sizes = asdict(shape)
        with tempfile.TemporaryDirectory(prefix="side_by_side.") as folder:
            measured = case.measure(Bench(config, shape, Path(folder)))
            cases.append(case_figures(case.name.format(**sizes), case.unit.format(**sizes), measured))
        print(render(cases[-1], facts), flush=True)
        if config.output:  # after every case, so that a benchmark that is cut short has something to show
            with published(Path(config.output)) as (draft,):
                write_json(draft, {"machine": facts, "cases": cases})


def machine_facts(config: BenchConfig) -> Figures:
    """Return the facts on which the figures depend: the machine, and the versions; no peer is ''."""
    start_device(config.device, World())  # refuses where there is no GPU
    import paddle

    peer = ""
    if config.peer_python:
        peer, sees_gpu = open_peer(config.peer_python)
        if config.device == "gpu" and not sees_gpu:
            raise InputError(
                f"--device gpu, but the torch of {config.peer_python} sees no GPU; leave one of them out"
            )
    versions = {"python": platform.python_version(), "paddle": paddle.__version__, "peer": peer}
    return {**machine(), "instructions": cpu_level(), "threads": config.threads, **versions}


def render(case: Figures, facts: Figures) -> str:
    parts = [", ".join(f"{name} {value}" for name, value in facts.items() if value)]
    parts.append(f"### {case['name']}\n\nA step is {case['unit']}.")
    lanes = [
        ["" if lane[of] is None else form.format(lane[of] * scale) for of, form, scale in COLUMNS.values()]
        for lane in case["lanes"]
    ]
    parts.append(render_rows(tuple(COLUMNS), lanes))
    rows = [
        [row["ours"], row["other"], *(f"{row[name]:.2f}" if name in row else "" for name in OF_RATIO)]
        for row in case["ratios"]
    ]
    parts += [render_rows(RATIO_HEAD, rows)] if rows else []
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    run_command(compare, BenchConfig)
