"""New pairs, and texts of pairs, which may repeat none of the files that measure.

ernie-pair build text --train_file train.tsv --output_file texts/pairs.txt --dev_file dev.tsv

It writes the texts of pairs, without labels, as raw text to pretrain on. A pair is a document of two lines,
so that a sample of pretraining holds both texts and a masked word of one can be told from the other
(task-adaptive pretraining: Gururangan et al., 2020, arXiv:2004.10964).
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from data_tools.text.table_writer import table_writer
from ernie_pair.core.cli.options import OverwriteFlag, data_option, file_option
from ernie_pair.core.cli.standard_streams import with_standard_streams
from ernie_pair.core.errors import InputError, counted
from ernie_pair.core.files.results import Results, files_of, followed, is_stream, settings_of
from ernie_pair.models.labels import Labels
from ernie_pair.pairs.audit.findings import compared_texts
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.data.pair_records import RowFlags
from ernie_pair.pairs.data.pair_source import PairSource
from ernie_pair.pairs.data.rejected import log_rejected, rejected_beside
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import World


class KnownPairs:
    """The pairs of ``files``, {dev or test: its pairs}; texts are compared normalised, as by the audit.

    Counts what it was asked about: ``dropped`` {file: pairs of it}, ``half_known`` of what may be written.
    """

    def __init__(self, files: dict[str, Pairs]):
        self._pairs = {name: {*pair_keys(file.left, file.right)} for name, file in files.items()}
        self._texts: set[str] = {text for pairs in self._pairs.values() for pair in pairs for text in pair}
        self.dropped = dict.fromkeys(files, 0)
        self.half_known = 0

    def unknown(self, left: Sequence[str], right: Sequence[str]) -> np.ndarray:
        """Return which pairs stand in none of the files, in either order, bool [N], and count them."""
        mask = np.ones(len(left), dtype=bool)
        for row, pair in enumerate(pair_keys(left, right)):
            found = next((name for name, pairs in self._pairs.items() if pair in pairs), None)
            if found is not None:
                mask[row] = False
                self.dropped[found] += 1
            elif not self._texts.isdisjoint(pair):
                self.half_known += 1
        return mask

    def lines(self, what: str = "new pairs") -> list[str]:
        """Return how many of ``what`` were found: a line per file, one on single texts, if files are."""
        if not self._pairs:
            return []
        lines = [
            f"{count} {what} are in the {name} file and were left out" for name, count in self.dropped.items()
        ]
        of = " or ".join(self._pairs)
        return [*lines, f"{self.half_known} other {what} share one text with the {of} file and are kept"]


def first_places(left: Sequence[str], right: Sequence[str]) -> list[int]:
    """Return the places, rising, of the pairs that repeat no earlier one, in either order."""
    found: dict[tuple[str, str], int] = {}
    for place, pair in enumerate(pair_keys(left, right)):
        found.setdefault(pair, place)
    return list(found.values())


def pair_keys(left: Sequence[str], right: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Yield the two texts of each pair as they are compared, the smaller one first."""
    for pair in zip(compared_texts(list(left)), compared_texts(list(right))):
        yield (min(pair), max(pair))


COLUMNS = ("text_a", "text_b", "label", "origin")


class NewPair(NamedTuple):
    """A pair to be written; ``label`` is the name of its class, '' where it is not known."""

    left: str
    right: str
    label: str
    origin: str


def write_new_pairs(draft: Path, final: Path, pairs: Iterable[NewPair]) -> int:
    """Write ``pairs`` to ``draft`` in the format that the name ``final`` says, and return their number.

    A row is written as it comes. Raises InputError for a text that the format cannot hold.
    """
    count = 0
    with table_writer(draft, final, COLUMNS, keeps_none=False) as write:
        for pair in pairs:
            write((pair.left, pair.right, pair.label or None, pair.origin))
            count += 1
    return count


def write_pairs(draft: Path, final: Path, pairs: Pairs, labels: Labels) -> None:
    """Write ``pairs`` as `write_new_pairs`, with their labels and from which line of which file each is."""
    values: Any = pairs.known_labels.tolist()
    shown = [labels.names[each] for each in values] if labels.has_classes else map(repr, values)
    origins = map(pairs.where, range(len(pairs)))
    write_new_pairs(draft, final, map(NewPair, pairs.left, pairs.right, shown, origins))


