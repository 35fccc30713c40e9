"""The whole comparison in one run: training, pretraining and prediction, beside transformers on torch.

python scripts/bench_side_by_side.py --pair_file lcqmc/train.tsv --vocab_file ernie/vocab.txt \
    --peer_python peer/bin/python --output side_by_side.json

It prints a table for each case and writes all of them, as JSON, Markdown and a picture. On two cores it takes
about an hour and a half; --cases selects some, --rounds measures less, and the flags of the model and the
batch replace the sizes of the cases. The weights are random: the speed is the same.
"""

import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import List, Literal

from side_by_side.cases import CASES, Shape
from side_by_side.lanes import TurnPlan, case_figures
from side_by_side.peer.python import open_peer
from side_by_side.report import machine_facts, publish, render

from data_tools.files.errors import InputError
from data_tools.files.results import refuse_existing
from data_tools.options.cli import run_command
from data_tools.options.options import Options, names_in, option, refuse_unknown_names
from ernie_pair.runtime.device import default_device, start_device
from ernie_pair.runtime.processes.world import World

SIZES = {  # flag: field of Shape
    "num_hidden_layers": "layers",
    "hidden_size": "hidden",
    "batch_size": "batch_size",
    "max_seq_len": "max_seq_len",
    "pairs": "pairs",
}


@dataclass(frozen=True)
class BenchConfig(Options):
    """Measure cases side by side; nothing but --output is left on the disk."""

    EXAMPLE = (
        "--pair_file lcqmc/train.tsv --vocab_file ernie/vocab.txt --peer_python peer/bin/python "
        "--output side_by_side.json"
    )

    pair_file: str = option(help="pairs: text TAB text TAB label", group="data")
    vocab_file: str = option(help="the vocab.txt of the models", group="data")
    cases: str = option("", help=f"some of {', '.join(CASES)}, with commas; empty: all", group="evaluation")
    peer_python: str = option(
        "", help="a Python that has torch and transformers, to compare with; empty: none", group="other"
    )
    output: str = option(
        "", help="the figures go here: FILE.json, and its table and picture beside it", group="evaluation"
    )
    overwrite: bool = option(False, help="replace earlier figures", group="evaluation")
    lanes: str = option(
        "",
        help="names of lanes, with commas, if not all of them fit into memory; empty: all",
        group="evaluation",
    )
    num_hidden_layers: int = option(0, help="layers; 0: those of the case", group="model", at_least=0)
    hidden_size: int = option(0, help="width of the model; 0: that of the case", group="model", at_least=0)
    batch_size: int = option(
        0, help="pairs or samples of a step of training; 0: those of the case", group="data", at_least=0
    )
    max_seq_len: int = option(0, help="tokens of each; 0: those of the case", group="data", at_least=0)
    pairs: int = option(0, help="pairs predicted in a step; 0: those of the case", group="data", at_least=0)
    threads: int = option(1, help="threads of every lane", group="devices", unit="threads", at_least=1)
    rounds: int = option(
        7, help="turns of every lane, of which the median is shown", group="evaluation", at_least=1
    )
    steps: int = option(
        5,
        help="steps of a turn; a step of prediction is one pass over all pairs",
        group="evaluation",
        unit="steps",
        at_least=1,
    )
    warmup: int = option(
        2, help="steps of a lane that are not counted", group="evaluation", unit="steps", at_least=1
    )
    device: Literal["cpu", "gpu"] = option(default_device(), help="where to run", group="devices")

    @property
    def plan(self) -> TurnPlan:
        """Return how often the lanes take turns."""
        return TurnPlan(self.warmup, self.steps, self.rounds)

    def chosen_cases(self) -> List[str]:
        """Return the names in --cases. Raises InputError for an unknown one."""
        names = names_in(self.cases)
        refuse_unknown_names("cases", names, CASES, f" is not a case; use some of {', '.join(CASES)}")
        return names or list(CASES)

    def shape_of(self, case: str) -> Shape:
        """Return the shape of a case, with the sizes that were given."""
        sizes = {name: getattr(self, flag) for flag, name in SIZES.items() if getattr(self, flag)}
        return replace(CASES[case].shape, **sizes)


def compare(config: BenchConfig) -> None:
    """Measure the cases, print their tables, and write them where --output says.

    Raises InputError for figures that exist, or a peer or GPU that cannot be used.
    """
    names = config.chosen_cases()
    endings = (".json", ".md", ".png") if config.output else ()
    outputs = [Path(config.output).with_suffix(ending) for ending in endings]
    refuse_existing(outputs, config.overwrite)
    facts = machine_facts(config.threads, _peer_versions(config))
    cases = []
    for name in names:
        case, shape = CASES[name], config.shape_of(name)
        sizes = asdict(shape)
        with tempfile.TemporaryDirectory(prefix="side_by_side.") as folder:
            measured = case.measure(config, shape, Path(folder))
            cases.append(case_figures(case.name.format(**sizes), case.unit.format(**sizes), measured))
        print(render(cases[-1:], facts), flush=True)
        if outputs:  # after every case, so that a long benchmark that is cut short has something to show
            publish(outputs, cases, facts)


def _peer_versions(config: BenchConfig) -> str:
    """Return the versions of the peer's libraries, in words; empty without a peer."""
    start_device(config.device, World())  # refuses where there is no GPU
    if not config.peer_python:
        return ""
    peer = open_peer(config.peer_python)
    if config.device == "gpu" and not peer.sees_gpu:
        raise InputError(
            f"--device gpu, but the torch of {config.peer_python} sees no GPU; leave one of them out"
        )
    return peer.describe()


if __name__ == "__main__":
    run_command(compare, BenchConfig)
