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

from dataclasses import fields
from pathlib import Path
from typing import Any, Callable, Dict, TypeVar

import yaml

from data_tools.base.options import Options
from data_tools.base.regular_file import ABOUT, CONFIG_YAML
from data_tools.files.results import MAKER
from data_tools.files.standard_streams import as_asked
from ernie_pair.run_config.facts import facts_now

# They apply to one start only: read from a file, they would set a run aside once more.
OF_ONE_START = ("fresh_start", "allow_change", "dry_run", "overwrite")
_WIDTH = 1 << 20  # no line is folded

Result = TypeVar("Result")


def flags_of(config: Options) -> Dict[str, Any]:
    """Return every flag with its value as it was given, those of one start with their defaults."""
    values = {item.name: as_asked(getattr(config, item.name)) for item in fields(config)}
    return {
        item.name: item.default if item.name in OF_ONE_START else values[item.name] for item in fields(config)
    }


def about_now(command: str, **more: object) -> Dict[str, Any]:
    """Return the facts of this start of ``command``; ``more`` stands behind its name."""
    return {"made_by": MAKER, "command": command, **more, **facts_now()}


def text_of_config(flags: Dict[str, Any], about: Dict[str, Any]) -> str:
    """Return the text of config.yaml."""
    command = about["command"]
    head = (
        f"# The flags of `ernie-pair {command}`, and what they ran on. To do the same once more:\n"
        f"#   ernie-pair {command} --config {CONFIG_YAML} --output_dir another\n"
    )
    return head + _dumped(flags) + _dumped({ABOUT: about})


def write_config(folder: Path, command: str, config: Options) -> None:
    """Write config.yaml into a folder that is being made."""
    text = text_of_config(flags_of(config), about_now(command))
    (folder / CONFIG_YAML).write_text(text, encoding="utf-8")


def with_config(fill: Callable[[Path], Result], command: str, config: Options) -> Callable[[Path], Result]:
    """Return what fills a folder as ``fill`` does, and writes config.yaml into it."""

    def fill_and_tell(draft: Path) -> Result:
        filled = fill(draft)
        write_config(draft, command, config)
        return filled

    return fill_and_tell


def as_read(flags: Dict[str, Any]) -> Dict[str, Any]:
    """Return flags as they are read from the file: YAML has no tuples."""
    return yaml.safe_load(_dumped(flags)) or {}


def _dumped(content: Dict[str, Any]) -> str:
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=_WIDTH)
