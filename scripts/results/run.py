"""Make the missing runs of a group of experiments one after the other, and keep one small JSON for each.

python scripts/results/run.py starts --work output/results --data my_data
python scripts/results/run.py options --work output/results --data my_data --only "plain rdrop"
python scripts/results/run.py peer --work output/results --data my_data --peer_python peer/bin/python
python scripts/results/run.py status --work output/results --data my_data

A killed run continues where it was. One whose JSON exists is not repeated unless its commands have changed:
then its folder is renamed, and it runs again. scripts/results/write_results.py writes the page of the JSON.

RESULTS/GROUP/NAME.json      what is committed: recipe, weights, versions, machine, seconds, figures, curve
WORK/GROUP/NAME/             $RUN: the files of the run
WORK/GROUP/NAME/run.log      the output of its commands
WORK/GROUP/NAME/spent.json   its recipe, and the seconds that its attempts took
WORK/GROUP/NAME-earlier-...  $RUN of another recipe, set aside
"""

import json
import logging
import os
import platform
import secrets
import sys
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from statistics import mean
from typing import Any, Dict, List, Mapping, Tuple

from proof.experiments import PEER_PYTHON, TITLES, Places, Run, Scale, Words, of_today, runs_of
from proof.figures import read_curve

from ernie_pair.checkpoint.manifest import installed_versions
from ernie_pair.checkpoint.run_config import machine
from ernie_pair.core.cli.cli import run_command
from ernie_pair.core.cli.options import (
    Options,
    data_option,
    evaluation_option,
    names_in,
    option,
    refuse_empty,
    refuse_unknown_names,
)
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.core.files.atomic_files import make_folder, published
from ernie_pair.core.files.atomic_folder import point_link
from ernie_pair.core.run_module import python_words
from ernie_pair.experiments.series import unfinished
from ernie_pair.runtime.processes.child_command import ChildCommand, ernie_pair_words
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.runtime.processes.world import World
from ernie_pair.version import __version__

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "scripts" / "results" / "runs"  # those that are committed
LOG, SPENT, STATE, STATUS = "run.log", "spent.json", "model_state.pdparams", "status"

logger = logging.getLogger("ernie_pair.results")


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

    work: str = data_option("output/results", help="folder of corpora, models and predictions")
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
    results: str = data_option(str(RESULTS), help="folder of the results, GROUP/NAME.json")

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "work", "results")
        if self.only and self.group_name == STATUS:
            raise InputError(f"--only {self.only} is for one group, and {STATUS} covers all; leave it out")
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
    runners = {name: Runner(name, places, Path(config.results)) for name in TITLES}
    if group == STATUS:
        groups = {name: (runner, runs_of(name, config)) for name, runner in runners.items()}
        print("\n".join(status_lines(groups)))
        return
    start_console(World())
    runs = {run.name: run for run in runs_of(group, config)}
    wanted = names_in(config.only)
    refuse_unknown_names("only", wanted, runs, f" is no run of {group}; use some of {', '.join(runs)}")
    chosen = [run for run in runs.values() if run.name in (wanted or runs)]
    of_peer = [
        run.name for run in chosen if PEER_PYTHON in str(run.commands) and not runners[group].is_done(run)
    ]
    if of_peer and not config.peer_python:
        raise InputError(
            f"{', '.join(of_peer)} of {group} need --peer_python, a Python that has torch, transformers and "
            "accelerate; give it, or leave them out by --only"
        )
    if of_peer:
        sys.path.append(str(ROOT / "scripts"))  # of a launched file Python puts its own folder there alone
        from other_libraries.client import OF_TRAINER, open_peer

        open_peer(config.peer_python, OF_TRAINER)
    for line in runners[group].make(chosen):
        sys.stderr.write(f"left out: {line}\n")


