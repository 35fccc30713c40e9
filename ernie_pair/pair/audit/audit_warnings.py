"""The short form of the audit, before a training run; what it found is kept beside the encoded pairs.

CACHE/audit-NAME.json    the warnings, and the key they were found for
"""

import json
import logging
from pathlib import Path
from typing import Dict, List, Optional

from data_tools.files.atomic_files import published
from data_tools.files.json_file import as_read, is_texts, read_note
from ernie_pair.pair.audit.audit_pairs import audit_of, same_of
from ernie_pair.pair.audit.audit_report import warnings_of
from ernie_pair.pair.audit.findings import coded
from ernie_pair.pair.data.pair_source import PairSource
from ernie_pair.pair.data.row_cache import name_of

VERSION = 2  # raised when the same files would give other warnings
ADVICE = (
    "ernie-pair audit-pairs shows the rows, and --drop_leaks exact (or normalised) writes the training file "
    "without them"
)

logger = logging.getLogger(__name__)


def warn_before_training(cache_dir: Path, sources: Dict[str, PairSource]) -> None:
    """Log a line for each thing that is wrong with ``sources``: train and dev, with labels."""
    train = sources["train"]
    contents = {split: source.sha256() for split, source in sources.items()}
    read_as = [str(train.columns), str(train.rules), sorted(train.labels.classes.items())]
    key = {"version": VERSION, "contents": contents, "read as": read_as}
    path = cache_dir / f"audit-{name_of(key)}.json"
    warnings = _read(path, key)
    if warnings is None:
        files = coded({split: source.read() for split, source in sources.items()})
        audit = audit_of(files, train.labels, same_of(train.labels), pieces=None, max_seq_len=0)
        warnings = warnings_of(audit)
        with published(path) as (draft,):
            note = {"key": key, "warnings": warnings}
            draft.write_text(json.dumps(note, ensure_ascii=False), encoding="utf-8")
    for warning in warnings:
        logger.warning("%s", warning)
    if warnings:
        logger.warning("%s", ADVICE)


def _read(path: Path, key: Dict[str, object]) -> Optional[List[str]]:
    note = read_note(path)
    if note is None or note.get("key") != as_read(key) or not is_texts(note.get("warnings")):
        return None
    return note["warnings"]
