"""Make the missing runs of a group of experiments, and keep their figures.

python scripts/results/run.py starts --work output/results --data my_data
python scripts/results/run.py options --work output/results --data my_data --only "plain rdrop"

A run that is killed goes on where it was; one whose JSON is there is not repeated unless its commands have
changed: then its folder is renamed, and it is made anew. The figures go to scripts/results/runs;
scripts/results/write_results.py makes the page of them.
"""

from dataclasses import dataclass
from pathlib import Path

from proof.experiment import Places, names_of
from proof.groups import GROUPS
from proof.runner import Runner, main_folder, told
from proof.scale import Scale

from data_tools.base.cli import run_command
from data_tools.base.errors import InputError
from data_tools.base.options import names_in, option, refuse_empty, refuse_unknown_names
from ernie_pair.processes.console import start_console
from ernie_pair.processes.world import World


@dataclass(frozen=True)
class RunConfig(Scale):
    """Make the missing runs of a group of experiments. Start it again to go on."""

    EXAMPLE = "starts --work output/results --data my_data"

    group_name: str = option(help="which experiments", positional=True, choices=tuple(GROUPS))
    work: str = option("output/results", help="corpora, models and predictions go here", group="data")
    data: str = option(
        "data",
        help="a folder of text/NAME.txt, pairs/lcqmc/{train,dev}.tsv, pairs/afqmc/{train,dev}.json and "
        "vocab/ernie_1.0_zh.txt",
        group="data",
    )
    only: str = option("", help="names of runs; empty: all", group="evaluation")
    results: str = option(
        str(main_folder()), help="the JSON of the runs goes here, GROUP/NAME.json", group="data"
    )

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "work", "results")
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
    start_console(World())
    runs = GROUPS[config.group_name].runs(config)
    wanted = names_in(config.only)
    refuse_unknown_names(
        "only",
        wanted,
        names_of(runs),
        f" is no run of {config.group_name}; use some of " f"{', '.join(names_of(runs))}",
    )
    work, data = Path(config.work).resolve(), Path(config.data).resolve()
    runner = Runner(config.group_name, Places(work, data, work), Path(config.results))
    told(runner.make([run for run in runs if not wanted or run.name in wanted]))


def main() -> None:
    run_command(run_group, RunConfig)


if __name__ == "__main__":
    main()
