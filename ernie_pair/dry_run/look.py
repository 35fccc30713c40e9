"""What a start would resume from, found without changing anything."""

import logging
import os
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from data_tools.base.errors import CheckpointError
from data_tools.files.own_names import BAD
from ernie_pair.checkpoint.checkpoint_folder import Checkpoint
from ernie_pair.checkpoint.checkpoints import published_steps
from ernie_pair.checkpoint.fingerprint import Fingerprint, RunRules, refuse_unknown_keys
from ernie_pair.checkpoint.manifest import DamagedError
from ernie_pair.checkpoint.run_lock import LOCK, refuse_locked
from ernie_pair.checkpoint.used_folder import CHECKPOINTS, refuse_lost_checkpoints

logger = logging.getLogger(__name__)


def look_at_run(
    output_dir: Path, fingerprint: Fingerprint, allowed: Sequence[str], rules: RunRules, fresh_start: bool
) -> Optional[Checkpoint]:
    """Return the checkpoint that a start would go on from; None: it would begin.

    Refuses what `Checkpoints` and its ``resume`` refuse, with the same words, and changes nothing.
    """
    refuse_unknown_keys(fingerprint, allowed)
    _refuse_no_folder(output_dir)
    refuse_locked(output_dir / LOCK)
    if fresh_start:
        return None
    folder = output_dir / CHECKPOINTS
    found = published_steps(folder) if folder.is_dir() else {}
    if not found and not list(folder.glob(f"{BAD}*")):
        refuse_lost_checkpoints(output_dir)
        return None
    checkpoint = _newest_sound(folder, found)
    checkpoint.refuse_other_run(fingerprint, allowed, rules)
    return checkpoint


def _refuse_no_folder(output_dir: Path) -> None:
    """Raise OSError if ``output_dir`` cannot be made."""
    there = next(path for path in (output_dir, *output_dir.absolute().parents) if os.path.lexists(path))
    if not there.is_dir():
        raise NotADirectoryError(20, os.strerror(20), str(there))
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(13, os.strerror(13), str(there))


def _newest_sound(folder: Path, found: Dict[int, Path]) -> Checkpoint:
    """Return the newest checkpoint whose every byte is right. Raises CheckpointError if none is."""
    reasons: List[str] = []
    for step in sorted(found, reverse=True):
        try:
            checkpoint = Checkpoint(found[step])
            checkpoint.verify()
            return checkpoint
        except DamagedError as error:
            logger.warning("%s; a start would set it aside", error.message)
            reasons.append(error.message)
    reasons += [f"{path} was set aside" for path in sorted(folder.glob(f"{BAD}*"))]
    raise CheckpointError(
        f"no usable checkpoint in {folder}: {'; '.join(reasons[:5])}; use another --output_dir"
    )
