"""Check that a checkpoint belongs to the run that resumes from it.

A fingerprint is a dictionary of what must be equal. Its keys name the user's flags: a key is the flag
itself, `max_lr`, or lists them in brackets, `steps in all (--epochs, --max_steps)`. The part before the
brackets, without dashes, identifies the key: the brackets may change between versions.
"""

import logging
import re
from typing import Callable, Dict, List, NamedTuple, Sequence

from data_tools.files.errors import InputError

Fingerprint = Dict[str, object]

logger = logging.getLogger(__name__)


def _keep(fingerprint: Fingerprint) -> Fingerprint:
    return fingerprint


def _old_value(name: str, old: object) -> str:
    return "pass the old value"


class RunRules(NamedTuple):
    """How one half of the package interprets its fingerprints.

    fixed    prefixes of keys that --allow_change cannot allow
    upgrade  converts what an earlier version saved, {name: value}, to current names and values
    cure     says how to keep the old value of a name
    """

    fixed: Sequence[str] = ()
    upgrade: Callable[[Fingerprint], Fingerprint] = _keep
    cure: Callable[[str, object], str] = _old_value


NO_RULES = RunRules()


def refuse_other_run(
    where: str, saved: Fingerprint, given: Fingerprint, allowed: Sequence[str], rules: RunRules
) -> List[Dict]:
    """Return the differences of two fingerprints as {"key", "old", "new"}; all of them are ``allowed``.

    ``where``: the checkpoint that holds ``saved``. Raises InputError that names the first key that differs
    and is not allowed, and the flag that allows it.
    """
    keys = {_name_of(key): key for key in given}
    new = {_name_of(key): value for key, value in given.items()}
    old = rules.upgrade({_name_of(key): value for key, value in saved.items()})
    different = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    refused = [name for name in different if _is_fixed(name, rules) or not _is_allowed(name, keys, allowed)]
    if refused:
        first = refused[0]
        fixed = any(_is_fixed(name, rules) for name in refused)
        words = _words_that_allow([keys.get(name, name) for name in different])
        way_out = "" if fixed else f", or --allow_change {words} to continue with the new value"
        what = f"{_shown(keys.get(first, first))} was {old.get(first)!r} and is now {new.get(first)!r}"
        raise InputError(
            f"{where} is a checkpoint of another run: {what}; {rules.cure(first, old.get(first))}, or "
            f"another --output_dir{way_out}"
        )
    for name in different:
        logger.warning("--allow_change: %s was %r, is now %r", name, old.get(name), new.get(name))
    return [{"key": name, "old": old.get(name), "new": new.get(name)} for name in different]


def refuse_unknown_keys(fingerprint: Fingerprint, allowed: Sequence[str]) -> None:
    """Raise InputError if --allow_change names a key that is in no fingerprint."""
    unknown = [word for word in allowed if not any(word in _words(key) for key in fingerprint)]
    if unknown:
        known = ", ".join(sorted({_words(key)[0] for key in fingerprint}))
        raise InputError(f"--allow_change {unknown[0]}: there is no such key; use some of {known}")


def flags_of(key: str) -> List[str]:
    """Return the flags that give the value of a key."""
    return re.findall(r"--(\w+)", key) or [key]


def _name_of(key: str) -> str:
    return key.partition(" (")[0].replace("--", "")


def _words(key: str) -> List[str]:
    """Return the names of a key for --allow_change: its flags, or the first word of its name."""
    return [*flags_of(key), _name_of(key).split()[0]]


def _is_fixed(name: str, rules: RunRules) -> bool:
    return name.startswith(tuple(rules.fixed))


def _is_allowed(name: str, keys: Dict[str, str], allowed: Sequence[str]) -> bool:
    return any(word in allowed for word in _words(keys.get(name, name)))


def _words_that_allow(keys: List[str]) -> str:
    """Return a flag from which all keys follow, or else the first flag of each."""
    common = [word for word in flags_of(keys[0]) if all(word in flags_of(key) for key in keys)]
    return common[0] if common else ",".join(dict.fromkeys(flags_of(key)[0] for key in keys))


def _shown(key: str) -> str:
    return f"--{key}" if re.fullmatch(r"\w+", key) else key
