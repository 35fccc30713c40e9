"""Suggest the known names that an unknown word may stand for."""

from difflib import get_close_matches
from typing import Collection, List

from data_tools.flags.foreign_flags import ADVICE, FOREIGN_FLAGS, LAUNCHED, LAUNCHING, STEPS_ALONE

_MOST = 3


def nearest_names(word: str, names: Collection[str]) -> List[str]:
    """Return the names that begin with a word, at most 3, or else the one that it misspells; [] for none."""
    begun = sorted((name for name in names if len(word) > 2 and name.startswith(word)), key=len)
    return begun[:_MOST] or get_close_matches(word, list(names), n=1)


def meant_flags(word: str, names: Collection[str]) -> List[str]:
    """Return the flags, with a value if the name implies one, that a foreign or misspelt name may mean.

    ``names``: the flags of the command. Names in other packages take precedence over similar spelling.
    """
    key = word.lower().replace("-", "_")
    translated = [target for target in FOREIGN_FLAGS.get(key, ()) if target.split()[0] in names]
    return translated[:1] or nearest_names(key, names)[:1]


def advice_on(word: str, names: Collection[str]) -> str:
    """Return what to do instead of a flag of other packages that does not exist here; '' for other words.

    ``names``: the flags of the command.
    """
    key = word.lower().replace("-", "_")
    counts_steps = "epochs" not in names and {"max_steps", "global_batch_size"} <= set(names)
    if counts_steps and FOREIGN_FLAGS.get(key) == ("epochs",):
        return STEPS_ALONE
    advice = ADVICE.get(key, "")
    return LAUNCHING if advice == LAUNCHED and {"gpus", "processes"} <= set(names) else advice
