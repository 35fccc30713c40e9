"""Bounds of a tokenizer.json that somebody else wrote: what it may make of a text, and in which time.

The library `tokenizers` does whatever such a file says, and nothing interrupts it: 34 rules that double a
letter fill the memory, a pattern with a repetition inside of another one runs for minutes, and an id of 3e8
asks for a table of that length. Real tokenizers are far below these bounds.
"""

import base64
import binascii
import json
from collections import defaultdict
from time import thread_time
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple

MAX_RULES = 64  # that change or cut a text
MAX_GROWTH = 10_000  # characters made of one
MAX_TOKEN_LENGTH, MAX_MAPPED_BYTES = 4096, 256  # characters, bytes
MAX_WORD_LENGTH = 1000  # characters, whose pieces are searched in a time that grows by their square
SPARE_IDS = 1000  # that no token has; as many again as there are tokens may be free
MAX_REPEATS, MAX_UNBOUNDED, MAX_REPEAT = 4, 3, 1000  # in a row in a pattern
FEW = 3  # repetitions up to which one is not counted as unbounded
LENGTHS, SECONDS = (64, 128, 256, 512), 0.02  # of the texts that patterns are tried on; for one of them
MAX_TRIED, NO_MATCH = 24, "\u2603"
# Characters that one may become, at most.
GROWTH = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Precompiled": 18, "Lowercase": 2, "BertNormalizer": 12}
GROWTH["ByteLevel"] = 4
CLASSES = {"s": " ", "d": "1", "w": "a", "n": "\n", "r": "\r", "t": "\t"}
PROPERTIES = {"L": "a", "N": "1", "P": "!", "S": "+", "Z": " ", "M": "\u0301"}


