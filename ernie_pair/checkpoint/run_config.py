"""The text of config.yaml: the flags as --config reads them, and under ``about`` what --config ignores.

# The flags of `ernie-pair train`, and what they ran on. To do the same once more:
#   ernie-pair train --config output/config.yaml --output_dir another
output_dir: output
learning_rate: 5.0e-05
about:
  made_by: ernie-pair
  command: train
  date: 2024-05-01T12:00:00+0000
"""

import itertools
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import MISSING, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Type, TypeVar, Union

import yaml

from ernie_pair.checkpoint.manifest import installed_versions
from ernie_pair.core.cli.flag_words import read_flag_file
from ernie_pair.core.cli.options import Options, defaults_of, hints_of, parse_value
from ernie_pair.core.cli.standard_streams import original_value
from ernie_pair.core.files.atomic_files import ABOUT, CONFIG_YAML, published
from ernie_pair.core.files.atomic_folder import published_folder
from ernie_pair.core.files.results import MAKER, Results, read_own_config
from ernie_pair.runtime.cpu import processor_name, text_of, usable_cores
from ernie_pair.version import __version__

_WIDTH = 1 << 20  # no line is folded

Config = TypeVar("Config", bound=Options)
EMPTY: Mapping[str, object] = MappingProxyType({})
GIT_SECONDS = 10.0  # a repository on a slow disk is not waited for
# Git itself writes nothing, asks nobody, and starts no hook and no monitor of the file system.
GIT_OPTIONS = (
    "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null",
    "-c", "core.untrackedCache=false",
)  # fmt: skip
GIT_ENVIRONMENT = {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
GPUS = Path("/proc/driver/nvidia/gpus")

logger = logging.getLogger(__name__)


def flags_of(config: Options) -> Dict[str, Any]:
    """Return every flag with its value as it was given, those of one start with their defaults."""
    given = {item.name: original_value(getattr(config, item.name)) for item in fields(config)}
    return {**given, **defaults_of(config, "start")}


def about_now(command: str, **more: object) -> Dict[str, Any]:
    """Return what is to be known of this start of ``command``: ``more``, then when, where and on what."""
    folder = Path.cwd()
    git = git_state(folder)
    return {
        "made_by": MAKER,
        "command": command,
        **more,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command_line": command_line(),
        "folder": str(folder),
        **({"git": git} if git else {}),
        "versions": versions(),
        "machine": machine(),
    }


def text_of_config(flags: Dict[str, Any], about: Dict[str, Any]) -> str:
    """Return the text of config.yaml."""
    command = about["command"]
    head = (
        f"# The flags of `ernie-pair {command}`, and what they ran on. To do the same once more:\n"
        f"#   ernie-pair {command} --config {CONFIG_YAML} --output_dir another\n"
    )
    return head + _dump_yaml(flags) + _dump_yaml({ABOUT: about})


def publish_results(
    folder: Path, fill: Callable[[Path], None], command: str, config: Options, results: Results
) -> None:
    """Let ``fill`` write ``folder``, which gets config.yaml besides, as the ``results`` of ``command``.

    What is there is replaced if they may replace it; see `published_folder`. Raises InputError, as
    `Results.are_done`, for what another run has published there since.
    """
    with published_folder(folder, results.about_folder, lambda there: results.overwrite) as draft:
        results.check_existing()
        fill(draft)
        text = text_of_config(flags_of(config), about_now(command))
        (draft / CONFIG_YAML).write_text(text, encoding="utf-8")


def as_read(flags: Dict[str, Any]) -> Dict[str, Any]:
    """Return flags as they are read from the file: YAML has no tuples."""
    return yaml.safe_load(_dump_yaml(flags)) or {}


def _dump_yaml(content: Dict[str, Any]) -> str:
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=_WIDTH)


def keep_config(
    folder: Path,
    command: str,
    config: Options,
    step: int = 0,
    identity: Mapping[str, object] = EMPTY,
    layout: Mapping[str, object] = EMPTY,
) -> None:
    """Write config.yaml into ``folder``; one that is there stays, and what is now otherwise is added to it.

    Under about: changes stand {"step", "date", "flags": {name: [before, now]}, "versions": the same}, one for
    each start that changed something. ``identity``: what must be equal in a file for it to be of this run. A
    file of that name which is not stays, with a warning, and the file has a number in its name. ``layout``:
    what else is said of the first start: its processes, threads and kernels.
    """
    path = _config_path(folder, command, identity)
    there = read_own_config(path)
    about = about_now(command, **identity, **({"layout": dict(layout)} if layout else {}))
    flags = as_read(flags_of(config))
    if there is not None:
        change = _changes_since(there, flags, as_read(about), config)
        if not change:
            return
        about = there.pop(ABOUT)
        about["changes"] = [*_recorded_changes(about), {"step": step, **change}]
        flags = there
    with published(path) as (draft,):
        draft.write_text(text_of_config(flags, about), encoding="utf-8")


def replace_config(folder: Path, command: str, config: Options) -> None:
    """Write config.yaml beside results that were just made anew, in place of that of earlier ones."""
    with published(_config_path(folder, command, {})) as (draft,):
        draft.write_text(text_of_config(flags_of(config), about_now(command)), encoding="utf-8")


