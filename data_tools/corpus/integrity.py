"""Compare every byte of a corpus with its manifest, once; after that its files are recognized."""

import hashlib
import json
import logging
import socket
from pathlib import Path
from typing import Dict, List, Optional, Union

from data_tools.corpus.format import Corpus, marks_path
from data_tools.corpus.megatron import open_corpus
from data_tools.files.atomic_files import keeps, published
from data_tools.files.json_file import read_note
from data_tools.files.keyed_cache import build_once

LOCK_SECONDS = 3600

logger = logging.getLogger(__name__)


def open_verified(prefix: Union[str, Path], memory: Path) -> Corpus:
    """Open the corpus of ``prefix``, hashing its files unless this machine has verified them before.

    The folder ``memory`` records that: a file is unchanged as long as its inode, size and times are. One
    process hashes, others wait for it. Without a manifest there is nothing to compare with. Raises
    InputError as `Corpus` does, MachineError if another process hashes for an hour.
    """
    corpus = open_corpus(prefix)
    if not corpus.has_manifest:
        return corpus
    name = json.dumps([socket.gethostname(), str(Path(prefix).resolve())])
    note = memory / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.verified.json"

    def find() -> Optional[Corpus]:
        return corpus if read_note(note) == _stamps(corpus) else None

    def compare() -> Corpus:
        stamps = _stamps(corpus)
        logger.info("comparing %s with its manifest, %.1f GB, once", prefix, _gigabytes(stamps))
        compared = open_corpus(prefix, verify="full")
        if keeps():
            with published(note) as (draft,):
                draft.write_text(json.dumps(stamps))
        return compared

    return build_once(note.with_suffix(".lock"), LOCK_SECONDS, find, compare)


def _stamps(corpus: Corpus) -> Dict[str, List[int]]:
    """Return what distinguishes a file from one that replaces it: device, inode, size, times."""
    stamps = {}
    for path in (*corpus.paths, marks_path(corpus.prefix)):
        if path.exists():
            found = path.stat()
            stamps[path.name] = [
                found.st_dev,
                found.st_ino,
                found.st_size,
                found.st_mtime_ns,
                found.st_ctime_ns,
            ]
    return stamps


def _gigabytes(stamps: Dict[str, List[int]]) -> float:
    return sum(stamp[2] for stamp in stamps.values()) / 1e9
