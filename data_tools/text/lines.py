"""Decode a line of a text file, or report with file and line why it cannot be decoded."""

from dataclasses import dataclass

from data_tools.base.errors import InputError
from data_tools.files.json_file import JsonError, kind_of, parse_json

BAD_BYTES_HELP = (
    "a line that is not UTF-8: end the run with an error, or replace its invalid bytes with U+FFFD"
)
LONGEST_LINE = 64 << 20
ENCODINGS = ("utf-8", "gb18030", "gbk", "big5")
_SNIPPET = 60
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_UTF16_HINT = "it looks like UTF-16: convert the file with iconv -f UTF-16 -t UTF-8"


@dataclass(frozen=True)
class LineRules:
    """The rules for a line.

    json_key   the key of the text, for lines of JSON
    max_bytes  a longer line is refused
    replaces   bytes that are not UTF-8 become U+FFFD; otherwise such a line is refused
    encoding   of the bytes; utf-8, or one of ENCODINGS, in which LF is a byte of its own
    has_flag   the command has --encoding, which an error may suggest
    keeps_cr   a CR inside the line is text
    """

    json_key: str = "text"
    max_bytes: int = LONGEST_LINE
    replaces: bool = False
    encoding: str = "utf-8"
    has_flag: bool = False
    keeps_cr: bool = False


STRICT = LineRules()


def decoded(path: str, number: int, line: bytes, rules: LineRules = STRICT) -> str:
    """Decode line ``number`` (from 1) of the file ``path`` to text.

    Raises InputError with file:line for a line that is too long, not text, or contains a CR.
    """
    where = f"{path}:{number}"
    if len(line) > rules.max_bytes:
        raise InputError(
            f"{where}: the line is above {rules.max_bytes} bytes; cut it, or raise --max_line_bytes"
        )
    if b"\r" in line and not rules.keeps_cr:
        raise InputError(f"{where}: CR inside the line; save the file with LF or CRLF line ends")
    if rules.encoding != "utf-8":
        return _decoded_as(where, line, rules.encoding).removeprefix("\ufeff" if number == 1 else "")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        is_utf16 = number == 1 and line.startswith(_UTF16)
        if rules.replaces and not is_utf16:
            return line.decode("utf-8", "replace")
        found = f"byte {error.start + 1} of the line is 0x{line[error.start]:02x}"
        hint = _UTF16_HINT if is_utf16 else _encoding_hint(line, error, rules)
        raise InputError(f"{where}: not UTF-8 ({found}); {hint}") from None


def _decoded_as(where: str, line: bytes, encoding: str) -> str:
    try:
        return line.decode(encoding)
    except UnicodeDecodeError as error:
        found = f"byte {error.start + 1} of the line is 0x{line[error.start]:02x}"
        hint = "give the encoding of the file with --encoding, or correct it"
        if _is_utf8(line):
            hint = "it is UTF-8, and one --encoding holds for all files: convert the others by "
            hint += f"iconv -f {encoding} -t UTF-8"
        raise InputError(f"{where}: not {encoding} ({found}); {hint}") from None


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def num_invalid_bytes(line: bytes) -> int:
    """Count the bytes of ``line`` that are not UTF-8: those that `decoded` replaces if asked to."""
    return len(line) - len(line.decode("utf-8", "ignore").encode("utf-8"))


def json_text(path: str, number: int, line: bytes, rules: LineRules) -> str:
    """Return the text under the key of a JSON line. Raises InputError with file:line for anything else."""
    where = f"{path}:{number}"
    text = decoded(path, number, line, rules)
    try:
        record = parse_json(text)
    except JsonError as error:
        place, cut = where, ""
        if error.column:  # not even JSON
            place = f"{where}:{error.column}"
            cut = "" if text.rstrip().endswith("}") else " (is the line cut short?)"
        snippet = _snippet(text, max(error.column - 1, 0))
        raise InputError(f"{place}: {error}{cut}: {snippet}; correct the line") from None
    return _text_of(record, rules.json_key, where)


def _text_of(record, key: str, where: str) -> str:
    if not isinstance(record, dict):
        raise InputError(f'{where}: {kind_of(record)}, not an object; write {{"{key}": "..."}}')
    if key not in record:
        keys = ", ".join(record) or "none"
        raise InputError(f"{where}: no key '{key}', it has {_snippet(keys)}; pass the right --json_key")
    text = record[key]
    if not isinstance(text, str):
        raise InputError(f"{where}: '{key}' is {kind_of(text)}, not a text; put it in quotes")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = f"\\u{ord(text[error.start]):04x}"
        raise InputError(
            f"{where}: half a surrogate pair ({code}); remove it or write the whole pair"
        ) from None
    return text


def _snippet(text: str, place: int = 0) -> str:
    """Cut at most 60 characters out of ``text`` with ``place`` among them."""
    begin = max(0, min(place - _SNIPPET // 2, len(text) - _SNIPPET))
    end = begin + _SNIPPET
    return f"{'...' if begin else ''}{text[begin:end]}{'...' if end < len(text) else ''}"


def _encoding_hint(line: bytes, error: UnicodeDecodeError, rules: LineRules) -> str:
    if error.reason == "unexpected end of data":
        return "its last character is cut short: copy the file again, or fix the line"
    if _is_gb18030(line):
        if rules.has_flag:
            return "it looks like GB18030: pass --encoding gb18030"
        return "it looks like GB18030: convert the file with iconv -f GB18030 -t UTF-8"
    return "fix the line"


def _is_gb18030(line: bytes) -> bool:
    """Return whether ``line`` is GB18030.

    A damaged line of UTF-8 often decodes as well; it has few bytes that are not UTF-8.
    """
    try:
        line.decode("gb18030")
    except UnicodeDecodeError:
        return False
    return 2 * num_invalid_bytes(line) > sum(byte > 127 for byte in line)
