"""The short audit before a training run; its findings are stored with the encoded pairs.

CACHE/audit-NAME.json    the warnings, and the key they were found for
CACHE/audit-NAME.lock    held by the process that audits
"""

import logging
from functools import partial
from pathlib import Path
from typing import Dict, List, Optional

from data_tools.files.json_file import is_texts
from data_tools.files.keyed_cache import KeyedCache
from ernie_pair.pair.audit.audit_pairs import audit_of, same_of
from ernie_pair.pair.audit.audit_report import warnings_of
from ernie_pair.pair.audit.links import coded
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.data.pair_source import PairSource
from ernie_pair.pair.data.row_cache import LOCK_SECONDS

VERSION = 2  # raised when the same files would give other warnings
ADVICE = (
    "ernie-pair audit-pairs shows the rows, and --drop_leaks exact (or normalised) writes the training file "
    "without them"
)

logger = logging.getLogger(__name__)


def warn_before_training(cache_dir: Path, sources: Dict[str, PairSource]) -> None:
    """Log a line for each thing that is wrong with ``sources``: train and dev, as far as they have labels.

    The lines are kept in ``cache_dir`` for the next run. Raises InputError when a file cannot be read.
    """
    train = sources["train"]
    labels = train.labels
    assert labels is not None  # training reads them
    contents = {split: source.sha256() for split, source in sources.items()}
    read_as = [str(train.columns), str(train.rules), labels.read_as]
    read_as += ["labels are optional"] if labels.are_optional else []
    key = {"version": VERSION, "contents": contents, "read as": read_as}
    cache: KeyedCache[List[str]] = KeyedCache(cache_dir, key, _note_of, _load, kind="audit-")
    warnings = cache.get(partial(_find_warnings, sources), LOCK_SECONDS)
    for warning in warnings:
        logger.warning("%s", warning)
    if warnings:
        logger.warning("%s", ADVICE)


def _find_warnings(sources: Dict[str, PairSource]) -> List[str]:
    labels = sources["train"].labels
    assert labels is not None  # training reads them
    pairs = {split: _read_labelled(source) for split, source in sources.items()}
    if not len(pairs["train"]):
        return []
    files = coded(pairs)
    return warnings_of(audit_of(files, labels, same_of(labels), tokenizer=None, max_seq_len=0))


def _read_labelled(source: PairSource) -> Pairs:
    """Return the rows of ``source`` that have a label: all of them, where it is not optional."""
    pairs = source.read()
    return pairs.labelled() if source.labels is not None and source.labels.are_optional else pairs


def _note_of(warnings: List[str]) -> Dict[str, object]:
    return {"warnings": warnings}


def _load(note: Dict) -> Optional[List[str]]:
    return note["warnings"] if is_texts(note["warnings"]) else None
