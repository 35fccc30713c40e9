"""Compare classifiers fine-tuned from different initial weights: same pairs, same steps, several seeds."""

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, List, NamedTuple

from data_tools.corpus.format import Corpus, find_corpus, open_corpus
from data_tools.corpus.twin_vocab import vocabulary_of
from data_tools.samples.masking import MaskingFlags
from data_tools.samples.split_datasets import dataset_of
from ernie_pair.checkpoint.run_config import keep_config
from ernie_pair.checkpoint.run_folder import EVENTS, find_best
from ernie_pair.core.cli.cli import parse_config
from ernie_pair.core.cli.options import defaults_of
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.core.files.atomic_files import published
from ernie_pair.core.files.results import check_absent
from ernie_pair.experiments.comparison_report import (
    FILES,
    build_tables,
    compare,
    warnings_of,
    write_comparison,
)
from ernie_pair.experiments.config import CompareConfig
from ernie_pair.experiments.series import (
    PREDICTIONS,
    Plan,
    Series,
    hash_weights,
    iterate_unfinished,
    no_best_model,
    pair_source,
    read_logits,
    refuse_other_classes,
)
from ernie_pair.models.labels import Labels, parse_label_map
from ernie_pair.models.source import ModelSource, open_model
from ernie_pair.pairs.config.ask_config import PredictConfig, parse_named_models
from ernie_pair.pairs.config.pair_config import TrainConfig, chosen_labels
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.data.pair_source import PairSource, label_map_in
from ernie_pair.pairs.targets.metrics import check_defined
from ernie_pair.pretraining.mlm.evaluate_mlm import measure_masked_loss
from ernie_pair.pretraining.mlm.fill_mask import load_pretrained
from ernie_pair.report.page import Origin, text_table
from ernie_pair.report.plot_runs import open_runs
from ernie_pair.runtime.device import start_device
from ernie_pair.runtime.processes.child_command import run_child, words_of
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.runtime.processes.world import World
from ernie_pair.training.run_log import read_all_events

SEED, BATCH = 1234, 32
DOMAIN_SAMPLES = 1000


def domain_loss(source: ModelSource, corpus: Corpus, num_samples: int, max_seq_len: int) -> Dict[str, float]:
    """Return lm_loss (mean over the masked tokens), perplexity, lm_accuracy and masked_tokens.

    The masks follow from the corpus alone, so every model of its vocabulary is asked the same. Raises
    InputError for a model that cannot be asked (of another kind, or vocabulary), and CheckpointError when its
    weights do not fit, or hold no head for masked words.
    """
    own = source.read_tokenizer()
    tokenizer, sizes = vocabulary_of([corpus], own), {"num_samples": num_samples, "max_seq_len": max_seq_len}
    dataset = dataset_of(corpus, range(corpus.num_documents), tokenizer, MaskingFlags(), seed=SEED, **sizes)
    if source.spec.family not in ("ernie", "bert", ""):
        raise InputError(f"{source.name}: only an ERNIE or a BERT has a head for masked words here")
    if source.weights is None:
        raise InputError(f"{source.name} has no weights yet")
    measured = measure_masked_loss(load_pretrained(source), dataset, tokenizer.pad_id, max_seq_len, BATCH)
    return {name: measured[name] for name in ("lm_loss", "perplexity", "lm_accuracy", "masked_tokens")}


TEST = "test.jsonl"
RANDOM = "random:"
STARTS_EXAMPLE = 'write it as in --starts "domain=output/dynamic base=ernie-1.0"'

logger = logging.getLogger(__name__)


class Start(NamedTuple):
    """A start of the comparison; ``source`` has no weights when its runs begin with random ones."""

    name: str
    path: str
    source: ModelSource


def compare_starts(config: CompareConfig) -> None:
    """Run the missing runs, write what they show, print a table. Raises an ErniePairError."""
    start_console(World())
    # The model and output_dir may be absent: every run has its own.
    flags = [f"--config={config.train_config}", "--model_name_or_path=start", "--output_dir=run"]
    train = parse_config(TrainConfig, flags)
    if train.dry_run:
        raise InputError(f"{config.train_config}: dry_run is for a single run; leave it out")
    starts = _open_starts(config.starts, train)
    corpus = None
    if config.domain_data:
        corpus = open_corpus(find_corpus(config.domain_data, "--domain_data"))
    labels = _labels_of_all(starts, train)
    pairs, names = _test_pairs(config, train, labels), labels.names
    inputs = {"train_config": config.train_config, "test_file": config.test_file}
    inputs.update(train_file=train.train_file, dev_file=train.dev_file)
    series = Series("compare starts", config, FILES, inputs)
    series.check_existing()
    if not series.path.is_file():
        check_absent([series.folder / TEST], config.overwrite)
    symmetric = "average" if train.scored_as == "average" else config.symmetric
    _keep_plan(series, train, symmetric, starts, pairs)
    keep_config(series.folder, "compare starts", config)
    seeds = list(range(train.seed, train.seed + config.seeds))
    folders = {each.name: [series.folder / f"{each.name}-seed-{seed}" for seed in seeds] for each in starts}
    runs = [(start, seed, folders[start.name][n]) for n, seed in enumerate(seeds) for start in starts]
    shown = [f"{folder}; see {_log_of(folder)}" for *_, folder in runs]
    with StopSignals():
        for place in iterate_unfinished(shown, lambda place: (runs[place][2] / PREDICTIONS).is_file()):
            _train_and_predict(*runs[place], config.train_config, train, symmetric)
    logits = {
        name: [read_logits(folder / PREDICTIONS, len(pairs), len(names)) for folder in each]
        for name, each in folders.items()
    }
    comparison = compare(logits, pairs.known_labels, seeds, config.bootstrap)
    domain = None if corpus is None else _domain_losses(starts, corpus, config, train)
    for line in warnings_of(comparison, names):
        logger.warning("%s", line)
    # For the page; somebody may have removed a log, and only the predictions are needed.
    logged = [str(folder) for each in folders.values() for folder in each if read_all_events(folder / EVENTS)]
    paths, made = {start.name: start.path for start in starts}, Origin(asdict(config))
    with series.published() as drafts:
        write_comparison(drafts, comparison, domain, paths, open_runs(logged), made)
    print("\n\n".join(map(text_table, build_tables(comparison, domain))))
    logger.info("report: %s", series.folder / FILES[-1])