def fault_of_rules(state: Mapping[str, Any]) -> str:
    """Return which bound the content of a tokenizer.json breaks, in words; '' for none."""
    parts = [state.get(name) for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder")]
    rules = [rule for part in parts for rule in _rules_in(part)]
    if len(rules) > MAX_RULES:
        return f"{len(rules)} rules, above {MAX_RULES}"
    fault = _fault_of_tokens(state)
    for rule in rules:
        fault = fault or fault_of_charsmap(_decoded(rule.get("precompiled_charsmap")))
    for pattern in patterns_of(state):
        fault = fault or fault_of_pattern(pattern)
    growth = 0 if fault else _growth(_rules_in(state.get("normalizer")))
    if growth > MAX_GROWTH:
        return f"rules that make up to {growth:.3g} characters of one, above {MAX_GROWTH}"
    return fault


def patterns_of(state: Mapping[str, Any]) -> List[str]:
    """Return the regular expressions of a tokenizer.json."""
    parts = [state.get(name) for name in ("normalizer", "pre_tokenizer", "decoder")]
    found = [rule.get("pattern") for part in parts for rule in _rules_in(part)]
    return [str(one["Regex"]) for one in found if isinstance(one, dict) and "Regex" in one]


def fault_of_speed(patterns: List[str], encode: Callable[[str], Any]) -> str:
    """Return a text on which ``encode`` takes too long, or ''. It is tried on what ``patterns`` repeat."""
    tried = list(dict.fromkeys(one for pattern in patterns for one in _characters_of(pattern)))[:MAX_TRIED]
    for length in LENGTHS if patterns else ():
        for text in (one * length + NO_MATCH + "".join(tried) for one in [*tried, "".join(tried[:2])]):
            if min(_seconds(encode, text) for _ in range(2)) > SECONDS:
                return f"a pattern that takes long for {len(text)} characters {text[0]!r}"
    return ""


def _seconds(encode: Callable[[str], Any], text: str) -> float:
    began = thread_time()
    encode(text)
    return thread_time() - began


def _rules_in(part: Any) -> Iterator[Dict[str, Any]]:
    """Yield the rules in a part of a tokenizer, those of sequences one after another."""
    waiting = [part]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting.extend(reversed(one))
        elif isinstance(one, dict) and one.get("type") == "Sequence":
            waiting.extend(value for value in one.values() if isinstance(value, list))
        elif isinstance(one, dict) and "type" in one:
            yield one


def _fault_of_tokens(state: Mapping[str, Any]) -> str:
    model, added = state.get("model"), state.get("added_tokens")
    model, added = model if isinstance(model, dict) else {}, added if isinstance(added, list) else []
    vocab, longest = model.get("vocab"), model.get("max_input_chars_per_word")
    entries = [(one.get("content"), one.get("id")) for one in added if isinstance(one, dict)]
    if isinstance(vocab, dict):
        entries += vocab.items()
    elif isinstance(vocab, list):
        entries += [(one[0], place) for place, one in enumerate(vocab) if isinstance(one, list) and one]
    ids = [number for _, number in entries if isinstance(number, int)]
    if max(ids, default=0) > 2 * len(entries) + SPARE_IDS:
        return f"the id {max(ids)} among {len(entries)} tokens"
    length = max((len(token) for token, _ in entries if isinstance(token, str)), default=0)
    if length > MAX_TOKEN_LENGTH:
        return f"a token of {length} characters, above {MAX_TOKEN_LENGTH}"
    if isinstance(longest, int) and longest > MAX_WORD_LENGTH:
        return f"words of {longest} characters, above {MAX_WORD_LENGTH}"
    return ""


def _decoded(charsmap: Any) -> bytes:
    try:
        return base64.b64decode(charsmap) if isinstance(charsmap, str) else b""
    except (binascii.Error, ValueError):  # the library says it
        return b""


def fault_of_charsmap(charsmap: bytes) -> str:
    """Return what is wrong with the table of a Precompiled rule: a trie and its length, and then texts."""
    if not charsmap:
        return ""
    size = int.from_bytes(charsmap[:4], "little")
    if size % 4 or not 0 < size <= len(charsmap) - 4:
        return "a damaged table of characters"
    longest = max(map(len, charsmap[4 + size :].split(b"\0")))
    return f"a character that becomes {longest} bytes" if longest > MAX_MAPPED_BYTES else ""


def _growth(rules: Iterator[Dict[str, Any]]) -> float:
    """Return into how many characters ``rules``, one after another, can turn one, or the shortest text.

    From the last rule to the first, what a character becomes is what the rules behind make of its texts.
    """
    of: Dict[str, float] = defaultdict(lambda: usual)
    usual, before = 1.0, 0.0
    for rule in reversed(list(rules)):
        kind, pattern = rule.get("type"), rule.get("pattern")
        if kind == "Prepend":
            before += sum(of[one] for one in str(rule.get("prepend")))
        elif kind == "Replace" and isinstance(pattern, dict):
            made, text = sum(of[one] for one in str(rule.get("content"))), pattern.get("String")
            if isinstance(text, str) and text:
                of[text[0]] = max(of[text[0]], made)
            else:  # which may match between any two characters
                most = max([usual, *of.values()]) + made
                usual = most
                of.clear()
        elif kind in GROWTH:  # what it becomes may be any other
            usual = GROWTH[str(kind)] * max([usual, *of.values()])
            of.clear()
    return max([usual, *of.values()]) + before


class _Branch(NamedTuple):
    """What was read of a group of a pattern: repetitions in a row, and whether there is another branch."""

    repeats: int = 0
    unbounded: int = 0
    nests: bool = False  # a repetition or an alternative is in it


def fault_of_pattern(pattern: str) -> str:
    """Return why the time that a regular expression takes has no bound, or ''.

    Refused are a repetition of what repeats or has alternatives, many repetitions in a row, and references to
    what was matched. That is stricter than it must be.
    """
    open_groups, here, last, place = [], _Branch(), _Branch(), 0
    while place < len(pattern):
        mark = pattern[place]
        size, most = _quantifier_at(pattern, place)
        if size:
            if most > 1 and last.nests:
                return _cut(pattern, "repeats what repeats, or has alternatives")
            if most > MAX_REPEAT and most != float("inf"):
                return _cut(pattern, f"repeats {most:.0f} times")
            here = _Branch(here.repeats + 1, here.unbounded + (most > FEW), here.nests or most > 1)
            if here.repeats > MAX_REPEATS or here.unbounded > MAX_UNBOUNDED:
                return _cut(pattern, "has many repetitions in a row")
            last = _Branch(nests=True)
        elif mark == "(":
            size = _opening_at(pattern, place)
            if pattern[place : place + 3] in ("(?(", "(?~"):
                return _cut(pattern, "has a condition")
            open_groups.append(here)
            last, here = _Branch(), _Branch()
        elif mark == ")":
            if not open_groups:
                return ""  # the library says it
            outer, size, last = open_groups.pop(), 1, here
            repeats, unbounded = outer.repeats + here.repeats, outer.unbounded + here.unbounded
            here = _Branch(repeats, unbounded, outer.nests or here.nests)
        elif mark == "|":
            size, last, here = 1, _Branch(), _Branch(nests=True)
        else:
            size, last = _atom_at(pattern, place), _Branch()
            if mark == "\\" and pattern[place + 1 : place + 2] in tuple("123456789kg"):
                return _cut(pattern, "refers to what was matched")
        place += size
    return ""


def _cut(pattern: str, fault: str) -> str:
    shown = json.dumps(pattern if len(pattern) <= 60 else f"{pattern[:60]}...", ensure_ascii=False)
    return f"a pattern, {shown}, that {fault}"


def _quantifier_at(pattern: str, place: int) -> Any:
    """Return the length of a quantifier, 0 for none, and how often it repeats at most."""
    mark = pattern[place]
    size, most = (1, {"*": float("inf"), "+": float("inf"), "?": 1}.get(mark, 0))
    if mark == "{":
        inside, _, _ = pattern[place + 1 :].partition("}")
        least, comma, upper = inside.partition(",")
        if not (least + upper).isdecimal():
            return 0, 0
        size = len(inside) + 2
        most = float(upper or "inf") if comma else float(least)
    if not most:
        return (size, 1) if mark == "{" else (0, 0)
    following = pattern[place + size : place + size + 1]
    return size + (following in ("?", "+") and following != ""), most


def _opening_at(pattern: str, place: int) -> int:
    """Return the length of what opens a group: ( (?: (?<name> (?i: and the like."""
    if pattern[place + 1 : place + 2] != "?":
        return 1
    for end in range(place + 2, len(pattern)):
        if pattern[end] in ":=!>)":
            behind = pattern[place + 2 : end]
            return end - place + (pattern[end] != ")" or behind == "")
    return len(pattern) - place


def _atom_at(pattern: str, place: int) -> int:
    """Return the length of a character, an escape or a class."""
    if pattern[place] == "\\":
        brace = pattern[place + 2 : place + 3] == "{" and pattern[place + 1 : place + 2] in "pPxou"
        return pattern.find("}", place) - place + 1 if brace and "}" in pattern[place:] else 2
    if pattern[place] != "[":
        return 1
    depth, end = 1, place + 1
    end += pattern[end : end + 1] == "^"
    end += pattern[end : end + 1] == "]"
    while end < len(pattern) and depth:
        depth += {"[": 1, "]": -1}.get(pattern[end], 0)
        end += 2 if pattern[end] == "\\" else 1
    return end - place


def _characters_of(pattern: str) -> Iterator[str]:
    """Yield characters that parts of a pattern match."""
    place = 0
    while place < len(pattern):
        one = pattern[place]
        if one == "\\":
            name = pattern[place + 1 : place + 2]
            inside = pattern[place + 3 : place + 4] if pattern[place + 2 : place + 3] == "{" else name
            yield CLASSES.get(name) or PROPERTIES.get(inside) or name or "a"
            place += 2
            continue
        yield "a" if one in ".[](){}|*+?^$" else one
        place += 1
