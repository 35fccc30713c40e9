"""What a path of a model stands for: a folder, or the best model of a run."""

import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, List, Sequence, Union

from ernie_pair.checkpoint.checkpoint_folder import Checkpoint
from ernie_pair.checkpoint.run_folder import CHECKPOINTS, LAST, find_best
from ernie_pair.core.errors import CheckpointError, InputError, again_with
from ernie_pair.core.files.atomic_folder import list_content
from ernie_pair.core.files.hub import download_hint
from ernie_pair.core.files.json_file import read_json_object
from ernie_pair.models.spec import EMBEDDING, LAYER_CLASS, MODULES, architecture_in, find_config

EXPORTED = "export.json"
MODEL_MARKS = ("best/config.json", "modules.json", "embedding.json", "config.json")
RECIPE_NOTE = "config.yml"  # of the recipe's model_last, which names the model that it began from
MAX_LISTED = 4

logger = logging.getLogger(__name__)


def resolve_model_folder(given: Path) -> Path:
    """Return the folder of the model that ``given`` stands for.

    A run's output_dir stands for its best model if it has one, otherwise for its newest checkpoint; a link
    of a run, OUT/best or OUT/model_last, for what it leads to; any other folder for itself. Raises
    CheckpointError if all checkpoints of a run are damaged.
    """
    if given.is_symlink():
        given = given.parent / os.readlink(given)
    if find_config(given) is not None or (given / RECIPE_NOTE).is_file():
        return given
    best = find_best(given)
    if best is not None:
        return best
    if not any((given / name).is_dir() for name in (LAST, CHECKPOINTS)):
        return given
    steps = sorted((given / CHECKPOINTS).glob("step_*"), reverse=True)
    for step in steps:
        try:
            Checkpoint(step).verify()
            return step
        except CheckpointError as error:
            logger.warning("%s; the checkpoint before it is taken", error.message)
    if steps:
        raise CheckpointError(f"no usable checkpoint in {given}; give another model")
    return given / LAST


def with_model_folder(config: Any, hint: str = "") -> Any:
    """Return options whose ``model_path`` is the folder that it stands for, as `resolve_model_folder` says.

    ``hint``: what to give; with it InputError is raised for a path that is no folder.
    """
    given = config.model_path
    if hint and not os.path.isdir(given):
        raise no_model_folder("model_path", given, hint)
    folder = str(resolve_model_folder(Path(given)))
    return config if folder == given else replace(config, model_path=folder)


def kind_of_folder(given: str) -> str:
    """Return what the model that ``given`` stands for is: embedding, mlm of a pretrained one, '' of pairs.

    It is '' as well where there is no folder of a model. Raises InputError for a damaged config.json.
    """
    folder = resolve_model_folder(Path(given))
    if (folder / EMBEDDING).is_file() or (folder / MODULES).is_file():
        return "embedding"
    path = find_config(folder)
    if path is None:
        return "mlm" if (folder / RECIPE_NOTE).is_file() else ""
    config = read_json_object(path, "correct it, or give the folder of a model")
    if LAYER_CLASS in config or "model_class" in config:
        return ""
    architecture = architecture_in(config).lower()
    is_pretrained = not architecture or architecture.endswith(("model", "forpretraining", "formaskedlm"))
    return "mlm" if is_pretrained else ""


def list_model_files(given: str) -> List[Path]:
    """Return what determines the answers of the model that ``given`` stands for; '': no model, no files."""
    folder, in_modules = resolve_model_folder(Path(given)), []
    if (folder / MODULES).is_file():
        from ernie_pair.models.sentence_transformers import list_module_files  # for such a folder alone

        in_modules = list_module_files(folder)
    return [*list_content(str(folder)), *in_modules] if given else []


def no_model_folder(flag: str, given: Union[str, Path], hint: str) -> InputError:
    """Return the error for a ``given`` path of ``flag`` (empty: none) that is no folder."""
    named = f"--{flag} {given}" if flag else str(given)
    return InputError(f"{named} is not a folder; {hint}{download_hint(str(given))}")


def hint_below(folder: Union[str, Path], marks: Sequence[str] = MODEL_MARKS) -> str:
    """Return which folders in ``folder`` hold a model, and the running command with the first, or ''.

    ``marks``: files that tell a model, the likeliest first.
    """
    words = [word.rpartition("=")[2] if word.startswith("--") else word for word in sys.argv[1:]]
    typed = [word for word in words if word and os.path.realpath(word) == os.path.realpath(folder)]
    given = Path((typed[0].rstrip("/") if typed else "") or folder)
    below = sorted(path for path in given.iterdir() if path.is_dir()) if given.is_dir() else []
    below = [path for path in below if EXPORTED in marks or not (path / EXPORTED).is_file()]
    found = list(dict.fromkeys(str(path) for mark in marks for path in below if (path / mark).is_file()))
    if not found:
        return ""
    command = f": {again_with({str(given): found[0]})}" if typed else ""
    listed = ", ".join(found[:MAX_LISTED]) + (", ..." if len(found) > MAX_LISTED else "")
    return f"; a model is in {listed}: give that folder{command}"
