"""What a path without a model may have meant: a model in a folder below it, or the name of one on a Hub."""

import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import List, Sequence, Union

from ernie_pair.core.errors import InputError, again_with

HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]+")
OF_EXPORTED = "export.json"
OF_A_MODEL = ("best/config.json", "modules.json", "embedding.json", "config.json")
MOST_NAMED = 4


def no_model_folder(flag: str, given: Union[str, Path], cure: str) -> InputError:
    """Return the error for a ``given`` path of ``flag`` (empty: none) that is no folder."""
    named = f"--{flag} {given}" if flag else str(given)
    return InputError(f"{named} is not a folder; {cure}{download_hint(str(given))}")


def download_hint(given: str) -> str:
    """Return the command that downloads a model if ``given`` looks like its name on a Hub, else ''."""
    if not HUB_NAME.fullmatch(given) or Path(given).exists() or Path(given.partition("/")[0]).is_dir():
        return ""
    program = next((name for name in ("hf", "huggingface-cli") if _is_there(name)), "hf")
    words = [program, "download", given, "--local-dir", given.rpartition("/")[2]]
    return f"; a model of the Hugging Face Hub is given by its folder, once it is there: {shlex.join(words)}"


def _is_there(program: str) -> bool:
    return Path(sys.executable).with_name(program).exists() or shutil.which(program) is not None


def models_below(folder: Path, marks: Sequence[str] = OF_A_MODEL) -> List[Path]:
    """Return the folders in ``folder`` that hold a model, in the order of ``marks``, which tell one."""
    below = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    below = [path for path in below if OF_EXPORTED in marks or not (path / OF_EXPORTED).is_file()]
    found = [path for mark in marks for path in below if (path / mark).is_file()]
    return list(dict.fromkeys(found))


def hint_below(folder: Union[str, Path], marks: Sequence[str] = OF_A_MODEL) -> str:
    """Return which folders in ``folder`` hold a model, and the running command with the first, or ''."""
    words = [word.rpartition("=")[2] if word.startswith("--") else word for word in sys.argv[1:]]
    typed = [word for word in words if word and os.path.realpath(word) == os.path.realpath(folder)]
    given = (typed[0].rstrip("/") if typed else "") or str(folder)
    found = [str(path) for path in models_below(Path(given), marks)]
    if not found:
        return ""
    command = f": {again_with({given: found[0]})}" if typed else ""
    told = ", ".join(found[:MOST_NAMED])
    more = ", ..." if len(found) > MOST_NAMED else ""
    return f"; a model is in {told}{more}: give that folder{command}"
