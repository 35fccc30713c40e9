"""The files of a command that makes something of training pairs and leaves out those that measure."""

from typing import Any, Dict, Optional

from ernie_pair.model_files.labels import Labels
from ernie_pair.pair.data.pair_columns import Columns
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.data.pair_records import RowRules
from ernie_pair.pair.data.pair_source import PairSource
from ernie_pair.pair.data.rejected import rejected_beside, tell_rejected

SPLITS = ("train", "dev", "test")
FLAGS = tuple(f"{split}_file" for split in SPLITS)


def read_splits(config: Any, columns: Columns, labels: Optional[Labels] = None) -> Dict[str, Pairs]:
    """Return {split: its pairs} of the files that ``config`` names, and log which rows are left out.

    ``labels``: of the training pairs; those of the others are not read. Raises InputError.
    """
    found = {}
    for split, flag in zip(SPLITS, FLAGS):
        name = getattr(config, flag)
        if name:
            known = labels if split == "train" else None
            found[split] = PairSource(flag, name, split, known, columns, RowRules.of(config)).read()
            path = rejected_beside(config.output_file, f".{split}")
            tell_rejected(name, found[split].bad, len(found[split]), path)
    return found
