"""Which known names may be meant by a word that is none of them."""

from difflib import get_close_matches
from typing import Collection, List

from data_tools.flags.foreign_flags import ADVICE, FOREIGN_FLAGS

_MOST = 3


def nearest_names(word: str, names: Collection[str]) -> List[str]:
    """Return the names that a word begins, at most 3, or else the one that it is a slip of; [] for none."""
    begun = sorted((name for name in names if len(word) > 2 and name.startswith(word)), key=len)
    return begun[:_MOST] or get_close_matches(word, list(names), n=1)


def meant_flags(word: str, names: Collection[str]) -> List[str]:
    """Return the flags, with a value where it says more, that a foreign or misspelt name may mean.

    ``names``: the flags of the command. What other packages call a flag counts before what is spelt alike.
    """
    key = word.lower().replace("-", "_")
    translated = [target for target in FOREIGN_FLAGS.get(key, ()) if target.split()[0] in names]
    return translated[:1] or nearest_names(key, names)[:1]


def advice_on(word: str) -> str:
    """Return what to do in place of a flag of other packages that needs none here; '' for any other word."""
    return ADVICE.get(word.lower().replace("-", "_"), "")
