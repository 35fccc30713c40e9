"""The runs below the given folders: their logged events, their flags, and short names."""

import itertools
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence

from data_tools.base.errors import CheckpointError, InputError
from data_tools.base.regular_file import FileRefusedError, read_regular
from data_tools.files.json_file import JsonError, parse_json_object
from data_tools.files.own_config import read_own_config
from data_tools.files.results import MAKER
from ernie_pair.checkpoint.checkpoint_folder import MANIFEST
from ernie_pair.checkpoint.run_note import read_run
from ernie_pair.checkpoint.used_folder import CHECKPOINTS, EVENTS
from ernie_pair.engine.run_log import read_all_events
from ernie_pair.run_config.kept_config import find_config, latest_of

LARGEST = 1 << 22  # bytes of a manifest
DEPTH = 3  # folders below a given one that are searched for runs
PASSED = ("checkpoints", "vdl", "cache", "log")  # folders of a run that contain no runs
ASIDE = "earlier-"  # prefix of what --fresh_start set aside
Event = Dict[str, Any]


class Run(NamedTuple):
    """A run: its short ``name``, its folder, what it logged, its flags, and when it was started, if known."""

    name: str
    folder: Path
    events: List[Event]
    flags: Dict[str, object]
    started: str

    @property
    def step(self) -> int:
        """Return the last step that was logged."""
        return max(event["step"] for event in self.events)


def open_runs(outs: Sequence[str]) -> List[Run]:
    """Return the runs in the folders ``outs``, or below them, in that order, each once.

    Raises InputError for a folder that holds none.
    """
    folders = {found.resolve(): found for out in outs for found in find_runs(Path(out))}
    return [
        Run(name, folder.resolve(), read_all_events(folder / EVENTS), flags_of(folder), _started(folder))
        for name, folder in zip(short_names(list(folders)), folders.values())
    ]


def find_runs(out: Path) -> List[Path]:
    """Return ``out`` if it is a run, otherwise the folders below it that are. Raises InputError."""
    if not out.is_dir():
        raise InputError(f"{out} is not a folder; give the --output_dir of a run")
    found = list(_runs_in(out, DEPTH))
    if not found:
        raise InputError(
            f"{out} holds no run: there is no {EVENTS} with an event in it or below it; give the "
            "--output_dir of pretrain, train, distill or train-embedding"
        )
    return found


def _runs_in(folder: Path, depth: int) -> Iterator[Path]:
    if read_all_events(folder / EVENTS):
        yield folder
    elif depth and not (folder / EVENTS).is_file():
        for inner in sorted(folder.iterdir()):
            is_passed = inner.name in PASSED or inner.name.startswith(ASIDE)
            if inner.is_dir() and not inner.is_symlink() and not is_passed:
                yield from _runs_in(inner, depth - 1)


def short_names(folders: Sequence[Path]) -> List[str]:
    """Return different names for ``folders``: as few of their last parts as distinguish them."""
    for count in itertools.count(1):
        names = ["/".join(folder.parts[-count:]) for folder in folders]
        if len(set(names)) == len(names):
            return [_printable(name) for name in names]
    raise AssertionError("folders are not all different")


def _printable(name: str) -> str:
    return "".join(c if c.isprintable() and c != "%" else "_" for c in name).lstrip("/") or "run"


def flags_of(folder: Path) -> Dict[str, object]:
    """Return the flags of the last start of a run: those of its config.yaml, whatever its number.

    Without one they are the flags in the fingerprint of its newest checkpoint.
    """
    note = _note_of(folder)
    known_by = {"made_by": MAKER, **({"run_id": note["run_id"]} if note else {})}
    found = read_own_config(find_config(folder, known_by))
    if found is not None:
        return _single_values(latest_of(found)[0])
    for manifest in sorted(folder.glob(f"{CHECKPOINTS}/step_*/{MANIFEST}"), reverse=True):
        try:
            content = parse_json_object(read_regular(manifest, LARGEST))
        except (FileRefusedError, OSError, JsonError):
            continue
        known = [content.get(name) for name in ("fingerprint", "topology")]
        return {
            name: value
            for part in known
            if isinstance(part, dict)
            for name, value in _single_values(part).items()
        }
    return {}


def _single_values(mapping: Dict[Any, Any]) -> Dict[str, object]:
    return {
        str(name): value
        for name, value in mapping.items()
        if value is None or isinstance(value, (str, int, float, bool))
    }


def _started(folder: Path) -> str:
    return str(_note_of(folder).get("started", "")).replace("T", " ")


def _note_of(folder: Path) -> Dict[str, Any]:
    """Return run.json of a folder; {} if it is missing or invalid."""
    try:
        return read_run(folder)
    except (CheckpointError, OSError):
        return {}
