"""Compare classifiers fine-tuned from different initial weights: same pairs, same steps, several seeds."""

import json
import logging
from dataclasses import asdict
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from data_tools.corpus.format import Corpus, find_corpus, open_corpus
from data_tools.corpus.twin_vocab import vocabulary_of
from data_tools.samples.masking import MaskingFlags
from data_tools.samples.split_datasets import dataset_of
from ernie_pair.checkpoint.run_config import keep_config
from ernie_pair.checkpoint.run_folder import EVENTS, find_best
from ernie_pair.core.cli.cli import parse_config
from ernie_pair.core.cli.options import defaults_of
from ernie_pair.core.errors import CheckpointError, InputError, counted
from ernie_pair.core.files.atomic_files import published
from ernie_pair.core.files.json_file import read_json_object, write_json
from ernie_pair.core.files.results import check_absent
from ernie_pair.evaluation.evaluation import describe_change
from ernie_pair.experiments.config import CompareConfig
from ernie_pair.experiments.series import (
    PREDICTIONS,
    Plan,
    Series,
    hash_weights,
    iterate_unfinished,
    no_best_model,
    read_logits,
    refuse_other_classes,
)
from ernie_pair.models.labels import Labels, parse_label_map
from ernie_pair.models.source import ModelSource, open_model
from ernie_pair.pairs.config.ask_config import PredictConfig, parse_named_models
from ernie_pair.pairs.config.pair_config import TrainConfig, chosen_labels
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.data.pair_source import PairSource, check_of_matches, label_map_in
from ernie_pair.pairs.targets import metrics
from ernie_pair.pretraining.mlm.evaluate_mlm import measure_masked_loss
from ernie_pair.pretraining.mlm.fill_mask import load_pretrained
from ernie_pair.report.page import Draw, Origin, Table, draw_chart, draw_picture, text_table
from ernie_pair.report.plot_runs import Run, open_runs, page_of
from ernie_pair.runtime.device import start_device
from ernie_pair.runtime.processes.child_command import run_child, words_of
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.runtime.processes.world import World
from ernie_pair.training.run_log import read_all_events

FILES = ("compare.json", "compare.png", "compare.html")
SHOWN = ("accuracy", "f1", "auc")
MASKED_WORDS, GENERAL_PAIRS = "masked words: loss (perplexity)", "general pairs"
SEED = 1234  # of the resamples, and of the masks of --domain_data
BATCH = 32  # samples of --domain_data
DOMAIN_SAMPLES = 1000
AT_CHANCE = ("accuracy", "auc")  # f1 has no value of its own for a guess: it follows these two

Metrics = Dict[str, float]
Domain = Optional[Dict[str, Dict[str, object]]]
General = Optional[Dict[str, Dict[str, Any]]]  # what `_cost_of` says of each start


class Difference(NamedTuple):
    """The difference of two starts, ``one`` minus ``other``.

    Of each metric the mean over the seeds, its 95 % interval, the share of the resamples in which it is not
    above 0, and, of SHOWN, which of the two are at chance: where both are, a difference is no gain.
    """

    one: str
    other: str
    mean: Metrics
    interval: Dict[str, List[float]]
    not_above_0: Metrics
    at_chance: Dict[str, List[str]]


class Comparison(NamedTuple):
    """The metrics of all runs and their differences; ``runs``: {start: the metrics of each seed}.

    ``deviation`` is None with a single seed. ``chance``: the accuracy of answering the most common class, and
    an AUC of 0.5; ``at_chance``: {start: those of SHOWN whose 95 % ``interval`` is not above that};
    ``single_class``: {start: the only class that a seed's model predicts, or None}.
    """

    rows: int
    seeds: List[int]
    runs: Dict[str, List[Metrics]]
    mean: Dict[str, Metrics]
    deviation: Optional[Dict[str, Metrics]]
    differences: List[Difference]
    chance: Metrics
    interval: Dict[str, Dict[str, List[float]]]
    at_chance: Dict[str, List[str]]
    single_class: Dict[str, List[Optional[int]]]


