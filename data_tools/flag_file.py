"""A YAML file of flags, read strictly: known flags, each once and with a value."""

from difflib import get_close_matches
from pathlib import Path
from typing import Dict, Iterable, get_args

import yaml

from data_tools.errors import InputError


def check_flag_file(path: str, hints: Dict[str, object]) -> None:
    """Raises InputError with file:line for what is no mapping of ``hints``' names to single values."""
    root = _read(path)
    if root is None:
        return
    if not isinstance(root, yaml.MappingNode):
        raise InputError(f"{path}:{_line(root)}: not a list of flags; write lines like max_steps: 1000")
    lines: Dict[str, int] = {}
    for key, value in root.value:
        name, where = str(key.value), f"{path}:{_line(key)}"
        if name not in hints:
            raise InputError(f"{where}: {name[:40]} is no flag; {nearest([name], hints)}")
        if name in lines:
            raise InputError(f"{where}: {name} stands in line {lines[name]} already; keep one")
        is_empty = value.tag.endswith(":null") and type(None) not in get_args(hints[name])
        if is_empty or not isinstance(value, yaml.ScalarNode):
            raise InputError(f"{where}: {name} has no single value; give it one, or remove the line")
        lines[name] = _line(key)


def nearest(words: Iterable[str], names: Iterable[str]) -> str:
    """'did you mean --max_steps?' for words that are no flags, and where all of them are listed."""
    near = [name for word in words for name in get_close_matches(word, list(names), n=1)]
    hint = f"did you mean {', '.join('--' + name for name in near)}? " if near else ""
    return hint + "--help lists the flags"


def _read(path: str):
    try:
        return yaml.compose(Path(path).read_bytes(), Loader=yaml.SafeLoader)
    except OSError as error:
        raise InputError(f"--config {path}: cannot be read ({error.strerror}); give a YAML file") from None
    except yaml.MarkedYAMLError as error:
        raise InputError(f"{path}:{_line(error.problem_mark)}: not YAML ({error.problem}); mend it") from None
    except (yaml.YAMLError, RecursionError):
        raise InputError(f"{path}: not YAML text; give lines like max_steps: 1000") from None


def _line(place) -> int:
    return getattr(place, "start_mark", place).line + 1
