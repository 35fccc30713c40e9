"""The output files that the user names for a command: one rule for all commands.

Inputs are never overwritten, existing files only with --overwrite true; devices, pipes and links are written
through, not replaced. .NAME.made.json beside the first file records what all were made from:

    {"made_by": "ernie-pair", "command": "predict", "settings": {"scores": false, ...},
     "inputs": {"input_file": [["test.tsv", "sha256"]], ...}, "outputs": {"predictions.tsv": "sha256"}}

So a repeated command has nothing to do, and one with other inputs or flags is told the difference.
"""

import json
import os
import re
import shutil
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Collection, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

import yaml

from ernie_pair.core.errors import InputError
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.core.files.atomic_files import (
    ABOUT,
    CONFIG_YAML,
    MAX_CONFIG_BYTES,
    naming,
    published,
    read_regular,
)
from ernie_pair.core.files.json_file import as_read, parse_json_object, write_json
from ernie_pair.core.progress import Progress, say

MAKER = "ernie-pair"
MAX_RECORD, MAX_LINKS, CHUNK = 1 << 26, 40, 1 << 20
_OPEN_FILE = re.compile(r"/proc/(\d+)/fd/(\d+)")
HINT = "pass --overwrite true to replace it, or choose another name"


class Results:
    """``outputs`` of ``command``, which depend on ``inputs``, {flag: its files}, and on ``settings``.

    ``record``: where that is recorded, if not beside the first output. ``positional``: which of these are
    given without a flag. ``inputs_grow``: the inputs are still being written, so outputs of an earlier state
    are made again. ``requested``: those of ``outputs`` that a flag names and no setting shows; they are made
    when they are missing, whatever else is there.
    """

    def __init__(
        self,
        command: str,
        outputs: Sequence[Union[str, Path]],
        inputs: Dict[str, Sequence[Path]],
        settings: Dict[str, object],
        overwrite: bool,
        record: Optional[Path] = None,
        positional: Collection[str] = (),
        inputs_grow: bool = False,
        requested: Sequence[Path] = (),
    ):
        self.given = [Path(output) for output in outputs]  # as a message names them
        self.outputs = [followed(output) for output in self.given]
        self.inputs = {flag: [Path(path) for path in paths] for flag, paths in inputs.items()}
        self.overwrite, self._positional, self._inputs_grow = overwrite, positional, inputs_grow
        self._requested = [followed(path) for path in requested]
        self._others: Dict[str, str] = {}  # made by an earlier run of the same command, and still valid
        self._about: Dict[str, Any] = {"made_by": MAKER, "command": command, "settings": as_read(settings)}
        self._record = record or self.outputs[0].with_name(f".{self.outputs[0].name}.made.json")
        self._stamps_before = self._input_stamps()

    def are_done(self) -> bool:
        """Return whether the same command has made the same outputs already, and say so in a line.

        Raises InputError if one of them is an input, or exists and may not be replaced.
        """
        existing, record = self.check_existing()
        if not existing:
            return False
        made, folder = record["outputs"], self._record.parent
        self._others = {name: sha256 for name, sha256 in made.items() if os.path.lexists(folder / name)}
        if len(self._others) < len(made):
            return False  # killed between the first and the last
        if any(is_stream(path) or not os.path.lexists(path) for path in self._requested):
            return False  # asked for later than the others
        if self._inputs_grow and record.get("inputs") != self._hash_inputs():
            return False
        say(f"{existing[0]} exists, made from the same inputs and flags: nothing to do", sys.stderr)
        return True

    def were_made(self) -> bool:
        """Return whether what is recorded was made by the same command, from the same inputs and flags."""
        record = self._read_record()
        return bool(record) and not self._difference(record)

    def check_existing(self, from_any_inputs: bool = False) -> Tuple[List[Path], Dict[str, Any]]:
        """Return (existing outputs to keep, their record). Raises InputError as `are_done` does.

        ``from_any_inputs``: those that the same command made from other inputs, or with other flags, pass.
        """
        self._check_inputs()
        existing = [path for path in self.outputs if os.path.lexists(path) and not is_stream(path)]
        if self.overwrite or not existing:
            return [], {}
        record = self._read_record()
        for path in existing:
            if self._name_of(path) not in record.get("outputs", {}):
                raise InputError(f"{path} exists; {HINT}")
        difference = "" if from_any_inputs else self._difference(record)
        if difference:
            raise InputError(f"{existing[0]} exists; {HINT} ({difference})")
        for path in existing:
            if record["outputs"][self._name_of(path)] != sha256_of_file(path):
                raise InputError(f"{path} exists; {HINT} (it was changed since it was made)")
        return existing, record

    def has_made(self, path: Path) -> bool:
        """Return whether ``path`` is an output that the same command has recorded, and not a user's file."""
        record = self._read_record()
        name = self._name_of(followed(path))
        return record.get("command") == self._about["command"] and name in record["outputs"]

    def _check_inputs(self) -> None:
        """Raise InputError if an output is an input, under any name, or another output."""
        given = [(self._flag_name(flag), path) for flag, paths in self.inputs.items() for path in paths]
        for number, output in enumerate(self.outputs):
            others = [("another output", path) for path in self.outputs[:number]]
            for what, path in [*given, *others] if not is_stream(output) else ():
                if output.exists() and path.exists() and output.samefile(path):
                    raise InputError(f"{output} would be written over {what}, {path}; choose another name")

    @contextmanager
    def published(self, *outputs: Path) -> Iterator[List[Path]]:
        """Yield drafts of ``outputs``, or of all, that are renamed to these at the end; see `published`."""
        finals = [followed(output) for output in outputs] or self.outputs
        streams = [final for final in finals if is_stream(final)]
        files = [final for final in finals if final not in streams]
        with ExitStack() as stack:
            drafts = {}
            if streams:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                stack.enter_context(naming(folder))
                drafts = {final: folder / str(number) for number, final in enumerate(streams)}
            if files:
                note, *there = stack.enter_context(published(self._record, *files))
                drafts.update(zip(files, there))
            yield [drafts[final] for final in finals]
            for final in streams:
                _write_to_stream(drafts[final], final)
            if files:  # the record first: outputs that exist belong to this command, even if it is killed
                record = self.about({self._name_of(final): drafts[final] for final in files})
                record["outputs"] = {**self._others, **record["outputs"]}
                note.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    def keep(self) -> None:
        """Write the record before anything is made, with those of the outputs that are there."""
        there = {self._name_of(path): path for path in self.outputs if path.is_file()}
        with published(self._record) as (draft,):
            write_json(draft, self.about(there))

    def about_folder(self, draft: Path) -> Dict[str, object]:
        """Return the record of all files in a folder, but for config.yaml, which contains a time."""
        files = [path for path in sorted(draft.rglob("*")) if path.is_file() and path.name != CONFIG_YAML]
        return self.about({path.relative_to(draft).as_posix(): path for path in files})

    def about(self, made: Dict[str, Path]) -> Dict[str, Any]:
        """Return the record of {name beside the record: the file as it was made}."""
        hashes = {name: sha256_of_file(path) for name, path in made.items()}
        return {**self._about, "inputs": self._hash_inputs(), "outputs": hashes}

    def _name_of(self, output: Path) -> str:
        return os.path.relpath(output, self._record.parent)

    def _input_stamps(self) -> List:
        """Return what shows that an input was changed while it was read."""
        found = [path.stat() for paths in self.inputs.values() for path in paths if path.exists()]
        return [(status.st_ino, status.st_size, status.st_mtime_ns) for status in found]

    def _hash_inputs(self) -> Any:
        """Return {flag: [[name, sha256], ...]}, or a text if an input was changed while it was read."""
        paths = [path for paths in self.inputs.values() for path in paths]
        if self._input_stamps() != self._stamps_before:
            return "changed while they were read"
        with Progress(paths, log_interval=0) as progress:
            return {
                flag: [[path.name, sha256_of_file(path, on_read=progress.read)] for path in given]
                for flag, given in self.inputs.items()
            }

    def _difference(self, record: Dict[str, Any]) -> str:
        """Return what differed when the outputs were made; '' for nothing."""
        before, now = record.get("settings"), self._about["settings"]
        if record.get("command") != self._about["command"] or not isinstance(before, dict):
            return f"it was made by {record.get('command')}"
        for key in sorted({*before, *now}):
            name = self._flag_name(key)
            if key not in before:
                return f"it was made with another {name}"
            if key not in now or before[key] != now[key]:
                instead = f" and not {_format_value(now[key])}" if key in now else ""
                return f"it was made with {name} {_format_value(before[key])}{instead}"
        if self._inputs_grow:
            return ""
        inputs, given = self._hash_inputs(), record.get("inputs")
        if isinstance(given, dict):
            for flag, found in inputs.items():
                if given.get(flag) != found:
                    return f"it was made from other content of {self._flag_name(flag)}"
        return "" if given == inputs else "it was made from other inputs"

    def _flag_name(self, name: str) -> str:
        return name.upper() if name in self._positional else f"--{name}"

    def _read_record(self) -> Dict[str, Any]:
        record = read_record(self._record)
        return record if isinstance(record.get("outputs"), dict) else {}