def compare(
    logits: Dict[str, List[np.ndarray]], labels: np.ndarray, seeds: List[int], samples: int
) -> Comparison:
    """Compare starts by ``logits``: {start: [N, C] of each seed}, of the same rows with labels int64 [N].

    The intervals are a paired bootstrap: a resample draws rows and seeds, and every start is measured on the
    same ones.
    """
    rows_of = {name: [metrics.CountedRows(each, labels) for each in logits[name]] for name in logits}
    whole = np.ones(len(labels), dtype=np.int64)
    runs = {name: [rows.measure(whole) for rows in each] for name, each in rows_of.items()}
    values = {
        name: np.array([[run[m] for m in metrics.METRICS] for run in each]) for name, each in runs.items()
    }
    drawn = _drawn_means(rows_of, len(labels), len(seeds), samples)
    names, intervals = list(logits), {name: _intervals(drawn[name]) for name in logits}
    chance = {"accuracy": float(np.bincount(labels).max() / len(labels)), "auc": 0.5}
    at_chance = {}
    for name, of_metric in intervals.items():  # a metric without value (nan) is not above chance
        flags = {metric: not of_metric[metric][0] > chance[metric] for metric in AT_CHANCE}
        flags["f1"] = all(flags.values())
        at_chance[name] = [metric for metric in SHOWN if flags[metric]]
    differences = []
    for one, other in combinations(names, 2):
        mean, spread = _named((values[one] - values[other]).mean(axis=0)), drawn[one] - drawn[other]
        both = {metric: [name for name in (one, other) if metric in at_chance[name]] for metric in SHOWN}
        not_above_0 = _named((spread <= 0).mean(axis=0))
        differences.append(Difference(one, other, mean, _intervals(spread), not_above_0, both))
    means = {name: _named(table.mean(axis=0)) for name, table in values.items()}
    deviation = {n: _named(t.std(axis=0, ddof=1)) for n, t in values.items()} if len(seeds) > 1 else None
    single = {
        name: [metrics.find_single_class(each.argmax(axis=1), labels) for each in logits[name]]
        for name in names
    }
    found = (means, deviation, differences, chance, intervals, at_chance, single)
    return Comparison(len(labels), seeds, runs, *found)


def _intervals(drawn: np.ndarray) -> Dict[str, List[float]]:
    return {name: metrics.percentile_interval(drawn[:, place]) for place, name in enumerate(metrics.METRICS)}


def _drawn_means(counted, num_rows: int, num_seeds: int, samples: int) -> Dict[str, np.ndarray]:
    """Return {start: float64 [samples, metrics]}, the means over the drawn seeds on the drawn rows."""
    seeds_of = np.random.default_rng([SEED, num_seeds]).integers(num_seeds, size=(samples, num_seeds))
    means: Dict[str, List[np.ndarray]] = {name: [] for name in counted}
    for counts, seeds in zip(metrics.resamples(num_rows, samples, SEED), seeds_of):
        for name, rows in counted.items():
            measured = {seed: list(rows[seed].measure(counts).values()) for seed in set(seeds.tolist())}
            means[name].append(np.mean([measured[seed] for seed in seeds.tolist()], axis=0))
    return {name: np.array(each) for name, each in means.items()}


def _named(values: np.ndarray) -> Metrics:
    return dict(zip(metrics.METRICS, values.tolist()))


def warnings_of(comparison: Comparison, names: Sequence[str]) -> Iterator[str]:
    """Yield a line per classifier that predicts one class only, and per difference of starts at chance."""
    for start, classes in comparison.single_class.items():
        for seed, single in zip(comparison.seeds, classes):
            if single is not None:
                yield f"{start}, seed {seed}: {metrics.describe_single_class(names[single], comparison.rows)}"
    for difference in comparison.differences:
        if all(len(difference.at_chance[metric]) == 2 for metric in AT_CHANCE):
            yield (
                f"{difference.one} and {difference.other} are both at chance: their difference shows no "
                "gain; train longer, on more pairs, or with another learning rate"
            )


def write_comparison(
    files: Sequence[Path],
    comparison: Comparison,
    domain: Domain,
    paths: Dict[str, str],
    runs: Sequence[Run],
    made: Origin,
    general: General = None,
) -> None:
    """Write the comparison to ``files``, which become FILES; the page shows ``runs`` too. Raises OSError."""
    content = {
        "starts": paths,
        **comparison._asdict(),
        "differences": [difference._asdict() for difference in comparison.differences],
        "domain": domain,
        "general": general,
    }
    text, picture, page = files
    write_json(text, content)
    panels, tables = panels_of(comparison, domain), build_tables(comparison, domain, general)
    picture.write_bytes(draw_picture(panels, len(panels), "png"))
    charts = [draw_chart(title, draw, "") for title, draw in panels]
    page.write_text(page_of(runs, [], made, "Starts compared", tables, charts), encoding="utf-8")


