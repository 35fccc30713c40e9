"""A folder appears whole or not at all."""

import shutil
from pathlib import Path
from typing import Callable

from data_tools.publish import to_disk


def publish_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Let ``fill`` write into a draft beside ``folder``, then put it in place of what is there.

    A reader sees the old folder, no folder for an instant, or the new one; never half of one.
    """
    draft, old = folder.with_name(f".tmp-{folder.name}"), folder.with_name(f".trash-{folder.name}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    for leftover in (draft, old):
        shutil.rmtree(leftover, ignore_errors=True)
    draft.mkdir()
    try:
        fill(draft)
        for path in draft.iterdir():
            to_disk(path)
        to_disk(draft)
        if folder.exists():
            folder.rename(old)
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    to_disk(folder.parent)
    shutil.rmtree(old, ignore_errors=True)