def read_record(path: Path) -> Dict[str, Any]:
    """Return the record of what was made that a .made.json holds; {} for any other file, or none."""
    try:
        record = parse_json_object(read_regular(path, MAX_RECORD, follow=False))
    except (OSError, ValueError):
        return {}
    return record if record.get("made_by") == MAKER else {}


def settings_of(config, *inputs_and_outputs: str) -> Dict[str, object]:
    """Return the flags of ``config`` that determine the outputs: neither paths nor those of speed."""
    unread = {"speed", "start"}
    without_effect = (one.name for one in fields(config) if unread & {*one.metadata.get("affects", ())})
    left_out = {*inputs_and_outputs, *without_effect}
    return {name: value for name, value in asdict(config).items() if name not in left_out}


def paths_named(given: str) -> List[str]:
    """Return the names in ``given``, with commas between; a comma within one that exists is a part of it."""
    pieces, names = [given] if os.path.exists(given) else given.split(","), []  # type: List[str], List[str]
    while pieces:
        whole = (n for n in range(len(pieces), 1, -1) if os.path.exists(",".join(pieces[:n])))
        count = next(whole, 1)
        names.append(os.path.expanduser(",".join(pieces[:count])))
        del pieces[:count]
    return names


def files_of(given: str) -> List[Path]:
    """Return each of `paths_named` that is a file, or the visible files in it; none of what is absent."""
    names = paths_named(given)
    if len(names) > 1:
        return [path for name in names for path in files_of(name)]
    path = Path(given)
    if given and path.is_dir():
        return sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
    return [path] if given and path.is_file() else []