def panels_of(comparison: Comparison, domain: Domain) -> List[Tuple[str, Draw]]:
    """Return the charts of the comparison: (title, what draws it on its axes)."""
    panels: List[Tuple[str, Draw]] = [
        (f"accuracy, {counted(len(comparison.seeds), 'seed')}", partial(_draw_runs, comparison)),
        ("differences, 95 % intervals", partial(_draw_differences, comparison)),
    ]
    if domain:
        panels.append(("masked words of the domain", partial(_draw_domain, domain)))
    return panels


def _draw_domain(domain: Dict[str, Dict[str, object]], axes) -> None:
    losses = [loss.get("lm_loss") for loss in domain.values()]
    bars = axes.bar(list(domain), [loss or 0.0 for loss in losses], 0.5, color="#94a3b8")
    axes.bar_label(bars, ["none" if loss is None else f"{loss:.3f}" for loss in losses])
    axes.margins(y=0.1)
    axes.set_xlim(-0.5, len(domain) - 0.5)
    axes.set(ylabel="loss")


def _draw_runs(comparison: Comparison, axes) -> None:
    """Draw a point per run; points of one seed stand side by side in every column."""
    for place, (name, runs) in enumerate(comparison.runs.items()):
        offsets = place + np.linspace(-0.12, 0.12, len(runs)) * (len(runs) > 1)
        axes.plot(offsets, [run["accuracy"] for run in runs], "o", color="#2563eb", alpha=0.7)
        mean = comparison.mean[name]["accuracy"]
        deviation = comparison.deviation[name]["accuracy"] if comparison.deviation else None
        axes.errorbar(place, mean, yerr=deviation, fmt="_", color="#0f172a", markersize=26, capsize=5)
    axes.axhline(comparison.chance["accuracy"], color="#94a3b8", linestyle=":")
    heads = (f"{n}\n(at chance)" if "accuracy" in comparison.at_chance[n] else n for n in comparison.runs)
    axes.set_xticks(range(len(comparison.runs)), list(heads))
    axes.set_xlim(-0.5, len(comparison.runs) - 0.5)
    axes.set(ylabel="accuracy")


def _draw_differences(comparison: Comparison, axes) -> None:
    rows = [(d, metric) for d in comparison.differences for metric in SHOWN]
    for place, (difference, metric) in enumerate(reversed(rows)):
        low, high = difference.interval[metric]
        axes.plot([low, high], [place, place], color="#2563eb", linewidth=2)
        axes.plot(difference.mean[metric], place, "o", color="#2563eb")
    axes.axvline(0, color="#94a3b8", linestyle=":")
    axes.set_yticks(range(len(rows)), [f"{d.one} - {d.other}\n{metric}" for d, metric in reversed(rows)])
    axes.set_ylim(-0.5, len(rows) - 0.5)
    axes.locator_params(axis="x", nbins=5)  # more numbers would run into each other


STARTS_NOTE = (
    "Means over the seeds{}. 95 %: the interval of the mean, by bootstrap over rows and seeds. At chance: "
    "what is not above answering the most common class (accuracy {:.4f}) or an AUC of 0.5."
)
DIFFERENCES_NOTE = (
    "The first start minus the second, on the same rows with the same seeds (paired bootstrap). Not above 0: "
    "in which share of the resamples there is no gain."
)


