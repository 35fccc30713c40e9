"""ernie-pair prepare pairs: split labelled pairs into files for training, choosing and measuring a model.

ernie-pair prepare pairs --train_file pairs.csv --output_dir pairs --dev_share 0.1 --test_share 0.1

Rows that share a text, directly or through others, stay in one file, so that no query is both learned from
and measured on. Where chains of shared texts join most rows, rows of one first text stay together instead.
"""

import logging
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Dict, List, Literal, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from data_tools.audit.text_quality import quote
from ernie_pair.core.cli.options import OverwriteFlag, data_option, file_option
from ernie_pair.core.errors import InputError, counted
from ernie_pair.core.files.results import Results, files_of, settings_of
from ernie_pair.models.labels import MAX_WORDS, Labels
from ernie_pair.pairs.audit.findings import Coded, Links, coded
from ernie_pair.pairs.audit.new_pairs import write_pairs
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.data.pair_records import LABEL_MAP_HELP, RowFlags
from ernie_pair.pairs.data.pair_source import PairSource, check_columns, labels_for, read_all, read_pairs
from ernie_pair.pairs.data.rejected import log_rejected
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import World

GroupBy = Literal["text", "pair"]
MAX_GROUP_SHARE = 0.5  # of one group: with more, the folds without it have too little to learn from


class Folds(NamedTuple):
    """The group and the fold of each row, int64 [rows] each; folds are counted from 0."""

    group: np.ndarray
    fold: np.ndarray


def make_folds(pairs: Pairs, names: Sequence[str], count: int, group_by: GroupBy, seed: int) -> Folds:
    """Divide ``pairs``, labelled with the classes ``names``, into ``count`` folds; ``seed`` decides.

    ``group_by``: text joins rows that share a text, pair only those of the same two texts, in either order.
    Raises InputError if the groups leave no ``count`` folds of all classes.
    """
    labels, cure = pairs.known_labels, f"give pairs of all classes: {', '.join(names)}"
    check_classes(labels, names, pairs.path, cure)
    file = coded({"train": pairs})["train"]
    group = group_rows(file, group_by)
    _refuse_giant(file, group)
    if group.max() + 1 < count:
        raise InputError(
            f"{pairs.path}: shared texts join its {len(pairs)} rows into {group.max() + 1} groups, too few "
            f"for --folds {count}; take fewer folds, or --group_by pair"
        )
    fold = deal_groups(group, labels, count, seed)
    cure = "take fewer --folds, give more pairs of that class, or take --group_by pair"
    for number in range(count):
        check_classes(labels[fold == number], names, f"{pairs.path}: fold {number + 1} of {count}", cure)
    return Folds(group, fold)


def check_classes(labels: np.ndarray, names: Sequence[str], where: str, cure: str) -> None:
    """Raise InputError if a class of ``names`` is in no row of ``labels``: it could not be measured."""
    rows = np.bincount(labels, minlength=len(names))
    if not rows.all():
        raise InputError(f"{where} has no pair of class {names[int(rows.argmin())]}; {cure}")


def group_rows(file: Coded, group_by: GroupBy) -> np.ndarray:
    """Return the group of each row, int64 [rows], numbered from 0 by their first rows."""
    if group_by == "pair":
        return _by_first_row(file.unordered)
    return _by_first_row(Links(file, np.arange(len(file.left))).group[file.left])


def _by_first_row(keys: np.ndarray) -> np.ndarray:
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[group]


