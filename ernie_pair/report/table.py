"""Lines of the tables that commands write, with tabs between the cells."""

from typing import Iterable

ESCAPES = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})


def table_line(cells: Iterable[str]) -> str:
    """Return a line of cells, in which tabs and line ends are escaped."""
    return "\t".join(cell.translate(ESCAPES) for cell in cells) + "\n"
