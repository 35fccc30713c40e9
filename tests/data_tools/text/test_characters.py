"""One Unicode on every Python: the table, who asks for it, and ids on the interpreters that are there."""

import ast
import hashlib
import os
import shutil
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
from places import ROOT

from data_tools.text import characters
from data_tools.text.wordpiece import CONTROL_TOKENS, WordPiece, character_kinds

LATER = "\U0001fa77"  # a pink heart, of Unicode 15
UPPER, LOWER = "\U00010d50", "\U00010d70"  # of Garay, Unicode 16
PARTS = {"\U00016d69": "\U00016d67\U00016d67"}  # of Kirat Rai, Unicode 16
TOKENS = [*CONTROL_TOKENS, "a", LATER, LOWER, *PARTS["\U00016d69"][:1], "##a", f"##{LOWER}"]
HASH = "3112e5c909e18de965e765ab55fb12eb6b2e06ccf619d0114df61db6598ff303"
# What other modules may take of unicodedata: neither a class nor another form.
HARMLESS = {"name", "east_asian_width"}


def assigned():
    at = np.flatnonzero(~np.isin(characters.categories(), [b"Cs", b"Cn", b"Co"]))
    return list(map(chr, at.tolist()))


def test_the_table_is_this_one():
    digest = hashlib.sha256(characters.TABLE.read_bytes()).hexdigest()
    assert (characters.unicode_version(), digest) == ("18.0.0", HASH)


def test_what_this_python_knows_is_as_it_says():
    known = [c for c in assigned() if unicodedata.category(c) != "Cn"]
    changed = [c for c in known if characters.category(c) != unicodedata.category(c)]
    assert len(known) > 140_000 and len(changed) < 10  # a few are corrected between versions
    for ours, theirs in (
        (characters.lowered, str.lower),
        (characters.decomposed, lambda c: unicodedata.normalize("NFD", c)),
        (characters.compatible, lambda c: unicodedata.normalize("NFKC", c)),
    ):
        assert [c for c in known if ours(c) != theirs(c)] == []


def test_later_characters_have_classes_and_forms():
    assert characters.category(LATER) == "So" and characters.lowered(UPPER) == LOWER
    assert characters.decomposed("\U000105c9") == "\U000105d2\u0307"
    assert characters.compatible("\U0001ccd6") == "A"
    tokenizer = WordPiece(TOKENS)
    assert [tokenizer.tokens[n] for n in tokenizer.encode(f"a{LATER}A{UPPER}")] == [
        "a",
        LATER,
        "a",
        f"##{LOWER}",
    ]


def test_marks_are_ordered_as_unicode_orders_them():
    for text in ("\u302ea\u1b44", "a\U0001d166\u302e\u1baab", "\u302e\u1b44"):
        assert characters.in_canonical_order(text) == unicodedata.normalize("NFD", text)


def test_the_version_is_part_of_the_fingerprint(monkeypatch):
    before = WordPiece(TOKENS).sha256
    monkeypatch.setattr("data_tools.text.wordpiece.unicode_version", lambda: "19.0.0")
    assert WordPiece(TOKENS).sha256 != before


def test_no_other_module_asks_python_for_classes_or_forms():
    for path in [*ROOT.glob("data_tools/**/*.py"), *ROOT.glob("ernie_pair/**/*.py")]:
        if path.name == "characters.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert "unicodedata" not in [one.name for one in node.names], path
            if isinstance(node, ast.ImportFrom) and node.module == "unicodedata":
                assert {one.name for one in node.names} <= HARMLESS, path


IDS = """
import hashlib, sys
import numpy as np
from data_tools.text.characters import categories, compatible
from data_tools.text.wordpiece import CONTROL_TOKENS, WordPiece, word_shapes
letters = list(map(chr, np.flatnonzero(~np.isin(categories(), [b"Cs", b"Cn", b"Co", b"Lo"])).tolist()))
letters += map(chr, [*range(0xAC00, 0xD7A4, 97), *range(0xF900, 0xFB00), *range(0x2F800, 0x2FA20)])
digest = hashlib.sha256()
shapes = dict.fromkeys(shape for c in letters for shape in (*word_shapes(c), c) if shape.strip())
tokens = [*CONTROL_TOKENS, *shapes, *(f"##{shape}" for shape in shapes)]
for lower_case in (True, False):
    tokenizer = WordPiece(tokens, lower_case)
    digest.update(tokenizer.sha256.encode())
    for found in tokenizer.encode_batch([f"a{c}b" for c in letters]):
        digest.update(np.array([*found, -1]).tobytes())
digest.update("\\n".join(map(compatible, letters)).encode())
print(digest.hexdigest())
"""


def pythons():
    """Interpreters of other versions that have numpy and tokenizers, the least that ids need."""
    named = [os.environ.get(f"ERNIE_PAIR_PYTHON{minor}", f"python3.{minor}") for minor in (10, 12, 13)]
    able = "import numpy, tokenizers, sys; print(*sys.version_info[:2])"
    for name in filter(shutil.which, named):
        done = subprocess.run([name, "-c", able], capture_output=True, text=True)
        if done.returncode == 0:
            yield name


def test_every_python_makes_the_same_ids():
    others = list(pythons())
    if not others:
        pytest.skip("no other Python with numpy and tokenizers; name one in ERNIE_PAIR_PYTHON10, 12 or 13")
    here = {**os.environ, "PYTHONPATH": str(ROOT), "COLD": "1"}
    said = {
        subprocess.run([name, "-c", IDS], env=here, capture_output=True, text=True, check=True).stdout
        for name in (sys.executable, *others)
    }
    assert len(said) == 1 and len(said.pop().strip()) == 64


def test_every_assigned_character_has_a_kind():
    kinds = character_kinds()
    assert kinds[ord(LATER)] == kinds[ord("♥")] and kinds[ord(LOWER)] == kinds[ord("a")]
