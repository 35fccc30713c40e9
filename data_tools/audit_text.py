"""ernie-pair audit text INPUT...: check text before pretraining on it.

ernie-pair audit text raw/ --output_dir audit --workers 8

Reports duplicates, near duplicates, odd characters and mojibake, and lengths of paragraphs: the lines of .txt
files, and those within the texts of .jsonl files. Reads everything once, and the candidates for near
duplicates once more. The report is the same for any number of workers.
"""

import json
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

import numpy as np

from data_tools.audit import duplicates, text_quality
from data_tools.corpus import create_flags
from data_tools.text.file_content import report_encodings
from data_tools.text.text_files import DOCUMENTS, RAW, LineRules, each_once, list_inputs
from data_tools.text.texts import LineBatch, hash_texts, line_batches
from ernie_pair.core.cli.cli import run_command
from ernie_pair.core.cli.options import OverwriteFlag, data_option, path_option
from ernie_pair.core.cli.standard_streams import as_called, with_standard_streams
from ernie_pair.core.errors import InputError, printable
from ernie_pair.core.files.results import Results, settings_of
from ernie_pair.core.process_pool import ordered_map
from ernie_pair.core.progress import Progress, say

BAR = 40  # characters of the longest bar


@dataclass(frozen=True)
class TextAudit:
    """The findings of an audit, serialisable as JSON.

    ``paragraphs``: without the ``empty`` ones; ``quantiles``: {percent: characters of a paragraph};
    ``lengths``: {n: paragraphs of n to 2 n - 1 characters}.
    """

    files: int
    paragraphs: int
    empty: int
    characters: int
    quantiles: Dict[str, int]
    lengths: Dict[int, int]
    exact: duplicates.ExactRepeats
    near: Optional[duplicates.NearRepeats]
    odd: Dict[str, text_quality.Tally]


def report_lines(audit: TextAudit) -> Iterator[str]:
    """Yield the lines of the report for the terminal; control and invisible characters are escaped."""
    for line in _lines(audit):
        yield printable(line.replace("\u3000", " "))


def _lines(audit: TextAudit) -> Iterator[str]:
    sizes = f"{audit.paragraphs} paragraphs, {audit.empty} empty lines, {audit.characters} characters"
    yield f"text           {audit.files} files, {sizes}"
    yield f"characters     {text_quality.describe_quantiles(audit.quantiles)} per paragraph"
    exact = audit.exact
    shares = f"{_share(exact.paragraphs, audit.paragraphs)}, {_share(exact.characters, audit.characters)}"
    yield f"repeats        {exact.paragraphs} paragraphs ({shares} of the characters) repeat an earlier one"
    if exact.without_text:
        yield f"               {exact.without_text} more are punctuation only"
    yield from (f"  {found.times:>6} times  {found.at}  {found.text}" for found in exact.most_repeated)
    yield from _near_lines(audit)
    total = sum(found.characters for found in audit.odd.values())
    yield f"odd characters {total}" + (", read the examples:" if audit.odd else "")
    for kind, tally in audit.odd.items():
        first = tally.examples[0]
        where = f"{first.at}  {first.what}  {first.text}"
        yield f"  {kind:<23} {tally.characters:>7} in {tally.paragraphs:>6} paragraphs  {where}"
    yield "paragraphs by length, characters"
    most = max(audit.lengths.values(), default=1)
    for low, count in audit.lengths.items():
        yield f"  {f'{low}..':>9} {count:>8} {'#' * round(BAR * count / most)}".rstrip()


def _near_lines(audit: TextAudit) -> Iterator[str]:
    near = audit.near
    if near is None:
        yield "near repeats   left out"
        return
    shares = f"{_share(near.paragraphs, audit.paragraphs)}, {_share(near.characters, audit.characters)}"
    yield (
        f"near repeats   {near.paragraphs} paragraphs ({shares} of the characters) have a similarity of "
        f"{near.threshold:g} or more to an earlier one"
    )
    yield f"               {near.too_short} below {near.shortest} characters were not compared"
    if near.compared < near.candidates:
        share = near.compared / near.candidates
        yield (
            f"               a sample of {near.compared} of {near.candidates} was compared, "
            f"{share * share:.1%} of the pairs; raise --near_limit"
        )
    for group in near.largest:
        yield f"  {group.size:>6} alike  {group.at}  {group.text}"
        yield from (
            f"    {member.similarity:.2f}        {member.at}  {member.text}" for member in group.members
        )


def _share(part: int, whole: int) -> str:
    return f"{part / max(1, whole):.2%}"