class Runner:
    """Runs a ``group``; ``places``: its folders, ``results``: the folder of the JSON."""

    def __init__(self, group: str, places: Places, results: Path):
        self.group, self.places, self.results = group, places, results

    def make(self, runs: List[Run]) -> List[str]:
        """Make the missing ones; return the names of those left out, with what they need."""
        left_out: List[str] = []
        names = [f"{self.group}/{run.name}; see {self._folder(run) / LOG}" for run in runs]
        with StopSignals():
            for place in unfinished(names, lambda place: self.is_done(runs[place])):
                missing = self.missing_for(runs[place])
                if missing:
                    left_out.append(f"{runs[place].name}: {missing[0]} does not exist")
                    logger.warning("left out: %s", left_out[-1])
                else:
                    self._make(runs[place])
        return left_out

    def is_done(self, run: Run) -> bool:
        """Return whether the JSON of a run with its commands exists. Raises InputError for no JSON."""
        path = self.path_of(run)
        if not path.is_file():
            return False
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            return {name: stored[name] for name in run.recipe} == run.recipe
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"{path}: {error!r}, not a result of this script; remove it") from None

    def spent_on(self, run: Run) -> float:
        """Return the seconds that attempts at a run with its present commands took; 0: none yet."""
        spent = self._spent(run)
        return float(spent.get("seconds", 0)) if spent.get("recipe") == run.recipe else 0.0

    def missing_for(self, run: Run) -> List[str]:
        return [need for need in run.needs if not self.places.path(need).exists()]

    def path_of(self, run: Run) -> Path:
        return self.results / self.group / f"{run.name}.json"

    def _folder(self, run: Run) -> Path:
        return self.places.work / self.group / run.name

    def _make(self, run: Run) -> None:
        places = replace(self.places, run=self._folder(run))
        if (
            self._spent(run).get("recipe", run.recipe) != run.recipe
        ):  # its commands would refuse what is there
            ending = f"earlier-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
            aside = places.run.rename(places.run.with_name(f"{places.run.name}-{ending}"))
            changed = f"{self.group}/{run.name}: its commands have changed"
            logger.warning("%s; the earlier run is now in %s", changed, aside)
        make_folder(places.run)
        self._add_seconds(run, 0)
        for name, text in run.files.items():
            with published(places.path(name)) as (draft,):
                draft.write_text(places.expand(text), encoding="utf-8")
        for words in run.commands:
            self._call(words, run, places)
        for link, target in ((places.path(link), places.path(to)) for link, to in run.links.items()):
            make_folder(link.parent)
            if link.is_symlink() and places.run in Path(os.readlink(link)).parents:
                point_link(link, target, ".*")
            elif os.path.lexists(link):  # it does not point into this run: it is the user's
                logger.warning("%s stays as it is; what this run has made is %s", link, target)
            else:
                link.symlink_to(target)
        # A model that was pretrained again, on another processor for example, has the same name and other
        # weights; the page says which rows are of one model.
        weights = [path for path in (places.path(need) / STATE for need in run.needs) if path.is_file()]
        packages = installed_versions(("paddlepaddle", "paddlenlp", "numpy"))
        result = {
            "group": self.group, "name": run.name, "title": run.title, **run.recipe,
            "weights": {path.parent.name: sha256_of_file(path)[:8] for path in weights},
            "seeds": list(run.seeds),
            "versions": {"ernie-pair": __version__, "python": platform.python_version(), **packages},
            "machine": machine(), "wall_seconds": round(float(self._spent(run)["seconds"]), 1),
            "figures": run.read(places),
            "curve": read_curve(places.path(run.curve)) if run.curve else {},
        }  # fmt: skip
        with published(self.path_of(run)) as (draft,):
            draft.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        logger.info("wrote %s", self.path_of(run))

    def _call(self, words: Words, run: Run, places: Places) -> None:
        first, *others = map(places.expand, of_today(words))
        of_python = {"ernie-pair": ernie_pair_words(), "python": python_words()}
        program = of_python.get(first, [sys.executable, str(ROOT / first)])
        logger.info("%s: %s", run.name, " ".join(words[:2]))
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "PYTHONPATH": path}  # the runs use the code beside them
        name = f"{words[1] if words[0] == 'ernie-pair' else first} of {self.group}/{run.name}"
        started = time.monotonic()
        try:
            with ChildCommand(others, name, places.run / LOG, environment, program) as child:
                child.finish()
        finally:
            self._add_seconds(run, time.monotonic() - started)

    def _add_seconds(self, run: Run, seconds: float) -> None:
        spent = {"recipe": run.recipe, "seconds": float(self._spent(run).get("seconds", 0)) + seconds}
        with published(self._folder(run) / SPENT) as (draft,):
            draft.write_text(json.dumps(spent), encoding="utf-8")

    def _spent(self, run: Run) -> Dict[str, Any]:
        """Return the recipe and the seconds of earlier attempts; {} where there were none."""
        try:
            return json.loads((self._folder(run) / SPENT).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}


def status_lines(groups: Mapping[str, Tuple[Runner, List[Run]]]) -> List[str]:
    """Return a line for each run of {group: its runner and its runs}, one for each group and one for all.

    A run that is left is estimated by the mean of the finished runs of its group, less what was spent on it;
    the runs of a group without any are counted apart.
    """
    lines, known, unknown = [], 0.0, 0
    for group, (runner, runs) in groups.items():
        done = [run for run in runs if runner.is_done(run)]
        taken = {run.name: json.loads(runner.path_of(run).read_text(encoding="utf-8")) for run in done}
        seconds = {name: float(result["wall_seconds"]) for name, result in taken.items()}
        waiting = [run for run in runs if run.name not in seconds]
        left = [max(0.0, mean(seconds.values()) - runner.spent_on(run)) for run in waiting if seconds]
        known, unknown = known + sum(left), unknown + len(waiting) - len(left)
        time_left = f", about {_clock(sum(left))} left" if left else ", with no estimate yet"
        lines.append(f"{group}: {len(done)} of {len(runs)} runs are done{time_left if waiting else ''}")
        for run in runs:
            spent, missing = runner.spent_on(run), runner.missing_for(run)
            state = f"cut short after {_clock(spent)}" if spent else "left"
            state += "; its commands have changed since its figures" if runner.path_of(run).is_file() else ""
            state += f"; needs {missing[0]}" if missing else ""
            state = f"done, took {_clock(seconds[run.name])}" if run.name in seconds else state
            lines.append(f"  {run.name:<24}{state}")
    more = f"; {unknown} runs have no estimate: their groups have no finished run" if unknown else ""
    return [*lines, f"left in all: about {_clock(known)}{more}"]


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


if __name__ == "__main__":
    run_command(run_group, RunConfig)
