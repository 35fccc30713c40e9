"""Training and evaluation data of an embedding model: from files, sets or Python objects to batches."""

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np

from data_tools.text.folder_tokenizer import AnyTokenizer
from data_tools.text.text_files import LineRules
from data_tools.text.texts import LeftOut, is_text_file, read_texts
from ernie_pair.core.cli.options import parse_shares
from ernie_pair.core.errors import InputError, counted
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.core.files.results import paths_named
from ernie_pair.embeddings.retrieval import RetrievalSet, build_retrieval_set
from ernie_pair.embeddings.train.contrastive import (
    ContrastiveBatch,
    ContrastiveSteps,
    Describe,
    TrainingTexts,
    describe_step,
    mixed_steps,
    sha256_of_texts,
    texts_alone,
    texts_of_pairs,
)
from ernie_pair.embeddings.train.embedding_config import GIST, GRADED, PAIRS, SIMCSE, TAUGHT, EmbeddingConfig
from ernie_pair.embeddings.train.objectives import (
    graded_texts,
    guided_texts,
    sha256_of_teacher,
    taught_texts,
)
from ernie_pair.inference.token_rows import EncodedPairs, encode_single_texts, open_tokenizer
from ernie_pair.models.embedding_json import EmbeddingSettings
from ernie_pair.models.labels import Labels
from ernie_pair.models.model_card import DataFile
from ernie_pair.models.source import ModelSource
from ernie_pair.pairs.audit.findings import warn_before_training
from ernie_pair.pairs.audit.trained_pairs import hash_pairs
from ernie_pair.pairs.data.in_memory_pairs import ARGUMENTS, iterate_examples, open_source
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.data.pair_source import PairSource, labels_for, without_own_negatives
from ernie_pair.pairs.data.rejected import ENDING, log_rejected
from ernie_pair.runtime.processes.world import World
from ernie_pair.training.process_group import join_process_group

logger = logging.getLogger(__name__)

Dataset = Union[str, Path, Iterable]  # a file or set, or what Python holds; see `PairTrainer`
PARTS = ("train", "dev", "negatives")
Datasets = Mapping[str, Any]  # {one of PARTS: its Dataset}; negatives None or empty: there are none


class DevTexts(NamedTuple):
    """What an evaluation asks, as token ids; ``as_queries``: with the prompt of queries, if another."""

    retrieval: RetrievalSet
    rows: EncodedPairs
    as_queries: Optional[EncodedPairs] = None


class EmbeddingData(NamedTuple):
    """The data of a run. ``updates(consumed)`` are the steps of this rank from pair ``consumed`` on."""

    updates: Callable[[int], Iterator[list[ContrastiveBatch]]]
    num_rows: int
    dev: DevTexts
    hashes: dict[str, str]  # {train_file: SHA-256, ...}, and of the vocabulary
    files: Sequence[DataFile] = ()  # for the model card
    learned: Sequence[np.ndarray] = ()  # hashes of the pairs of each set, see `hash_pairs`; on rank 0


def open_embedding_data(
    config: EmbeddingConfig,
    datasets: Datasets,
    source: ModelSource,
    settings: EmbeddingSettings,
    world: World,
) -> EmbeddingData:
    """Open the data of a run, and log a line about each part.

    A model with prompts reads the first texts of pairs as queries and the others as passages, a text that
    belongs to itself with its default prompt. Raises InputError when a row, a label or a flag cannot be used.
    """
    tokenizer = open_tokenizer(source.vocab_file, source.spec, config.max_seq_len, of_pairs=False)
    dev_source = labelled(config, source_of(config, "dev", datasets["dev"]), config.has_graded_dev)
    dev = _open_dev(config, dev_source, tokenizer, settings, world)
    steps, files, learned = [], [], []
    sets, shares = training_sets(config, datasets["train"])
    for one in sets:
        texts, describe, found, hashed = _open_set(config, one, datasets["negatives"], world)
        learned += hashed
        is_audited = one.objective not in (SIMCSE, *GRADED) and not config.has_graded_dev
        if is_audited and isinstance(dev_source, PairSource) and world.is_first:
            train = labelled(config, source_of(config, "train", one.dataset))
            if isinstance(train, PairSource):
                warn_before_training(Path(config.output_dir) / "cache", {"train": train, "dev": dev_source})
        rows = encode_single_texts(_read_by(settings, texts), tokenizer, config.max_seq_len)
        _describe(config, one, texts, rows.num_cut)
        steps.append(ContrastiveSteps(texts, rows, config, describe))
        files += found
    hashes = {file.use: file.sha256 for file in files}
    if config.teacher:
        hashes["teacher"] = sha256_of_teacher(config)
    name, sha256 = _name_of(datasets["dev"]), dev_source.sha256()
    files.append(DataFile("dev_file", name, sha256, len(dev.retrieval.labels)))
    hashes.update(dev_file=sha256, vocabulary=tokenizer.sha256)
    sizes = [len(one.texts) for one in steps]
    updates = partial(mixed_steps, steps, shares or sizes, world)
    return EmbeddingData(updates, sum(sizes), dev, hashes, files, learned)