def draw(path: Path, audit: TextAudit) -> None:
    """Draw the report as a PNG, without Chinese text: not every machine has a font for it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 4.5), layout="constrained")
    axes = figure.subplots(1, 3)
    axes[0].bar([f"{low}.." for low in audit.lengths], list(audit.lengths.values()))
    axes[0].set(title="length", xlabel="characters of a paragraph", ylabel="paragraphs")
    axes[0].tick_params(axis="x", rotation=60)
    kinds = {"exact": audit.exact.sizes, "near": audit.near.sizes if audit.near else {}}
    sizes = sorted({size for found in kinds.values() for size in found})
    for number, (name, found) in enumerate(kinds.items()):
        places = [place + 0.4 * number for place in range(len(sizes))]
        axes[1].bar(places, [found.get(size, 0) for size in sizes], width=0.4, align="edge", label=name)
    axes[1].set_xticks([place + 0.4 for place in range(len(sizes))], [f"{size}.." for size in sizes])
    axes[1].set(title="repeats", xlabel="paragraphs alike", ylabel="groups")
    if sizes:
        axes[1].set_yscale("symlog", linthresh=1)
        axes[1].legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False)
    else:
        _draw_none(axes[1])
    names = list(audit.odd)[::-1]
    bars = axes[2].barh(names, [audit.odd[name].characters for name in names])
    axes[2].bar_label(bars)
    axes[2].margins(x=0.15)
    axes[2].set(title="odd characters", xlabel="characters")
    if names:
        axes[2].set_xscale("symlog", linthresh=1)
    else:
        _draw_none(axes[2])
    figure.savefig(path, dpi=120, format="png")


def _draw_none(axes) -> None:
    """Write "none" instead of empty axes, whose numbers would mean nothing."""
    axes.set(xticks=[], yticks=[])
    axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", va="center")


JSON_FILE, PICTURE_FILE = "audit.json", "audit.png"
SHINGLE = 5  # characters; paragraphs are compared as sets of shingles


@dataclass(frozen=True)
class AuditConfig(create_flags.LineFlags, OverwriteFlag):
    """Check text before pretraining on it."""

    EXAMPLE = "raw/ --output_dir audit --workers 8"
    NEEDS = {"datasketch": "", "scipy": "", "matplotlib": ""}

    inputs: List[str] = path_option(
        help=".txt or .jsonl files, plain, .gz or .zst, or folders of them (two levels)",
        positional=True,
        stdin=(".txt", ".jsonl"),
    )
    output_dir: str = data_option(
        "",
        help=f"folder for {JSON_FILE} and {PICTURE_FILE}; empty: print to the terminal only",
        writes="FOLDER",
    )
    near_threshold: float = data_option(
        0.8, help="minimum Jaccard similarity of near duplicates", at_least=0.3, at_most=1
    )
    near_limit: int = data_option(
        1_000_000,
        help="maximum number of paragraphs to compare; a sample of them if there are more; 0: do not look "
        "for near duplicates",
        unit="paragraphs",
        at_least=0,
    )

    @property
    def near_rules(self) -> duplicates.NearRules:
        """Return which paragraphs count as near duplicates."""
        return duplicates.NearRules(self.near_threshold, SHINGLE, self.near_limit)


@with_standard_streams
def audit_text(config: AuditConfig) -> Dict[str, Any]:
    """Look for duplicates and odd characters in raw text; print the report, and return what it found.

    The report and its picture are written below ``output_dir``.

    Raises InputError for inputs, settings or outputs that cannot be used, and for a line that cannot be read.
    """
    found = (list_inputs(path, (*RAW, *DOCUMENTS), named="INPUTS") for path in config.inputs)
    inputs = each_once(chain.from_iterable(found))
    folder = Path(config.output_dir)
    results = Results(
        command="audit text",
        outputs=[folder / JSON_FILE, folder / PICTURE_FILE],
        inputs={"inputs": inputs},
        settings=settings_of(config, "inputs", "output_dir"),
        overwrite=config.overwrite,
        positional=["inputs"],
    )
    are_there = config.output_dir and results.are_done()
    report_encodings(inputs)
    audit = audit_of(inputs, config)
    say(as_called("\n".join(report_lines(audit))))
    if config.output_dir and not are_there:
        with results.published() as (text, picture):
            content = as_called(json.dumps(asdict(audit), ensure_ascii=False, indent=1))
            # a name that is not UTF-8: \udcff is its JSON
            text.write_text(content + "\n", encoding="utf-8", errors="backslashreplace")
            draw(picture, audit)
        say(f"wrote {folder / JSON_FILE} and {folder / PICTURE_FILE}")
    return asdict(audit)


def audit_of(inputs: List[Path], config: AuditConfig) -> TextAudit:
    """Audit the paragraphs of ``inputs``. Raises InputError for a line that cannot be read, or no text."""
    with Progress(inputs * (2 if config.near_limit else 1), log_interval=0) as progress:
        table, odd = _survey(inputs, config, progress)
        if table.is_empty.all():
            raise InputError(f"{', '.join(map(str, inputs[:3]))}: no text; give an input that contains some")
        rows = np.flatnonzero(table.compared)
        _, first, times = np.unique(table.fingerprints[rows], return_index=True, return_counts=True)
        order = np.argsort(first)
        # The first row of each distinct paragraph to compare, in order, and how often it occurs.
        firsts, times = rows[first[order]], times[order]
        near = _compare(inputs, config, table, firsts, progress) if config.near_limit else None
    listed = firsts[duplicates.listed_firsts(times)].tolist()
    if near:
        for head, members in near.listed.items():
            listed += near.sample[[head, *members]].tolist()
    texts = text_quality.quotes(map(table.place, listed), config.line_rules)
    lengths = table.lengths[~table.is_empty]
    return TextAudit(
        files=len(inputs),
        paragraphs=len(lengths),
        empty=int(table.is_empty.sum()),
        characters=int(lengths.sum()),
        quantiles=text_quality.quantiles(lengths),
        lengths=duplicates.doubling(lengths),
        exact=duplicates.exact_repeats(table, firsts, times, texts),
        near=duplicates.near_repeats(table, len(firsts), near, config.near_rules, texts) if near else None,
        odd={kind: odd[kind] for kind in text_quality.ODD_KINDS if kind in odd},
    )


def _survey(
    inputs: List[Path], config: AuditConfig, progress: Progress
) -> Tuple[duplicates.Table, Dict[str, text_quality.Tally]]:
    """Return the table of the paragraphs, and the tallies of odd characters by kind."""
    rules = config.line_rules
    jobs = ((rules, batch) for batch in line_batches(inputs, progress.read, rules=rules))
    parts: List[List[np.ndarray]] = []
    paths: List[str] = []
    odd: Dict[str, text_quality.Tally] = {}
    for path, columns, more in ordered_map(_survey_batch, jobs, config.workers):
        paths.append(path)
        parts.append(columns)
        for name, found in more.items():
            odd.setdefault(name, text_quality.Tally()).add(found)
    begins = np.cumsum([0, *(len(columns[0]) for columns in parts)], dtype=np.int64)
    columns = [np.concatenate(column) for column in zip(*parts)] or [np.empty(0, bool)] * 6
    hashes, lengths, compared, lines, places, is_empty = columns
    table = duplicates.Table(hashes, lengths, compared, lines, places, is_empty, paths, begins)
    return table, odd


def _survey_batch(job: Tuple[LineRules, LineBatch]):
    """Return (path, columns of `Table`, tallies of odd characters)."""
    rules, batch = job
    paragraphs = text_quality.read_paragraphs(batch, rules)
    texts = text_quality.normalised(paragraphs.texts)
    is_empty = np.array([not text.strip() for text in paragraphs.texts], dtype=bool)
    lengths, compared = [len(text) for text in paragraphs.texts], [len(text) for text in texts]
    numbers = (lengths, compared, paragraphs.lines, paragraphs.parts)
    columns = [hash_texts(texts), *(np.array(column, np.uint32) for column in numbers)]
    return batch.path, [*columns, is_empty], text_quality.odd_characters(paragraphs)


def _compare(
    inputs: List[Path], config: AuditConfig, table: duplicates.Table, firsts: np.ndarray, progress: Progress
) -> duplicates.Comparison:
    """Read the texts of a sample of the distinct paragraphs again, and group near duplicates."""
    rules = config.near_rules
    candidates = firsts[table.compared[firsts] >= rules.shortest]
    sample = candidates
    if len(sample) > rules.limit:  # their texts alone decide which
        smallest = np.argpartition(table.fingerprints[candidates], rules.limit - 1)[: rules.limit]
        sample = candidates[np.sort(smallest)]
    bands = [np.empty((0, rules.shape[0]), np.uint64)]
    texts: List[bytes] = []
    jobs = _near_jobs(inputs, config, table, sample, progress)
    for more_bands, more_texts in ordered_map(_near_batch, jobs, config.workers):
        bands.append(more_bands)
        texts += more_texts
    if len(texts) < len(sample):
        raise _changed("an input")
    groups = duplicates.near_groups(np.concatenate(bands), texts, rules)
    return duplicates.Comparison(candidates, sample, groups)


def _near_jobs(
    inputs: List[Path], config: AuditConfig, table: duplicates.Table, sample: np.ndarray, progress: Progress
) -> Iterator:
    is_chosen = np.zeros(len(table.lengths), dtype=bool)
    is_chosen[sample] = True
    for number, batch in enumerate(line_batches(inputs, progress.read, rules=config.line_rules)):
        begin, end = table.begins[number : number + 2] if number < len(table.paths) else (0, 0)
        chosen = is_chosen[begin:end]
        if chosen.any():
            yield config.line_rules, config.near_rules, batch, chosen, table.fingerprints[begin:end][chosen]


def _near_batch(job) -> Tuple[np.ndarray, List[bytes]]:
    line_rules, near_rules, batch, chosen, expected = job
    read = text_quality.read_paragraphs(batch, line_rules).texts
    texts = text_quality.normalised([text for text, is_chosen in zip(read, chosen) if is_chosen])
    if len(read) != len(chosen) or not np.array_equal(hash_texts(texts), expected):
        raise _changed(batch.path)
    return duplicates.compute_bands(texts, near_rules), [text.encode("utf-8") for text in texts]


def _changed(what: str) -> InputError:
    return InputError(f"{what} changed while it was read; run again when it is complete")


if __name__ == "__main__":
    run_command(audit_text, AuditConfig)
