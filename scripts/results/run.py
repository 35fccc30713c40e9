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
from typing import List

from proof.experiment import Places, Run, names_of
from proof.groups import GROUPS
from proof.runner import ROOT, Runner, main_folder, told
from proof.scale import Scale
from proof.status import status_lines

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
        choices=(*GROUPS, STATUS),
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
    results: str = option(str(main_folder()), help="folder of the results, GROUP/NAME.json", group="data")

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
    if config.group_name == STATUS:
        runners = {group: (_runner_of(config, group), GROUPS[group].runs(config)) for group in GROUPS}
        print("\n".join(status_lines(runners)))
        return
    start_console(World())
    runs = GROUPS[config.group_name].runs(config)
    wanted = names_in(config.only)
    refuse_unknown_names(
        "only",
        wanted,
        names_of(runs),
        f" is no run of {config.group_name}; use some of {', '.join(names_of(runs))}",
    )
    runner = _runner_of(config, config.group_name)
    chosen = [run for run in runs if not wanted or run.name in wanted]
    _refuse_without_peer(config, [run for run in chosen if run.needs_peer and not runner.is_done(run)])
    told(runner.make(chosen))


def _runner_of(config: RunConfig, group: str) -> Runner:
    work, data = Path(config.work).resolve(), Path(config.data).resolve()
    return Runner(group, Places(work, data, work, config.peer_python), Path(config.results))


def _refuse_without_peer(config: RunConfig, runs: List[Run]) -> None:
    """Raise InputError where ``runs`` are of the peer, and it has no Python, or that lacks a library."""
    if not runs:
        return
    if not config.peer_python:
        raise InputError(
            f"{', '.join(names_of(runs))} of {config.group_name} need --peer_python, a Python that has "
            "torch, transformers and accelerate; give it, or leave them out by --only"
        )
    sys.path.append(str(ROOT / "scripts"))  # of a launched file Python puts its own folder there alone
    from side_by_side.peer.python import OF_TRAINER, open_peer

    open_peer(config.peer_python, OF_TRAINER)


def main() -> None:
    run_command(run_group, RunConfig)


if __name__ == "__main__":
    main()
