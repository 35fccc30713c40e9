"""The training and evaluation data of a run: from files or sets to batches of ids."""

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np

from data_tools.text.folder_tokenizer import AnyTokenizer
from ernie_pair.core.errors import InputError, counted
from ernie_pair.inference.token_rows import Batch, EncodedPairs, encode_texts, open_tokenizer
from ernie_pair.models.labels import RANKING, UNLABELLED, Labels
from ernie_pair.models.model_card import DataFile
from ernie_pair.models.source import ModelSource
from ernie_pair.models.temperature import both_orders
from ernie_pair.pairs.config.pair_config import PairConfig, TrainConfig
from ernie_pair.pairs.data.encoded_pairs import UserCollator, join_rows, streamed_steps, training_steps
from ernie_pair.pairs.data.in_memory_pairs import AnySource, GivenPairs, TokenizedPairs
from ernie_pair.pairs.data.label_checks import best_thresholds, measure_shared_characters
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.data.pair_records import ROLES
from ernie_pair.pairs.data.pair_source import PairSource, check_columns, label_map_in
from ernie_pair.pairs.data.rejected import ENDING, StreamedRejects, log_rejected
from ernie_pair.pairs.data.row_cache import cached_rows
from ernie_pair.pairs.targets.metrics import check_measurable, compute_class_weights, training_groups
from ernie_pair.runtime.processes.world import World

logger = logging.getLogger(__name__)


class PairData(NamedTuple):
    """The data of a training run.

    ``updates(consumed)`` are the micro-batches of this rank for every step from row ``consumed`` on;
    ``num_rows`` is 0 for a stream, and counts queries where candidates are ranked.
    """

    updates: Callable[[int], Iterator[list[Batch]]]
    num_rows: int
    dev: EncodedPairs
    token_counts: np.ndarray  # int64 [at most V], of the training rows; of the dev rows beside a stream
    hashes: dict[str, str]  # of the contents of the two files, and of the vocabulary
    class_weights: Optional[np.ndarray] = None  # float32 [C]; see `PairLoss`
    files: Sequence[DataFile] = ()  # for the model card
    train: Optional[EncodedPairs] = None  # those that ``updates`` takes; None for a stream
    baseline: Mapping[str, float] = {}  # the metrics of counting the characters that the dev pairs share
    thresholds: Mapping[str, float] = {}  # of shared characters, see `best_thresholds`; {} for a stream
    learned: Sequence[np.ndarray] = ()  # the training pairs by `hash_pairs`, on rank 0; () for a stream


def open_pair_data(config: TrainConfig, source: ModelSource, world: World) -> PairData:
    """Open the training and the dev file of ``config``; see ``open_pairs``."""
    return open_pairs(config, pair_sources(config, source.spec.labels), source, world)


def pair_sources(config: TrainConfig, labels: Optional[Labels]) -> dict[str, PairSource]:
    """Return the training and the dev file of ``config``."""
    return {split: PairSource.of(config, f"{split}_file", labels) for split in ("train", "dev")}


def words_of_pairs(sources: Mapping[str, AnySource], label_map: str, labels: Labels) -> str:
    """Return ``label_map``, else that of the words of the training pairs for numbered ``labels``, or ''.

    Raises InputError with everything that the first rows of all files leave open, LabelQuestion where the
    labels do not tell which class is the match.
    """
    labelled = [replace(source, labels=labels) for source in sources.values()]
    check_columns(labelled)
    return "" if isinstance(labelled[0], TokenizedPairs) else label_map_in(labelled[0], labels, label_map)


def open_pairs(
    config: PairConfig,
    sources: dict[str, PairSource],
    source: ModelSource,
    world: World,
    collator: Optional[UserCollator] = None,
) -> PairData:
    """Open the training and dev pairs, and log a line about each and what is wrong with them.

    ``sources``: train, more to train on if there is any, and dev, in this order. ``collator`` makes their
    batches, None: they are padded to the longest row.
    Raises InputError when a row, a label or a flag cannot be used.
    """
    check_columns([*sources.values()])
    tokenizer = open_tokenizer(source.vocab_file, source.spec, config.max_seq_len)
    opened = partial(_open_stream, collator) if config.streaming else _open_in_memory
    data = opened(config, sources, tokenizer, source.spec.labels, world)
    if config.scored_as == "average":
        if isinstance(sources["dev"], TokenizedPairs):
            raise InputError(
                "--symmetric average scores the dev pairs in both orders of their texts, and "
                f"{sources['dev'].flag} holds token ids; give texts there"
            )
        dev = sources["dev"].read()
        texts = both_orders(dev.left, dev.right)
        data.dev.orders = encode_texts(*texts, None, tokenizer, config.max_seq_len)
    for rows in filter(None, (data.train, data.dev, data.dev.orders)):
        rows.collator = collator
    if world.is_first and not isinstance(sources["dev"], TokenizedPairs):
        has_texts = not (config.streaming or isinstance(sources["train"], TokenizedPairs))
        from ernie_pair.pairs.audit.trained_pairs import hash_pairs  # as the audit before training

        labels, dev = source.spec.labels, sources["dev"].read()
        train = sources["train"].read() if has_texts else None
        chosen = best_thresholds(train, labels) if train is not None and len(labels.names) == 2 else {}
        learned = [] if train is None else [hash_pairs(train)]
        baseline = measure_shared_characters(dev, labels, chosen)
        data = data._replace(baseline=baseline, thresholds=chosen, learned=learned)
    if data.dev.groups is not None:
        logger.info(
            "a batch has --batch_size queries with all of their candidates, at most %d per query",
            config.most_candidates,
        )
    return data._replace(hashes={**data.hashes, "vocabulary": tokenizer.sha256})


