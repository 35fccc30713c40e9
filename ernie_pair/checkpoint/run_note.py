"""OUT/run.json: the identity of a run, and the folders that the run has published.

{"run_id": "9f...", "started": "2024-05-01T12:00:00", "has_checkpoint": true}
"""

import itertools
import json
import logging
import os
import re
import secrets
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

from data_tools.base.errors import CheckpointError
from data_tools.files.atomic_files import published
from data_tools.files.atomic_folder import publish_folder, read_made
from data_tools.files.json_file import read_json_object

RUN = "run.json"
RUN_ID = re.compile(r"[0-9a-f]{16}")
LARGEST_RUN = 1 << 16

logger = logging.getLogger(__name__)


def read_run(output_dir: Path) -> Dict[str, Any]:
    """Return the note of ``output_dir``, {} if there is none.

    Raises CheckpointError when the file of that name is not such a note.
    """
    path = output_dir / RUN
    if not os.path.lexists(path):
        return {}
    cure = "it is not the note of a run: rename it, or use another --output_dir"
    note = read_json_object(path, cure, CheckpointError, LARGEST_RUN, follow=False)
    if not (isinstance(note.get("run_id"), str) and RUN_ID.fullmatch(note["run_id"])):
        raise CheckpointError(f"{path}: no run_id in it; {cure}")
    return note


def run_id_of(output_dir: Path) -> str:
    """Return the run id of ``output_dir``, which is created and stored at the first start."""
    run = read_run(output_dir)
    if not run:
        run = {"run_id": secrets.token_hex(8), "started": time.strftime("%Y-%m-%dT%H:%M:%S")}
        _write(output_dir, {**run, "has_checkpoint": False})
    return run["run_id"]


def note_checkpoint(output_dir: Path) -> None:
    """Record that the run has published a checkpoint, which must not be lost from now on."""
    run = read_run(output_dir)
    if not run.get("has_checkpoint"):
        _write(output_dir, {**run, "has_checkpoint": True})


def publish_of_run(folder: Path, fill: Callable[[Path], None], about: Dict[str, object]) -> Path:
    """Publish ``folder`` as one of the run in its parent, and return its path.

    It gets another name if the user has something of that name. ``about`` is kept in it, see
    ``publish_folder``.
    """
    own = [path for path, _ in folders_of_run(folder.parent, folder.name)]
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
    names = itertools.chain([folder], numbered)
    chosen = next(name for name in names if name in own or not os.path.lexists(name))
    if chosen != folder:
        logger.warning("%s does not belong to this run and stays; the model goes to %s", folder, chosen)
    about = {**about, "run_id": read_run(folder.parent).get("run_id", "")}
    publish_folder(chosen, fill, lambda draft: about)
    return chosen


def folders_of_run(output_dir: Path, start: str) -> List[Tuple[Path, Dict[str, object]]]:
    """Return (folder, its metadata) of what the run in ``output_dir`` published with the prefix ``start``."""
    run_id = read_run(output_dir).get("run_id", "")
    names = sorted(os.listdir(output_dir)) if output_dir.is_dir() else []
    notes = [(output_dir / name, read_made(output_dir / name)) for name in names if name.startswith(start)]
    return [(path, note) for path, note in notes if note is not None and note.get("run_id") == run_id]


def _write(output_dir: Path, run: Dict[str, object]) -> None:
    with published(output_dir / RUN) as (draft,):
        draft.write_text(json.dumps(run))
