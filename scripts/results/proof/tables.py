"""Tables of the page, from the JSON of the runs alone."""

from statistics import mean, stdev
from typing import Any, Dict, List, Optional, Sequence, Tuple

Result = Dict[str, Any]
Row = List[str]
METRICS = {
    "accuracy": "accuracy",
    "f1": "f1",
    "auc": "auc",
    "loss": "log loss",
    "calibration_error": "calibration error",
}
LOWER_IS_BETTER = ("loss", "calibration_error")
DIFFERENT = ("accuracy", "auc", "loss")  # of which paired differences are shown


def render_table(head: Sequence[str], rows: Sequence[Row]) -> str:
    """Return a Markdown table."""
    lines = [list(head), ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def command_of(result: Result) -> str:
    """Return the command that makes a row again."""
    return f"`run.py {result['group']} --only {result['name']}`"


def masked_table(results: Sequence[Result]) -> str:
    """Return the held-out losses of pretrained models, a row for each."""
    head = [
        "run",
        "runs",
        "masked loss",
        "95 % interval",
        "perplexity",
        "accuracy",
        "order",
        "of one segment",
    ]
    rows = [_masked_row(result) for result in results]
    return render_table([*head, "minutes", "command"], rows)


def _masked_row(result: Result) -> Row:
    masked = result["figures"]["masked"]
    asked, alone = masked["corpus"], masked["corpus_one_segment"]
    return [
        result["title"],
        str(len(result["seeds"])),
        f"{asked['lm_loss']:.3f}",
        _interval(asked["lm_loss_interval"], 3),
        f"{asked['perplexity']:.1f}",
        f"{asked['lm_accuracy']:.3f}",
        f"{asked['sop_accuracy']:.3f}" if "sop_accuracy" in asked else "",
        f"{alone['lm_loss']:.3f}",
        f"{result['figures']['training_seconds'] / 60:.1f}",
        command_of(result),
    ]


def forgetting_table(results: Sequence[Result]) -> str:
    """Return the masked loss on each text, and how much it has risen or fallen since the first row."""
    before = results[0]["figures"]["masked"]
    texts = [name for name in before if not name.endswith("_one_segment")]
    rows = []
    for result in results:
        masked = result["figures"]["masked"]
        cells = [_with_change(masked, before, text, result is results[0]) for text in texts]
        rows.append([result["title"], str(len(result["seeds"])), *cells, command_of(result)])
    heads = [f"loss on {'all text' if text == 'corpus' else text}" for text in texts]
    return render_table(["continued with", "runs", *heads, "command"], rows)


def _with_change(masked: Result, before: Result, text: str, is_first: bool) -> str:
    loss = masked[text]["lm_loss"]
    return f"{loss:.3f}" if is_first else f"{loss:.3f} ({loss - before[text]['lm_loss']:+.3f})"


def models_table(result: Result) -> str:
    """Return the metrics of all models of a comparison: means of the runs, deviations, an interval."""
    models = result["figures"]["models"]
    rows = [
        [
            name,
            str(len(model["runs"])),
            *(_mean(model, metric) for metric in METRICS),
            _of_accuracy(model),
        ]
        for name, model in models.items()
    ]
    return render_table(["start", "runs", *METRICS.values(), "accuracy, 95 % interval"], rows)


def options_table(results: Sequence[Result], plain: str) -> str:
    """Return a row for each option with its difference to the plain training."""
    rows = []
    for result in results:
        model = result["figures"]["models"][result["name"]]
        found = difference_of(result, result["name"], plain)
        gain = _difference(found, "accuracy") if found else ""
        cells = [_mean(model, metric) for metric in METRICS]
        minutes = f"{result['wall_seconds'] / 60:.1f}"
        rows.append([result["title"], str(len(model["runs"])), *cells, gain, minutes, command_of(result)])
    heads = ["option", "runs", *METRICS.values(), f"accuracy - {plain}", "minutes", "command"]
    return render_table(heads, rows)


def trials_table(results: Sequence[Result]) -> str:
    """Return a row for each training of a search."""
    shown = ("accuracy", "last_accuracy", "loss", "train_accuracy")
    rows = [
        [
            result["name"],
            f"{trial['learning_rate']:g}",
            str(trial["epochs"]),
            *(f"{trial[name]:.4f}" for name in shown),
            command_of(result),
        ]
        for result in results
        for trial in result["figures"]["trials"]
    ]
    heads = ["accuracy", "at the end", "log loss", "accuracy in training", "command"]
    return render_table(["start", "rate", "epochs", *heads], rows)


def sides_table(results: Sequence[Result], ours: str) -> str:
    """Return a row for each side and precision: metrics, difference to ``ours``, time and speed."""
    rows = []
    for result in results:
        figures, name = result["figures"], result["name"]
        found = difference_of(result, name, ours)
        rows.append(
            [
                result["title"],
                str(len(figures["models"][name]["runs"])),
                *(_mean(figures["models"][name], metric) for metric in METRICS),
                _difference(found, "accuracy") if found else "",
                f"{mean(figures['training_seconds']):.1f}",
                f"{mean(figures['pairs_per_second']):.1f}",
                f"{result['wall_seconds'] / 60:.1f}",
                command_of(result),
            ]
        )
    heads = [f"accuracy - {ours}", "seconds of a training", "pairs/s", "minutes", "command"]
    return render_table(["side", "runs", *METRICS.values(), *heads], rows)


def seeds_table(results: Sequence[Result]) -> str:
    """Return a row for each training of each side."""
    rows = []
    for result in results:
        figures = result["figures"]
        timed = zip(figures["training_seconds"], figures["pairs_per_second"])
        runs = figures["models"][result["name"]]["runs"]
        for seed, run, (seconds, speed) in zip(result["seeds"], runs, timed):
            cells = [f"{run[metric]:.4f}" for metric in METRICS]
            rows.append([result["name"], str(seed), *cells, f"{seconds:.1f}", f"{speed:.1f}"])
    return render_table(["run", "seed", *METRICS.values(), "seconds", "pairs/s"], rows)


def difference_lines(result: Result) -> List[str]:
    """Return a line for each pair of models: how much, and between which values with 95 %."""
    return [
        f"- {each['one']} - {each['other']}: "
        + ", ".join(f"{METRICS[metric]} {_difference(each, metric)}" for metric in DIFFERENT)
        for each in result["figures"]["differences"]
    ]


def difference_of(result: Result, one: str, other: str) -> Optional[Result]:
    """Return the paired difference of two models of a comparison; None where there is none."""
    for each in result["figures"]["differences"]:
        if (each["one"], each["other"]) == (one, other):
            return each
    return None


def without_gain(result: Result, one: str, other: str) -> Optional[Tuple[str, str]]:
    """Return (title, difference) where the interval of the accuracy is not above 0; None for a gain."""
    found = difference_of(result, one, other)
    if found is None or found["interval"]["accuracy"][0] > 0:
        return None
    return result["title"], _difference(found, "accuracy")


def _difference(difference: Result, metric: str) -> str:
    low, high = difference["interval"][metric]
    return f"{difference['mean'][metric]:+.4f} ({low:+.4f} to {high:+.4f})"


def _mean(model: Result, metric: str) -> str:
    values = [run[metric] for run in model["runs"]]
    return f"{mean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else "")


def _of_accuracy(model: Result) -> str:
    return _interval(model["interval"]["accuracy"], 4)


def _interval(interval: Sequence[float], digits: int) -> str:
    return "{:.{d}f} to {:.{d}f}".format(*interval, d=digits)
