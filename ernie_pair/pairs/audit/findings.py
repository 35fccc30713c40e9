"""What an audit finds in labelled pairs, its lines for the terminal, and its picture.

The texts are numbers, and the rows A=B a graph of them; numpy and scipy, no paddle.
"""

import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Callable, Collection, Iterable, Iterator, NamedTuple, Optional

import numpy as np

from data_tools.audit.text_quality import describe_quantiles, normalised, quantiles, quote
from data_tools.text.folder_tokenizer import AnyTokenizer
from ernie_pair.core.errors import InputError, counted, printable
from ernie_pair.core.files.json_file import is_texts
from ernie_pair.core.files.keyed_cache import KeyedCache
from ernie_pair.inference.token_rows import SPECIALS_PER_PAIR
from ernie_pair.models.labels import Labels, match_class
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.data.pair_source import PairSource
from ernie_pair.pairs.data.row_cache import LOCK_SECONDS
from ernie_pair.pairs.targets.metrics import number_texts


class Coded(NamedTuple):
    """A file whose texts are numbers, equal for equal texts in all files; int64 [rows].

    Texts are equal here when they are so normalised; in ``exact``, which is the file once more, when they are
    so character by character.
    """

    pairs: Pairs
    left: np.ndarray
    right: np.ndarray
    exact: Optional["Coded"] = None

    @property
    def by_characters(self) -> "Coded":
        """Return the file by the numbers of its texts as they stand: itself, where it is that already."""
        return self if self.exact is None else self.exact

    @property
    def ordered(self) -> np.ndarray:
        """Return a key per row, that of its two texts in their order, int64 [rows]."""
        return (self.left << 32) | self.right

    @property
    def unordered(self) -> np.ndarray:
        """Return a key per row, the same for (A, B) and (B, A), int64 [rows]."""
        return (np.minimum(self.left, self.right) << 32) | np.maximum(self.left, self.right)


def coded(files: dict[str, Pairs]) -> dict[str, Coded]:
    """Return the files under their names, with a number for each of their texts."""
    exact, alike = _numbered(files, iter), _numbered(files, compared_texts)
    return {name: file._replace(exact=exact[name]) for name, file in alike.items()}


def _numbered(files: dict[str, Pairs], compared: Callable[[list[str]], Iterable[str]]) -> dict[str, Coded]:
    known: dict[str, int] = {}
    return {
        name: Coded(
            pairs, number_texts(compared(pairs.left), known), number_texts(compared(pairs.right), known)
        )
        for name, pairs in files.items()
    }


def compared_texts(texts: list[str]) -> Iterator[str]:
    """Return the texts as they are compared when normalised; punctuation alone is compared as it stands."""
    short = normalised([text.replace("\n", " ") for text in texts])
    return (left or text.strip() for left, text in zip(short, texts))


class Links:
    """The rows A=B as a graph of texts; ``group[text]`` is equal for texts that a chain joins."""

    def __init__(self, file: Coded, rows: np.ndarray):
        from scipy.sparse import coo_matrix
        from scipy.sparse.csgraph import connected_components

        self.file, self.rows = file, rows
        size = int(max(file.left.max(), file.right.max())) + 1
        ends = file.left[rows], file.right[rows]
        self.graph = coo_matrix((np.ones(len(rows)), ends), shape=(size, size)).tocsr()
        self.group = connected_components(self.graph, directed=False)[1]

    def path(self, begin: int, end: int) -> list[str]:
        """Return the texts of a shortest chain between two texts, given by their numbers."""
        from scipy.sparse.csgraph import breadth_first_order

        _, before = breadth_first_order(self.graph, begin, directed=False)
        passed = [end]
        while passed[-1] != begin:
            passed.append(before[passed[-1]])
        numbers = np.concatenate([self.file.left, self.file.right])
        texts = [*self.file.pairs.left, *self.file.pairs.right]
        return [texts[np.flatnonzero(numbers == number)[0]] for number in reversed(passed)]


EXAMPLES = 5


@dataclass(frozen=True)
class Finding:
    """One kind of finding: ``rows`` of ``of`` rows of ``file`` (train, dev, test) are what ``says`` says.

    The texts are compared normalised; ``exact``: how many rows also match unnormalised, where counted.
    """

    file: str
    kind: str
    rows: int
    of: int
    says: str
    examples: list[str]
    exact: Optional[int] = None