def build_tables(comparison: Comparison, domain: Domain, general: General = None) -> List[Table]:
    """Return a row for each start, and one for each metric of each two of them."""
    heads = ["start", *(head for metric in SHOWN for head in (metric, "95 %")), "at chance"]
    starts: List[List[object]] = []
    for name, means in comparison.mean.items():
        cells: List[object] = [name]
        for metric in SHOWN:
            low, high = comparison.interval[name][metric]
            deviation = f" +- {comparison.deviation[name][metric]:.4f}" if comparison.deviation else ""
            cells += [f"{means[metric]:.4f}{deviation}", f"{low:.4f} to {high:.4f}"]
        cells.append(", ".join(comparison.at_chance[name]) or "–")
        if domain:  # a dash for a model that cannot be asked
            loss = domain[name]
            cells.append("-" if "reason" in loss else f"{loss['lm_loss']:.4f} ({loss['perplexity']:.1f})")
        cells += [general[name]["line"]] if general else []
        starts.append(cells)
    differences: List[List[object]] = []
    for difference in comparison.differences:
        for metric in SHOWN:
            low, high = difference.interval[metric]
            mean, interval = f"{difference.mean[metric]:+.4f}", f"{low:+.4f} to {high:+.4f}"
            name, doubt = f"{difference.one} - {difference.other}", f"{difference.not_above_0[metric]:.1%}"
            at_chance = difference.at_chance[metric]
            remark = f"{at_chance[0]} is at chance" if at_chance else ""
            remark = "both are at chance: no gain" if len(at_chance) == 2 else remark
            differences.append([name, metric, mean, interval, doubt, remark])
    seeds = f"{counted(len(comparison.seeds), 'seed')} from {comparison.seeds[0]}"
    title = f"{comparison.rows} rows, {seeds}, by {metrics.LIKELIEST}"
    spread = "" if comparison.deviation is None else ", +- their standard deviation"
    note = STARTS_NOTE.format(spread, comparison.chance["accuracy"])
    heads += [*([MASKED_WORDS] if domain else []), *([GENERAL_PAIRS] if general else [])]
    of_differences = ["difference", "metric", "mean", "95 %", "not above 0", "remark"]
    return [
        Table(title, heads, starts, note),
        Table("Differences", of_differences, differences, DIFFERENCES_NOTE),
    ]


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


TEST, GENERAL = "test.jsonl", "general.json"  # pairs of the series; what a run says of general ones
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
    asked, names = _read_asked(config, train, labels), labels.names
    pairs = asked["test_file"]
    inputs = {"train_config": config.train_config, "test_file": config.test_file}
    inputs.update(train_file=train.train_file, dev_file=train.dev_file, general_file=config.general_file)
    series = Series("compare starts", config, FILES, inputs)
    series.check_existing()
    if not series.path.is_file():
        check_absent([series.folder / TEST], config.overwrite)
    symmetric = "average" if train.scored_as == "average" else config.symmetric
    _keep_plan(series, train, symmetric, starts, asked)
    keep_config(series.folder, "compare starts", config)
    seeds = list(range(train.seed, train.seed + config.seeds))
    folders = {each.name: [series.folder / f"{each.name}-seed-{seed}" for seed in seeds] for each in starts}
    runs = [(start, seed, folders[start.name][n]) for n, seed in enumerate(seeds) for start in starts]
    shown = [f"{folder}; see {_log_of(folder)}" for *_, folder in runs]
    with StopSignals():
        for place in iterate_unfinished(shown, lambda place: _is_done(*runs[place], config.general_file)):
            _train_and_predict(*runs[place], config, train, symmetric)
    logits = {
        name: [read_logits(folder / PREDICTIONS, len(pairs), len(names)) for folder in each]
        for name, each in folders.items()
    }
    comparison = compare(logits, pairs.known_labels, seeds, config.bootstrap)
    domain = None if corpus is None else _domain_losses(starts, corpus, train)
    costs = {start.name: _cost_of(folders[start.name]) for start in starts} if config.general_file else None
    for line in warnings_of(comparison, names):
        logger.warning("%s", line)
    # For the page; somebody may have removed a log, and only the predictions are needed.
    logged = [str(folder) for each in folders.values() for folder in each if read_all_events(folder / EVENTS)]
    paths, made = {start.name: start.path for start in starts}, Origin(asdict(config))
    with series.published() as drafts:
        write_comparison(drafts, comparison, domain, paths, open_runs(logged), made, costs)
    print("\n\n".join(map(text_table, build_tables(comparison, domain, costs))))
    logger.info("report: %s", series.folder / FILES[-1])


