"""Make the missing runs of a group of experiments one after the other, and keep one small JSON for each.

python scripts/results/run.py starts --work output/results --data my_data
python scripts/results/run.py options --work output/results --data my_data --only "plain rdrop"
python scripts/results/run.py peer --work output/results --data my_data --peer_python peer/bin/python
python scripts/results/run.py status --work output/results --data my_data

A killed run continues where it was. One whose JSON exists is not repeated; one that was begun with other
commands is refused. scripts/results/write_results.py puts the figures into the page.

WORK/figures/GROUP/NAME.json      recipe, weights, versions, machine, figures
WORK/GROUP/NAME/                  $RUN: the files of the run
WORK/GROUP/NAME/run.log           the output of its commands
WORK/GROUP/NAME/recipe.json       its commands and their files
"""

import json
import logging
import os
import platform
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, List

from proof.experiments import PEER_PYTHON, TITLES, Places, Run, Scale, Words, runs_of
from proof.figures import read_curve

from ernie_pair.checkpoint.manifest import installed_versions
from ernie_pair.checkpoint.run_config import machine
from ernie_pair.core.cli.cli import run_command
from ernie_pair.core.cli.options import Options, check_names, data_option, evaluation_option, names_in, option
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.core.files.atomic_files import make_folder, published
from ernie_pair.core.files.json_file import read_json_object
from ernie_pair.core.run_module import python_words
from ernie_pair.runtime.processes.child_command import ChildCommand, ernie_pair_words
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.runtime.processes.world import World
from ernie_pair.version import __version__

ROOT = Path(__file__).resolve().parents[2]
LOG, RECIPE, FIGURES, STATE, STATUS = "run.log", "recipe.json", "figures", "model_state.pdparams", "status"
CURE = "remove its folder, or give another --work"

logger = logging.getLogger("ernie_pair.results")


@dataclass(frozen=True)
class Group(Options):
    """What is to be made; a base on its own puts it first of all fields."""

    group_name: str = option(
        help="the group of experiments; status: what is done and what is left",
        positional=True,
        choices=(*TITLES, STATUS),
    )


@dataclass(frozen=True)
class RunConfig(Scale, Group):
    """Make the missing runs of a group of experiments. Start it again to continue."""

    EXAMPLE = "starts --work output/results --data my_data"

    work: str = data_option("output/results", help="folder of corpora, models, predictions and figures")
    data: str = data_option(
        "data",
        help="a folder of text/NAME.txt, pairs/lcqmc/{train,dev}.tsv, pairs/afqmc/{train,dev}.json, "
        "pairs/mrpc/{train,dev,test}.tsv and vocab/ernie_1.0_zh.txt",
    )
    only: str = evaluation_option(
        "", help="names of the runs to make, separated by blanks; empty: all of the group"
    )
    peer_python: str = option(
        "",
        help="a Python with torch, transformers and accelerate, needed by the groups peer and published, and "
        "for published with sentence-transformers",
    )

    def __post_init__(self):
        super().__post_init__()
        if not Path(self.data).is_dir():
            raise InputError(f"--data {self.data}: no such folder; --help says what it holds")
        for name in ("work", "data"):
            path = Path(getattr(self, name)).resolve()
            if len(str(path).split()) > 1:
                raise InputError(
                    f"--{name} {path}: blanks end a path in the flags of the runs; use a folder without any"
                )


def run_group(config: RunConfig) -> None:
    """Make the missing runs. Raises InputError for an unknown name, or the error of a command."""
    work, data = Path(config.work).resolve(), Path(config.data).resolve()
    places, group = Places(work, data, work, config.peer_python), config.group_name
    if group == STATUS:
        for name in TITLES:
            print("\n".join(Runner(name, places).status_lines(runs_of(name, config))))
        return
    start_console(World())
    runner, runs = Runner(group, places), {run.name: run for run in runs_of(group, config)}
    wanted = names_in(config.only)
    check_names("only", wanted, runs, f" is no run of {group}; use some of {', '.join(runs)}")
    chosen = [run for run in runs.values() if run.name in (wanted or runs)]
    of_peer = [run.name for run in chosen if PEER_PYTHON in str(run.commands) and not runner.is_done(run)]
    if of_peer and not config.peer_python:
        raise InputError(
            f"{', '.join(of_peer)} of {group} need --peer_python, a Python that has torch, transformers and "
            "accelerate; give it, or leave them out by --only"
        )
    if of_peer:
        sys.path.append(str(ROOT / "scripts"))  # of a launched file Python puts its own folder there alone
        from other_libraries.client import OF_TRAINER, open_peer

        open_peer(config.peer_python, OF_TRAINER)
    for line in runner.make(chosen):
        sys.stderr.write(f"left out: {line}\n")


