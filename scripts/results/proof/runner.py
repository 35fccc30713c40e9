"""Make the missing runs of a group one after the other, and keep one small JSON for each.

RUNS/GROUP/NAME.json         what is committed: recipe, weights, versions, machine, seconds, figures, curve
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
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Iterator, List

from data_tools.files.arrays import sha256_of_file
from data_tools.files.atomic_files import make_folder, published
from data_tools.files.atomic_folder import point_link
from data_tools.files.errors import InputError
from data_tools.files.installation import version_of
from ernie_pair.runtime.cpu import processor_name
from ernie_pair.runtime.processes.child_command import ChildCommand
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.series.series import unfinished
from ernie_pair.version import __version__
from proof.curves import read_curve
from proof.experiment import Places, Run, Words

ROOT = Path(__file__).resolve().parents[3]
LOG, SPENT, STATE = "run.log", "spent.json", "model_state.pdparams"
VERSIONS = ("paddlepaddle", "paddlenlp", "numpy")

logger = logging.getLogger("ernie_pair.results")


class Runner:
    """Runs a ``group``; ``places``: its folders, ``results``: the folder of the JSON."""

    def __init__(self, group: str, places: Places, results: Path):
        self.group, self.places, self.results = group, places, results

    def make(self, runs: List[Run]) -> List[str]:
        """Make the missing ones; return the names of those left out, with what they need."""
        left_out: List[str] = []
        names = [f"{self.group}/{run.name}; see {self.log_of(run)}" for run in runs]
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
            found = json.loads(path.read_text(encoding="utf-8"))
            return {name: found[name] for name in run.recipe} == run.recipe
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"{path}: {error!r}, not a result of this script; remove it") from None

    def spent_on(self, run: Run) -> float:
        """Return the seconds that attempts at a run with its present commands took; 0: none yet."""
        found = _read_spent(self._folder(run) / SPENT)
        return float(found.get("seconds", 0)) if found.get("recipe") == run.recipe else 0.0

    def missing_for(self, run: Run) -> List[str]:
        """Return what a run needs and does not exist yet."""
        return [need for need in run.needs if not self.places.path(need).exists()]

    def weights_of(self, run: Run) -> Dict[str, str]:
        """Return {model: the first digits of the SHA-256 of its weights}, of the models of ``run.needs``.

        A model that was pretrained again, on another processor for example, has the same name and other
        weights; the page says which rows are of one model.
        """
        files = [self.places.path(need) / STATE for need in run.needs]
        return {file.parent.name: sha256_of_file(file)[:8] for file in files if file.is_file()}

    def path_of(self, run: Run) -> Path:
        """Return where the JSON of a run is kept."""
        return self.results / self.group / f"{run.name}.json"

    def log_of(self, run: Run) -> Path:
        """Return the path of the log of a run."""
        return self._folder(run) / LOG

    def _folder(self, run: Run) -> Path:
        return self.places.work / self.group / run.name

    def _make(self, run: Run) -> None:
        places = replace(self.places, run=self._folder(run))
        self._set_aside_other(run)
        make_folder(places.run)
        _write_spent(places.run / SPENT, run, _spent(places.run / SPENT))
        for name, text in run.files.items():
            with published(places.path(name)) as (draft,):
                draft.write_text(places.expand(text), encoding="utf-8")
        for words in run.commands:
            with _timed(places.run / SPENT, run):
                self._call(words, run, places)
        for link, target in run.links.items():
            _make_link(places.path(link), places.path(target), places.run)
        seconds = _spent(places.run / SPENT)
        result = {
            "group": self.group,
            "name": run.name,
            "title": run.title,
            **run.recipe,
            "weights": self.weights_of(run),
            "seeds": list(run.seeds),
            "versions": _versions(),
            "machine": {"processor": processor_name() or "unknown", "cores": len(os.sched_getaffinity(0))},
            "wall_seconds": round(seconds, 1),
            "figures": run.read(places),
            "curve": read_curve(places.path(run.curve)) if run.curve else {},
        }
        with published(self.path_of(run)) as (draft,):
            draft.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        logger.info("wrote %s", self.path_of(run))

    def _set_aside_other(self, run: Run) -> None:
        """Rename the folder of a run if its commands have changed: they would refuse what is in it."""
        folder = self._folder(run)
        if _read_spent(folder / SPENT).get("recipe", run.recipe) == run.recipe:
            return
        ending = f"earlier-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        aside = folder.rename(folder.with_name(f"{folder.name}-{ending}"))
        logger.warning(
            "%s/%s: its commands have changed; the earlier run is now in %s", self.group, run.name, aside
        )

    def _call(self, words: Words, run: Run, places: Places) -> None:
        first, *others = map(places.expand, words)
        program = ["-m", "ernie_pair"] if first == "ernie-pair" else [str(ROOT / first)]
        logger.info("%s: %s", run.name, " ".join(words[:2]))
        environment = {**os.environ, "PYTHONPATH": _path_of_children()}
        name = f"{words[1] if first == 'ernie-pair' else first} of {self.group}/{run.name}"
        with ChildCommand(others, name, self.log_of(run), environment, program) as child:
            child.finish()


def _make_link(link: Path, target: Path, run: Path) -> None:
    """Point ``link`` to ``target``, unless it exists and does not point into ``run``: it is the user's."""
    make_folder(link.parent)
    if link.is_symlink() and run in Path(os.readlink(link)).parents:
        point_link(link, target, ".*")
    elif os.path.lexists(link):
        logger.warning("%s stays as it is; what this run has made is %s", link, target)
    else:
        link.symlink_to(target)


def _path_of_children() -> str:
    """Return PYTHONPATH with this source tree: the runs use the code beside them."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))


@contextmanager
def _timed(path: Path, run: Run) -> Iterator[None]:
    """Add the seconds of the context to those in ``path``, however it ends."""
    before, started = _spent(path), time.monotonic()
    try:
        yield
    finally:
        _write_spent(path, run, before + time.monotonic() - started)


def _write_spent(path: Path, run: Run, seconds: float) -> None:
    with published(path) as (draft,):
        draft.write_text(json.dumps({"recipe": run.recipe, "seconds": seconds}), encoding="utf-8")


def _spent(path: Path) -> float:
    """Return the seconds that earlier attempts took."""
    return float(_read_spent(path).get("seconds", 0))


def _read_spent(path: Path) -> Dict[str, Any]:
    """Return the recipe and the seconds of earlier attempts; {} where there were none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _versions() -> Dict[str, Any]:
    found = {name: version_of(name) for name in VERSIONS}
    return {"ernie-pair": __version__, "python": platform.python_version(), **found}


def main_folder() -> Path:
    """Return where the results are committed."""
    return ROOT / "scripts" / "results" / "runs"


def told(left_out: List[str]) -> None:
    """Say on stderr what was left out."""
    for line in left_out:
        sys.stderr.write(f"left out: {line}\n")
