"""`-` instead of a file: a command reads standard input, or writes standard output.

Standard input is kept in a temporary file while the command runs: most commands read their input twice, to
check it before the work begins. Its ending is one that the option takes, .jsonl if the first line begins
as a JSON object. That file is never shown: messages and reports call it "standard input".
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

from ernie_pair.core.cli.options import DASH, Options
from ernie_pair.core.errors import ErniePairError, InputError
from ernie_pair.core.files.atomic_files import naming
from ernie_pair.core.files.json_file import begins_json_lines

STANDARD_INPUT, STANDARD_OUTPUT = "standard input", "/dev/stdout"
_PROCESSES = "PADDLE_TRAINERS_NUM"  # in a run, as Paddle's launcher tells each of them
_NAMES: Dict[str, str] = {}  # what messages call temporary files, while they exist
Answer = TypeVar("Answer")


class TempInput(str):
    """The path of a file that stands for `-` while a command runs; it is never recorded."""

    given = DASH


def original_value(value: Any) -> Any:
    """Return the value of an option as it was given: `-` for a file that stands for it, in a list too.

    Of a model of a Hub, its name and commit.
    """
    if isinstance(value, list):
        return [original_value(one) for one in value]
    return getattr(value, "given", value)


def with_models(config: Any) -> Any:
    """Return options with the folders of models that they name as a Hub does. Raises InputError."""
    names = [item.name for item in fields(config) if item.metadata.get("reads") == "MODEL"]
    if not any("/" in getattr(config, name) for name in names):
        return config
    from ernie_pair.core.files.hub import local_model  # only where it may be needed

    where = getattr(config, "output_dir", "")
    changes = {name: local_model(getattr(config, name), name, where) for name in names}
    is_other = any(changes[name] != getattr(config, name) for name in names)
    return replace(config, **changes) if is_other else config


def as_called(text: str) -> str:
    """Return a text for the user, with what was given in place of a file that stands for it."""
    for path, name in _NAMES.items():
        text = text.replace(path, name)
    return text


def with_standard_streams(command: Callable[..., Answer]) -> Callable[..., Answer]:
    """Let a command take `-`, and a --pair, for the files of the options that allow it."""

    @wraps(command)
    def run(config: Options, *others: Any, **named: Any) -> Answer:
        with ExitStack() as stack:
            stack.callback(_NAMES.clear)
            try:
                return command(_with_files(config, stack), *others, **named)
            except ErniePairError as error:
                error.args = (as_called(error.message),)
                raise

    run.takes_streams = True  # type: ignore[attr-defined]  # a test looks for it
    return run


def check_stdin(reader: str, cure: str = "give a file") -> None:
    """Raise InputError if there is no standard input, which ``reader`` of the command line would read."""
    if sys.stdin is None or sys.stdin.closed:
        raise InputError(f"{reader}: standard input is closed; {cure}")


def _with_files(config: Any, stack: ExitStack) -> Any:
    """Return the options with files in place of `-`; those of the input last as long as ``stack``.

    Raises InputError for two options with one stream, and if launched processes would share the input.
    """
    named = [item for item in fields(config) if getattr(config, item.name) in (DASH, [DASH])]
    read = [item for item in named if item.metadata["stdin"]]
    written = [item for item in named if item.metadata["stdout"]]
    for these, stream in ((read, "standard input"), (written, "standard output")):
        if len(these) > 1:
            raise InputError(f"--{these[0].name} and --{these[1].name} are both {stream}; give one a file")
    changes: Dict[str, Any] = {item.name: TempInput(STANDARD_OUTPUT) for item in written}
    _NAMES.update({STANDARD_OUTPUT: "standard output"} if written else {})
    pair = getattr(config, "pair", None)
    if read or pair:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ernie-pair-")))
        for item in read:
            path = TempInput(_keep_input(folder, item.name, item.metadata["stdin"]))
            changes[item.name] = path if getattr(config, item.name) == DASH else [path]
            _NAMES[str(path)] = STANDARD_INPUT
        if pair:  # its two texts, as the one row of a file
            row_file = folder / "pair.jsonl"
            row = dict(zip((config.text_a or "sentence1", config.text_b or "sentence2"), pair))
            row_file.write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
            changes.update(pair=None, input_file=str(row_file))
            _NAMES.update({f"{row_file}:1": "--pair", str(row_file): "--pair"})
    return replace(config, **changes) if changes else config


def _keep_input(folder: Path, name: str, endings: Sequence[str]) -> Path:
    """Copy standard input into a file of ``folder`` and return its path."""
    if int(os.environ.get(_PROCESSES, "1") or 1) > 1:
        raise InputError(f"--{name} -: several processes cannot share standard input; give a file")
    check_stdin(f"--{name} -")
    if sys.stdin.isatty():
        sys.stderr.write("reading standard input; end it with Ctrl-D on a line of its own\n")
    draft = folder / "stdin"
    with naming(draft), draft.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    with draft.open("rb") as file:
        is_json = begins_json_lines(file.read(1 << 16))
    return draft.rename(draft.with_suffix(".jsonl" if is_json and ".jsonl" in endings else endings[0]))
