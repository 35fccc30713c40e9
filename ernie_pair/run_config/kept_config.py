"""OUT/config.yaml of what may be started again: that of its first start, with what later starts changed."""

import itertools
import logging
import os
from dataclasses import MISSING
from pathlib import Path
from types import MappingProxyType
from typing import Any, Dict, List, Mapping, Tuple

from data_tools.base.options import Options
from data_tools.base.regular_file import ABOUT
from data_tools.files.atomic_files import published
from data_tools.files.own_config import read_own_config
from ernie_pair.run_config.config_yaml import (
    CONFIG_YAML,
    OF_ONE_START,
    about_now,
    as_read,
    flags_of,
    text_of_config,
)
from ernie_pair.run_config.facts import versions

NOTHING: Mapping[str, object] = MappingProxyType({})

logger = logging.getLogger(__name__)


def keep_config(
    folder: Path,
    command: str,
    config: Options,
    step: int = 0,
    known_by: Mapping[str, object] = NOTHING,
    layout: Mapping[str, object] = NOTHING,
) -> None:
    """Write config.yaml into ``folder``; one that is there stays, and what is now otherwise is added to it.

    Under about: changes stand {"step", "date", "flags": {name: [before, now]}, "versions": the same}, one for
    each start that changed something. ``known_by``: what must be equal in a file for it to be of this run. A
    file of that name which is not stays, with a warning, and the file has a number in its name. ``layout``:
    what else is said of the first start: its processes, threads and kernels.
    """
    path = _place_in(folder, command, known_by)
    there = read_own_config(path)
    about = about_now(command, **known_by, **({"layout": dict(layout)} if layout else {}))
    flags = as_read(flags_of(config))
    if there is not None:
        change = _change(there, flags, as_read(about), {name: item.default for name, item in _fields(config)})
        if not change:
            return
        about = there.pop(ABOUT)
        about["changes"] = [*_changes_in(about), {"step": step, **change}]
        flags = there
    with published(path) as (draft,):
        draft.write_text(text_of_config(flags, about), encoding="utf-8")


def replace_config(folder: Path, command: str, config: Options) -> None:
    """Write config.yaml beside results that were just made anew, in place of that of earlier ones."""
    with published(_place_in(folder, command, {})) as (draft,):
        draft.write_text(text_of_config(flags_of(config), about_now(command)), encoding="utf-8")


def _fields(config: Options):
    return config.__dataclass_fields__.items()


def find_config(folder: Path, known_by: Mapping[str, object]) -> Path:
    """Return the config.yaml in ``folder`` that says ``known_by`` of itself, or where it is to be."""
    first, ending = os.path.splitext(CONFIG_YAML)
    numbered = (f"{first}-{number}{ending}" for number in itertools.count(2))
    paths = (folder / name for name in itertools.chain([CONFIG_YAML], numbered))
    return next(path for path in paths if not os.path.lexists(path) or _is_of(path, known_by))


def latest_of(content: Dict[str, Any]) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Return the flags and the versions of the last start that the ``content`` of a config.yaml tells of."""
    flags = {name: value for name, value in content.items() if name != ABOUT}
    with_versions = dict(content[ABOUT].get("versions") or {})
    for change in _changes_in(content[ABOUT]):
        flags.update({name: pair[1] for name, pair in change.get("flags", {}).items()})
        with_versions.update({name: pair[1] for name, pair in change.get("versions", {}).items()})
    return flags, with_versions


def _place_in(folder: Path, command: str, known_by: Mapping[str, object]) -> Path:
    """Return the file of this run in ``folder``, or where it is to be."""
    path = find_config(folder, {"command": command, **known_by})
    if path.name != CONFIG_YAML and not os.path.lexists(path):
        logger.warning(
            "%s does not belong to this run and stays; its flags go to %s", folder / CONFIG_YAML, path.name
        )
    return path


def _is_of(path: Path, known_by: Mapping[str, object]) -> bool:
    return known_by.items() <= (read_own_config(path) or {}).get(ABOUT, {}).items()


def _change(
    there: Dict[str, Any], flags: Dict[str, Any], about: Dict[str, Any], defaults: Dict[str, Any]
) -> Dict[str, Any]:
    """Return what this start does differently from the one before it; {} for nothing."""
    before, with_versions = latest_of(there)
    absent = {name: defaults[name] for name in flags if name not in before}
    usual = {name: value for name, value in absent.items() if value is not MISSING}
    known = {**as_read(usual), **before}
    differ = {
        name: [known.get(name), value]
        for name, value in flags.items()
        if name not in OF_ONE_START and known.get(name) != value
    }
    newer = {
        name: [with_versions.get(name), value]
        for name, value in versions().items()
        if with_versions.get(name) != value
    }
    change = {**({"flags": differ} if differ else {}), **({"versions": newer} if newer else {})}
    return {"date": about["date"], **change} if change else {}


def _changes_in(about: Dict[str, Any]) -> List[Dict[str, Any]]:
    changes = about.get("changes")
    return [one for one in changes if isinstance(one, dict)] if isinstance(changes, list) else []
