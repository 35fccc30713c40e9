"""The control groups (cgroups v1 and v2) of this process: where Linux keeps the limits of a container."""

from pathlib import Path
from typing import Iterator


def group_folders(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folders that may hold a limit for this process by ``controller``, cpu or memory.

    They are those of its group and of the groups above it: each may set a limit, and the smallest counts.
    In a container the files of the group itself are at the top. ``root``: the root of the file system.
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
    """Return the content of a file; '' if it is missing or not readable."""
    try:
        return path.read_text()
    except OSError:
        return ""