def _keep_plan(series: Series, train: TrainConfig, symmetric: str, starts: List[Start], test: Pairs) -> None:
    """Write the plan and the test pairs. Raises InputError when the folder holds other runs."""
    of_a_run = defaults_of(train, "run")
    plan: Plan = {name: value for name, value in asdict(train).items() if name not in of_a_run}
    plan["symmetric of training"] = plan.pop("symmetric")
    for split in ("train", "dev"):
        plan[f"{split}_file (sha256)"] = pair_source(train, split, None).sha256()
    plan.update({"test_file (sha256)": test.sha256, "symmetric": symmetric})
    plan.update((f"start {start.name} (sha256)", hash_weights(start.source)) for start in starts)
    series.keep(plan)
    rows = [{"sentence1": left, "sentence2": right} for left, right in zip(test.left, test.right)]
    with published(series.folder / TEST) as (draft,):
        draft.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _train_and_predict(
    start: Start, seed: int, folder: Path, train_config: str, train: TrainConfig, symmetric: str
) -> None:
    """Make a run. Raises an ErniePairError as a run that fails does."""
    log = _log_of(folder)
    log.parent.mkdir(parents=True, exist_ok=True)
    run: Dict[str, Any] = {"model_name_or_path": start.path, "seed": seed, "output_dir": folder}
    run["from_scratch"] = "true" if start.source.weights is None else "false"
    _call(words_of("train", config=train_config, **run), log)
    best = find_best(folder)
    if best is None:
        raise no_best_model(folder)
    shared = {*defaults_of(PredictConfig, "trained", "speed"), "precision"} & vars(train).keys()
    flags = {**{name: getattr(train, name) for name in sorted(shared)}, "columns": "answers"}
    paths = {"input_file": folder.with_name(TEST), "output_file": folder / PREDICTIONS}
    _call(words_of("predict", **flags, symmetric=symmetric, scores="true", model_path=best, **paths), log)


def _log_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.log")


def _call(words: List[str], log: Path) -> None:
    run_child(words, f"{words[0]} of {log.stem}", log)


def _labels_of_all(starts: List[Start], train: TrainConfig) -> Labels:
    """Return the labels that the model of every run has. Raises InputError if they differ, or are scores."""
    source, labels = pair_source(train, "train", None), {}
    for start in starts:  # as each of its runs will find them
        known = chosen_labels(train, start.source.spec)
        found = label_map_in(source, known, train.label_map)
        labels[start.name] = parse_label_map(found) if found else known
    for each in labels.values():
        if not each.has_classes:
            raise InputError(
                f"compare starts compares classifiers, and these are models for {each.target}; train each "
                "of them, and compare what evaluate says"
            )
    return refuse_other_classes("starts", labels, "set label_map in --train_config for all of them")


def _test_pairs(config: CompareConfig, train: TrainConfig, labels: Labels) -> Pairs:
    name = config.test_file or train.dev_file
    flag = "test_file" if config.test_file else "dev_file"
    pairs = PairSource.of(train, flag, labels, name=name).read()
    check_defined("auc", pairs.known_labels, len(labels.names), name)
    return pairs


def _open_starts(text: str, train: TrainConfig) -> List[Start]:
    paths = parse_named_models("starts", text, STARTS_EXAMPLE)
    if len(paths) < 2:
        raise InputError(f"--starts {text}: one start has nothing to be compared with; {STARTS_EXAMPLE}")
    starts = []
    for name, path in paths.items():
        from_scratch = train.from_scratch or path.startswith(RANDOM)
        path = path[len(RANDOM) :] if path.startswith(RANDOM) else path
        starts.append(Start(name, path, open_model(path, model_type="", from_scratch=from_scratch)))
    return starts


def _domain_losses(
    starts: List[Start], corpus: Corpus, config: CompareConfig, train: TrainConfig
) -> Dict[str, Dict[str, object]]:
    """Return what ``domain_loss`` measures for every start, or {"reason": why it cannot}."""
    start_device(train.device, World())
    length = min(train.max_seq_len, *(start.source.spec.max_positions for start in starts))
    losses: Dict[str, Dict[str, object]] = {}
    for start in starts:
        try:
            losses[start.name] = {**domain_loss(start.source, corpus, DOMAIN_SAMPLES, length)}
        except (CheckpointError, InputError) as error:
            logger.warning("no masked-word loss for %s on %s: %s", start.name, corpus.prefix, error.message)
            losses[start.name] = {"reason": error.message}
    return losses
