"""The control groups of this process: where Linux keeps the limits of a container, of both versions."""

from pathlib import Path
from typing import Iterator


def group_folders(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folders that may hold a limit of this process by ``controller``, cpu or memory.

    They are those of its group and of the groups above it: each may set a limit, and the smallest holds. In a
    container the files of the group itself stand at the top. ``root``: that of the file system.
    """
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mounts = (controller, controllers) if controllers else ("", "unified")
        for mount in (root / "sys/fs/cgroup" / name for name in dict.fromkeys(mounts)):
            group = mount / path.strip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(mount))


def text_of(path: Path) -> str:
    """Return what a file says; '' where there is none that may be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
