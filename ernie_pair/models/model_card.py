"""README.md of a model's folder: what it was made from, how good it is, how to use it."""

import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ernie_pair.checkpoint.manifest import installed_versions
from ernie_pair.core.errors import counted, printable
from ernie_pair.core.files.atomic_folder import MADE, README
from ernie_pair.core.files.json_file import is_number, is_texts, is_whole_number
from ernie_pair.core.files.results import read_record
from ernie_pair.models.labels import RANKING, REGRESSION

FENCE = "```"
_MARKS = re.compile(r"[\\`*\[\]<>&|]")  # at which a tag, a link, a code, an emphasis or a cell begins
# Keys of the record in a model's folder: why it is no better than without training, the files that it was
# made of, what was measured, and the thresholds of the baseline, see `best_thresholds`.
LEARNED_NOTHING, DATA, MEASURED, BASELINE = "learned_nothing", "data", "measured", "shared_characters"


class DataFile(NamedTuple):
    """A file or set that a model was trained or chosen on; ``rows`` None: they were not counted."""

    use: str
    name: str
    sha256: str
    rows: Optional[int]


class Measured(NamedTuple):
    """A metric, and [low, high], its 95 % interval, where it has one."""

    value: float
    interval: Optional[Sequence[float]] = None


@dataclass(frozen=True)
class ModelCard:
    """The content of a model card.

    ``facts``: {what: value}, the base model first. ``flags``: those that differ from their defaults.
    ``commands`` and ``python`` work in the folder itself.
    """

    title: str
    facts: Mapping[str, str]
    commands: str
    python: str
    data: Sequence[DataFile] = ()
    flags: Mapping[str, object] = field(default_factory=dict)
    metrics: Mapping[str, Measured] = field(default_factory=dict)
    measured_on: str = ""

    def text(self) -> str:
        """Return the card in Markdown."""
        parts = [
            f"# {in_markdown(self.title)}",
            "\n".join(f"- {in_markdown(what)}: {in_markdown(v)}" for what, v in self.facts.items()),
        ]
        if self.data:
            counts = ["not counted" if one.rows is None else str(one.rows) for one in self.data]
            rows = [[one.use, one.name, count, one.sha256] for one, count in zip(self.data, counts)]
            parts += ["## Data", markdown_table(["use", "file", "rows", "sha256"], rows)]
        if self.flags:
            flags = (f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in self.flags.items())
            parts += ["## Flags", _fenced("yaml", "\n".join(flags))]
        if self.metrics:
            values = [
                [name, f"{m.value:.4f}", "{:.4f} to {:.4f}".format(*m.interval) if m.interval else ""]
                for name, m in self.metrics.items()
            ]
            parts += [
                "## Metrics",
                in_markdown(self.measured_on),
                markdown_table(["metric", "value", "95 % interval"], values),
            ]
        commands = [_fenced("sh", self.commands)] if self.commands else []
        parts += ["## Use", "In this folder:", *commands, _fenced("python", self.python)]
        versions = [f"- {package} {version}" for package, version in installed_versions().items()]
        return "\n\n".join([*parts, "## Versions", "\n".join(versions)]) + "\n"


def write_card(folder: Path, card: ModelCard) -> None:
    """Write README.md into a folder that is being made. Raises FileExistsError if there is one."""
    with open(folder / README, "x", encoding="utf-8", errors="backslashreplace") as file:
        file.write(card.text())


def _recorded(folder: Path, key: str, otherwise: Any) -> Any:
    """Return what the record in ``folder`` says of ``key``, if it is of the type of ``otherwise``."""
    found = read_record(folder / MADE).get(key, otherwise)
    return found if isinstance(found, type(otherwise)) else otherwise


def learned_nothing_in(folder: Path) -> str:
    """Return why the model in ``folder`` is no better than without training, as it recorded; '' otherwise."""
    return _recorded(folder, LEARNED_NOTHING, "")


def baseline_in(folder: Path) -> Dict[str, float]:
    """Return the thresholds of shared characters that the model in ``folder`` recorded; {}: none."""
    found = _recorded(folder, BASELINE, {})
    return found if are_thresholds(found) else {}


def are_thresholds(found: object) -> bool:
    """Return whether ``found`` can be thresholds of shared characters: {metric: number}."""
    return isinstance(found, dict) and all(is_number(value, 0, 2) for value in found.values())