SPLITS = ("train", "dev", "test")
FLAGS = tuple(f"{split}_file" for split in SPLITS)


def read_splits(config: Any, labels: Optional[Labels] = None) -> dict[str, Pairs]:
    """Return {split: its pairs} of the files that ``config`` names, and log which rows are left out.

    ``labels``: of the training pairs; those of the others are not read. Raises InputError.
    """
    found = {}
    for split, flag in zip(SPLITS, FLAGS):
        name = getattr(config, flag)
        if name:
            known = labels if split == "train" else None
            found[split] = PairSource.of(config, flag, known).read()
            path = rejected_beside(config.output_file, f".{split}")
            log_rejected(name, found[split].bad, len(found[split]), path)
    return found


def results_of_pairs(
    command: str,
    config: Any,
    outputs: Sequence[Path],
    output_flag: str,
    more: Mapping[str, Sequence[Path]] = MappingProxyType({}),
    settings: Mapping[str, object] = MappingProxyType({}),
) -> Results:
    """Return the ``outputs`` of a command over the files of pairs of ``config``; a set is a setting of it.

    ``more``: {flag: its files} that it reads besides; ``settings``: further ones.
    """
    inputs: dict[str, Sequence[Path]] = {flag: files_of(getattr(config, flag)) for flag in FLAGS}
    sets = {flag: getattr(config, flag) for flag in FLAGS if not inputs[flag]}
    made_with = {**settings_of(config, *FLAGS, *more, output_flag), **sets, **settings}
    inputs.update(more)
    return Results(command, outputs, inputs, made_with, config.overwrite)


TEXT_ENDING = ".txt"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PairsToTextConfig(RowFlags, OverwriteFlag):
    """Write the texts of pairs as raw text for pretraining: a document of two lines for each pair."""

    EXAMPLE = "--train_file train.tsv --output_file texts/pairs.txt --dev_file dev.tsv --test_file test.tsv"

    train_file: str = file_option(
        help="pairs, labelled or not: files, folders, or a set such as lcqmc", stdin=(".tsv", ".jsonl")
    )
    output_file: str = data_option(
        help=".txt file to write the raw text to, as prepare reads it", stdout=True, writes="FILE"
    )
    dev_file: str = file_option("", help="pairs for choosing the best model; none is written")
    test_file: str = file_option("", help="test pairs; none is written")


@with_standard_streams
def pairs_to_text(config: PairsToTextConfig) -> None:
    """Write each pair once, but for those of the dev and the test file. Raises InputError for none left."""
    start_console(World())
    output = Path(config.output_file)
    if not is_stream(followed(output)) and output.suffix.lower() != TEXT_ENDING:
        raise InputError(f"--output_file {output}: raw text is a {TEXT_ENDING} file; use that ending")
    results = results_of_pairs("build text", config, [output], "output_file")
    if results.are_done():
        return
    read = read_splits(config)
    pairs = read.pop("train")
    known = KnownPairs(read)
    unknown = known.unknown(pairs.left, pairs.right)
    kept = [place for place in first_places(pairs.left, pairs.right) if unknown[place]]
    if not kept:
        raise InputError(f"{config.train_file}: every pair stands in the dev or the test file; give others")
    with results.published() as (draft,), open(draft, "w", encoding="utf-8") as file:
        file.writelines(documents((pairs.left[place], pairs.right[place]) for place in kept))
    for name, count in known.dropped.items():
        logger.info("left out: %s of the %s file", counted(count, "pair"), name)
    repeated = counted(int(unknown.sum()) - len(kept), "pair")
    logger.info("left out: %s that would repeat another one", repeated)
    logger.info("written: %s", counted(len(kept), "document"))


def documents(groups: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield the raw text of each pair or group: a line for each text that is not empty, and an empty line."""
    return ("".join(f"{' '.join(text.split())}\n" for text in texts if text) + "\n" for texts in groups)
