"""ernie-pair build text: write the texts of pairs, without labels, as raw text to pretrain on.

ernie-pair build text --train_file train.tsv --output_file texts/pairs.txt --dev_file dev.tsv

A pair is a document of two lines, so that a sample of pretraining holds both texts and a masked word of one
can be told from the other (task-adaptive pretraining: Gururangan et al., 2020, arXiv:2004.10964).
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable, Iterator

from ernie_pair.core.cli.options import OverwriteFlag, data_option
from ernie_pair.core.cli.standard_streams import with_standard_streams
from ernie_pair.core.errors import InputError, counted
from ernie_pair.core.files.results import followed, is_stream
from ernie_pair.pairs.audit.new_pairs import KnownPairs, first_places, read_splits, results_of_pairs
from ernie_pair.pairs.data.pair_records import (
    RowFlags,
)
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import World

TEXT_ENDING = ".txt"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PairsToTextConfig(RowFlags, OverwriteFlag):
    """Write the texts of pairs as raw text for pretraining: a document of two lines for each pair."""

    EXAMPLE = "--train_file train.tsv --output_file texts/pairs.txt --dev_file dev.tsv --test_file test.tsv"

    train_file: str = data_option(
        help="pairs, labelled or not: a file, or a set such as lcqmc", stdin=(".tsv", ".jsonl"), reads="FILE"
    )
    output_file: str = data_option(
        help=".txt file to write the raw text to, as prepare reads it", stdout=True, writes="FILE"
    )
    dev_file: str = data_option("", help="pairs for choosing the best model; none is written", reads="FILE")
    test_file: str = data_option("", help="test pairs; none is written", reads="FILE")


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


def documents(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the raw text of each pair: a line for each of its texts, and an empty line."""
    return ("".join(f"{' '.join(text.split())}\n" for text in pair) + "\n" for pair in pairs)
