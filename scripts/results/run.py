"""Make the missing runs of a group of experiments, and keep their figures.

python scripts/results/run.py starts --work output/results --data my_data
python scripts/results/run.py options --work output/results --data my_data --only "plain rdrop"
python scripts/results/run.py peer --work output/results --data my_data --peer_python peer/bin/python
python scripts/results/run.py status --work output/results --data my_data

A killed run continues where it was. One whose JSON exists is not repeated unless its commands have changed:
then its folder is renamed, and it runs again. The figures go to scripts/results/runs;
scripts/results/write_results.py writes the page from them.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from proof.experiments import TITLES, Scale, runs_of
from proof.runner import RESULTS, ROOT, Places, Runner, status_lines

from data_tools.files.errors import InputError
from data_tools.options.cli import run_command
from data_tools.options.options import Options, names_in, option, refuse_empty, refuse_unknown_names
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import World

STATUS = "status"


@dataclass(frozen=True)
class Group(Options):
    """What is to be made; a base on its own puts it first of all fields."""

    group_name: str = option(
        help="the group of experiments; status: what is done and what is left, with an estimate of the time",
        positional=True,
        choices=(*TITLES, STATUS),
    )


@dataclass(frozen=True)
class RunConfig(Scale, Group):
    """Make the missing runs of a group of experiments. Start it again to continue."""

    EXAMPLE = "starts --work output/results --data my_data"

    work: str = option("output/results", help="folder of corpora, models and predictions", group="data")
    data: str = option(
        "data",
        help="a folder of text/NAME.txt, pairs/lcqmc/{train,dev}.tsv, pairs/afqmc/{train,dev}.json, "
        "pairs/mrpc/{train,dev,test}.tsv and vocab/ernie_1.0_zh.txt",
        group="data",
    )
    only: str = option(
        "", help="names of the runs to make, separated by blanks; empty: all of the group", group="evaluation"
    )
    peer_python: str = option(
        "",
        help="a Python with torch, transformers and accelerate, needed by the groups peer and published, and "
        "for published with sentence-transformers",
        group="other",
    )
    results: str = option(str(RESULTS), help="folder of the results, GROUP/NAME.json", group="data")

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "work", "results")
        if self.only and self.group_name == STATUS:
            raise InputError(f"--only {self.only} is for one group, and {STATUS} covers all; leave it out")
        if not Path(self.data).is_dir():
            raise InputError(f"--data {self.data}: no such folder; --help says what it holds")
        for name in ("work", "data"):
            if len(str(Path(getattr(self, name)).resolve()).split()) > 1:
                raise InputError(
                    f"--{name} {Path(getattr(self, name)).resolve()}: blanks end a path in the flags of the "
                    "runs; use a folder without any"
                )


def run_group(config: RunConfig) -> None:
    """Make the missing runs. Raises InputError for an unknown name, or the error of a command."""
    work, data = Path(config.work).resolve(), Path(config.data).resolve()
    places, group = Places(work, data, work, config.peer_python), config.group_name
    runners = {name: Runner(name, places, Path(config.results)) for name in TITLES}
    if group == STATUS:
        print(
            "\n".join(status_lines({name: (each, runs_of(name, config)) for name, each in runners.items()}))
        )
        return
    start_console(World())
    runs = {run.name: run for run in runs_of(group, config)}
    fault = f" is no run of {group}; use some of {', '.join(runs)}"
    wanted = names_in(config.only)
    refuse_unknown_names("only", wanted, runs, fault)
    chosen = [run for run in runs.values() if run.name in (wanted or runs)]
    of_peer = [run.name for run in chosen if run.needs_peer and not runners[group].is_done(run)]
    if of_peer and not config.peer_python:
        raise InputError(
            f"{', '.join(of_peer)} of {group} need --peer_python, a Python that has torch, transformers and "
            "accelerate; give it, or leave them out by --only"
        )
    if of_peer:
        sys.path.append(str(ROOT / "scripts"))  # of a launched file Python puts its own folder there alone
        from side_by_side.peer.python import OF_TRAINER, open_peer

        open_peer(config.peer_python, OF_TRAINER)
    for line in runners[group].make(chosen):
        sys.stderr.write(f"left out: {line}\n")


if __name__ == "__main__":
    run_command(run_group, RunConfig)
