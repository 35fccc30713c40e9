"""What an audit of pairs found: its values, its lines for the terminal, its picture."""

from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional

from data_tools.files.errors import counted
from ernie_pair.pair.audit.findings import Finding

COMPARED = (
    "exactly: character by character; normalised: NFKC, in lower case, without white space and punctuation"
)
# Of a legend: below the axes, where it hides nothing.
BELOW: Dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "frameon": False}
# Worth a line before a training run; the others are for the report.
WARNED = ("repeated", "contradicted", "alike", "intransitive", "shared", "unseen label")


@dataclass(frozen=True)
class FileFacts:
    """The size, labels and lengths of a file. ``labels``: {name of a class: pairs}, empty without labels.

    ``lengths``: {percent: length of a pair}; ``too_long``: pairs above --max_seq_len.
    """

    path: str
    rows: int
    labels: Dict[str, int]
    lengths: Dict[str, int]
    too_long: int


@dataclass(frozen=True)
class Cleaned:
    """The cleaned training file; ``removed``: {kind of finding: rows that are left out because of it}.

    ``compared``: exact or normalised.
    """

    path: str
    rows: int
    removed: Dict[str, int]
    compared: str


@dataclass(frozen=True)
class PairAudit:
    """The result of an audit, which can be written as JSON.

    ``unit``: tokens or characters; ``files``: train, dev, test.
    """

    unit: str
    max_seq_len: int
    files: Dict[str, FileFacts]
    findings: List[Finding]
    cleaned: Optional[Cleaned] = None


def report_lines(audit: PairAudit) -> Iterator[str]:
    """Yield the lines of the report; what a terminal would obey or hide is spelled out."""
    for line in _lines(audit):
        yield "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def _lines(audit: PairAudit) -> Iterator[str]:
    for name, facts in audit.files.items():
        yield f"{name:<13} {facts.path}: {facts.rows} pairs"
        if facts.labels:
            shares = (
                f"{label} {count} ({_share(count, facts.rows)})" for label, count in facts.labels.items()
            )
            yield f"  labels      {', '.join(shares)}"
        marks = {"0": "shortest", "50": "median", "100": "longest"}
        parts = (f"{marks.get(percent, percent + ' %')} {value}" for percent, value in facts.lengths.items())
        yield f"  {audit.unit:<11} {', '.join(parts)} of a pair"
        yield f"              {_above(audit, facts)}"
    for line in _one_class(audit):
        yield f"one class     {line}"
    if audit.findings:
        yield f"compared      {COMPARED}"
    for finding in audit.findings:
        yield f"{finding.kind:<13} {_sentence(finding)}"
        yield from (f"  {example}" for example in finding.examples)
    if not audit.findings:
        yield "findings      none"
    if audit.cleaned:
        removed = ", ".join(f"{count} {kind}" for kind, count in audit.cleaned.removed.items())
        yield (
            f"cleaned       {audit.cleaned.path}: {audit.cleaned.rows} pairs; left out, compared "
            f"{audit.cleaned.compared}: {removed}"
        )


def _above(audit: PairAudit, facts: FileFacts) -> str:
    """Return how many pairs are above --max_seq_len."""
    limit = f"longer than {audit.max_seq_len}"
    if not facts.too_long:
        return f"{limit}: none"
    fate = "which will be cut" if audit.unit == "tokens" else "--vocab_file counts their tokens"
    return f"{limit}: {counted(facts.too_long, 'pair')} ({_share(facts.too_long, facts.rows)}), {fate}"


def warnings_of(audit: PairAudit) -> List[str]:
    """Return a line for each thing that a training run should not begin with unseen."""
    return [
        *_one_class(audit),
        *(_sentence(finding) for finding in audit.findings if finding.kind in WARNED),
    ]


def _one_class(audit: PairAudit) -> Iterator[str]:
    for name, facts in audit.files.items():
        absent = [label for label, count in facts.labels.items() if not count]
        if absent:
            yield f"{name}: {facts.path} has no pair of class {', '.join(absent)}; is it the right file?"


def _sentence(finding: Finding) -> str:
    sentence = (
        f"{finding.file}: {counted(finding.rows, 'row')} ({_share(finding.rows, finding.of)}) {finding.says}"
    )
    if finding.exact is None:
        return sentence
    return f"{sentence} ({finding.exact} exactly, {finding.rows - finding.exact} only when normalised)"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / max(1, whole):.2f} %"


def draw(path, audit: PairAudit) -> None:
    """Draw the audit as a PNG, without a word of Chinese: not every machine has a font for it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    balance, lengths, findings = figure.subplots(1, 3)
    _draw_balance(balance, audit)
    for name, facts in audit.files.items():
        lengths.plot(list(facts.lengths.values()), list(map(int, facts.lengths)), marker="o", label=name)
    lengths.axvline(audit.max_seq_len, color="grey", linestyle=":")
    lengths.set(title="length", xlabel=f"{audit.unit} of a pair, at most", ylabel="% of the pairs")
    lengths.legend(**BELOW, ncols=3)
    names = [f"{finding.file}: {finding.kind}" for finding in audit.findings][::-1]
    shares = [100 * finding.rows / finding.of for finding in audit.findings][::-1]
    findings.bar_label(findings.barh(names, shares), fmt="%.2f")
    findings.margins(x=0.2)
    findings.set(title="findings", xlabel="% of the pairs of the file")
    figure.savefig(path, dpi=120, format="png")


def _draw_balance(axes, audit: PairAudit) -> None:
    labelled = {name: facts for name, facts in audit.files.items() if facts.labels}
    classes = list(next(iter(labelled.values())).labels)
    for number in range(len(classes)):
        shares = [100 * list(facts.labels.values())[number] / facts.rows for facts in labelled.values()]
        width = 0.8 / len(classes)
        at = [begin + number * width for begin in range(len(labelled))]
        axes.bar(at, shares, width=width, align="edge", label=f"class {number}")
    axes.set_xticks([begin + 0.4 for begin in range(len(labelled))], list(labelled))
    axes.set(title="labels", ylabel="% of the pairs")
    axes.legend(**BELOW, ncols=3)
