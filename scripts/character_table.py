"""Write the table of data_tools/text/characters.py, with the newest Unicode of the package index.

    python3.10 -m pip install unicodedata2 tokenizers
    python3.10 scripts/character_table.py

It runs on the oldest Python that is supported: the table holds the class of each character, and the other
forms of those characters alone that this Python does not know. A new version of Unicode changes the ids of
texts, and with them the hash of every vocabulary that is cut by ERNIE's rule.
"""

import gzip
import json
import unicodedata as oldest
from itertools import groupby
from pathlib import Path

import unicodedata2 as newest
from tokenizers import normalizers

TABLE = Path(__file__).parents[1] / "data_tools" / "text" / "characters.json.gz"
OLDEST = "13.0.0"
CHARACTERS = [chr(point) for point in range(0x110000)]


def lower_of(character: str) -> str:
    """Return the lower case of a later character: as tokenizers says, or else by the names of the two."""
    found = normalizers.Lowercase().normalize_str(character)
    name = newest.name(character, "")
    if found != character or newest.category(character) != "Lu" or " CAPITAL " not in name:
        return found
    try:
        return newest.lookup(name.replace(" CAPITAL ", " SMALL "))
    except KeyError:
        return character


def later_forms() -> dict:
    """Return {form: {character: what it is there}} of the characters that the oldest Python does not know."""
    later = [c for c in CHARACTERS if oldest.category(c) == "Cn" != newest.category(c)]
    forms = {
        "lower": lower_of,
        "canonical": lambda character: newest.normalize("NFD", character),
        "compatible": lambda character: newest.normalize("NFKD", character),
    }
    return {name: {c: form(c) for c in later if form(c) != c} for name, form in forms.items()}


def main() -> None:
    """Write the table."""
    if oldest.unidata_version != OLDEST:
        raise SystemExit(f"this Python knows Unicode {oldest.unidata_version}; run it with Python 3.10")
    runs = [(name, len(list(run))) for name, run in groupby(CHARACTERS, newest.category)]
    classes = {character: newest.combining(character) for character in CHARACTERS}
    marks = {c: number for c, number in classes.items() if number and newest.category(c) != "Mn"}
    table = {
        "unicode": newest.unidata_version,
        "categories": " ".join(name for name, _ in runs),
        "lengths": [length for _, length in runs],
        "marks": marks,
        **later_forms(),
    }
    content = json.dumps(table, ensure_ascii=True, sort_keys=True, separators=(",", ":")).encode()
    TABLE.write_bytes(gzip.compress(content, mtime=0))
    print(f"{TABLE}: Unicode {newest.unidata_version}, {TABLE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
