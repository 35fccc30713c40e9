"""The results of a comparison: means, deviations, and the significance of the differences."""

from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ernie_pair.core.errors import counted
from ernie_pair.core.files.json_file import write_json
from ernie_pair.pairs.targets.counted_rows import CountedRows
from ernie_pair.pairs.targets.metrics import (
    LIKELIEST,
    METRICS,
    describe_single_class,
    find_single_class,
    percentile_interval,
    resamples,
)
from ernie_pair.report.page import Draw, Origin, Table, draw_chart, draw_picture
from ernie_pair.report.plot_runs import Run, page_of

FILES = ("compare.json", "compare.png", "compare.html")
SHOWN = ("accuracy", "f1", "auc")
MASKED_WORDS = "masked words: loss (perplexity)"
SEED = 1234  # of the resamples
AT_CHANCE = ("accuracy", "auc")  # f1 has no value of its own for a guess: it follows these two

Metrics = Dict[str, float]
Domain = Optional[Dict[str, Dict[str, object]]]


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
    rows_of = {name: [CountedRows(each, labels) for each in logits[name]] for name in logits}
    whole = np.ones(len(labels), dtype=np.int64)
    runs = {name: [rows.measure(whole) for rows in each] for name, each in rows_of.items()}
    values = {name: np.array([[run[m] for m in METRICS] for run in each]) for name, each in runs.items()}
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
        name: [find_single_class(each.argmax(axis=1), labels) for each in logits[name]] for name in names
    }
    found = (means, deviation, differences, chance, intervals, at_chance, single)
    return Comparison(len(labels), seeds, runs, *found)


def _intervals(drawn: np.ndarray) -> Dict[str, List[float]]:
    return {name: percentile_interval(drawn[:, place]) for place, name in enumerate(METRICS)}


def _drawn_means(counted, num_rows: int, num_seeds: int, samples: int) -> Dict[str, np.ndarray]:
    """Return {start: float64 [samples, metrics]}, the means over the drawn seeds on the drawn rows."""
    seeds_of = np.random.default_rng([SEED, num_seeds]).integers(num_seeds, size=(samples, num_seeds))
    means: Dict[str, List[np.ndarray]] = {name: [] for name in counted}
    for counts, seeds in zip(resamples(num_rows, samples, SEED), seeds_of):
        for name, rows in counted.items():
            measured = {seed: list(rows[seed].measure(counts).values()) for seed in set(seeds.tolist())}
            means[name].append(np.mean([measured[seed] for seed in seeds.tolist()], axis=0))
    return {name: np.array(each) for name, each in means.items()}


def _named(values: np.ndarray) -> Metrics:
    return dict(zip(METRICS, values.tolist()))


def describe_verdict(difference: Difference, metric: str) -> str:
    """Return what a difference with models at chance is worth, empty where none is."""
    at_chance = difference.at_chance[metric]
    if len(at_chance) == 2:
        return "both are at chance: no gain"
    return f"{at_chance[0]} is at chance" if at_chance else ""


def warnings_of(comparison: Comparison, names: Sequence[str]) -> Iterator[str]:
    """Yield a line per classifier that predicts one class only, and per difference of starts at chance."""
    for start, classes in comparison.single_class.items():
        for seed, single in zip(comparison.seeds, classes):
            if single is not None:
                yield f"{start}, seed {seed}: {describe_single_class(names[single], comparison.rows)}"
    for difference in comparison.differences:
        if all(len(difference.at_chance[metric]) == 2 for metric in AT_CHANCE):
            yield (
                f"{difference.one} and {difference.other} are both at chance: their difference shows no "
                "gain; train longer, on more pairs, or with another learning rate"
            )


def with_deviation(comparison: Comparison, name: str, metric: str) -> str:
    """Return the mean of a metric over the seeds of a start, and its deviation where there are several."""
    mean = f"{comparison.mean[name][metric]:.4f}"
    if comparison.deviation is None:
        return mean
    return f"{mean} +- {comparison.deviation[name][metric]:.4f}"


def domain_cell(loss: Dict[str, object]) -> str:
    """Return the loss of a start on the masked words of the domain, a dash where it cannot be asked."""
    return "-" if "reason" in loss else f"{loss['lm_loss']:.4f} ({loss['perplexity']:.1f})"


def write_comparison(
    files: Sequence[Path],
    comparison: Comparison,
    domain: Domain,
    paths: Dict[str, str],
    runs: Sequence[Run],
    made: Origin,
) -> None:
    """Write the comparison to ``files``, which become FILES; the page shows ``runs`` too. Raises OSError."""
    content = {
        "starts": paths,
        **comparison._asdict(),
        "differences": [difference._asdict() for difference in comparison.differences],
        "domain": domain,
    }
    text, picture, page = files
    write_json(text, content)
    panels, tables = panels_of(comparison, domain), build_tables(comparison, domain)
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


def build_tables(comparison: Comparison, domain: Domain) -> List[Table]:
    """Return a row for each start, and one for each metric of each two of them."""
    heads = ["start", *(head for metric in SHOWN for head in (metric, "95 %")), "at chance"]
    starts: List[List[object]] = []
    for name in comparison.mean:
        cells: List[object] = [name]
        for metric in SHOWN:
            low, high = comparison.interval[name][metric]
            cells += [with_deviation(comparison, name, metric), f"{low:.4f} to {high:.4f}"]
        cells.append(", ".join(comparison.at_chance[name]) or "–")
        starts.append([*cells, domain_cell(domain[name])] if domain else cells)
    differences: List[List[object]] = []
    for difference in comparison.differences:
        for metric in SHOWN:
            low, high = difference.interval[metric]
            mean, interval = f"{difference.mean[metric]:+.4f}", f"{low:+.4f} to {high:+.4f}"
            name, doubt = f"{difference.one} - {difference.other}", f"{difference.not_above_0[metric]:.1%}"
            differences.append([name, metric, mean, interval, doubt, describe_verdict(difference, metric)])
    seeds = f"{counted(len(comparison.seeds), 'seed')} from {comparison.seeds[0]}"
    title = f"{comparison.rows} rows, {seeds}, by {LIKELIEST}"
    spread = "" if comparison.deviation is None else ", +- their standard deviation"
    note = STARTS_NOTE.format(spread, comparison.chance["accuracy"])
    of_differences = ["difference", "metric", "mean", "95 %", "not above 0", "remark"]
    return [
        Table(title, [*heads, MASKED_WORDS] if domain else heads, starts, note),
        Table("Differences", of_differences, differences, DIFFERENCES_NOTE),
    ]
