"""Every family of models beside transformers: ids, hidden states, pooled vectors and logits of tiny ones."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from data_tools.files.errors import ErniePairError
from other_libraries.client import Peer
from other_libraries.comparing import (
    classifier_here,
    classifier_there,
    different_rows,
    pooled_here,
    pooled_there,
    rows_here,
    scores_there,
)
from other_libraries.texts import WITH_SYMBOLS, sentences
from other_libraries.tiny_models import MODELS

MOST = 1e-5
COLUMNS = ("load", "ids", "hidden states", "pooled", "head")
LEFT = [*WITH_SYMBOLS, *sentences(40)]
RIGHT = [*sentences(40, seed=1), *WITH_SYMBOLS]
MAX_LENGTH = 40  # some pairs are longer


@dataclass(frozen=True)
class Row:
    """A line of the table: a kind of folder, how a tiny one is made, and which library makes it.

    ``settings``: of `tiny_models.make_model`; ``without``: files that are removed from what it wrote.
    ``library``: newest or pinned, for what the newest transformers no longer has.
    """

    name: str
    family: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    without: Sequence[str] = ()
    library: str = "newest"


ROWS = [Row(**row) for row in MODELS["rows"]]


def make_folders(peer: Peer, row: Row, place: Path) -> Tuple[Path, Path]:
    """Write the encoder and the classifier of a row, as ``peer`` saves them, and return their folders."""
    made = []
    for kind in ("Model", "ForSequenceClassification"):
        made.append(peer.make(place / kind, row.family, kind=kind, **row.settings))
        for name in row.without:
            (made[-1] / name).unlink()
    return made[0], made[1]


def measure(peer: Peer, row: Row, place: Path, texts: Optional[List[str]] = None) -> Dict[str, Any]:
    """Return what differs between this package and ``peer`` on the folders of a row, by COLUMNS.

    ids: how many of ``texts`` and of pairs have others, and of how many; then the largest differences. A
    refused folder has its message in the column that it was needed for, and None in the others.
    """
    encoder, classifier = make_folders(peer, row, place)
    texts = [*LEFT, *(texts or [])]
    found: Dict[str, Any] = dict.fromkeys(COLUMNS)
    at = COLUMNS[0]
    try:
        rows_here(encoder, LEFT, None, MAX_LENGTH)
        found["load"], at = "yes", "ids"
        different = len(different_rows(peer, encoder, texts))
        different += len(different_rows(peer, classifier, LEFT, RIGHT, MAX_LENGTH))
        found["ids"], at = [different, len(texts) + len(LEFT)], "hidden states"
        here = classifier_here(classifier, rows_here(classifier, LEFT, RIGHT, MAX_LENGTH))
        there = classifier_there(peer, classifier, LEFT, RIGHT, MAX_LENGTH)
        if here["logits"].shape[1] == 1:  # of a reranker the score, as CrossEncoder has it
            there["logits"] = scores_there(peer, classifier, LEFT, RIGHT, MAX_LENGTH)
        inside = there["attention_mask"]
        found["hidden states"] = largest(here["last_hidden_state"], there["last_hidden_state"], inside)
        found["head"], at = largest(here["logits"], there["logits"]), "pooled"
        vectors = pooled_here(encoder, LEFT, MAX_LENGTH), pooled_there(peer, encoder, LEFT, MAX_LENGTH)
        found["pooled"] = largest(*vectors)
    except ErniePairError as error:
        found[at] = error.message.replace(f"{place}/", "")
    return found


def largest(here: np.ndarray, there: np.ndarray, inside: Optional[np.ndarray] = None) -> float:
    """Return the largest difference, of what is ``inside``; infinity for arrays of other shapes."""
    if here.shape != there.shape:
        return float("inf")
    difference = np.abs(here - there)
    return float((difference if inside is None else difference[inside]).max())
