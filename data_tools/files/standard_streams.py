"""`-` in the place of a file: a command reads standard input, or writes standard output.

What comes by standard input is kept in a file of its own while the command runs: most commands read their
input twice, to check it before the work begins. Its ending is one that the option takes, .jsonl where the
first line begins with a brace.
"""

import json
import os
import shutil
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import wraps
from pathlib import Path
from typing import Any, Callable, Dict, Sequence, TypeVar

from data_tools.base.errors import InputError
from data_tools.base.options import DASH, Options

STANDARD_OUTPUT = "/dev/stdout"
_PROCESSES = "PADDLE_TRAINERS_NUM"  # of a run, as Paddle's launcher tells each of them
Answer = TypeVar("Answer")


class StandIn(str):
    """The path of a file that stands for `-` while a command runs: no name to be written down."""


def as_asked(value: Any) -> Any:
    """Return the value of an option as it was given: `-` for what stands for it, in a list too."""
    if isinstance(value, list):
        return [as_asked(one) for one in value]
    return DASH if isinstance(value, StandIn) else value


def with_standard_streams(command: Callable[..., Answer]) -> Callable[..., Answer]:
    """Let a command take `-`, and a --pair, for the files of the options that say so."""

    @wraps(command)
    def run(config: Options, *others: Any, **named: Any) -> Answer:
        with ExitStack() as stack:
            return command(_with_files(config, stack), *others, **named)

    run.takes_streams = True  # type: ignore[attr-defined]  # a test looks for it
    return run


def _with_files(config: Options, stack: ExitStack) -> Options:
    """Return the options with files in the place of `-`; those of the input last as long as ``stack``.

    Raises InputError for two of a kind, and where the processes of a launcher would share the input.
    """
    named = [item for item in fields(config) if getattr(config, item.name) in (DASH, [DASH])]
    read = [item for item in named if item.metadata["stdin"]]
    written = [item for item in named if item.metadata["stdout"]]
    for these, stream in ((read, "standard input"), (written, "standard output")):
        if len(these) > 1:
            raise InputError(f"--{these[0].name} and --{these[1].name} are both {stream}; give one a file")
    changes: Dict[str, Any] = {item.name: StandIn(STANDARD_OUTPUT) for item in written}
    pair = getattr(config, "pair", None)
    if read or pair:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ernie-pair-")))
        for item in read:
            path = StandIn(_keep_input(folder, item.name, item.metadata["stdin"]))
            changes[item.name] = path if getattr(config, item.name) == DASH else [path]
        if pair:
            changes.update(pair=None, input_file=str(_write_pair(folder, pair, config)))
    return replace(config, **changes) if changes else config


def _keep_input(folder: Path, name: str, endings: Sequence[str]) -> Path:
    """Copy standard input into a file of ``folder`` and return its path."""
    if int(os.environ.get(_PROCESSES, "1") or 1) > 1:
        raise InputError(f"--{name} -: several processes cannot share standard input; give a file")
    if sys.stdin is None or sys.stdin.closed:
        raise InputError(f"--{name} -: standard input is closed; give a file")
    if sys.stdin.isatty():
        sys.stderr.write("reading standard input; end it with Ctrl-D on a line of its own\n")
    draft = folder / "stdin"
    with draft.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    with draft.open("rb") as file:
        is_json = file.read(1 << 16).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")
    return draft.rename(draft.with_suffix(".jsonl" if is_json and ".jsonl" in endings else endings[0]))


def _write_pair(folder: Path, pair: Sequence[str], config: Any) -> Path:
    """Write the two texts of --pair as the one row of a file, and return its path."""
    path = folder / "pair.jsonl"
    row = dict(zip((config.text_a or "sentence1", config.text_b or "sentence2"), pair))
    path.write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
