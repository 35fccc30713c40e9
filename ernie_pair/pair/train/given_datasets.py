"""The data sets that a caller from Python gives, as sources of pairs."""

from itertools import chain, islice
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, Optional, Tuple, Union

import numpy as np

from data_tools.base.errors import InputError
from ernie_pair.model_files.labels import RANKING, Labels
from ernie_pair.pair.config.pair_config import PairConfig
from ernie_pair.pair.data.in_memory_pairs import GivenPairs, examples_of, is_one_shot, is_token_row
from ernie_pair.pair.data.pair_columns import ROLES, Columns
from ernie_pair.pair.data.pair_records import RowRules
from ernie_pair.pair.data.pair_source import PairSource
from ernie_pair.pair.data.tokenized_pairs import TokenForm, TokenizedPairs

# A file, a set such as lcqmc, a Hugging Face dataset, a DataFrame, or dictionaries or (text, text, label)
# from a list, a generator or any other iterable; rows may be token ids, see `tokenized_pairs`.
PairDataset = Union[str, Path, Iterable]

AnySource = Union[PairSource, GivenPairs, TokenizedPairs]

ARGUMENTS = {"train": "train_dataset", "dev": "eval_dataset", "test": "dataset"}


def open_source(
    split: str,
    given: Optional[PairDataset],
    config: PairConfig,
    labels: Optional[Labels],
    form: Callable[[], TokenForm],
) -> AnySource:
    """Return ``given`` as the source of the pairs of ``split``: train, dev or test.

    ``labels``: those that each row must have one of; None: labels are not read. ``form``: called for what
    rows of token ids must be. Raises InputError when nothing is given, or ids whose texts are needed.
    """
    flag = ARGUMENTS[split]
    if given is None:
        raise InputError(f"there is no {flag}; give it to PairTrainer")
    columns = Columns(config.text_a, config.text_b, config.label, config.query)
    rules = RowRules.of(config)
    if isinstance(given, (str, Path)):
        return PairSource(f"{split}_file", str(given), split, labels, columns, rules)
    first, dataset = split_first(given, flag)
    if not any(map(is_token_row, first)):
        return GivenPairs(flag, dataset, labels, columns, rules)
    if labels is not None and labels.target == RANKING:
        raise InputError(f"ranking tells queries by their texts, and {flag} holds token ids; give texts")
    return TokenizedPairs(flag, dataset, labels, columns, rules, form())


def split_first(dataset: Any, flag: str = "dataset") -> Tuple[Any, Any]:
    """Return a list of the first row, or the file that the dataset is; and the whole dataset.

    An iterator is read once: go on with what is returned.
    """
    if isinstance(dataset, (str, Path)):
        return dataset, dataset
    examples = examples_of(flag, dataset)
    first = list(islice(examples, 1))
    return first, chain(first, examples) if is_one_shot(dataset) else dataset


def rows_of_source(source: AnySource) -> Iterator[Dict[str, Any]]:
    """Yield the rows of ``source`` as training reads them, one at a time.

    A pair is {sentence1, sentence2, label}, a row of ids {input_ids, token_type_ids, labels}. Raises
    InputError naming a row that cannot be read.
    """
    if isinstance(source, TokenizedPairs):
        for row in source.rows():
            yield from source.form.encoded([row]).features(np.zeros(1, np.int64))
        return
    for pair in source.rows():
        yield dict(zip(ROLES, (pair.left, pair.right, pair.label)))


def is_labelled(source: AnySource) -> bool:
    """Return whether the first row of ``source``, which was opened with labels, has a right one."""
    try:
        return next(source.rows()).label is not None
    except InputError:  # what else is wrong is said when it is read without labels
        return False