def collect_findings(files: dict[str, Coded], same: Optional[int]) -> list[Finding]:
    """Return all findings in order; ``same``: the class of A=B. Without labels: those against train."""
    found: list[Finding] = []
    for name, file in files.items():
        if file.pairs.labels is not None:
            found += _of_one_file(name, file, same)
    for name in [name for name in files if name != "train"]:
        found += _of_two_files(name, files[name], files["train"])
    return [finding for finding in found if finding.rows]


def _of_one_file(name: str, file: Coded, same: Optional[int]) -> Iterator[Finding]:
    def finding(kind: str, find: Callable[[Coded], np.ndarray], says: str, show=_examples) -> Finding:
        where = find(file)
        exact = int((where & find(file.by_characters)).sum())
        return Finding(name, kind, int(where.sum()), len(file.pairs), says, show(file, where), exact)

    yield finding(
        "repeated", lambda f: is_repeated(f) & ~is_contradicted(f), "repeating an earlier pair and its label"
    )
    yield finding("contradicted", is_contradicted, "with a pair that has two labels", _examples_of_groups)
    yield finding(
        "reversed",
        lambda f: _repeats(f.unordered) & ~_repeats(f.ordered) & ~is_contradicted(f),
        "with an earlier pair in the other order",
    )
    if same is not None:
        yield finding(
            "alike",
            lambda f: (f.left == f.right) & (f.pairs.labels != same),
            "labelled as different although the texts are equal",
        )
        yield _broken_transitivity(name, file, same)


def is_contradicted(file: Coded) -> np.ndarray:
    """Return whether each pair, in either order, stands elsewhere with another label, bool [rows]."""
    _, group = np.unique(file.unordered, return_inverse=True)
    labels = file.pairs.known_labels
    lowest = np.full(group.max() + 1, labels.max())
    highest = np.full_like(lowest, labels.min())
    np.minimum.at(lowest, group, labels)
    np.maximum.at(highest, group, labels)
    return (lowest != highest)[group]


def is_repeated(file: Coded) -> np.ndarray:
    """Return whether an earlier row is the same pair in the same order, bool [rows]."""
    return _repeats(file.ordered)


def is_shared(file: Coded, others: list[Coded]) -> np.ndarray:
    """Return whether each pair stands in one of the other files, in either order, bool [rows]."""
    if not others:
        return np.zeros(len(file.pairs), dtype=bool)
    return np.isin(file.unordered, np.concatenate([other.unordered for other in others]))


def _repeats(keys: np.ndarray) -> np.ndarray:
    is_first = np.zeros(len(keys), dtype=bool)
    is_first[np.unique(keys, return_index=True)[1]] = True
    return ~is_first


def _broken_transitivity(name: str, file: Coded, same: int) -> Finding:
    """Find rows A/C whose texts are joined by a chain A=B=...=C of other rows."""
    is_same = (file.pairs.labels == same) & (file.left != file.right)
    links = Links(file, np.flatnonzero(is_same))
    broken = (file.pairs.labels != same) & (file.left != file.right)
    broken &= links.group[file.left] == links.group[file.right]
    broken &= ~np.isin(file.unordered, file.unordered[is_same])  # those are contradicted already
    examples = []
    for row in np.flatnonzero(broken)[:EXAMPLES].tolist():
        path = links.path(file.left[row], file.right[row])
        texts = " = ".join(quote(text) for text in path)
        examples.append(f"{file.pairs.where(row)} says they differ, but {texts}")
    says = "labelled as different although rows labelled as the same connect their texts"
    return Finding(name, "intransitive", int(broken.sum()), len(file.pairs), says, examples)


def _of_two_files(name: str, file: Coded, train: Coded) -> Iterator[Finding]:
    rows = len(file.pairs)
    shared = is_shared(file, [train])
    examples = []
    for row in np.flatnonzero(shared)[:EXAMPLES].tolist():
        there = int(np.argmax(train.unordered == file.unordered[row]))
        examples.append(f"{_example(file, row)}  is  {_example(train, there)}")
    exact = int(is_shared(file.by_characters, [train.by_characters]).sum())
    says = "with a pair of the training file, in either order"
    yield Finding(name, "shared", int(shared.sum()), rows, says, examples, exact)
    known = np.concatenate([train.left, train.right])
    left, right = np.isin(file.left, known), np.isin(file.right, known)
    for kind, where, says in (
        ("1 text seen", left ^ right, "with one text of the training file"),
        ("2 texts seen", left & right & ~shared, "with two texts of the training file, from different pairs"),
    ):
        yield Finding(name, kind, int(where.sum()), rows, says, [])
    if file.pairs.labels is not None and file.pairs.labels.dtype.kind == "i":  # a score may well be new
        unseen = ~np.isin(file.pairs.labels, train.pairs.known_labels)
        says = "with a label that no training pair has"
        yield Finding(name, "unseen label", int(unseen.sum()), rows, says, _examples(file, unseen))


