"""Files of texts, one in each line."""

from pathlib import Path
from typing import Callable, Iterator

from data_tools.base.errors import InputError
from data_tools.text.lines import LineRules, decoded
from data_tools.text.text_files import read_lines

ENDINGS = (".txt", ".txt.gz", ".txt.zst")
Advance = Callable[[int], None]


def is_text_file(name: str) -> bool:
    """Return whether ``name`` is called as a file of texts is, and not as one of pairs."""
    return name.endswith(ENDINGS)


def read_texts(
    path: Path, encoding: str = "utf-8", skips: bool = False, advance: Advance = lambda count: None
) -> Iterator[str]:
    """Yield the text of each line, without white space around it.

    ``skips``: lines without a text, or that are no text, are left out. Otherwise raises InputError with
    file:line for them; and for a file that is not there. ``advance`` hears the bytes read from the disk.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a file with a text in each line")
    rules = LineRules(encoding=encoding, has_flag=True)
    for number, line in enumerate(read_lines(path, advance), start=1):
        try:
            text = decoded(str(path), number, line, rules).strip()
        except InputError:
            if not skips:
                raise
            continue
        if text:
            yield text
        elif not skips:
            raise InputError(f"{path}:{number}: an empty line; write a text there, or remove the line")
