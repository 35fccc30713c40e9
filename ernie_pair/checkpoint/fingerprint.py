"""Check that a checkpoint belongs to the run that resumes from it.

A fingerprint is a dictionary of what must be equal: the options that say so of themselves (``resume`` of
`option`), and what else a kind of training adds. Its keys name the user's flags: a key is the flag itself,
`max_lr`, or lists them in brackets, `steps in all (--epochs, --max_steps)`. The part before the brackets,
without dashes, identifies the key: the brackets may change between versions.
"""

import logging
import re
from dataclasses import MISSING, fields
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple, Type

from ernie_pair.core.cli.options import Options
from ernie_pair.core.errors import InputError
from ernie_pair.runtime.cpu import cpu_threads
from ernie_pair.runtime.processes.world import World

Fingerprint = Dict[str, object]

logger = logging.getLogger(__name__)


def compared_options(config: Options) -> Fingerprint:
    """Return {name: value} of the options whose change makes another run."""
    return {name: getattr(config, name) for name in _options_with(type(config), "same", "fixed")}


def layout_of(config: Any, world: World, kernels: str, **more: object) -> Dict[str, object]:
    """Return what may change on resume, with a line about it in the log.

    ``config``: the options of a training; ``kernels``: those in use; ``more``: values that replace those of
    options, or stand beside them.
    """
    return {
        "processes": world.size,
        **{name: getattr(config, name) for name in _options_with(type(config), "layout")},
        **more,
        "threads": cpu_threads(),
        "kernels": kernels,
        **({"deterministic": config.deterministic} if config.device == "gpu" else {}),  # a CPU always is
    }


def _options_with(config_class: Type[Options], *marks: str) -> List[str]:
    return [item.name for item in fields(config_class) if item.metadata["resume"] in marks]


class RunRules(NamedTuple):
    """How a kind of training interprets its fingerprints.

    fixed    prefixes of keys that --allow_change cannot allow
    hint     says how to keep the old value of a name
    defaults of the options: what an earlier version, which did not have one of them, computed with
    """

    fixed: Sequence[str] = ()
    hint: Callable[[str, object], str] = lambda name, old: "pass the old value"
    defaults: Mapping[str, object] = {}


NO_RULES = RunRules()


def rules_of(config_class: Type[Options], fixed: Sequence[str] = (), **more: Any) -> RunRules:
    """Return the rules of runs of these options; ``fixed``: besides the options that are."""
    defaults = {item.name: item.default for item in fields(config_class) if item.default is not MISSING}
    prefixes: Tuple[str, ...] = (*fixed, *_options_with(config_class, "fixed"))
    return RunRules(prefixes, defaults=defaults, **more)


def check_same_run(
    where: str, saved: Fingerprint, given: Fingerprint, allowed: Sequence[str], rules: RunRules
) -> List[Dict]:
    """Return the differences of two fingerprints as {"key", "old", "new"}; all of them are ``allowed``.

    ``where``: the checkpoint that holds ``saved``. Raises InputError that names the first key that differs
    and is not allowed, and the flag that allows it.
    """
    keys = {_name_of(key): key for key in given}
    new = {_name_of(key): value for key, value in given.items()}
    old = {name: rules.defaults[name] for name in new if name in rules.defaults}
    old.update({_name_of(key): value for key, value in saved.items()})
    different = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    fixed = [name for name in different if name.startswith(tuple(rules.fixed))]
    is_allowed = {
        name: any(word in allowed for word in _names_of_key(keys.get(name, name))) for name in different
    }
    first = next((name for name in different if name in fixed or not is_allowed[name]), None)
    if first is not None:
        key, flags = keys.get(first, first), [flags_of(keys.get(name, name)) for name in different]
        shown = f"--{key}" if re.fullmatch(r"\w+", key) else key
        # A flag from which all keys follow, or else the first flag of each.
        common = [flag for flag in flags[0] if all(flag in each for each in flags)][:1]
        words = ",".join(common or dict.fromkeys(each[0] for each in flags))
        way_out = "" if fixed else f", or --allow_change {words} to continue with the new value"
        what = f"{shown} was {old.get(first)!r} and is now {new.get(first)!r}"
        raise InputError(
            f"{where} is a checkpoint of another run: {what}; {rules.hint(first, old.get(first))}, or "
            f"another --output_dir{way_out}"
        )
    for name in different:
        logger.warning("--allow_change: %s was %r, is now %r", name, old.get(name), new.get(name))
    return [{"key": name, "old": old.get(name), "new": new.get(name)} for name in different]


def check_known_keys(fingerprint: Fingerprint, allowed: Sequence[str]) -> None:
    """Raise InputError if --allow_change names a key that is in no fingerprint."""
    unknown = [word for word in allowed if not any(word in _names_of_key(key) for key in fingerprint)]
    if unknown:
        known = ", ".join(sorted({_names_of_key(key)[0] for key in fingerprint}))
        raise InputError(f"--allow_change {unknown[0]}: there is no such key; use some of {known}")


def flags_of(key: str) -> List[str]:
    """Return the flags that give the value of a key."""
    return re.findall(r"--(\w+)", key) or [key]


def _name_of(key: str) -> str:
    return key.partition(" (")[0].replace("--", "")


def _names_of_key(key: str) -> List[str]:
    """Return the names of a key for --allow_change: its flags, or the first word of its name."""
    return [*flags_of(key), _name_of(key).split()[0]]