def _examples(file: Coded, where: np.ndarray) -> list[str]:
    return [_example(file, row) for row in np.flatnonzero(where)[:EXAMPLES].tolist()]


def _examples_of_groups(file: Coded, where: np.ndarray) -> list[str]:
    """Return a line per pair that was found, with up to three of its rows side by side."""
    rows = np.flatnonzero(where)
    rows = rows[np.argsort(file.unordered[rows], kind="stable")]
    keys = file.unordered[rows]
    groups = np.split(rows, np.flatnonzero(np.diff(keys)) + 1) if len(rows) else []
    return ["  and  ".join(_example(file, row) for row in group[:3].tolist()) for group in groups[:EXAMPLES]]


def _example(file: Coded, row: int) -> str:
    pairs = file.pairs
    label = "" if pairs.labels is None else f" | {pairs.labels[row]}"
    return f"{pairs.where(row)}  {quote(pairs.left[row])} | {quote(pairs.right[row])}{label}"


COMPARED = (
    "exactly: character by character; normalised: NFKC, in lower case, without white space and punctuation"
)
# Of a legend: below the axes, where it hides nothing.
BELOW: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "frameon": False}
# Worth a line before a training run; the others are for the report.
WARNED = ("repeated", "contradicted", "alike", "intransitive", "shared", "unseen label")


@dataclass(frozen=True)
class FileFacts:
    """The size, labels and lengths of a file. ``labels``: {name of a class: pairs}, empty without labels.

    ``lengths``: {percent: length of a pair}; ``too_long``: pairs above --max_seq_len.
    """

    path: str
    rows: int
    labels: dict[str, int]
    lengths: dict[str, int]
    too_long: int


@dataclass(frozen=True)
class Cleaned:
    """The cleaned training file. ``removed``: {kind: rows left out}; ``compared``: exact or normalised."""

    path: str
    rows: int
    removed: dict[str, int]
    compared: str


@dataclass(frozen=True)
class PairAudit:
    """The result of an audit. ``unit``: tokens or characters; ``files``: train, dev, test."""

    unit: str
    max_seq_len: int
    files: dict[str, FileFacts]
    findings: list[Finding]
    cleaned: Optional[Cleaned] = None


def report_lines(audit: PairAudit) -> Iterator[str]:
    """Yield the lines of the report; what a terminal would obey or hide is spelled out."""
    yield from map(printable, _lines(audit))


def _lines(audit: PairAudit) -> Iterator[str]:
    for name, facts in audit.files.items():
        yield f"{name:<13} {facts.path}: {facts.rows} pairs"
        if facts.labels:
            shares = (
                f"{label} {count} ({_share(count, facts.rows)})" for label, count in facts.labels.items()
            )
            yield f"  labels      {', '.join(shares)}"
        yield f"  {audit.unit:<11} {describe_quantiles(facts.lengths)} of a pair"
        above = "none"
        if facts.too_long:
            fate = "which will be cut" if audit.unit == "tokens" else "--vocab_file counts their tokens"
            above = f"{counted(facts.too_long, 'pair')} ({_share(facts.too_long, facts.rows)}), {fate}"
        yield f"              longer than {audit.max_seq_len}: {above}"
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


def warnings_of(audit: PairAudit, unlabelled: Collection[str] = ()) -> list[str]:
    """Return a line for each thing that a training run should not begin with unseen.

    ``unlabelled``: the files all of whose pairs belong together, since they have no labels.
    """
    return [
        *_one_class(audit, unlabelled),
        *(_sentence(finding) for finding in audit.findings if finding.kind in WARNED),
    ]


