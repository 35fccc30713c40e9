"""The files that a command writes where a person told it to: the one rule of all commands.

Never over an input; over what is there only when told to (--overwrite true); devices, pipes and links are
written through, not replaced. .NAME.made.json beside the first file says what all were made from:

    {"made_by": "ernie-pair", "command": "predict", "settings": {"scores": false, ...},
     "inputs": {"input_file": [["test.tsv", "sha256"]], ...}, "outputs": {"predictions.tsv": "sha256"}}

So the same command again has nothing to do, and one of other inputs or flags is told the difference.
"""

import json
import os
import re
import shutil
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Union

from data_tools.base.errors import InputError
from data_tools.base.progress import Progress
from data_tools.base.regular_file import read_regular
from data_tools.base.yaml_flags import CONFIG_YAML
from data_tools.files.atomic_files import published
from data_tools.files.json_file import parse_json_object
from data_tools.files.npy_stream import sha256_of_file

MAKER = "ernie-pair"
LARGEST_RECORD, MOST_LINKS, CHUNK = 1 << 26, 40, 1 << 20
_OPEN_FILE = re.compile(r"/proc/(\d+)/fd/(\d+)")
CURE = "pass --overwrite true to replace it, or choose another name"
_NOT_SAID = object()
_WITHOUT_EFFECT = (
    *("overwrite", "workers", "threads", "log_interval", "device", "kernels", "engine", "ray_address"),
)
# Flags that came later, with what was done before there were any.
_AS_BEFORE = {"pair": None, "precision": "fp32", "robustness": "", "robustness_rows": 2000}


class Results:
    """``outputs`` of ``command``; what they follow from is ``inputs``, {flag: its files}, and ``settings``.

    ``record``: where that is written down, if not beside the first output. ``also``: what may be written
    besides, of which no more is known than whether it is there.
    """

    def __init__(
        self,
        command: str,
        outputs: Sequence[Union[str, Path]],
        inputs: Dict[str, Sequence[Path]],
        settings: Dict[str, object],
        overwrite: bool,
        record: Optional[Path] = None,
        also: Sequence[Path] = (),
    ):
        self.outputs = [followed(Path(output)) for output in outputs]
        self.inputs = {flag: [Path(path) for path in paths] for flag, paths in inputs.items()}
        self.overwrite, self._also = overwrite, list(also)
        self._about: Dict[str, Any] = {
            "made_by": MAKER,
            "command": command,
            "settings": json.loads(json.dumps(settings)),
        }
        self._record = record or self.outputs[0].with_name(f".{self.outputs[0].name}.made.json")
        self._before = self._stamps()

    def are_done(self) -> bool:
        """Tell, with a line, whether the same command has made the same outputs already.

        Raises InputError when one of them is an input, or is there and may not be replaced.
        """
        self.refuse_inputs()
        if self.overwrite:
            return False
        existing = [path for path in self.outputs if os.path.lexists(path) and not is_stream(path)]
        if not existing:
            refuse_existing(self._also, overwrite=False)
            return False
        record = self._read_record()
        self._refuse_unknown(existing, record)
        difference = self._difference(record)
        if difference:
            raise InputError(f"{existing[0]} exists; {CURE} ({difference})")
        self._refuse_changed(existing, record)
        if len(existing) < len(record["outputs"]):
            return False  # killed between the first and the last
        sys.stderr.write(f"{existing[0]} is there, of the same inputs and flags: nothing to do\n")
        return True

    def refuse_foreign(self) -> None:
        """Raise InputError as `are_done`, but not where this command made what is there, of whatever."""
        self.refuse_inputs()
        existing = [path for path in self.outputs if os.path.lexists(path) and not is_stream(path)]
        if existing and not self.overwrite:
            record = self._read_record()
            self._refuse_unknown(existing, record)
            self._refuse_changed(existing, record)

    def _refuse_unknown(self, existing: List[Path], record: Dict[str, Any]) -> None:
        known = record.get("outputs", {})
        strange = next((path for path in existing if self._name_of(path) not in known), None)
        if strange is not None:
            raise InputError(f"{strange} exists; {CURE}")

    def _refuse_changed(self, existing: List[Path], record: Dict[str, Any]) -> None:
        as_made = {path: record["outputs"][self._name_of(path)] for path in existing}
        changed = next((path for path in existing if as_made[path] != sha256_of_file(path)), None)
        if changed is not None:
            raise InputError(f"{changed} exists; {CURE} (it was changed since it was made)")

    def refuse_inputs(self) -> None:
        """Raise InputError when an output is an input, by whatever name, or another output."""
        given = [(f"--{flag}", path) for flag, paths in self.inputs.items() for path in paths]
        for number, output in enumerate(self.outputs):
            others = [("another output", path) for path in self.outputs[:number]]
            for what, path in [*given, *others]:
                if not is_stream(output) and _is_same(output, path):
                    raise InputError(f"{output} would be written over {what}, {path}; choose another name")

    @contextmanager
    def published(self, *outputs: Path) -> Iterator[List[Path]]:
        """Yield drafts of ``outputs``, or of all, that take their names at the end; see `published`."""
        finals = [followed(output) for output in outputs] or self.outputs
        streams = [final for final in finals if is_stream(final)]
        files = [final for final in finals if final not in streams]
        with ExitStack() as stack:
            drafts = {}
            if streams:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                drafts = {final: folder / str(number) for number, final in enumerate(streams)}
            if files:
                note, *there = stack.enter_context(published(self._record, *files))
                drafts.update(zip(files, there))
            yield [drafts[final] for final in finals]
            for final in streams:
                _write_through(drafts[final], final)
            if files:  # the record first: what is there of it belongs to this command, killed or not
                said = self.about({self._name_of(final): drafts[final] for final in files})
                note.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")

    def about_folder(self, draft: Path) -> Dict[str, object]:
        """Return what the record in a folder says of all files in it, those of its folders included.

        It is the same for the same results: config.yaml, which names a moment, is left out.
        """
        files = [path for path in sorted(draft.rglob("*")) if path.is_file() and path.name != CONFIG_YAML]
        return self.about({path.relative_to(draft).as_posix(): path for path in files})

    def about(self, made: Dict[str, Path]) -> Dict[str, object]:
        """Return what the record says of {name beside the record: the file as it was made}."""
        hashes = {name: sha256_of_file(path) for name, path in made.items()}
        return {**self._about, "inputs": self._inputs_now(), "outputs": hashes}

    def _name_of(self, output: Path) -> str:
        return os.path.relpath(output, self._record.parent)

    def _stamps(self) -> List:
        """Return what shows that an input was changed while it was read."""
        found = [path.stat() for paths in self.inputs.values() for path in paths if path.exists()]
        return [(status.st_ino, status.st_size, status.st_mtime_ns) for status in found]

    def _inputs_now(self) -> Any:
        """Return {flag: [[name, sha256], ...]}, or words where an input was changed while it was read."""
        paths = [path for paths in self.inputs.values() for path in paths]
        if self._stamps() != self._before:
            return "changed while they were read"
        with Progress(paths, log_interval=0) as progress:
            return {
                flag: [[path.name, sha256_of_file(path, tell=progress.read)] for path in given]
                for flag, given in self.inputs.items()
            }

    def _difference(self, record: Dict[str, Any]) -> str:
        """Return what was otherwise when the outputs were made; '' for nothing."""
        before, now = record.get("settings"), self._about["settings"]
        if record.get("command") != self._about["command"] or not isinstance(before, dict):
            return f"it was made by {record.get('command')}"
        later = {key: value for key, value in _AS_BEFORE.items() if key in now}
        before = {**later, **{key: value for key, value in before.items() if key not in _WITHOUT_EFFECT}}
        for key in sorted({*before, *now}):
            if before.get(key, _NOT_SAID) != now.get(key, _NOT_SAID):
                return f"it was made with --{key} {_shown(before.get(key))} and not {_shown(now.get(key))}"
        inputs, given = self._inputs_now(), record.get("inputs")
        if isinstance(given, dict):
            for flag, found in inputs.items():
                if given.get(flag) != found:
                    return f"it was made from another content of --{flag}"
        return "" if given == inputs else "it was made from other inputs"

    def _read_record(self) -> Dict[str, Any]:
        try:
            record = parse_json_object(read_regular(self._record, LARGEST_RECORD, follow=False))
        except (OSError, ValueError):
            return {}
        return record if record.get("made_by") == MAKER and isinstance(record.get("outputs"), dict) else {}