def _keep_plan(
    series: Series, train: TrainConfig, symmetric: str, starts: List[Start], asked: Dict[str, Pairs]
) -> None:
    """Write the plan and the test pairs. Raises InputError when the folder holds other runs."""
    of_a_run = defaults_of(train, "run")
    plan: Plan = {name: value for name, value in asdict(train).items() if name not in of_a_run}
    plan["symmetric of training"] = plan.pop("symmetric")
    for flag in ("train_file", "dev_file"):
        plan[f"{flag} (sha256)"] = PairSource.of(train, flag).sha256()
    plan.update((f"{flag} (sha256)", pairs.sha256) for flag, pairs in asked.items())
    plan["symmetric"], test = symmetric, asked["test_file"]
    plan.update((f"start {start.name} (sha256)", hash_weights(start.source)) for start in starts)
    series.keep(plan)
    rows = [{"sentence1": left, "sentence2": right} for left, right in zip(test.left, test.right)]
    with published(series.folder / TEST) as (draft,):
        draft.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _train_and_predict(
    start: Start, seed: int, folder: Path, config: CompareConfig, train: TrainConfig, symmetric: str
) -> None:
    """Make a run. Raises an ErniePairError as a run that fails does."""
    log = _log_of(folder)
    log.parent.mkdir(parents=True, exist_ok=True)
    run: Dict[str, Any] = {"model_name_or_path": start.path, "seed": seed, "output_dir": folder}
    run["from_scratch"] = "true" if start.source.weights is None else "false"
    run_child(words_of("train", config=config.train_config, **run), f"train of {log.stem}", log)
    best = find_best(folder)
    if best is None:
        raise no_best_model(folder)
    shared = {*defaults_of(PredictConfig, "trained", "speed"), "precision"} & vars(train).keys()
    flags = {name: getattr(train, name) for name in sorted(shared)}
    paths = {"input_file": folder.with_name(TEST), "output_file": folder / PREDICTIONS, "columns": "answers"}
    words = words_of("predict", **flags, symmetric=symmetric, scores="true", model_path=best, **paths)
    run_child(words, f"predict of {log.stem}", log)
    if not _is_done(start, seed, folder, config.general_file):
        flags.update(input_file=config.general_file, output_file=folder / GENERAL, swap="false")
        flags.update(train.row_flags, model_name_or_path=start.path, bootstrap=config.bootstrap)
        words = words_of("evaluate", **flags, symmetric=symmetric, model_path=best)
        run_child(words, f"evaluate of {log.stem}", log)


def _is_done(start: Start, seed: int, folder: Path, general_file: str) -> bool:
    is_asked = bool(general_file) and start.source.weights is not None  # random ones have nothing to lose
    return all((folder / name).is_file() for name in (PREDICTIONS, *([GENERAL] if is_asked else [])))


def _cost_of(folders: List[Path]) -> Dict[str, Any]:
    """Return what `compare_with_start` says of general pairs, in the mean of the runs in ``folders``.

    ``interval``: from the lowest end of those of the runs to the highest. Of random weights: ``line`` alone.
    """
    if not (folders[0] / GENERAL).is_file():
        return {"line": "random weights"}
    each = [read_json_object(folder / GENERAL, "remove it")["start"] for folder in folders]
    cost: Dict[str, Any] = {
        n: float(np.mean([run[n] for run in each])) for n in ("before", "after", "difference")
    }
    lows, highs = zip(*(run["interval"] for run in each))
    cost["interval"] = [min(lows), max(highs)]
    return {**cost, "line": describe_change(**cost)}


def _log_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.log")


def _labels_of_all(starts: List[Start], train: TrainConfig) -> Labels:
    """Return the labels that the model of every run has. Raises InputError if they differ, or are scores."""
    source, labels = PairSource.of(train, "train_file"), {}
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


def _read_asked(config: CompareConfig, train: TrainConfig, labels: Labels) -> Dict[str, Pairs]:
    name = config.test_file or train.dev_file
    flag = "test_file" if config.test_file else "dev_file"
    pairs = PairSource.of(train, flag, labels, name=name).read()
    metrics.check_defined("auc", pairs.known_labels, len(labels.names), name)
    if not config.general_file:
        return {"test_file": pairs}
    general = PairSource.of(train, "general_file", labels, name=config.general_file).read()
    check_of_matches("general_file", general, labels, PairSource.of(train, "train_file"))
    return {"test_file": pairs, "general_file": general}


def _open_starts(text: str, train: TrainConfig) -> List[Start]:
    paths = parse_named_models("starts", text, STARTS_EXAMPLE)
    if len(paths) < 2:
        raise InputError(f"--starts {text}: one start has nothing to be compared with; {STARTS_EXAMPLE}")
    starts = []
    for name, path in paths.items():
        from_scratch, path = train.from_scratch or path.startswith(RANDOM), path.removeprefix(RANDOM)
        starts.append(Start(name, path, open_model(path, model_type="", from_scratch=from_scratch)))
    return starts


def _domain_losses(starts: List[Start], corpus: Corpus, train: TrainConfig) -> Dict[str, Dict[str, object]]:
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
