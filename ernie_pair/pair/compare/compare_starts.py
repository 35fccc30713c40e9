"""Compare classifiers fine-tuned from different initial weights: same pairs, same steps, several seeds."""

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Dict, List, Literal, Sequence

from data_tools.base.cli import parse_config
from data_tools.base.errors import CheckpointError, InputError
from data_tools.base.options import Options, option, refuse_empty
from data_tools.corpus.format import Corpus
from data_tools.corpus.megatron import find_corpus, open_corpus
from data_tools.files.results import Results, files_of, refuse_existing, settings_of
from ernie_pair.checkpoint.used_folder import EVENTS
from ernie_pair.dashboard.run_folder import Run, open_runs
from ernie_pair.device.device import start_device
from ernie_pair.engine.run_log import read_all_events
from ernie_pair.model_files.labels import Labels
from ernie_pair.model_files.source import open_model
from ernie_pair.pair.compare.comparison_page import page_of_comparison
from ernie_pair.pair.compare.comparison_report import (
    JSON_FILE,
    PAGE_FILE,
    PICTURE_FILE,
    compare,
    table_lines,
    warnings_of,
    write_comparison,
)
from ernie_pair.pair.compare.domain_loss import domain_loss
from ernie_pair.pair.compare.runs import TEST, Candidate, Runs
from ernie_pair.pair.config.named_models import parse_named_models
from ernie_pair.pair.config.pair_config import TrainConfig
from ernie_pair.pair.config.target_flags import chosen_labels
from ernie_pair.pair.data.pair_columns import Columns
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.data.pair_records import RowRules
from ernie_pair.pair.data.pair_source import PairSource
from ernie_pair.pair.metrics import refuse_undefined
from ernie_pair.processes.console import start_console
from ernie_pair.processes.world import World
from ernie_pair.report.page import Made
from ernie_pair.run_config.kept_config import keep_config

RANDOM = "random:"
STARTS_EXAMPLE = 'write it as in --starts "domain=output/dynamic base=ernie-1.0"'

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CompareConfig(Options):
    """Fine-tune from several starts with several seeds, and compare them. Start it again to resume."""

    EXAMPLE = (
        "--starts 'domain=output/dynamic base=ernie-1.0' --train_config train.yaml --output_dir compared"
    )

    starts: str = option(
        help='names and models: "domain=output/dynamic base=ernie-1.0"; random:MODEL: new weights; one with '
        "spaces needs quotes of its own",
        group="model",
    )
    train_config: str = option(
        help="a YAML file of flags of `ernie-pair train`, the same for every run", group="optimisation"
    )
    output_dir: str = option(
        help="a folder per run, compare.html, compare.json and compare.png go here", group="data"
    )
    seeds: int = option(
        3,
        help="runs from each start: the seed of --train_config, and those after it",
        group="optimisation",
        unit="runs",
        at_least=1,
    )
    test_file: str = option(
        "", help="labelled pairs to compare on; empty: the dev_file of --train_config", group="data"
    )
    domain_data: str = option(
        "",
        help="a corpus of held-out text, its folder or PREFIX; every start predicts its masked words",
        group="data",
    )
    domain_samples: int = option(
        1000, help="samples of --domain_data", group="data", unit="samples", at_least=1
    )
    bootstrap: int = option(
        1000,
        help="bootstrap resamples for the confidence interval of a difference",
        group="evaluation",
        unit="resamples",
        at_least=1,
    )
    overwrite: bool = option(
        False, help="replace files that this command did not make, or that have changed since", group="data"
    )
    symmetric: Literal["none", "average"] = option(
        "none",
        help="average: score both orders of a pair and take the mean of the logits; always used if "
        "--train_config has --symmetric average",
        group="evaluation",
    )

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output_dir")
        if not Path(self.train_config).is_file():
            raise InputError(
                f"--train_config {self.train_config}: no such file; write the flags of train in it"
            )


def compare_starts(config: CompareConfig) -> None:
    """Run the missing runs, write what they show, print a table. Raises an ErniePairError."""
    start_console(World())
    train = _train_config(config.train_config)
    if train.dry_run:
        raise InputError(f"{config.train_config}: dry_run is for a single run; leave it out")
    starts = _open_starts(config.starts, train)
    corpus = None
    if config.domain_data:
        corpus = open_corpus(find_corpus(config.domain_data, "--domain_data"))
    labels = _labels_of_all(starts, train)
    pairs = _test_pairs(config, train, labels)
    output_dir, names = Path(config.output_dir), labels.names
    results = _results(config, train)
    results.refuse_foreign()
    symmetric = "average" if train.scored_as == "average" else config.symmetric
    runs = Runs(output_dir, config.train_config, train, config.seeds, len(names), symmetric)
    if not runs.is_begun():
        refuse_existing([output_dir / TEST], config.overwrite)
    runs.plan(starts, pairs)
    keep_config(output_dir, "compare-starts", config)
    runs.make(starts)
    logits = {start.name: [runs.logits(start, seed, len(pairs)) for seed in runs.seeds] for start in starts}
    comparison = compare(logits, pairs.known_labels, list(runs.seeds), config.bootstrap)
    domain = None if corpus is None else _domain_losses(starts, corpus, config, train)
    for line in warnings_of(comparison, names):
        logger.warning("%s", line)
    page = page_of_comparison(comparison, domain, _opened(runs, starts), Made(asdict(config)))
    with results.published() as (*drafts, page_draft):
        write_comparison(drafts, comparison, domain, {start.name: start.path for start in starts})
        page_draft.write_text(page, encoding="utf-8")
    print("\n".join(table_lines(comparison, domain)))
    logger.info("report: %s", output_dir / PAGE_FILE)