class TrainingSet(NamedTuple):
    """A data set of a run; ``number``: " 1" and so on behind its flag in words, empty where it is alone."""

    objective: str
    dataset: Dataset
    number: str


def training_sets(config: EmbeddingConfig, dataset: Any) -> tuple[list[TrainingSet], list[float]]:
    """Return the data sets of files with commas between, or of a dictionary, and the shares of the flags.

    Raises InputError where objectives or shares are more or fewer.
    """
    objectives, given, datasets = config.objectives, config.sampling_weights, [dataset]
    if isinstance(dataset, Mapping) and len(objectives) > 1:
        datasets = list(dataset.values())
    elif isinstance(dataset, str) and not Path(dataset).exists():
        datasets = [name for word in paths_named(dataset) if (name := word.strip())]
    count, which = len(datasets), counted(len(datasets), "training file")
    if len(objectives) not in (1, count):
        raise InputError(
            f"--objective {config.objective} has {len(objectives)} parts for {which}; give as many"
        )
    shares = parse_shares("sampling_weights", given, count, "training file")
    numbers = [f" {number}" for number in range(1, count + 1)] if count > 1 else [""]
    return list(map(TrainingSet, objectives * (count // len(objectives)), datasets, numbers)), shares


def _read_by(settings: EmbeddingSettings, texts: TrainingTexts) -> list[str]:
    """Return the texts as passages and, where queries have another prompt, after them all as queries."""
    if texts.is_augmented:
        return settings.texts_read(texts.texts, settings.prompts.get(settings.default_prompt, ""))
    of_query, of_passage = settings.prompt_of("query"), settings.prompt_of("passage")
    read = settings.texts_read(texts.texts, of_passage)
    return read + settings.texts_read(texts.texts, of_query) if of_query != of_passage else read


def _open_set(
    config: EmbeddingConfig, one: TrainingSet, given: Any, world: World
) -> tuple[TrainingTexts, Describe, list[DataFile], list[np.ndarray]]:
    """Return the texts of a training set, what makes their steps, their files, and hashes of their pairs."""
    objective, name, negatives = one.objective, _name_of(one.dataset, one.number), None
    describe: Describe = describe_step
    has_negatives = given is not None and not (isinstance(given, str) and not given)
    if has_negatives and objective not in (PAIRS, GIST, *TAUGHT):
        raise InputError(f"--negatives_file is for --objective pairs, not {objective}; leave one of them out")
    use = f"train_file{one.number}"
    if objective == SIMCSE:
        found, sha256 = read_any_texts(config, one.dataset, world, one.number)
        texts = texts_alone(found, name)
        return texts, describe, [DataFile(use, name, sha256, len(texts))], []
    source = labelled(config, source_of(config, "train", one.dataset, one.number), objective in GRADED)
    pairs, files = _read(config, "train", source, world, one.number, objective not in GRADED), []
    if has_negatives:
        more = source_of(config, "negatives", given)
        negatives = _read(config, "negatives", more, world, has_negatives=True)
        files.append(DataFile(f"negatives_file{one.number}", _name_of(given), more.sha256(), None))
    if objective in GRADED:
        texts, describe = graded_texts(pairs, name, objective == "angle")
    else:
        texts = texts_of_pairs(pairs, negatives, name)
    if objective == GIST:
        texts, describe = guided_texts(texts, config, join_process_group(world))
    if objective in TAUGHT:
        texts, describe = taught_texts(texts, config, objective, name, join_process_group(world))
    files.insert(0, DataFile(use, name, source.sha256(), len(texts)))
    return texts, describe, files, [hash_pairs(pairs)] if world.is_first else []


def read_any_texts(config: EmbeddingConfig, dataset: Dataset, world: World, number: str = ""):
    """Return texts and SHA-256 of a text file, of pairs' columns or a list; log what is left out.

    ``number``: of a `TrainingSet`. Raises InputError naming a row that is not a text or a pair of texts.
    """
    if isinstance(dataset, (str, Path)) and is_text_file(str(dataset)):
        path = Path(dataset)
        left_out = LeftOut() if config.on_bad_row == "skip" else None
        rows = read_texts(path, left_out, rules=LineRules(encoding=config.encoding, has_flag=True))
        texts = [row.text.strip() for row in rows]
        if left_out is not None and left_out.count:
            logger.warning(
                "%s: left out: %s, the first: %s", path, counted(left_out.count, "line"), left_out.first
            )
        return texts, sha256_of_file(path)
    if not isinstance(dataset, (str, Path)) and not hasattr(dataset, "itertuples"):
        name = ARGUMENTS["train"] + number
        dataset = list(iterate_examples(name, dataset))
        if dataset and all(isinstance(one, str) for one in dataset):
            empty = next((place for place, text in enumerate(dataset) if not text.strip()), None)
            if empty is not None:
                raise InputError(f"{name}[{empty}]: an empty text; fill it in or remove it")
            return dataset, sha256_of_texts(dataset)
    source = source_of(config, "train", dataset, number)
    pairs = _read(config, "train", source, world, number)
    return [*pairs.left, *pairs.right], source.sha256()


def source_of(config: EmbeddingConfig, part: str, dataset: Dataset, number: str = ""):
    """Return a source of the pairs of ``part``, one of PARTS, without labels; see `PairSource`.

    ``number``: of a `TrainingSet`. Raises InputError.
    """
    if isinstance(dataset, (str, Path)) and is_text_file(str(dataset)) and Path(dataset).is_file():
        raise InputError(
            f"--{part}_file {dataset} has a text in each line, and pairs are needed; give a .tsv, .csv "
            "or .jsonl file, or pass --objective simcse to train on texts alone"
        )
    source = open_source(config, part, dataset, None, number=number)
    return replace(source, rules=replace(source.rules, of_encoders=part != "negatives"))


def labelled(config: EmbeddingConfig, source: Any, is_graded: bool = False) -> Any:
    """Return ``source`` with the classes of its labels, or the scores that they are: then of pairs alone."""
    if is_graded:
        rules = replace(source.rules, of_encoders=False)
        return replace(source, labels=Labels.scores(config.score_range), rules=rules)
    return replace(source, labels=labels_for(source, config.label_map))


def _open_dev(
    config: EmbeddingConfig, source, tokenizer: AnyTokenizer, settings: EmbeddingSettings, world: World
) -> DevTexts:
    pairs = _read(config, "dev", source, world)
    if config.has_graded_dev and len(np.unique(pairs.known_labels)) < 2:
        raise InputError(
            f"{source.name}: all scores are {pairs.known_labels[0]:g}, and their order is measured; take "
            "another file"
        )
    retrieval = build_retrieval_set(pairs, source.name)
    rows, as_queries = (
        encode_single_texts(settings.texts_read(retrieval.texts, prompt), tokenizer, config.max_seq_len)
        for prompt in (settings.prompt_of("passage"), settings.prompt_of("query"))
    )
    has_roles = settings.prompt_of("passage") != settings.prompt_of("query")
    logger.info("%s: %s", source.name, retrieval.describe())
    return DevTexts(retrieval, rows, as_queries if has_roles else None)


def _read(
    config: EmbeddingConfig, part: str, source, world: World, number: str = "", has_negatives: bool = False
) -> Pairs:
    pairs = source.read()
    if has_negatives:
        pairs = without_own_negatives(pairs, source.rules)
    name = f"{part}{number.replace(' ', '_')}{ENDING}"
    path = Path(config.output_dir) / name if world.is_first else None
    log_rejected(source.name, pairs.bad, len(pairs), path)
    return pairs


def _describe(config: EmbeddingConfig, one: TrainingSet, texts: TrainingTexts, num_cut: int) -> None:
    count, name = len(texts), _name_of(one.dataset, one.number)
    if one.objective in GRADED:
        logger.info("%s: %d graded pairs, of %d texts", name, count, len(texts.texts))
    elif texts.is_augmented:
        logger.info("%s: %d texts, each its own match", name, count)
    else:
        with_negatives = sum(int(anchor) in texts.negatives for anchor in texts.anchors)
        used = "" if config.hard_negatives else ", which --hard_negatives 0 leaves out"
        logger.info(
            "%s: %d pairs that belong together, of %d texts; %d of them have hard negatives%s",
            name, count, len(texts.texts), with_negatives, used,
        )  # fmt: skip
    if num_cut:
        logger.info("%s: cut to --max_seq_len: %s", name, counted(num_cut, "text"))


def _name_of(dataset: Optional[Dataset], number: str = "") -> str:
    return str(dataset) if isinstance(dataset, (str, Path)) else f"given from Python{number}"