def deal_groups(group: np.ndarray, labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return the fold of each row, int64 [rows], for groups and labels int64 [rows].

    The largest groups come first, those of one size in an order drawn with ``seed``; each goes to the fold
    that has the least of its classes so far, as shares of all rows of a class.
    """
    rows_in, order, weights = _largest_first(group, labels, [seed, count])
    so_far, fold_of = np.zeros((count, rows_in.shape[1])), np.zeros(len(rows_in), dtype=np.int64)
    for number in order:
        fold_of[number] = fold = int((so_far @ weights[number]).argmin())
        so_far[fold] += rows_in[number]
    return fold_of[group]


def pick_groups(group: np.ndarray, labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Return which rows make up about ``share`` of all, in whole groups, bool [rows].

    The groups come as in `deal_groups`; one is picked if its rows fit into the share, and the picked ones
    have no more of its classes so far than the others have, each in proportion to its share.
    """
    rows_in, order, weights = _largest_first(group, labels, [seed, round(1 / share)])
    most_rows = math.ceil(share * len(group))
    so_far, is_picked = np.zeros((2, rows_in.shape[1])), np.zeros(len(rows_in), dtype=bool)
    for number in order:
        others, picked = so_far @ weights[number]
        fits = so_far[1].sum() + rows_in[number].sum() <= most_rows
        is_picked[number] = fits and picked / share <= others / (1 - share)
        so_far[int(is_picked[number])] += rows_in[number]
    return is_picked[group]


def _largest_first(
    group: np.ndarray, labels: np.ndarray, seed: List[int]
) -> Tuple[np.ndarray, List[int], np.ndarray]:
    """Return the rows of each class in each group, the order of the groups, and the weights of their classes.

    Those are [groups, classes]; the largest groups come first, those of one size in an order that is drawn.
    """
    num_groups, classes = int(group.max()) + 1, int(labels.max()) + 1
    rows_in = np.zeros((num_groups, classes))
    np.add.at(rows_in, (group, labels), 1)
    drawn = np.random.default_rng(seed).permutation(num_groups)
    order = drawn[np.argsort(-rows_in[drawn].sum(axis=1), kind="stable")]
    return rows_in, order.tolist(), rows_in / np.maximum(rows_in.sum(axis=0), 1) ** 2


def _refuse_giant(file: Coded, group: np.ndarray) -> None:
    """Raise InputError if most rows are of one group, naming the text that joins the most of them."""
    rows, largest = len(group), np.bincount(group)
    if largest.max() <= MAX_GROUP_SHARE * rows:
        return
    times = np.zeros(max(file.left.max(), file.right.max()) + 1, dtype=np.int64)
    np.add.at(times, file.left, 1)
    np.add.at(times, file.right[file.right != file.left], 1)
    number = int(times.argmax())
    row = int(np.argmax((file.left == number) | (file.right == number)))
    text = (file.pairs.left if file.left[row] == number else file.pairs.right)[row]
    raise InputError(
        f"{file.pairs.path}: shared texts join {largest.max()} of its {rows} rows into one group, which no "
        f"fold can divide ({quote(text)} alone stands in {times[number]} rows); remove the texts that stand "
        "in the most rows, or take --group_by pair, which keeps only equal pairs together"
    )


def describe_folds(folds: Folds, labels: np.ndarray, names: Sequence[str]) -> str:
    """Return a line on how the rows are divided, of ``labels`` int64 [rows] of the classes ``names``."""
    sizes, largest = np.bincount(folds.fold), np.bincount(folds.group).max()
    shares = [float(np.mean(labels[folds.fold == number] == len(names) - 1)) for number in range(len(sizes))]
    ends = [(str(min(sizes)), str(max(sizes))), (f"{min(shares):.2%}", f"{max(shares):.2%}")]
    rows, share = (low if low == high else f"{low} to {high}" for low, high in ends)
    described = (
        f"{len(labels)} rows in {folds.group.max() + 1} groups, the largest of {counted(largest, 'row')}: "
        f"folds of {rows} rows, {share} of class {names[-1]}"
    )
    if largest <= sizes.sum() / len(sizes):
        return described
    return (
        f"{described}; the largest group makes one fold larger than the others: take fewer folds to even them"
    )


class FoldRows(NamedTuple):
    """The rows of a fold, int64 each: those it learns from, those that choose its model, its own."""

    train: np.ndarray
    dev: np.ndarray
    test: np.ndarray


def split_fold(folds: Folds, labels: np.ndarray, number: int, dev_share: float, seed: int) -> FoldRows:
    """Return the rows of fold ``number``, from 0; ``dev_share`` 0: none of them chooses the model.

    The rows that do are whole groups of the others, drawn with ``seed``. Raises InputError if no group is
    small enough for them, or none is left to learn from.
    """
    test, others = np.flatnonzero(folds.fold == number), np.flatnonzero(folds.fold != number)
    if not dev_share:
        return FoldRows(others, others[:0], test)
    _, group = np.unique(folds.group[others], return_inverse=True)
    is_dev = pick_groups(group, labels[others], dev_share, seed + number)
    if is_dev.all() or not is_dev.any():
        sizes = np.bincount(group)
        raise InputError(
            f"fold {number + 1}: its {counted(len(others), 'training row')} are in "
            f"{counted(len(sizes), 'group')}, the smallest of {counted(sizes.min(), 'row')}, which leaves "
            f"none for --dev_share {dev_share}; give --dev_file, another share, or take --group_by pair"
        )
    return FoldRows(others[~is_dev], others[is_dev], test)


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SplitPairsConfig(OverwriteFlag, RowFlags):
    """Split labelled pairs into train.jsonl, dev.jsonl and test.jsonl that share no text.

    The column `origin` says from which line of which file a row is.
    """

    EXAMPLE = "--train_file pairs.csv --output_dir pairs --dev_share 0.1"
    MOST_CLASSES = MAX_WORDS

    train_file: str = file_option(help="labelled pairs: files, folders, or a set such as lcqmc")
    output_dir: str = data_option(help="folder for the files", writes="FOLDER")
    dev_share: float = data_option(
        0.1, help="share of the rows for choosing the best model; 0: none", at_least=0, at_most=0.5
    )
    test_share: float = data_option(
        0.0, help="share of the rows for measuring it; 0: none", at_least=0, at_most=0.4
    )
    dev_file: str = file_option(
        "", help="labelled pairs for choosing it, in place of --dev_share; written in the same form"
    )
    test_file: str = file_option("", help="labelled pairs for measuring it, in place of --test_share")
    label_map: str = data_option("", help=LABEL_MAP_HELP)
    are_scores: bool = data_option(False, help="the labels are scores, not classes")
    keep: str = data_option(
        "",
        help="folder of an earlier prepare pairs of these rows: all of them stay in the file that they are "
        "in, and new rows join the rows that they share a text with",
        reads="FOLDER",
    )
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
    """Split labelled pairs into train, dev and test files of ``output_dir`` without common texts.

    Raises InputError if the rows are too few, or too much alike, for the shares.
    """
    start_console(World())
    shares = config.shares
    split_off = ["train", *(name for name, share in shares.items() if share)]
    given = [name for name in shares if getattr(config, f"{name}_file")]
    names, folder = [*split_off, *given], Path(config.output_dir)
    flags = {f"{name}_file": getattr(config, f"{name}_file") for name in ("train", *given)}
    files: Dict[str, Sequence[Path]] = {f: files_of(path) for f, path in flags.items() if files_of(path)}
    earlier = _files_to_keep(config.keep, split_off)
    files.update({"keep": earlier} if earlier else {})
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
    kept = None
    if earlier:
        kept = _kept_parts(pairs, [read_pairs(str(path), None) for path in earlier])
    part_of = divide(pairs, {name: shares[name] for name in split_off[1:]}, config.seed, kept)
    parts = [pairs.rows(np.flatnonzero(part_of == number)) for number in range(len(split_off))]
    with results.published() as drafts:
        for draft, final, part in zip(drafts, results.given, (*parts, *others)):
            write_pairs(draft, final, part, labels)
    if kept is not None:
        lost = int((part_of < 0).sum())
        logger.info(
            "%d of %d rows were in %s and stay where they were; %d new rows would join rows of two files and "
            "are left out", (kept >= 0).sum(), len(kept), config.keep, lost,
        )  # fmt: skip
    sizes = ", ".join(f"{n} {counted(len(part), 'pair')}" for n, part in zip(names, (*parts, *others)))
    logger.info("%s: %s", folder, sizes)


def _files_to_keep(folder: str, parts: Sequence[str]) -> List[Path]:
    """Return the files of an earlier split, in the order of ``parts``. Raises InputError without one."""
    files = [Path(folder) / f"{part}.jsonl" for part in parts] if folder else []
    for file in files:
        if not file.is_file():
            raise InputError(
                f"--keep {folder} has no {file.name}; give the folder that prepare pairs made with the same "
                "files, or leave it out"
            )
    return files


def _kept_parts(pairs: Pairs, earlier: Sequence[Pairs]) -> np.ndarray:
    """Return in which of the ``earlier`` files each row is, int64 [rows]; -1: in none of them."""
    known = {pair: number for number, file in enumerate(earlier) for pair in zip(file.left, file.right)}
    return np.array([known.get(pair, -1) for pair in zip(pairs.left, pairs.right)], dtype=np.int64)


def _between(file: Coded, kept: np.ndarray) -> np.ndarray:
    """Return which new rows have a text of one part on each side, bool [rows]."""
    part_of_text, rows = np.full(int(max(file.left.max(), file.right.max())) + 1, -1), kept >= 0
    for texts in (file.left, file.right):
        part_of_text[texts[rows]] = kept[rows]
    left, right = part_of_text[file.left], part_of_text[file.right]
    return ~rows & (left >= 0) & (right >= 0) & (left != right)


def _join_kept(kept: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return ``kept`` with new rows, -1, in the part of their group; -2 in a group that joins two parts."""
    rows, new = np.flatnonzero(kept >= 0), kept == -1
    least, most = np.full(group.max() + 1, len(kept)), np.full(group.max() + 1, -1)
    np.minimum.at(least, group[rows], kept[rows])
    np.maximum.at(most, group[rows], kept[rows])
    joined = np.where(least == most, most, np.where(most < 0, -1, -2))
    return np.where(new, joined[group], kept)


def divide(
    pairs: Pairs, shares: Dict[str, float], seed: int, kept: Optional[np.ndarray] = None
) -> np.ndarray:
    """Return the part of each row, int64 [rows]: 0 to train on, 1, 2, ... of ``shares``; or InputError.

    ``kept`` int64 [rows]: the part that a row stays in, -1 of new ones; -2 is returned for a new row that
    would join two parts.
    """
    file = coded({"train": pairs})["train"]
    group = group_rows(file, "text")
    if kept is not None:
        kept = np.where(_between(file, kept), -2, kept)
        group = Links(file, np.flatnonzero(kept > -2)).group[file.left]
    if np.bincount(group).max() > MAX_GROUP_SHARE * len(pairs):
        logger.info("chains of shared texts join most rows: rows of one first text stay together instead")
        group = np.unique(file.left, return_inverse=True)[1]
    # Of scores the rows are dealt without regard to their labels.
    labels = pairs.known_labels if pairs.known_labels.dtype.kind == "i" else np.zeros(len(pairs), np.int64)
    part_of, left = np.full(len(pairs), -1) if kept is None else _join_kept(kept, group), 1.0
    for number, (name, share) in enumerate(shares.items(), start=1):
        rows = np.flatnonzero(part_of == -1)
        if kept is not None and not len(rows):
            break
        _, own_group = np.unique(group[rows], return_inverse=True)
        is_picked = pick_groups(own_group, labels[rows], share / left, seed + number)
        if kept is None and (not is_picked.any() or is_picked.all()):
            raise InputError(
                f"{pairs.path}: its {counted(len(pairs), 'row')} share their texts in so few groups that "
                f"none fits into --{name}_share {share}; give pairs of more queries, or a --{name}_file"
            )
        part_of[rows[is_picked]], left = number, left - share
    part_of[part_of == -1] = 0
    return part_of