def _open_in_memory(
    config: PairConfig, sources: dict[str, PairSource], tokenizer: AnyTokenizer, labels: Labels, world: World
) -> PairData:
    in_order = list(sources.values())
    check = partial(_check_labels, config, labels, in_order)
    found = cached_rows(_cache_dir(config), in_order, tokenizer, config.max_seq_len, check)
    for (split, source), rows in zip(sources.items(), found):
        _describe(config, split, source, rows, labels, world)
    ids = [source.flag for source in in_order if isinstance(source, TokenizedPairs)]
    if ids:
        logger.info("%s: token ids, neither audited nor cached", ", ".join(ids))
    elif world.is_first:
        from ernie_pair.pairs.audit.findings import warn_before_training  # training itself needs no audit

        warn_before_training(_cache_dir(config), {split: sources[split] for split in ("train", "dev")})
    train, candidates = join_rows(found[:-1]), None
    if train.groups is not None:
        candidates = training_groups(train.groups, train.known_labels, config.most_candidates)
        logger.info("%d queries to learn from, %d rows", len(candidates), sum(map(len, candidates)))
    updates = partial(training_steps, train, config, world, candidates=candidates)
    hashes = {source.flag: source.sha256() for source in in_order}
    weights = compute_class_weights(
        config.class_weights, len(labels.names), train.labels, sources["train"].name
    )
    if weights is not None:
        logger.info("class weights: %s", ", ".join(map("%.4g %s".__mod__, zip(weights, _shown(labels)))))
    files = [
        DataFile(split, source.name, hashes[source.flag], len(rows))
        for (split, source), rows in zip(sources.items(), found)
    ]
    num_rows = len(train) if candidates is None else len(candidates)
    return PairData(updates, num_rows, found[-1], np.bincount(train.ids), hashes, weights, files, train)


def _open_stream(
    collator: Optional[UserCollator],
    config: PairConfig,
    sources: dict[str, PairSource],
    tokenizer: AnyTokenizer,
    labels: Labels,
    world: World,
) -> PairData:
    train, dev = sources["train"], sources["dev"]
    if isinstance(train, GivenPairs):
        train.check_rereadable()
    elif not train.is_file:
        raise InputError(f"--streaming reads a file, and --train_file {train.name} is a set; leave it out")
    next(train.rows())  # its layout is understood, or the run ends here
    check = partial(_check_labels, config, labels, [dev])
    weights = compute_class_weights(config.class_weights, len(labels.names), None, train.name)
    (dev_rows,) = cached_rows(_cache_dir(config), [dev], tokenizer, config.max_seq_len, check)
    logger.info("%s: streamed, its rows neither counted nor audited", train.name)
    _describe(config, "dev", dev, dev_rows, labels, world)
    rejects = StreamedRejects(train.name, _rejected(config, "train", world))
    updates = partial(streamed_steps, train, tokenizer, config, world, rejects=rejects, collator=collator)
    hashes = {train.flag: train.sha256_of_ends(), dev.flag: dev.sha256()}
    files = [
        DataFile("train, streamed", train.name, f"{hashes[train.flag]} (of its two ends)", None),
        DataFile("dev", dev.name, hashes[dev.flag], len(dev_rows)),
    ]
    return PairData(updates, 0, dev_rows, np.bincount(dev_rows.ids), hashes, weights, files)


def _cache_dir(config: PairConfig) -> Path:
    return Path(config.cache_dir or Path(config.output_dir) / "cache")


def _check_labels(
    config: PairConfig, labels: Labels, sources: list[PairSource], found: Sequence[Union[Pairs, EncodedPairs]]
) -> None:
    """Raise InputError when the last of ``sources``, dev, or the first cannot be used as the flags say."""
    metric, train, dev = config.best_metric, found[0], found[-1]
    check_measurable(metric, dev.known_labels, labels, sources[-1].name, dev.groups)
    if len(sources) > 1:
        if train.groups is not None:
            check_measurable(metric, train.known_labels, labels, sources[0].name, train.groups)
        compute_class_weights(config.class_weights, len(labels.names), train.labels, sources[0].name)


def _rejected(config: PairConfig, split: str, world: World) -> Optional[Path]:
    return Path(config.output_dir) / f"{split}{ENDING}" if world.is_first else None


def _describe(
    config: PairConfig, split: str, source: PairSource, rows: EncodedPairs, labels: Labels, world: World
) -> None:
    known = np.zeros(0, np.int64) if rows.labels is None else rows.labels
    if source.labels is not None and source.labels.are_optional:
        known = known[known != UNLABELLED]
    if labels.has_classes:
        counts = np.bincount(known, minlength=len(labels.names)).tolist()
        shares = ", ".join(f"{count} {name}" for name, count in zip(_shown(labels), counts))
    elif labels.target == RANKING:
        shares = f"{int((known > 0).sum())} of them relevant"
    else:
        low, high = float(known.min()), float(known.max())
        shares = f"labels from {low:.4g} to {high:.4g}, mean {known.mean():.4g}"
    if len(known) < len(rows):
        shares = f"{shares}, {len(rows) - len(known)} without label"
    logger.info("%s: %d pairs (%s), %.1f tokens each", source.name, len(rows), shares, rows.lengths.mean())
    if rows.num_cut:
        logger.info("%s: cut to --max_seq_len: %s", source.name, counted(rows.num_cut, "pair"))
    log_rejected(source.name, rows.bad, len(rows), _rejected(config, split, world))


def _shown(labels: Labels) -> list[str]:
    """Return the classes as the log names them: `of class 1`, or `same (1)` for one with a name."""
    return [
        f"of class {number}" if name == str(number) else f"{name} ({number})"
        for number, name in enumerate(labels.names)
    ]


def rows_of_source(source: AnySource) -> Iterator[dict[str, Any]]:
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
