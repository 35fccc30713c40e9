"""An output folder that was used before: its run is resumed or set aside, never silently restarted."""

import logging
import os
import re
import secrets
import time
from pathlib import Path
from typing import List

from data_tools.base.errors import CheckpointError
from data_tools.base.regular_file import ABOUT
from data_tools.files.atomic_files import make_folder
from data_tools.files.own_config import read_own_config
from ernie_pair.checkpoint.best_link import BEST, PREFIX, is_own_best
from ernie_pair.checkpoint.run_note import RUN, folders_of_run, read_run

CHECKPOINTS, EVENTS, CURVES, LAST = "checkpoints", "metrics.jsonl", "vdl", "model_last"
OWN_LINK = r"checkpoints/step_\d{8}"  # the target of model_last
PUBLISHED = (PREFIX, "model_")
OWN_CONFIG = re.compile(r"config(-[0-9]+)?\.yaml")

logger = logging.getLogger(__name__)


def refuse_lost_checkpoints(output_dir: Path) -> None:
    """Raise CheckpointError if there is no checkpoint although a run has published one.

    Without its run.json a run is recognized by its metrics. One that was killed before its first checkpoint
    has nothing to lose and starts again.
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
            "it back, or pass --fresh_start true, which renames what is left and starts anew, or use another "
            "--output_dir"
        )


def set_aside_run(output_dir: Path) -> None:
    """Move all that a run left in ``output_dir`` into a folder earlier-... in it, and log that.

    run.json is moved last, so that the folder is still recognized as used if this is interrupted.
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
    """Return the config.yaml files of a run, with any number, but not those of the user."""
    named = [path for path in sorted(output_dir.glob("config*.yaml")) if OWN_CONFIG.fullmatch(path.name)]
    contents = {path.name: read_own_config(path) for path in named}
    return [
        Path(name) for name, content in contents.items() if content and content[ABOUT].get("run_id") == run_id
    ]


def _leads_to_a_checkpoint(link: Path) -> bool:
    return link.is_symlink() and os.readlink(link).startswith(f"{CHECKPOINTS}/")


def _holds_something(path: Path) -> bool:
    """Return whether ``path`` is a file, a link, or a folder that is not empty."""
    if path.is_dir() and not path.is_symlink():
        return any(path.iterdir())
    return os.path.lexists(path)
