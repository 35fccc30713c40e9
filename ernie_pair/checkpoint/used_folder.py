"""An output folder that was used before: its run goes on or is set aside, nothing starts afresh silently."""

import logging
import os
import secrets
import time
from pathlib import Path
from typing import List

from data_tools.base.errors import CheckpointError
from data_tools.files.atomic_files import make_folder
from ernie_pair.checkpoint.best_link import BEST, PREFIX, is_own_best
from ernie_pair.checkpoint.run_note import RUN, folders_of_run, read_run

CHECKPOINTS, EVENTS, CURVES, LAST = "checkpoints", "metrics.jsonl", "vdl", "model_last"
OWN_LINK = r"checkpoints/step_\d{8}"  # where model_last leads
PUBLISHED = (PREFIX, "model_")

logger = logging.getLogger(__name__)


def refuse_lost_checkpoints(output_dir: Path) -> None:
    """Raise CheckpointError where there is no checkpoint although a run has published one.

    Without its run.json a run is known by its metrics. One that was killed before its first checkpoint has
    nothing to lose and begins again.
    """
    run = read_run(output_dir)
    lost = [LAST] if _leads_to_a_checkpoint(output_dir / LAST) else []
    if run:
        lost += [RUN] if run.get("has_checkpoint") else []
    else:
        lost += [EVENTS] if os.path.lexists(output_dir / EVENTS) else []
    if lost:
        raise CheckpointError(
            f"{output_dir} was used before ({lost[0]} is there) and its {CHECKPOINTS}/ is empty or gone; put "
            "it back, or pass --fresh_start true, which renames what is left and begins anew, or use another "
            "--output_dir"
        )


def set_aside_run(output_dir: Path) -> None:
    """Rename all that a run left in ``output_dir`` into a folder earlier-... in it, with a line that says so.

    run.json goes last: killed in between, it is still known that the folder was used.
    """
    run = read_run(output_dir)
    wanted = [Path(CHECKPOINTS), Path(EVENTS), *_published(output_dir)]
    wanted += [Path(BEST)] if is_own_best(output_dir / BEST) else []
    wanted += [Path(LAST)] if _leads_to_a_checkpoint(output_dir / LAST) else []
    wanted += _configurations(output_dir, run["run_id"]) if run else []
    wanted += [Path(CURVES) / run["run_id"], Path(RUN)] if run else []
    wanted = [path for path in wanted if _holds_something(output_dir / path)]
    if not wanted:
        return
    aside = output_dir / f"earlier-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    for path in wanted:
        make_folder((aside / path).parent)
        (output_dir / path).rename(aside / path)
    logger.warning("--fresh_start: %s of an earlier run is now in %s", ", ".join(map(str, wanted)), aside)


def _published(output_dir: Path) -> List[Path]:
    return [Path(path.name) for start in PUBLISHED for path, _ in folders_of_run(output_dir, start)]


def _configurations(output_dir: Path, run_id: str) -> List[Path]:
    """Return the config.yaml of a run, whatever number it has; one of a person's does not name the run."""
    found = [path for path in sorted(output_dir.glob("config*.yaml")) if path.is_file()]
    return [Path(path.name) for path in found if run_id in path.read_text(encoding="utf-8", errors="replace")]


def _leads_to_a_checkpoint(link: Path) -> bool:
    return link.is_symlink() and os.readlink(link).startswith(f"{CHECKPOINTS}/")


def _holds_something(path: Path) -> bool:
    """Return whether ``path`` is a file, a link, or a folder that is not empty."""
    if path.is_dir() and not path.is_symlink():
        return any(path.iterdir())
    return os.path.lexists(path)
