"""Which pairs a model has learned: trained_pairs.npy in its folder, a hash of each, uint64 [N] that ascend.

The pairs of the model that it began from are among them. Texts are compared normalised, in either order, as
by the audit; a hash is the first 8 bytes of BLAKE2b.
"""

import io
from hashlib import blake2b
from pathlib import Path
from typing import Dict, Mapping, Optional

import numpy as np

from ernie_pair.core.files.arrays import mapped_array
from ernie_pair.models.model_folder import resolve_model_folder
from ernie_pair.models.spec import TRAINED_PAIRS
from ernie_pair.pairs.audit.new_pairs import pair_keys
from ernie_pair.pairs.data.pair_file import Pairs

CURE = "remove it: evaluations then do not know which rows were trained on"


def hash_pairs(pairs: Pairs) -> np.ndarray:
    """Return a hash of each row, uint64 [rows]."""
    keys = ("\n".join(pair).encode() for pair in pair_keys(pairs.left, pairs.right))
    return np.frombuffer(b"".join(blake2b(key, digest_size=8).digest() for key in keys), dtype="<u8")


def learned_by(folder: Optional[Path]) -> np.ndarray:
    """Return the hashes that ``folder`` of a model holds, none without them. Raises CheckpointError."""
    path = None if folder is None else folder / TRAINED_PAIRS
    return np.zeros(0, np.uint64) if path is None or not path.is_file() else mapped_array(path, CURE)


def trained_pairs_file(start: Path, *hashes: np.ndarray) -> Dict[str, bytes]:
    """Return {trained_pairs.npy: its content} of ``hashes``, uint64 [N] each, and those of ``start``."""
    content = io.BytesIO()
    np.save(content, np.unique(np.concatenate([learned_by(start), *hashes])))
    return {TRAINED_PAIRS: content.getvalue()} if hashes else {}


def was_trained_on(model: str, pairs: Pairs) -> np.ndarray:
    """Return which rows ``model`` has learned, bool [rows]; of candidates that are ranked, whole queries."""
    folder = resolve_model_folder(Path(model)) if Path(model).is_dir() else None
    learned = learned_by(folder)
    seen = np.isin(hash_pairs(pairs), learned) if len(learned) else np.zeros(len(pairs), dtype=bool)
    return seen if pairs.groups is None else np.isin(pairs.groups, pairs.groups[seen])


def describe_trained_on(seen: np.ndarray, of: str, without: Mapping[str, Optional[float]]) -> str:
    """Return a line on the rows ``seen``, bool [rows], by ``of``; ``without``: the measures of the others."""
    count, rows = int(seen.sum()), len(seen)
    told = ", ".join(f"{name} {value:.4f}" for name, value in without.items() if value is not None)
    line = f"{count} of {rows} rows were trained on by {of}, which so knows their labels"
    rest = f"on the {rows - count} others {told}" if told else "no other row is left"
    return f"{line}: {rest}"