def _opened(runs: Runs, starts: List[Candidate]) -> List[Run]:
    """Return the runs for the page, but those whose log somebody has removed: their predictions are there."""
    folders = [runs.folder(start, seed) for start in starts for seed in runs.seeds]
    return open_runs([str(folder) for folder in folders if read_all_events(folder / EVENTS)])


def _results(config: CompareConfig, train: TrainConfig) -> Results:
    """Return the result files, which are replaced whenever more runs have been made."""
    outputs = [Path(config.output_dir, name) for name in (JSON_FILE, PICTURE_FILE, PAGE_FILE)]
    inputs: Dict[str, Sequence[Path]] = {
        "train_config": [Path(config.train_config)],
        "test_file": files_of(config.test_file),
    }
    inputs.update({name: files_of(getattr(train, name)) for name in ("train_file", "dev_file")})
    settings = settings_of(config, "train_config", "output_dir")
    return Results("compare-starts", outputs, inputs, settings, config.overwrite)


def _train_config(path: str) -> TrainConfig:
    """Read the flags of training; model and output_dir may be absent: every run has its own."""
    return parse_config(TrainConfig, [f"--config={path}", "--model_name_or_path=start", "--output_dir=run"])


def _labels_of_all(starts: List[Candidate], train: TrainConfig) -> Labels:
    """Return the labels that the model of every run has. Raises InputError if they differ, or are scores."""
    first, *others = [chosen_labels(train, start.source.spec) for start in starts]
    for labels in (first, *others):
        if not labels.has_classes:
            raise InputError(
                f"compare-starts compares classifiers, and these are models for {labels.target}; train each "
                "of them, and compare what evaluate says"
            )
    for start, labels in zip(starts[1:], others):
        if labels.names != first.names:
            raise InputError(
                f"--starts: {starts[0].name} tells {', '.join(first.names)} apart and {start.name} "
                f"{', '.join(labels.names)}; set label_map in --train_config for all of them"
            )
    return first


def _test_pairs(config: CompareConfig, train: TrainConfig, labels: Labels) -> Pairs:
    columns = Columns(train.text_a, train.text_b, train.label)
    flag, name, split = "dev_file", train.dev_file, "dev"
    if config.test_file:
        flag, name, split = "test_file", config.test_file, "test"
    pairs = PairSource(flag, name, split, labels, columns, RowRules.of(train)).read()
    refuse_undefined("auc", pairs.known_labels, len(labels.names), name)
    return pairs


def _open_starts(text: str, train: TrainConfig) -> List[Candidate]:
    paths = parse_named_models("starts", text, STARTS_EXAMPLE)
    if len(paths) < 2:
        raise InputError(f"--starts {text}: one start has nothing to be compared with; {STARTS_EXAMPLE}")
    return [_open_start(name, path, train.from_scratch) for name, path in paths.items()]


def _open_start(name: str, path: str, from_scratch: bool) -> Candidate:
    from_scratch = from_scratch or path.startswith(RANDOM)
    path = path[len(RANDOM) :] if path.startswith(RANDOM) else path
    return Candidate(name, path, open_model(path, model_type="", from_scratch=from_scratch))


def _domain_losses(
    starts: List[Candidate], corpus: Corpus, config: CompareConfig, train: TrainConfig
) -> Dict[str, Dict[str, object]]:
    """Return what ``domain_loss`` measures for every start, or {"reason": why it cannot}."""
    start_device(train.device, World())
    length = min(train.max_seq_len, *(start.source.spec.max_positions for start in starts))
    losses: Dict[str, Dict[str, object]] = {}
    for start in starts:
        try:
            found = domain_loss(start.source, corpus, config.domain_samples, length)
            losses[start.name] = {**found}
        except (CheckpointError, InputError) as error:
            logger.warning("no masked-word loss for %s on %s: %s", start.name, corpus.prefix, error.message)
            losses[start.name] = {"reason": error.message}
    return losses
