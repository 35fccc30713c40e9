"""An experiment as data: the commands of a run, what they need, and how its figures are read."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Tuple

Words = Tuple[str, ...]
Figures = Dict[str, Any]
PEER_PYTHON = "$PEER_PYTHON"


@dataclass(frozen=True)
class Places:
    """The folders: runs write to ``work`` and read ``data``, and ``run`` is that of one run.

    ``peer_python`` has transformers on torch; empty: not needed. Commands name them $WORK, $DATA, $RUN
    and $PEER_PYTHON, so that no path of a machine is published.
    """

    work: Path
    data: Path
    run: Path
    peer_python: str = ""

    def expand(self, text: str) -> str:
        """Return ``text`` with the names replaced by paths."""
        places = (("$WORK", self.work), ("$DATA", self.data), ("$RUN", self.run))
        for name, path in (*places, (PEER_PYTHON, self.peer_python)):
            text = text.replace(name, str(path))
        return text

    def path(self, text: str) -> Path:
        """Return the path that ``text`` names."""
        return Path(self.expand(text))


@dataclass(frozen=True)
class Run:
    """One row of the results.

    commands  the words of each, first `ernie-pair` or a script: they resume where they were killed
    read      returns the figures once all commands have ended
    seeds     what differs between repetitions within it
    files     {path: text}, written before the commands, such as the flags of a training
    needs     outputs of other runs: without them this one is left out
    curve     a metrics.jsonl whose points are kept, thinned
    links     {link: its target}, made once all commands have ended
    """

    name: str
    title: str
    commands: Tuple[Words, ...]
    read: Callable[[Places], Figures]
    seeds: Tuple[int, ...] = (1234,)
    files: Mapping[str, str] = field(default_factory=dict)
    needs: Tuple[str, ...] = ()
    curve: str = ""
    links: Mapping[str, str] = field(default_factory=dict)

    @property
    def recipe(self) -> Dict[str, Any]:
        """Return what determines the figures: a run whose recipe has changed is made again."""
        return {"commands": [list(words) for words in self.commands], "files": dict(self.files)}

    @property
    def needs_peer(self) -> bool:
        """Return whether a command runs the peer's Python."""
        return any(PEER_PYTHON in word for words in self.commands for word in words)


def hash_of(settings: object) -> str:
    """Return a hash of ``settings``, of JSON values, in eight digits."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


def words_of(*command: str, **flags) -> Words:
    """Return the words of a command of ernie-pair and its flags; one whose value is None is left out."""
    given = ((name, value) for name, value in flags.items() if value is not None)
    return ("ernie-pair", *command, *(f"--{name}={_shown(value)}" for name, value in given))


def script_words(script: str, **flags) -> Words:
    """Return the words of a script and its flags."""
    return (script, *words_of(**flags)[1:])


def yaml_of(flags: Mapping[str, object]) -> str:
    """Return the text of a file of flags."""
    return "".join(f"{name}: {_shown(value)}\n" for name, value in flags.items())


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def names_of(runs: List[Run]) -> List[str]:
    """Return the names of ``runs``."""
    return [run.name for run in runs]
