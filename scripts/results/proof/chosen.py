"""The rate and the epochs that the group rates has chosen, by which the other groups train on pairs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, TypeVar

from data_tools.base.errors import InputError
from proof.groups.rates import CHOOSING, GROUP
from proof.scale import Scale

AnyScale = TypeVar("AnyScale", bound=Scale)


def with_chosen_rates(scale: AnyScale, results: Path) -> AnyScale:
    """Return ``scale`` with what the figures in ``results`` have chosen, for flags that it leaves open.

    Where the group rates has no figures yet, nothing changes. Raises InputError for what is no result.
    """
    chosen = _chosen_in(results / GROUP / f"{CHOOSING}.json")
    left_open = {name: value for name, value in chosen.items() if getattr(scale, name) is None}
    return replace(scale, **left_open) if left_open else scale


def _chosen_in(path: Path) -> Dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        chosen = json.loads(path.read_text(encoding="utf-8"))["figures"]["chosen"]
        return {"learning_rate": float(chosen["learning_rate"]), "epochs": int(chosen["epochs"])}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: {error!r}, no result of run.py {GROUP}; remove it") from None
