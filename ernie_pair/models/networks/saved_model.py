"""Save a model under a name chosen by the user."""

import os
import shutil
from functools import partial
from pathlib import Path
from typing import Dict, Optional, Union

from data_tools.files.atomic_folder import is_as_made, publish_folder, read_made
from data_tools.files.errors import InputError
from ernie_pair.models.networks.classifier import PairClassifier
from ernie_pair.models.networks.plain_model import PlainModel
from ernie_pair.models.temperature import CALIBRATION

SAVED_MODEL: Dict[str, object] = {"kind": "saved model"}


def save_classifier(
    folder: Path,
    model: Union[PairClassifier, PlainModel],
    vocab_file: Path,
    max_seq_len: int,
    from_folder: Optional[Path],
) -> None:
    """Write ``model`` into ``folder``, whole or not at all, in place of an earlier one at most.

    ``from_folder``: where unchanged weights come from; their calibration.json goes along. Raises InputError
    where something lies that this did not write or that was added to since, OSError when the disk refuses.
    """
    folder = Path(os.path.realpath(folder))
    if os.path.lexists(folder) and not (_is_saved_model(folder) or _is_empty(folder)):
        raise InputError(
            f"save_model: {folder} holds what save_model did not write, which would be lost; give another "
            "folder"
        )
    write = partial(model.write, vocab_file=vocab_file, max_seq_len=max_seq_len)
    calibration = None if from_folder is None else from_folder / CALIBRATION

    def fill(draft: Path) -> None:
        write(draft)
        if calibration is not None and calibration.is_file():
            shutil.copyfile(calibration, draft / CALIBRATION)

    publish_folder(folder, fill, lambda draft: SAVED_MODEL)


def _is_saved_model(folder: Path) -> bool:
    """Return whether ``folder`` is one of `save_classifier`, and holds nothing that came later."""
    note = read_made(folder) or {}
    return is_as_made(folder) and SAVED_MODEL.items() <= note.items()


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())
