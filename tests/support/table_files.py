"""Writers of tables as people and libraries make them, for tests of what reads them."""

import io
import zipfile
from pathlib import Path

import pyarrow as pa
from openpyxl import Workbook
from pandas import DataFrame

ROWS = [
    ("今天下雨，怎么办", "明天会下雨吗", 1),
    ('他说"好"', "怎么开户; 在哪", 0),
    ("左\n右", "上, 下", 1),
    ("银行卡丢了", "如何补办", 0),
]
FLAT = [(left.replace("\n", " "), right, label) for left, right, label in ROWS]  # for files of lines
NAMES = ("sentence1", "sentence2", "label")
YES = {0: "否", 1: "是"}


def frame(names=NAMES, rows=ROWS, words=None, **more) -> DataFrame:
    """``rows`` under ``names``; ``words``: {label: what stands for it}."""
    made = DataFrame(rows, columns=list(names))
    if words:
        made[names[2]] = made[names[2]].map(words)
    return made.assign(**more)


def csv_text(names=NAMES, rows=ROWS, words=None, **settings) -> str:
    """The text of a .csv of pandas, without the column of its index unless ``settings`` say otherwise."""
    return frame(names, rows, words).to_csv(**{"index": False, **settings})


def tabbed(rows, header="", mark="\t") -> str:
    """A line for each row, without quotes."""
    return header + "".join(f"{mark.join(map(str, row))}\n" for row in rows)


def book(rows, title="标注", change=lambda book: None) -> bytes:
    """A workbook with a sheet of ``rows``."""
    made, held = Workbook(), io.BytesIO()
    made.active.title = title
    for row in rows:
        made.active.append(list(row))
    change(made)
    made.save(held)
    return held.getvalue()


def changed(content: bytes, name: str, change) -> bytes:
    """A zip with another content of the file ``name`` in it."""
    held = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as new:
        for item in old.namelist():
            new.writestr(item, change(old.read(item)) if item == name else old.read(item))
    return held.getvalue()


def arrow(new, table) -> bytes:
    """``table`` as the file or the stream that ``new`` of pyarrow.ipc makes."""
    held = pa.BufferOutputStream()
    with new(held, table.schema) as writer:
        writer.write_table(table)
    return held.getvalue().to_pybytes()


def put(path: Path, content) -> Path:
    """Write text as UTF-8, or bytes, or call what writes the file."""
    if callable(content):
        content(path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path
