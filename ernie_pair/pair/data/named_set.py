"""Named data sets: PaddleNLP downloads their files, and this package reads them.

PaddleNLP's own readers pass over rows of other widths without a word, and strip what is an empty text. So
its dataset builder only says where the file lies (it downloads and unpacks it when it is not there), and
which columns of GLUE's tables are meant. A name that PaddleNLP has no builder for is a set of the Hugging
Face Hub, whose rows come as they are.
"""

from functools import lru_cache
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from data_tools.files.errors import InputError
from data_tools.text.text_files import decoded, read_lines
from ernie_pair.pair.data.pair_records import Columns

# Our name: (PaddleNLP's, the part of it). Any other is NAME or NAME:PART of its own.
SETS = {
    "afqmc": ("clue", "afqmc"),
    "mrpc": ("glue", "mrpc"),
    "qqp": ("glue", "qqp"),
}
SPLITS = {
    "train": ("train",),
    "dev": ("dev", "validation", "dev_matched"),
    "test": ("test", "test_matched"),
}


class SetFile(NamedTuple):
    """A fetched file of a set, its columns, and in ``labels`` how the file spells classes 0, 1, ..."""

    path: Path
    columns: Columns
    labels: Sequence[str]


@lru_cache(maxsize=4)
def open_set(flag: str, name: str, split: str) -> Union[SetFile, List[dict]]:
    """Return the file of a PaddleNLP set, or the rows of a set of the Hugging Face Hub.

    Raises InputError when the set cannot be loaded or lacks the part ``split``.
    """
    path, part = SETS.get(name, (name.partition(":")[0], name.partition(":")[2] or None))
    try:
        return _open(path, part, SPLITS[split])
    except (OSError, RuntimeError, ValueError, AttributeError, KeyError, TypeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"--{flag} {name} is not a file, and PaddleNLP cannot load a set of that name ({reason}); "
            "check the name and the network, or give a file"
        ) from None


def _open(path: str, part: Optional[str], splits: Tuple[str, ...]) -> Union[SetFile, List[dict]]:
    """Open the first of ``splits`` that the set has. Raises ValueError when it has none of them."""
    from paddlenlp.datasets.dataset import import_main_class

    try:
        builder_class = import_main_class(path)
    except ModuleNotFoundError:
        return [dict(example) for example in _load(path, part, splits)]
    builder = builder_class(name=part)
    there = _splits_of(builder, path, part)
    split = next((split for split in splits if split in there), None)
    if split is None:
        raise ValueError(f"it has the parts {', '.join(there)}, and not {splits[0]}")
    builder.read = lambda filename, split: filename  # fetched, for all processes, and not read
    file, columns = Path(builder.read_datasets(splits=split)), Columns()
    if path == "glue" and there[split][3]:  # its builder gives the positions of columns, its header the names
        header = decoded(str(file), 1, next(read_lines(file), b"")).split("\t")
        columns = Columns(*(header[place].strip() for place in there[split][2] if place < len(header)))
    return SetFile(file, columns, builder.get_labels() or ())


def _splits_of(builder, path: str, part: Optional[str]) -> Dict[str, Sequence]:
    parts = getattr(builder, "BUILDER_CONFIGS", None)
    if parts is None and part is None:
        return builder.SPLITS
    if parts is None:
        raise ValueError(f"{path} has no parts; write {path}")
    if part not in parts:
        raise ValueError(
            f"{path} has the parts {', '.join(parts)}; write {path}:{next(iter(parts))}, for example"
        )
    return parts[part]["splits"]


def _load(path: str, part: Optional[str], splits: Tuple[str, ...]):
    from paddlenlp.datasets import load_dataset

    for split in splits[:-1]:
        try:
            return load_dataset(path, name=part, splits=split)
        except ValueError:  # no such part: its other name is tried
            continue
    return load_dataset(path, name=part, splits=splits[-1])