def facts_of(card: ModelCard) -> Dict[str, object]:
    """Return what the record of a model's folder says of its data and metrics, for later cards.

    A metric that says nothing, as the AUC of one class, is left out: no JSON has NaN.
    """
    metrics = {
        name: [value, None if interval is None or not np.isfinite(interval).all() else interval]
        for name, (value, interval) in card.metrics.items()
        if np.isfinite(value)
    }
    measured = {"on": card.measured_on, "metrics": metrics}
    return {DATA: [list(one) for one in card.data], MEASURED: measured}


def data_in(folder: Path) -> List[DataFile]:
    """Return the files that the model in ``folder`` was made of, as it recorded; [] where it did not."""
    with suppress(TypeError, ValueError):
        files = [DataFile(*one) for one in _recorded(folder, DATA, [])]
        if all(
            is_texts(list(one[:3])) and (one.rows is None or is_whole_number(one.rows, 0)) for one in files
        ):
            return files
    return []


def measured_in(folder: Path) -> Tuple[str, Dict[str, Measured]]:
    """Return on what the model in ``folder`` was measured, in words, and the metrics; ('', {}): unknown."""
    found = _recorded(folder, MEASURED, {})
    return str(found.get("on", "")), metrics_in(found)


def metrics_in(measured: Mapping[str, Any]) -> Dict[str, Measured]:
    """Return {metric: value and interval} of a record's or calibration's ``measured``; {}: unusable."""
    with suppress(TypeError, AttributeError, LookupError):
        metrics = {name: Measured(*given) for name, given in measured["metrics"].items()}
        ends = [end for m in metrics.values() for end in (m.value, *(m.interval or ()))]
        if all(map(is_number, ends)):
            return metrics
    return {}


def is_above_baseline(measured: Mapping[str, Any]) -> bool:
    """Return whether the accuracy in a calibration's ``measured`` is above that of shared characters."""
    accuracy, baseline = metrics_in(measured).get("accuracy"), measured.get("baseline")
    return accuracy is not None and is_number(baseline) and accuracy.value > float(baseline or 0)


def describe_worth(found: Mapping[str, Any], learned_nothing: str = "") -> Tuple[str, bool]:
    """Return what a model is worth beside counting the characters that two texts share, and if it is more.

    ``found``: what `evaluate` measured. Where counting has no figure, ``learned_nothing`` decides, which
    training recorded.
    """
    name = {REGRESSION: "spearman", RANKING: "mrr"}.get(found.get("target", ""), "accuracy")
    value, baseline = found[name], found["shared_characters"].get(name)
    if value is None:
        return f"it has learned nothing ({name} is undefined: all of its scores or labels are equal)", False
    lowest, highest = found.get("intervals", {}).get(name) or (value, value)
    line = f"{name} {value:.4f}"
    line += f" (95 %: {lowest:.4f} to {highest:.4f})" if lowest < highest else ""
    line += f" on {counted(found['rows'], 'test pair')}"
    if known := found.get("trained_on"):
        other = known["without"].get(name)
        value, lowest = (value, lowest) if other is None else (min(value, other), min(lowest, other))
        line += f", {known['rows']} of which it was trained on"
        line += f" ({other:.4f} without them)" if other is not None else ""
    line += f" at threshold {found['threshold']:.4f}" if found.get("threshold") is not None else ""
    if known and known["rows"] == found["rows"]:
        return f"it was measured on pairs that it has learned alone: {line}", False
    if baseline is None:
        worth = f"it has learned nothing ({learned_nothing})" if learned_nothing else "it was measured"
        return f"{worth}: {line}", not learned_nothing
    worth = "it may be better than counting shared characters, more test pairs would tell"
    worth = worth if lowest <= baseline else "it is better than counting shared characters"
    worth = "it has learned nothing (it is not above counting)" if value <= baseline else worth
    return f"{worth}: {line}; counting shared characters reaches {baseline:.4f}", lowest > baseline


def changed_flags(flags: Mapping[str, object], defaults: Mapping[str, object]) -> Dict[str, object]:
    """Return the ``flags`` that are not as in ``defaults``."""
    return {name: value for name, value in flags.items() if value != defaults.get(name)}


def _fenced(language: str, lines: str) -> str:
    return f"{FENCE}{language}\n{lines}\n{FENCE}"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, without the end of its last line."""
    lines = [header, ["---"] * len(header), *rows]
    cells = (map(in_markdown, line) for line in lines)
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def in_markdown(text: str) -> str:
    """Return a text of unknown origin as one line of Markdown, which shows it as it is."""
    return _MARKS.sub(r"\\\g<0>", printable(" ".join(str(text).split())))