def find_config(folder: Path, identity: Mapping[str, object]) -> Path:
    """Return the config.yaml in ``folder`` that says ``identity`` of itself, or where it is to be."""
    first, ending = os.path.splitext(CONFIG_YAML)
    numbered = (f"{first}-{number}{ending}" for number in itertools.count(2))
    paths = (folder / name for name in itertools.chain([CONFIG_YAML], numbered))

    def is_ours(path: Path) -> bool:
        return identity.items() <= (read_own_config(path) or {}).get(ABOUT, {}).items()

    return next(path for path in paths if not os.path.lexists(path) or is_ours(path))


def read_latest(content: Dict[str, Any]) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Return the flags and the versions of the last start that the ``content`` of a config.yaml tells of."""
    flags = {name: value for name, value in content.items() if name != ABOUT}
    with_versions = dict(content[ABOUT].get("versions") or {})
    for change in _recorded_changes(content[ABOUT]):
        flags.update({name: pair[1] for name, pair in change.get("flags", {}).items()})
        with_versions.update({name: pair[1] for name, pair in change.get("versions", {}).items()})
    return flags, with_versions


def _config_path(folder: Path, command: str, identity: Mapping[str, object]) -> Path:
    path = find_config(folder, {"command": command, **identity})
    if path.name != CONFIG_YAML and not os.path.lexists(path):
        logger.warning(
            "%s does not belong to this run and stays; its flags go to %s", folder / CONFIG_YAML, path.name
        )
    return path


def _changes_since(
    there: Dict[str, Any], flags: Dict[str, Any], about: Dict[str, Any], config: Options
) -> Dict[str, Any]:
    """Return what this start does differently from the one before it; {} for nothing."""
    before, with_versions = read_latest(there)
    absent = [item for item in fields(config) if item.name not in before and item.default is not MISSING]
    usual = {item.name: item.default for item in absent}
    now = {name: value for name, value in flags.items() if name not in defaults_of(config, "start")}
    change: Dict[str, Any] = {"date": about["date"]}
    compared = ("flags", {**as_read(usual), **before}, now), ("versions", with_versions, versions())
    for what, known, new in compared:
        differ = {name: [known.get(name), new[name]] for name in new if known.get(name) != new[name]}
        change.update({what: differ} if differ else {})
    return change if len(change) > 1 else {}


def _recorded_changes(about: Dict[str, Any]) -> List[Dict[str, Any]]:
    changes = about.get("changes")
    return [one for one in changes if isinstance(one, dict)] if isinstance(changes, list) else []


def load_config(
    config_class: Type[Config], path: Union[str, "os.PathLike[str]"], **changes: object
) -> Config:
    """Return the options of a file, as ``--config`` of a command reads it; ``changes`` override it.

        from ernie_pair import PairTrainer, TrainConfig, load_config

        config = load_config(TrainConfig, "output/config.yaml", output_dir="another", seed=2)
        PairTrainer(config.model_name_or_path, config, config.train_file, config.dev_file).train()

    Raises InputError, with file:line, for a name that is not a flag of the class or a value of another type.
    """
    hints = hints_of(config_class)
    given = read_flag_file(str(Path(path)), hints)
    values = {name: parse_value(text, hints[name]) for name, text in given.items()}
    return config_class(**{**values, **changes})


def git_state(folder: Path) -> Dict[str, object]:
    """Return {"commit", "dirty"} of the repository around ``folder``; {} without one, or without Git.

    dirty: do tracked files differ from the commit? It is left out where Git does not answer in time.
    """
    commit = _run_git(folder, "rev-parse", "--verify", "HEAD^{commit}")
    if not commit:
        return {}
    changed = _run_git(folder, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
    return {"commit": commit} if changed is None else {"commit": commit, "dirty": bool(changed)}


def _run_git(folder: Path, *words: str) -> Optional[str]:
    """Return what Git prints; None where it cannot be asked, or refuses."""
    git, nowhere, environment = shutil.which("git"), subprocess.DEVNULL, {**os.environ, **GIT_ENVIRONMENT}
    if git is None:
        return None
    command = [git, *GIT_OPTIONS, *words]
    try:
        answer = subprocess.check_output(
            command, cwd=folder, env=environment, stdin=nowhere, stderr=nowhere, timeout=GIT_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.decode("utf-8", "replace").strip()


def versions() -> Dict[str, str]:
    """Return the versions of Python, of this package and of what it computes with."""
    return {"python": platform.python_version(), **installed_versions(), "ernie-pair": __version__}


def machine() -> Dict[str, object]:
    """Return the processor, the number of cores that this process may use, and the GPUs of the driver."""
    texts = map(text_of, sorted(GPUS.glob("*/information")))  # of no library, so that no GPU is opened
    found = (re.search(r"^Model:\s*(.+)$", text, re.M) for text in texts)
    cards = [match[1].strip() for match in found if match is not None]
    facts = {"processor": processor_name() or platform.machine(), "cores": len(usable_cores())}
    return {**facts, "gpus": cards} if cards else facts


def command_line() -> str:
    """Return the words of this process as they would be typed."""
    first, *words = sys.argv or [""]
    if Path(first).parts[-2:] == ("ernie_pair", "__main__.py"):
        first = "ernie-pair"
    return shlex.join([os.path.basename(first) if os.path.isabs(first) else first, *words])
