"""OUT/best, a link with a fixed name that points to the best model that the run has published."""

import os
import re
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from data_tools.files.atomic_folder import point_link
from ernie_pair.checkpoint.run_note import folders_of_run

BEST, PREFIX = "best", "best-"
OWN_TARGET = r"best-[A-Za-z0-9_-]{1,60}--?(\d+\.\d{4}|inf|nan)(-\d+)?"
LOWER_IS_BETTER = ("loss",)  # for folders that do not say it themselves


def point_best(folder: Path) -> None:
    """Point the link beside ``folder``, a best model, to it. Raises OSError.

    Anything else under that name is set aside with a warning.
    """
    point_link(folder.with_name(BEST), Path(folder.name), OWN_TARGET)


def is_own_best(link: Path) -> bool:
    """Return whether ``link`` is a link made by `point_best`."""
    return link.is_symlink() and re.fullmatch(OWN_TARGET, os.readlink(link)) is not None


def best_of(output_dir: Path) -> Optional[Path]:
    """Return the folder of the best model of the run in ``output_dir``; None: it has published none.

    A run of an earlier version has no link; then the metadata of its folders decides.
    """
    link = output_dir / BEST
    if is_own_best(link) and link.is_dir():
        return output_dir / os.readlink(link)
    found = ranked_models(output_dir)
    return found[0][0] if found else None


def ranked_models(output_dir: Path, metric: str = "") -> List[Tuple[Path, Dict[str, Any]]]:
    """Return (folder, its metadata) of the best models of the run in ``output_dir``, best first.

    With ``metric``, only the models chosen by it.
    """
    found = [
        (path, note)
        for path, note in folders_of_run(output_dir, PREFIX)
        if isinstance(note.get("value"), (int, float)) and metric in ("", note.get("metric"))
    ]
    return sorted(found, key=_rank)


def _rank(model: Tuple[Path, Dict[str, Any]]) -> float:
    note = model[1]
    is_lower = note.get("lower_is_better", note.get("metric") in LOWER_IS_BETTER)
    return note["value"] if is_lower else -note["value"]