def _one_class(audit: PairAudit, unlabelled: Collection[str] = ()) -> Iterator[str]:
    for name, facts in audit.files.items():
        absent = [label for label, count in facts.labels.items() if not count]
        if absent and name not in unlabelled:
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
    labelled = {name: facts for name, facts in audit.files.items() if facts.labels}
    classes = list(next(iter(labelled.values())).labels)
    for number in range(len(classes)):
        bars = [100 * list(facts.labels.values())[number] / facts.rows for facts in labelled.values()]
        width = 0.8 / len(classes)
        at = [begin + number * width for begin in range(len(labelled))]
        balance.bar(at, bars, width=width, align="edge", label=f"class {number}")
    balance.set_xticks([begin + 0.4 for begin in range(len(labelled))], list(labelled))
    balance.set(title="labels", ylabel="% of the pairs")
    balance.legend(**BELOW, ncols=3)
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


def audit_of(
    files: dict[str, Coded],
    labels: Labels,
    same: Optional[int],
    tokenizer: Optional[AnyTokenizer],
    max_seq_len: int,
) -> PairAudit:
    """Return facts and findings, train first; ``same``: the equal class; lengths, else in characters."""
    facts = {}
    for name, file in files.items():
        texts = (file.pairs.left, file.pairs.right)
        sides = (map(len, tokenizer.encode_batch(side) if tokenizer else side) for side in texts)
        left, right = (np.fromiter(side, dtype=np.int64, count=len(file.pairs)) for side in sides)
        lengths = left + right + SPECIALS_PER_PAIR
        too_long = int((lengths > max_seq_len).sum())
        counts: dict[str, int] = {}
        if file.pairs.labels is not None and labels.has_classes:
            rows = np.bincount(file.pairs.labels, minlength=len(labels.names)).tolist()
            counts = dict(zip(labels.names, rows))
        facts[name] = FileFacts(file.pairs.path, len(file.pairs), counts, quantiles(lengths), too_long)
    unit = "tokens" if tokenizer else "characters"
    return PairAudit(unit, max_seq_len, facts, collect_findings(files, same))


def equal_class(labels: Labels, name: str = "") -> Optional[int]:
    """Return the class of equal texts: ``name``, or the match of two; None of more. Raises InputError."""
    if name and name not in labels.classes:
        raise InputError(f"--same {name} is not one of {labels.allowed}; give one of them")
    if name:
        return labels.classes[name]
    return match_class(labels)


VERSION = 2  # raised when the same files would give other warnings
ADVICE = (
    "ernie-pair audit pairs shows the rows, and --drop_leaks exact (or normalised) writes the training file "
    "without them"
)

logger = logging.getLogger(__name__)


def warn_before_training(cache_dir: Path, sources: dict[str, PairSource]) -> None:
    """Log a line for each thing that is wrong with ``sources``: train and dev, as far as they have labels.

    The lines are kept in ``cache_dir`` for the next run. Raises InputError when a file cannot be read.
    """
    train = sources["train"]
    labels = train.labels
    assert labels is not None  # training reads them
    contents = {split: source.sha256() for split, source in sources.items()}
    read_as = [str(train.columns), str(train.rules), labels.read_as]
    read_as += ["labels are optional"] if labels.are_optional else []
    key = {"version": VERSION, "contents": contents, "read as": read_as}
    cache: KeyedCache[list[str]] = KeyedCache(
        cache_dir,
        key,
        lambda warnings: {"warnings": warnings},
        lambda note: note["warnings"] if is_texts(note["warnings"]) else None,
        kind="audit-",
    )
    unlabelled = [split for split, source in sources.items() if _is_unlabelled(source)]
    warnings = cache.get(partial(_find_warnings, sources, unlabelled), LOCK_SECONDS)
    for warning in warnings:
        logger.warning("%s", warning)
    if warnings and not unlabelled:  # it reads labelled pairs
        logger.warning("%s", ADVICE)


def _is_unlabelled(source: PairSource) -> bool:
    """Return whether the rows of a file have no label, as an encoder takes them."""
    reader = source.parts[0].open(source.labels is not None)[0] if source.rules.of_encoders else None
    return reader is not None and not reader.has_label


def _find_warnings(sources: dict[str, PairSource], unlabelled: Collection[str]) -> list[str]:
    labels = sources["train"].labels
    assert labels is not None  # training reads them
    pairs = {split: source.read() for split, source in sources.items()}
    if labels.are_optional:
        pairs = {split: read.labelled() for split, read in pairs.items()}
    if not len(pairs["train"]):
        return []
    files = coded(pairs)
    return warnings_of(
        audit_of(files, labels, equal_class(labels), tokenizer=None, max_seq_len=0), unlabelled
    )
