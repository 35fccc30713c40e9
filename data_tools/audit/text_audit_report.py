"""The findings of a text audit: as values, as lines for the terminal, as a picture."""

from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterator, Optional

from data_tools.audit.duplicates import ExactRepeats, NearRepeats
from data_tools.audit.text_quality import Tally
from ernie_pair.core.errors import printable

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
    exact: ExactRepeats
    near: Optional[NearRepeats]
    odd: Dict[str, Tally]


def report_lines(audit: TextAudit) -> Iterator[str]:
    """Yield the lines of the report for the terminal; control and invisible characters are escaped."""
    for line in _lines(audit):
        yield printable(line.replace("\u3000", " "))


def _lines(audit: TextAudit) -> Iterator[str]:
    sizes = f"{audit.paragraphs} paragraphs, {audit.empty} empty lines, {audit.characters} characters"
    yield f"text           {audit.files} files, {sizes}"
    marks = {"0": "shortest", "50": "median", "100": "longest"}
    parts = (f"{marks.get(name, name + ' %')} {value}" for name, value in audit.quantiles.items())
    yield f"characters     {', '.join(parts)} per paragraph"
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
