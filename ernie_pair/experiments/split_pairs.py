"""ernie-pair prepare pairs: split labelled pairs into files for training, choosing and measuring a model.

ernie-pair prepare pairs --train_file pairs.csv --output_dir pairs --dev_share 0.1 --test_share 0.1

Rows that share a text, directly or through others, stay in one file, so that no query is both learned from
and measured on. Where chains of shared texts join most rows, rows of one first text stay together instead.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Dict, List, Sequence

import numpy as np

from ernie_pair.core.cli.options import OverwriteFlag, data_option
from ernie_pair.core.errors import InputError, counted
from ernie_pair.core.files.results import Results, files_of, settings_of
from ernie_pair.experiments.folds import MOST_OF_ROWS, group_rows, pick_groups
from ernie_pair.models.labels import MAX_WORDS, Labels
from ernie_pair.pairs.audit.findings import coded
from ernie_pair.pairs.audit.new_pairs import NewPair, write_new_pairs
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.data.pair_records import LABEL_MAP_HELP, RowFlags
from ernie_pair.pairs.data.pair_source import PairSource, check_columns, labels_for, read_all
from ernie_pair.pairs.data.rejected import log_rejected
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import World

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SplitPairsConfig(OverwriteFlag, RowFlags):
    """Split labelled pairs into train.jsonl, dev.jsonl and test.jsonl that share no text."""

    EXAMPLE = "--train_file pairs.csv --output_dir pairs --dev_share 0.1"
    MOST_CLASSES = MAX_WORDS

    train_file: str = data_option(help="labelled pairs: a file, or a set such as lcqmc", reads="FILE")
    output_dir: str = data_option(help="folder for the files", writes="FOLDER")
    dev_share: float = data_option(
        0.1, help="share of the rows for choosing the best model; 0: none", at_least=0, at_most=0.5
    )
    test_share: float = data_option(
        0.0, help="share of the rows for measuring it; 0: none", at_least=0, at_most=0.4
    )
    dev_file: str = data_option(
        "",
        help="labelled pairs for choosing it, in place of --dev_share; written in the same form",
        reads="FILE",
    )
    test_file: str = data_option(
        "", help="labelled pairs for measuring it, in place of --test_share", reads="FILE"
    )
    label_map: str = data_option("", help=LABEL_MAP_HELP)
    are_scores: bool = data_option(False, help="the labels are scores, not classes")
    seed: int = data_option(42, help="decides which rows each file gets", at_least=0)

    def __post_init__(self):
        super().__post_init__()
        for name in ("dev", "test"):
            share = getattr(self, f"{name}_share")
            if getattr(self, f"{name}_file") and share not in (0, getattr(type(self), f"{name}_share")):
                raise InputError(
                    f"--{name}_share {share} splits rows off, and --{name}_file is given; leave one out"
                )
        if not sum(self.shares.values()):
            raise InputError("--dev_share 0 and --test_share 0 leave nothing to split; give one of them")

    @property
    def shares(self) -> Dict[str, float]:
        """Return {part: the share of the rows that is split off for it}; 0 for a part that is given."""
        asked = {"dev": self.dev_share, "test": self.test_share}
        return {name: 0.0 if getattr(self, f"{name}_file") else share for name, share in asked.items()}


def split_pairs(config: SplitPairsConfig) -> None:
    """Write the files. Raises InputError if the rows are too few, or too much alike, for the shares."""
    start_console(World())
    shares = config.shares
    split_off = ["train", *(name for name, share in shares.items() if share)]
    given = [name for name in shares if getattr(config, f"{name}_file")]
    names, folder = [*split_off, *given], Path(config.output_dir)
    flags = {f"{name}_file": getattr(config, f"{name}_file") for name in ("train", *given)}
    files: Dict[str, Sequence[Path]] = {f: files_of(path) for f, path in flags.items() if files_of(path)}
    results = Results(
        "prepare pairs",
        [folder / f"{name}.jsonl" for name in names],
        files,
        settings_of(config, "output_dir", *files),
        config.overwrite,
    )
    if results.are_done():
        return
    sources = [PairSource.of(config, flag, Labels.numbered(2)) for flag in flags]
    check_columns(sources)
    labels = Labels.scores() if config.are_scores else labels_for(sources[0], config.label_map)
    pairs, *others = read_all([replace(source, labels=labels) for source in sources])
    for name, read in zip(("train", *given), (pairs, *others)):
        log_rejected(read.path, read.bad, len(read), folder / f"{name}.rejected.jsonl")
    part_of = divide(pairs, {name: shares[name] for name in split_off[1:]}, config.seed)
    parts = [pairs.rows(np.flatnonzero(part_of == number)) for number in range(len(split_off))]
    with results.published() as drafts:
        for draft, final, part in zip(drafts, results.given, (*parts, *others)):
            write_new_pairs(draft, final, _as_new(part, labels))
    sizes = ", ".join(f"{n} {counted(len(part), 'pair')}" for n, part in zip(names, (*parts, *others)))
    logger.info("%s: %s", folder, sizes)


def _as_new(pairs: Pairs, labels: Labels) -> List[NewPair]:
    values = pairs.known_labels.tolist()
    shown = [labels.names[value] for value in values] if labels.has_classes else list(map(repr, values))
    return list(map(NewPair, pairs.left, pairs.right, shown, [""] * len(pairs)))


def divide(pairs: Pairs, shares: Dict[str, float], seed: int) -> np.ndarray:
    """Return the part of each row, int64 [rows]: 0 to train on, 1, 2, ... of ``shares``; or InputError."""
    file = coded({"train": pairs})["train"]
    group = group_rows(file, "text")
    if np.bincount(group).max() > MOST_OF_ROWS * len(pairs):
        logger.info("chains of shared texts join most rows: rows of one first text stay together instead")
        group = np.unique(file.left, return_inverse=True)[1]
    # Of scores the rows are dealt without regard to their labels.
    labels = pairs.known_labels if pairs.known_labels.dtype.kind == "i" else np.zeros(len(pairs), np.int64)
    part_of, left = np.zeros(len(pairs), np.int64), 1.0
    for number, (name, share) in enumerate(shares.items(), start=1):
        rows = np.flatnonzero(part_of == 0)
        _, own_group = np.unique(group[rows], return_inverse=True)
        is_picked = pick_groups(own_group, labels[rows], share / left, seed + number)
        if not is_picked.any() or is_picked.all():
            raise InputError(
                f"{pairs.path}: its {counted(len(pairs), 'row')} share their texts in so few groups that "
                f"none fits into --{name}_share {share}; give pairs of more queries, or a --{name}_file"
            )
        part_of[rows[is_picked]], left = number, left - share
    return part_of