class Runner:
    """Runs a ``group`` in the folders ``places``."""

    def __init__(self, group: str, places: Places):
        self.group, self.places = group, places

    def make(self, runs: List[Run]) -> List[str]:
        """Make the missing ones; return the names of those left out, with what they need."""
        left_out: List[str] = []
        with StopSignals():
            for number, run in enumerate(runs, start=1):
                missing = self._missing_for(run)
                if self.is_done(run):
                    logger.info("run %d of %d is done: %s/%s", number, len(runs), self.group, run.name)
                elif missing:
                    left_out.append(f"{run.name}: {missing[0]} does not exist")
                else:
                    logger.info(
                        "run %d of %d: %s; see %s", number, len(runs), run.name, self._folder(run) / LOG
                    )
                    self._make(run)
        return left_out

    def is_done(self, run: Run) -> bool:
        """Return whether its figures exist. Raises InputError for those of other commands."""
        self._refuse_other_recipe(run)
        return self.path_of(run).is_file()

    def status_lines(self, runs: List[Run]) -> List[str]:
        """Return a line for the group, and one for each of its runs: done, begun, left, and what it needs."""
        lines = []
        for run in runs:
            missing, is_begun = self._missing_for(run), (self._folder(run) / RECIPE).exists()
            state = f"needs {missing[0]}" if missing else "begun" if is_begun else "left"
            lines.append(f"  {run.name:<24}{'done' if self.path_of(run).is_file() else state}")
        done = sum(line.endswith("done") for line in lines)
        return [f"{self.group}: {done} of {len(runs)} runs are done", *lines]

    def path_of(self, run: Run) -> Path:
        return self.places.work / FIGURES / self.group / f"{run.name}.json"

    def _missing_for(self, run: Run) -> List[str]:
        return [need for need in run.needs if not self.places.path(need).exists()]

    def _folder(self, run: Run) -> Path:
        return self.places.work / self.group / run.name

    def _refuse_other_recipe(self, run: Run) -> None:
        path = self._folder(run) / RECIPE
        if path.exists() and read_json_object(path, CURE) != run.recipe:
            raise InputError(f"{path}: {self.group}/{run.name} was begun with other commands; {CURE}")

    def _make(self, run: Run) -> None:
        places = replace(self.places, run=self._folder(run))
        make_folder(places.run)
        _write_json(places.run / RECIPE, run.recipe)
        for name, text in run.files.items():
            with published(places.path(name)) as (draft,):
                draft.write_text(places.expand(text), encoding="utf-8")
        for words in run.commands:
            self._call(words, run, places)
        for link, target in ((places.path(link), places.path(to)) for link, to in run.links.items()):
            make_folder(link.parent)
            if os.path.lexists(link):
                logger.warning("%s stays as it is; what this run has made is %s", link, target)
            else:
                link.symlink_to(target)
        make_folder(self.path_of(run).parent)
        _write_json(self.path_of(run), self._result(run, places))
        logger.info("wrote %s", self.path_of(run))

    def _result(self, run: Run, places: Places) -> dict[str, Any]:
        # A model that was pretrained again, on another processor for example, has the same name and other
        # weights; the page says which rows are of one model.
        weights = [path for path in (places.path(need) / STATE for need in run.needs) if path.is_file()]
        packages = installed_versions(("paddlepaddle", "paddlenlp", "numpy"))
        versions = {"ernie-pair": __version__, "python": platform.python_version(), **packages}
        curve = read_curve(places.path(run.curve)) if run.curve else []
        points = [point for point in curve if "lm_loss" in point]
        return {
            "group": self.group, "name": run.name, "title": run.title, "runs": len(run.seeds),
            "steps": max((point["step"] for point in curve), default=0),  # 0 of what trains nothing
            "weights": ", ".join(f"{path.parent.name} {sha256_of_file(path)[:8]}" for path in weights),
            "cores": machine()["cores"],
            "machine": ", ".join(f"{name} {value}" for name, value in {**machine(), **versions}.items()),
            **run.read(places), **({"curves": points} if points else {}),
        }  # fmt: skip

    def _call(self, words: Words, run: Run, places: Places) -> None:
        first, *others = map(places.expand, words)
        of_python = {"ernie-pair": ernie_pair_words(), "python": python_words()}
        program = of_python.get(first, [sys.executable, str(ROOT / first)])
        logger.info("%s: %s", run.name, " ".join(words[:3]))
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "PYTHONPATH": path}  # the runs use the code beside them
        name = f"{words[1] if words[0] == 'ernie-pair' else first} of {self.group}/{run.name}"
        with ChildCommand(others, name, places.run / LOG, environment, program) as child:
            child.finish()


def _write_json(path: Path, value: Any) -> None:
    with published(path) as (draft,):
        draft.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run_command(run_group, RunConfig)