def settings_of(config, *inputs_and_outputs: str) -> Dict[str, object]:
    """Return the flags of ``config`` that decide what is written: not the places, not how fast."""
    left_out = (*inputs_and_outputs, *_WITHOUT_EFFECT)
    return {name: value for name, value in asdict(config).items() if name not in left_out}


def files_of(given: str) -> List[Path]:
    """Return the file, or the visible files in the folder, of that name; none for what is no path."""
    path = Path(given)
    if given and path.is_dir():
        return sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
    return [path] if given and path.is_file() else []


def is_stream(path: Path) -> bool:
    """Tell whether ``path`` is a device, a pipe, or what a process has open: written to, never replaced."""
    if str(path).startswith("/proc/"):
        return True
    return path.exists() and not path.is_file() and not path.is_dir()


def refuse_existing(finals: Iterable[Path], overwrite: bool) -> None:
    """Raise InputError when a file stands where one will be written, unless it may be replaced."""
    existing = [final for final in map(followed, finals) if os.path.lexists(final) and not is_stream(final)]
    if existing and not overwrite:
        raise InputError(f"{existing[0]} exists; {CURE}")


def followed(path: Path) -> Path:
    """Return where links at ``path`` lead, but not into what a process has open: /proc/PID/fd/1 stays."""
    for _ in range(MOST_LINKS):
        path = Path(os.path.realpath(path.parent), path.name)
        if str(path).startswith("/proc/") or not path.is_symlink():
            return path
        path = path.parent / os.readlink(path)
    raise InputError(f"{path}: its links lead in a circle; choose another name")


def _is_same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _write_through(draft: Path, final: Path) -> None:
    sys.stdout.flush()
    open_here = _OPEN_FILE.fullmatch(str(final))
    target: Union[int, Path] = final
    if open_here is not None and int(open_here[1]) == os.getpid():
        target = os.dup(int(open_here[2]))
    with open(draft, "rb") as source, open(target, "wb") as file:
        shutil.copyfileobj(source, file, CHUNK)


def _shown(value) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
