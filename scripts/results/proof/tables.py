"""Tables of the page, from the JSON of the runs alone."""

from statistics import mean, stdev
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ernie_pair.models.model_card import markdown_table

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


def command_of(result: Result) -> str:
    """Return the command that makes a row again."""
    return f"`run.py {result['group']} --only {result['name']}`"


def masked_table(results: Sequence[Result]) -> str:
    """Return the held-out losses of pretrained models, a row for each.

    No times: some of these runs share the machine with others.
    """
    head = [
        "run",
        "runs",
        "masked loss",
        "perplexity",
        "accuracy",
        "sentence order",
        "loss, one segment",
    ]
    rows = [_masked_row(result) for result in results]
    return markdown_table([*head, "command"], rows)


def _masked_row(result: Result) -> Row:
    masked = result["figures"]["masked"]
    asked, alone = masked["corpus"], masked["corpus_one_segment"]
    return [
        result["title"],
        str(len(result["seeds"])),
        f"{asked['lm_loss']:.3f}",
        f"{asked['perplexity']:.1f}",
        f"{asked['lm_accuracy']:.3f}",
        f"{asked['sop_accuracy']:.3f}" if "sop_accuracy" in asked else "",
        f"{alone['lm_loss']:.3f}",
        command_of(result),
    ]


def forgetting_table(results: Sequence[Result]) -> str:
    """Return the masked loss on each text, and how much it has risen or fallen since the first row."""
    before = results[0]
    texts = list(changes_of(before, before))
    rows = []
    for result in results:
        losses = [f"{result['figures']['masked'][text]['lm_loss']:.3f}" for text in texts]
        if result is not before:
            changes = changes_of(result, before).values()
            losses = [f"{loss} ({change:+.3f})" for loss, change in zip(losses, changes)]
        rows.append([result["title"], str(len(result["seeds"])), *losses, command_of(result)])
    heads = [f"loss on {'general text' if text == 'corpus' else text}" for text in texts]
    return markdown_table(["continued with", "runs", *heads, "command"], rows)


def changes_of(result: Result, before: Result) -> Dict[str, float]:
    """Return {text: by how much the masked loss on it has risen since ``before``}."""
    now, then = result["figures"]["masked"], before["figures"]["masked"]
    return {
        text: now[text]["lm_loss"] - then[text]["lm_loss"]
        for text in then
        if not text.endswith("_one_segment")
    }


def task_table(results: Sequence[Result]) -> str:
    """Return the masked loss and accuracy before and after continuing, on the pairs and on general text."""
    rows = []
    for result in results:
        before, after = result["figures"]["before"], result["figures"]["masked"]
        cells = [
            f"{before[text][value]:.3f} -> {after[text][value]:.3f}"
            for text in ("own", "corpus")
            for value in ("lm_loss", "lm_accuracy")
        ]
        minutes = f"{result['figures']['training_seconds'] / 60:.1f}"
        rows.append([result["title"], str(len(result["seeds"])), *cells, minutes, command_of(result)])
    heads = ["loss on the pairs", "accuracy", "loss on general text", "accuracy", "minutes", "command"]
    return markdown_table(["run", "runs", *heads], rows)


def models_table(result: Result) -> str:
    """Return the metrics of all models of a comparison: means of the runs, deviations, an interval."""
    models = result["figures"]["models"]
    rows = [
        [
            name,
            str(len(model["runs"])),
            *(shown_mean(model, metric) for metric in METRICS),
            _of_accuracy(model),
        ]
        for name, model in models.items()
    ]
    return markdown_table(["start", "runs", *METRICS.values(), "accuracy, 95 % interval"], rows)


def options_table(results: Sequence[Result], plain: str) -> str:
    """Return a row for each option with its difference to the plain training."""
    rows = []
    for result in results:
        model = result["figures"]["models"][result["name"]]
        found = difference_of(result, result["name"], plain)
        gain = shown_difference(found, "accuracy") if found else ""
        cells = [shown_mean(model, metric) for metric in METRICS]
        rows.append(
            [result["title"], str(len(model["runs"])), _steps_of(result), *cells, gain, command_of(result)]
        )
    heads = ["option", "runs", "steps", *METRICS.values(), f"accuracy - {plain}", "command"]
    return markdown_table(heads, rows)


def _steps_of(result: Result) -> str:
    """Return the steps of a training; 0 of what trains nothing."""
    return f"{max((point['step'] for point in result['curve'].get('valid', [])), default=0):,}"


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
                *(shown_mean(figures["models"][name], metric) for metric in METRICS),
                shown_difference(found, "accuracy") if found else "",
                _shown_values(figures["training_seconds"], 1),
                _shown_values(figures["pairs_per_second"], 1),
                command_of(result),
            ]
        )
    heads = [f"accuracy - {ours}", "seconds of a training", "pairs/s", "command"]
    return markdown_table(["side", "runs", *METRICS.values(), *heads], rows)


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
    return markdown_table(["run", "seed", *METRICS.values(), "seconds", "pairs/s"], rows)


def losses_table(losses: Dict[str, List[float]]) -> str:
    """Return a row for each step: its loss on both sides, {name: losses}, and their difference."""
    rows = [
        [str(step), f"{one:.7f}", f"{other:.7f}", f"{one - other:+.1e}"]
        for step, (one, other) in enumerate(zip(*losses.values()), start=1)
    ]
    return markdown_table(["step", *losses, "difference"], rows)


def difference_lines(result: Result, metrics: Sequence[str] = DIFFERENT) -> List[str]:
    """Return a line for each pair of models: how much, and between which values with 95 %."""
    return [
        f"- {each['one']} - {each['other']}: "
        + ", ".join(f"{METRICS[metric]} {shown_difference(each, metric)}" for metric in metrics)
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
    return result["title"], shown_difference(found, "accuracy")


def shown_difference(difference: Result, metric: str) -> str:
    low, high = difference["interval"][metric]
    return f"{difference['mean'][metric]:+.4f} ({low:+.4f} to {high:+.4f})"


def shown_mean(model: Result, metric: str) -> str:
    return _shown_values([run[metric] for run in model["runs"]], 4)


def _shown_values(values: Sequence[float], digits: int) -> str:
    deviation = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{deviation}"


def _of_accuracy(model: Result) -> str:
    return _interval(model["interval"]["accuracy"], 4)


def _interval(interval: Sequence[float], digits: int) -> str:
    return "{:.{d}f} to {:.{d}f}".format(*interval, d=digits)
