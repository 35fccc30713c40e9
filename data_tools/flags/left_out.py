"""What to say of required options that were not given, on a command line and in Python."""

from dataclasses import Field, fields
from string import ascii_uppercase
from typing import Any, List, Sequence


def left_out_of_command(config_class: Any, left_out: Sequence[Field], program: str) -> str:
    """Return which arguments and flags of ``program`` are missing, and an example or what explains them."""
    names = [item.name.upper() if item.metadata["positional"] else f"--{item.name}" for item in left_out]
    has_argument = left_out[0].metadata["positional"]
    other = _taking_the_place(config_class, left_out)
    words = ascii_uppercase[: config_class.__dataclass_fields__[other].metadata["values"]] if other else ""
    missing = _missing(names, left_out, f"--{other} {' '.join(words)}" if other else "")
    if has_argument and config_class.EXAMPLE:
        return f"{missing}; for example: {program} {config_class.EXAMPLE}"
    return f"{missing}; --help says what {'it means' if len(names) == 1 else 'they mean'}"


def left_out_of_call(config_class: Any, left_out: Sequence[Field]) -> str:
    """Return which keywords of a call in Python are missing, and how they are given."""
    names = [item.name for item in left_out]
    other = _taking_the_place(config_class, left_out)
    given = ", ".join(f"{name}=..." for name in names)
    missing = _missing(names, left_out, f"{other}=..." if other else "")
    return f"{missing}; give {'it' if len(names) == 1 else 'them'}: {config_class.__name__}({given})"


def _missing(names: Sequence[str], left_out: Sequence[Field], other: str) -> str:
    """Return that ``names`` are missing, with what a single one means and what takes their place."""
    if len(names) == 1 and left_out[0].metadata["positional"]:
        return f"{names[0]} is missing: {left_out[0].metadata['help']}"
    missing = f"{names[0]} is missing" if len(names) == 1 else f"{_listed(names)} are missing"
    replaced = [name for name, item in zip(names, left_out) if item.metadata["unless"]]
    return f"{missing} ({other} takes the place of {_listed(replaced)})" if other else missing


def _taking_the_place(config_class: Any, left_out: Sequence[Field]) -> str:
    """Return the option that takes the place of some that were left out; '' for none."""
    others: List[str] = [item.metadata["unless"] for item in left_out if item.metadata["unless"]]
    for other in others:
        if others.count(other) == sum(item.metadata["unless"] == other for item in fields(config_class)):
            return other
    return ""


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
