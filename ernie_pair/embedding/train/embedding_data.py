"""Training and evaluation data of an embedding model: from files, sets or Python objects to batches."""

import logging
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence, Union

from data_tools.files.arrays import sha256_of_file
from data_tools.files.errors import InputError, counted
from data_tools.text.folder_tokenizer import AnyTokenizer
from data_tools.text.text_files import LeftOut, LineRules, is_text_file, read_texts
from ernie_pair.embedding.retrieval import RetrievalSet, build_retrieval_set
from ernie_pair.embedding.train.contrastive import (
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
from ernie_pair.embedding.train.cosent import graded_texts
from ernie_pair.embedding.train.distillation import sha256_of_teacher, taught_texts
from ernie_pair.embedding.train.embedding_config import GRADED, PAIRS, SIMCSE, TAUGHT, EmbeddingConfig
from ernie_pair.inference.token_rows import EncodedPairs, encode_single_texts, open_tokenizer
from ernie_pair.models.embedding_json import EmbeddingSettings
from ernie_pair.models.labels import Labels
from ernie_pair.models.model_card import DataFile
from ernie_pair.models.source import ModelSource
from ernie_pair.pair.audit.audit_pairs import warn_before_training
from ernie_pair.pair.data.in_memory_pairs import GivenPairs, examples_of
from ernie_pair.pair.data.pair_records import Columns, RowRules
from ernie_pair.pair.data.pair_source import PairSource, labels_for
from ernie_pair.pair.data.rejected import ENDING, tell_rejected
from ernie_pair.runtime.processes.world import World
from ernie_pair.train.process_group import join_process_group

logger = logging.getLogger(__name__)

Dataset = Union[str, Path, Iterable]  # a file or set, or what Python holds; see `PairTrainer`
PARTS = {"train": "train", "dev": "dev", "negatives": "train"}  # of a set that a flag names
ARGUMENTS = {"train": "train_dataset", "dev": "eval_dataset", "negatives": "negatives"}  # of Python


Datasets = Mapping[str, Any]  # {part, a key of PARTS: its Dataset}; negatives None or empty: there are none


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
    steps, files = [], []
    for objective, argument, dataset in training_sets(config, datasets["train"]):
        texts, describe, found = _open_set(config, objective, argument, dataset, datasets["negatives"], world)
        is_audited = objective not in (SIMCSE, *GRADED) and not config.has_graded_dev
        if is_audited and isinstance(dev_source, PairSource) and world.is_first:
            train = labelled(config, source_of(config, "train", dataset))
            if isinstance(train, PairSource):
                warn_before_training(Path(config.output_dir) / "cache", {"train": train, "dev": dev_source})
        rows = encode_single_texts(_read_by(settings, texts), tokenizer, config.max_seq_len)
        _describe(config, objective, _name_of(dataset), texts, rows.num_cut)
        steps.append(ContrastiveSteps(texts, rows, config, describe))
        files += found
    if len(steps) > 1:  # flags with numbers are those of files, here and in the fingerprint
        files = [file._replace(use=f"{file.use} {n}") for n, file in enumerate(files, 1)]
    hashes = {file.use: file.sha256 for file in files}
    if config.teacher:
        hashes["teacher"] = sha256_of_teacher(config)
    name, sha256 = _name_of(datasets["dev"]), dev_source.sha256()
    files.append(DataFile("dev_file", name, sha256, len(dev.retrieval.labels)))
    hashes.update(dev_file=sha256, vocabulary=tokenizer.sha256)
    sizes = [len(one.texts) for one in steps]
    by_size = [Fraction(max(1, round(10_000 * size / sum(sizes)))) for size in sizes]
    weights = config.chosen_weights or by_size
    if len(weights) != len(steps):
        raise InputError(
            f"--sampling_weights {config.sampling_weights}: {len(weights)} numbers for "
            f"{counted(len(steps), 'training file')}; give one for each"
        )
    return EmbeddingData(partial(mixed_steps, steps, weights, world), sum(sizes), dev, hashes, files)


def training_sets(config: EmbeddingConfig, dataset: Any) -> list[tuple[str, str, Dataset]]:
    """Return the objective, the argument of Python and the data set of each of several.

    They are file names with commas between them, or the values of a dictionary. Raises InputError where there
    are more or fewer objectives.
    """
    argument = ARGUMENTS["train"]
    sets: dict[str, Dataset] = {argument: dataset}
    if isinstance(dataset, Mapping) and len(config.objectives) > 1:
        sets = {f"{argument}[{name}]": one for name, one in dataset.items()}
    elif isinstance(dataset, str) and not Path(dataset).exists():
        sets = dict(enumerate(name.strip() for name in dataset.split(",")))  # type: ignore[arg-type]  # no names
    objectives = config.objectives * (len(sets) if len(config.objectives) == 1 else 1)
    if len(objectives) != len(sets):
        raise InputError(
            f"--objective {config.objective}: {len(objectives)} objectives for "
            f"{counted(len(sets), 'training file')}; give one for each, or one for all"
        )
    return [(objective, str(name), one) for objective, (name, one) in zip(objectives, sets.items())]


def _read_by(settings: EmbeddingSettings, texts: TrainingTexts) -> list[str]:
    """Return the texts as passages and, where queries have another prompt, after them all as queries."""
    if texts.is_augmented:
        return settings.texts_read(texts.texts, settings.prompts.get(settings.default_prompt, ""))
    of_query, of_passage = settings.prompt_of("query"), settings.prompt_of("passage")
    read = settings.texts_read(texts.texts, of_passage)
    return read + settings.texts_read(texts.texts, of_query) if of_query != of_passage else read


def _open_set(
    config: EmbeddingConfig, objective: str, argument: str, dataset: Dataset, given: Any, world: World
) -> tuple[TrainingTexts, Describe, list[DataFile]]:
    """Return the texts of a training set, what makes their steps, and the files that they are of."""
    name, negatives = _name_of(dataset), None
    describe: Describe = describe_step
    has_negatives = given is not None and not (isinstance(given, str) and not given)
    if has_negatives and objective not in (PAIRS, *TAUGHT):
        raise InputError(
            "--negatives_file is for --objective pairs, margin_mse and kl; leave one of them out"
        )
    if objective == SIMCSE:
        found, sha256 = read_any_texts(config, dataset, world)
        texts = texts_alone(found, name)
        return texts, describe, [DataFile("train_file", name, sha256, len(texts))]
    source = labelled(config, source_of(config, "train", dataset, argument), objective in GRADED)
    pairs, files = _read(config, "train", source, world), []
    if has_negatives:
        more = source_of(config, "negatives", given)
        negatives = _read(config, "negatives", more, world)
        files.append(DataFile("negatives_file", _name_of(given), more.sha256(), None))
    if objective in GRADED:
        texts, describe = graded_texts(pairs, name, objective == "angle")
    else:
        texts = texts_of_pairs(pairs, negatives, name)
    if objective in TAUGHT:
        texts, describe = taught_texts(texts, config, objective, name, join_process_group(world))
    return texts, describe, [DataFile("train_file", name, source.sha256(), len(texts)), *files]


def read_any_texts(config: EmbeddingConfig, dataset: Dataset, world: World):
    """Return texts and SHA-256 of a text file, of pairs' columns or a list; log what is left out."""
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
        dataset = list(examples_of(ARGUMENTS["train"], dataset))
        if dataset and all(isinstance(one, str) for one in dataset):
            return dataset, sha256_of_texts(dataset)
    source = source_of(config, "train", dataset)
    pairs = _read(config, "train", source, world)
    return [*pairs.left, *pairs.right], source.sha256()


def source_of(config: EmbeddingConfig, part: str, dataset: Dataset, argument: str = ""):
    """Return a source of the pairs of ``part``, a key of PARTS, without labels; see `PairSource`.

    ``argument``: what errors call a dataset of Python, ARGUMENTS[part] if empty. Raises InputError.
    """
    columns = Columns(config.text_a, config.text_b, config.label)
    rules = RowRules.of(config)
    if isinstance(dataset, (str, Path)):
        if is_text_file(str(dataset)) and Path(dataset).is_file():
            raise InputError(
                f"--{part}_file {dataset} has a text in each line, and pairs are needed; give a .tsv, .csv "
                "or .jsonl file, or pass --objective simcse to train on texts alone"
            )
        return PairSource(f"{part}_file", str(dataset), PARTS[part], None, columns, rules)
    return GivenPairs(argument or ARGUMENTS[part], dataset, None, columns, rules)


def labelled(config: EmbeddingConfig, source: Any, is_graded: bool = False) -> Any:
    """Return ``source`` with the classes of its labels, or the scores that they are."""
    labels = Labels.scores(config.score_range) if is_graded else labels_for(source, config.label_map, 2)
    return replace(source, labels=labels)


def _open_dev(
    config: EmbeddingConfig, source, tokenizer: AnyTokenizer, settings: EmbeddingSettings, world: World
) -> DevTexts:
    retrieval = build_retrieval_set(_read(config, "dev", source, world), source.name)
    rows, as_queries = (
        encode_single_texts(settings.texts_read(retrieval.texts, prompt), tokenizer, config.max_seq_len)
        for prompt in (settings.prompt_of("passage"), settings.prompt_of("query"))
    )
    has_roles = settings.prompt_of("passage") != settings.prompt_of("query")
    logger.info("%s: %s", source.name, retrieval.describe())
    return DevTexts(retrieval, rows, as_queries if has_roles else None)


def _read(config: EmbeddingConfig, part: str, source, world: World):
    pairs = source.read()
    path = Path(config.output_dir) / f"{part}{ENDING}" if world.is_first else None
    tell_rejected(source.name, pairs.bad, len(pairs), path)
    return pairs


def _describe(config: EmbeddingConfig, objective: str, name: str, texts: TrainingTexts, num_cut: int) -> None:
    count = len(texts)
    if objective in GRADED:
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


def _name_of(dataset: Optional[Dataset]) -> str:
    return str(dataset) if isinstance(dataset, (str, Path)) else "given from Python"