def is_stream(path: Path) -> bool:
    """Return whether ``path`` is a device, a pipe or a file descriptor: written to, never replaced."""
    if str(path).startswith("/proc/"):
        return True
    return path.exists() and not path.is_file() and not path.is_dir()


def check_absent(finals: Iterable[Path], overwrite: bool) -> None:
    """Raise InputError if one of the files to write exists, unless it may be replaced."""
    for final in map(followed, finals):
        if not overwrite and os.path.lexists(final) and not is_stream(final):
            raise InputError(f"{final} exists; {HINT}")


def followed(path: Path) -> Path:
    """Return what links at ``path`` point to, but keep a file descriptor: /proc/PID/fd/1."""
    for _ in range(MAX_LINKS):
        path = Path(os.path.realpath(path.parent), path.name)
        if str(path).startswith("/proc/") or not path.is_symlink():
            return path
        path = path.parent / os.readlink(path)
    raise InputError(f"{path}: its links form a loop; choose another name")


def _write_to_stream(draft: Path, final: Path) -> None:
    sys.stdout.flush()
    open_here = _OPEN_FILE.fullmatch(str(final))
    target: Union[int, Path] = final
    if open_here is not None and int(open_here[1]) == os.getpid():
        target = os.dup(int(open_here[2]))
    try:
        with open(draft, "rb") as source, open(target, "wb") as file:
            shutil.copyfileobj(source, file, CHUNK)
    except BrokenPipeError:  # whose reader may be done, see `exit_code_of`
        raise
    except OSError as error:  # one of writing names no file
        raise OSError(error.errno, error.strerror, str(final)) from None


def _format_value(value) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def read_own_config(path: Path) -> Optional[Dict[str, Any]]:
    """Return the content of a config.yaml of this package; None for any other file."""
    try:
        content = yaml.safe_load(read_regular(path, MAX_CONFIG_BYTES, follow=False))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None
    about = content.get(ABOUT) if isinstance(content, dict) else None
    return content if isinstance(about, dict) and about.get("made_by") == MAKER else None
