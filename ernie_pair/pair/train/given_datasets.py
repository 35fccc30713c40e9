"""The data sets that a caller from Python gives, as sources of pairs."""

from itertools import chain, islice
from pathlib import Path
from typing import Iterable, Optional, Tuple, Union

from data_tools.base.errors import InputError
from ernie_pair.model_files.labels import Labels
from ernie_pair.pair.config.pair_config import PairConfig
from ernie_pair.pair.data.in_memory_pairs import GivenPairs, examples_of, is_one_shot
from ernie_pair.pair.data.pair_columns import Columns
from ernie_pair.pair.data.pair_records import RowRules
from ernie_pair.pair.data.pair_source import PairSource

# A file, a set such as lcqmc, a Hugging Face dataset, a DataFrame, or dictionaries or (text, text, label)
# from a list, a generator or any other iterable.
PairDataset = Union[str, Path, Iterable]

ARGUMENTS = {"train": "train_dataset", "dev": "eval_dataset", "test": "dataset"}


def open_source(
    split: str, given: Optional[PairDataset], config: PairConfig, labels: Optional[Labels]
) -> Union[PairSource, GivenPairs]:
    """Return ``given`` as the source of the pairs of ``split``: train, dev or test.

    ``labels``: those that each row must have one of; None: labels are not read. Raises InputError when
    nothing is given.
    """
    if given is None:
        raise InputError(f"there is no {ARGUMENTS[split]}; give it to PairTrainer")
    columns = Columns(config.text_a, config.text_b, config.label, config.query)
    rules = RowRules.of(config)
    if isinstance(given, (str, Path)):
        return PairSource(f"{split}_file", str(given), split, labels, columns, rules)
    return GivenPairs(ARGUMENTS[split], given, labels, columns, rules)


def split_first(dataset: PairDataset) -> Tuple[PairDataset, PairDataset]:
    """Return a list of the first row, or the file that the dataset is; and the whole dataset.

    An iterator is read once: go on with what is returned.
    """
    if isinstance(dataset, (str, Path)):
        return dataset, dataset
    examples = examples_of("dataset", dataset)
    first = list(islice(examples, 1))
    return first, chain(first, examples) if is_one_shot(dataset) else dataset


def is_labelled(source: Union[PairSource, GivenPairs]) -> bool:
    """Return whether the first row of ``source``, which was opened with labels, has a right one."""
    try:
        return next(source.rows()).label is not None
    except InputError:  # what else is wrong is said when it is read without labels
        return False
