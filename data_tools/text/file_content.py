"""What a file holds, told by its bytes and not by its name: compression, encoding, or that it is no text.

`unpacked` reads a plain, .gz, .zst, .bz2 or .xz file piece by piece. Archives, documents, pages and other
files that are no text are refused with their name and the command that converts them. Text is UTF-8, GB18030,
UTF-16 or UTF-32; what its bytes show to be Korean, Japanese or Big5 is refused by that name, never
decoded as anything else.
"""

import bz2
import codecs
import gzip
import lzma
import re
import shlex
import sys
import zipfile
import zlib
from functools import lru_cache, partial
from itertools import chain, count
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

from ernie_pair.core.errors import InputError, again_with
from ernie_pair.core.installation import import_optional

CHUNK = 1 << 20
PACKED = (".gz", ".zst", ".bz2", ".xz")
ENCODINGS = ("utf-8", "gb18030", "gbk", "big5")
_PACKED_BYTES = 512  # of a .zst that are unpacked at a time: to 16 MiB at the very most
_LOOKED_THROUGH = 64 << 20  # bytes of plain ASCII before a file is taken for UTF-8
_MARKS = {  # the longer ones first
    b"\xff\xfe\0\0": "utf-32-le",
    b"\0\0\xfe\xff": "utf-32-be",
    b"\xff\xfe": "utf-16-le",
    b"\xfe\xff": "utf-16-be",
}
_TAR = (257, b"ustar")
_ZIP = b"PK\x03\x04"
_PACKERS = {
    b"\x28\xb5\x2f\xfd": "zstd -dc",
    b"\x1f\x8b": "gzip -dc",
    b"\xfd7zXZ\0": "xz -dc",
    b"BZh": "bzip2 -dc",
}
SHEET, PARQUET, ARROW, TEXT = "sheet", "parquet", "arrow", "text"
# How a file begins that is no text: what it is, and what makes a text of it ({0}: FILE, {1}: NEW).
_BEGINNINGS: Dict[bytes, Tuple[str, str]] = {
    b"PAR1": ("a table of Parquet", "save it as .csv"),
    b"ARROW1": ("a table of Arrow", "save it as .csv"),
    b"%PDF-": ("a PDF", "convert it: pdftotext {0} {1}"),
    b"\xd0\xcf\x11\xe0": ("a file of Office 97-2003 or WPS", "save it as .xlsx, .csv or .txt"),
    b"{\\rtf": ("a document of RTF", "save it as .txt"),
    b"7z\xbc\xaf\x27\x1c": ("an archive of 7-Zip", "unpack it: 7z x {0} -o{1}"),
    b"Rar!\x1a\x07": ("an archive of RAR", "unpack it: unrar x {0} {1}/"),
    b"SQLite format 3\0": ("a database of SQLite", "write its table as .csv"),
    b"\x93NUMPY": ("an array of NumPy", "write its texts as .txt"),
    b"\x89PNG\r\n": ("a picture", "give a text"),
    b"\xff\xd8\xff": ("a picture", "give a text"),
    b"\x7fELF": ("a program", "give a text"),
    **{b"\x80" + bytes([version]): ("a pickle of Python", "save it as .csv") for version in (2, 3, 4, 5)},
}
_PARTS_OF_ZIP = {  # a file in it: what it is then
    "word/document.xml": ("a document of Word", "convert it: pandoc -t plain {0} -o {1}"),
    "ppt/presentation.xml": ("a presentation of PowerPoint", "save it as .txt"),
    "content.xml": ("a file of OpenDocument", "save it as .xlsx, .csv or .txt"),
    "META-INF/container.xml": ("a book of EPUB", "convert it: pandoc -t plain {0} -o {1}"),
}
_WORKBOOK = "xl/workbook.xml"
_MARKUP = re.compile(rb"(?:<!--.*?-->\s*)*(<!doctype html|<html|<head|<body|<\?xml|<mediawiki)", re.DOTALL)
# Most characters of a text in the encoding are among these; wrongly decoded text has hardly any of them.
_HANZI = (
    "的，么。是什一？了有呗在不怎我花、人个为好用以和这大还可上吗子中年能小生下时于会里机行国他到学分地款借哪来天要出“样电动手”·说后法"
    "开发作多看最成第对家部度自理本没期现意宝名定月物关得通斯方过业您也提日应之工条付（）面当公高市去文：们如女就求前信与特区主支号三十其"
    "道经合者二尔思额字性网那你影水西；体新进都钱利位化而并民加事结长吃明着建请全设所种问表制实及！代政卡果同使啊何车起蚁克等单蚂东做头些"
    "想门管品员图谁德由比给世语海然点安间账》色规《游或收回只被少办内数相心系产费但情无美金马老务知从件因片亚服科拉教量重候处改查外力牌呢"
    "打见别码正又计保气州男证四才玩该两它组变很界型视流已话程取次叫路儿南格线基载几入常北买式将己院联立交解术运快原活爱资向统把站白平乐算"
)
_TRADITIONAL = (
    "個這來時們說國為會過對學後裡開關發現經動業點樣實體當電話機長無還讓請問氣車門東馬書見頭親覺應義務號處從產條連達選邊變廣員運報類術聯議題師"
    "萬歲階讀寫買賣錢銀單擔線練習戰爭權麼嗎給誰誤訊網臺灣幾與樂場愛記兩總區進帳戶辦"
)
_HANGUL = (
    "이다는을가의에하고지로를은한기도서사있어시자인대나정리라들주수아일해안그게보면전만부장과성요상제구여원유조스공니경으오우무선생학업문동비국방화치연"
    "금년신진것등했었합습세실때내같말마모할됩중않좋행계용관당입분후소통결속식회물적산영간위배약심임저민불건현재강추미작품교단운체차예개최초호까데"
)
_KANA = "".join(map(chr, range(0x3041, 0x30F7))) + "ー、。"
_KANJI = (
    "日本人一大年中国会者事自分方法地場合手間時前後今何見行出入力上下生学気天雨電話口座開設銀行円通帳番号変更確認申込用紙住所金額"
    "利料支払引落振込明細書証券保険会社員店内外名前登録解約再発送受取期限定額実売買車駅東京都道府県市区町村家族水火木土曜週月新古"
)
_LETTERS = "äöüßÄÖÜéèêëàâçîïôûùœáíóúñåæøãõìò’“”–€"
_LIKELY = {
    "gb18030": frozenset(_HANZI),
    "euc_kr": frozenset(_HANGUL),
    "big5": frozenset(_HANZI + _TRADITIONAL),
    "big5hkscs": frozenset(_HANZI + _TRADITIONAL + "嘅喺唔咗哋啲嚟咁冇"),
    "shift_jis": frozenset(_KANA + _KANJI),
    "euc_jp": frozenset(_KANA + _KANJI),
    "cp1252": frozenset(_LETTERS),
}
_CALLED = {
    "euc_kr": "EUC-KR",
    "big5": "BIG5",
    "big5hkscs": "BIG5-HKSCS",
    "shift_jis": "SHIFT_JIS",
    "euc_jp": "EUC-JP",
    "cp1252": "CP1252",
}
_ENOUGH = 0.2  # of the characters are likely ones, or a text is of no known encoding
_OF_LETTERS = 0.9  # in a text of European letters, which has more of ASCII
_BESIDES = 0.6  # of that share in a second encoding, and it is not clear which
_COMPARED = 1 << 16  # bytes that tell the encoding


def unreadable(path: Path, error: OSError) -> InputError:
    """Return the error about a file or folder that the system does not let be read."""
    return InputError(f"{path}: cannot be read ({error.strerror}); fix its permissions, or leave it out")


def detect_kind(path: Path) -> str:
    """Return what is in a file: SHEET, PARQUET, ARROW, or TEXT for what `unpacked` reads or refuses.

    Raises InputError for a document or an archive in a zip, and for a file that cannot be read.
    """
    try:
        with open(path, "rb") as content:
            begin = content.read(8)
            if not begin.startswith(_ZIP):
                return {b"PAR1": PARQUET, b"ARRO": ARROW, b"\xff\xff\xff\xff": ARROW}.get(begin[:4], TEXT)
        if _is_workbook(path):
            return SHEET
    except OSError as error:
        raise unreadable(path, error) from None
    return TEXT


def _is_workbook(path: Path) -> bool:
    """Return whether a zip is a workbook of Excel. Raises InputError for what else it is."""
    try:
        with zipfile.ZipFile(path) as content:
            names = set(content.namelist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        raise InputError(
            f"{path}: a workbook or an archive that is damaged or cut short; copy it again"
        ) from None
    if _WORKBOOK in names:
        return True
    parts = [known for part, known in _PARTS_OF_ZIP.items() if part in names]
    raise _no_text(path, *(parts or [("an archive of zip", "unpack it: unzip {0} -d {1}")])[0])


def free_name(stem: str, ending: str = "", mark: str = ".plain") -> str:
    """Return a name of no file: STEM.txt for the ending .txt, else STEM.plain.txt, STEM.plain2.txt, ..."""
    more = (f"{stem}{mark}{number}{ending}" for number in count(2))
    names = chain((f"{stem}{ending}", f"{stem}{mark}{ending}"), more)
    return next(name for name in names if not Path(name).exists())


def _no_text(path: Path, what: str, cure: str, packer: str = "") -> InputError:
    """Return the error about a file that is no text; ``cure`` has {0} for its path and {1} for a new one.

    ``packer``: the command that unpacks it to standard output, where it is packed as well.
    """
    stem = (
        str(path)[: -len("".join(path.suffixes[-2:]))] if ".tar." in path.name else str(path.with_suffix(""))
    )
    given, made = shlex.quote(str(path)), ""
    if packer and "tar -xf" not in cure:
        made = free_name(stem, mark=".unpacked")
        done = f"unpack it: {packer} {given} > {shlex.quote(made)}"
    else:
        made = free_name(stem, mark=".unpacked") if "unpack it" in cure else ""
        made = free_name(stem, ".txt") if "convert it" in cure else made
        done = cure.format(given, shlex.quote(made))
    again = f"; then: {again_with({str(path): made})}" if made else ""
    return InputError(f"{path} is {what}, not a text; {done}{again}")


def check_is_text(path: Path, begin: bytes, packer: str = "") -> None:
    """Raise InputError if ``begin``, the first unpacked bytes of a file, is no beginning of a text."""
    if packer and _packer_of(begin):
        raise _no_text(path, "packed twice", "", packer)
    if begin[_TAR[0] :].startswith(_TAR[1]):
        raise _no_text(path, "an archive of tar", "unpack it: mkdir {1} && tar -xf {0} -C {1}")
    if begin.startswith(_ZIP):
        if not packer and _is_workbook(path):
            raise _no_text(path, "a workbook of Excel", "save it as .csv")
        raise _no_text(path, "an archive of zip", "unpack it: unzip {0} -d {1}", packer)
    for known, (what, cure) in _BEGINNINGS.items():
        if begin.startswith(known):
            raise _no_text(path, what, cure, packer)
    text = begin[:4096].replace(b"\0", b"").lstrip(b"\xef\xbb\xbf\xff\xfe \t\r\n").lower()
    markup = _MARKUP.match(text)
    if markup and markup[1] in (b"<?xml", b"<mediawiki") and b"<html" not in text:
        raise _no_text(path, "XML", "write its texts as .txt or .jsonl", packer)
    if markup:
        raise _no_text(path, "a page of HTML", "convert it: pandoc -f html -t plain {0} -o {1}", packer)


def _packer_of(begin: bytes) -> str:
    """Return the command that unpacks to standard output what begins so; '' for what is not packed."""
    return next((command for mark, command in _PACKERS.items() if begin.startswith(mark)), "")


def unpacked(path: Path, advance: Callable[[int], None] = lambda count: None) -> Iterator[bytes]:
    """Yield the bytes of a plain or compressed file in pieces of about 1 MiB.

    ``advance`` is called with the bytes read from the disk. Raises InputError for a file that cannot be read,
    is damaged or cut short, or is no text.
    """
    try:
        raw = open(path, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise unreadable(path, error) from None
    with raw:
        done, is_first, packer = 0, True, _packer_of(raw.peek(6)[:6])
        try:
            for chunk in _unpack(raw):
                if is_first:
                    check_is_text(path, chunk, packer)
                    is_first = False
                yield chunk
                advance(raw.tell() - done)
                done = raw.tell()
        except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # bz2 raises one without a number
                raise
            raise InputError(
                f"{path}: damaged or cut short, read {raw.tell()} bytes of it; copy or compress it again"
            ) from None


def _unpack(raw: Any) -> Iterator[bytes]:
    begin, opened = raw.peek(6)[:6], raw
    if begin.startswith(b"\x28\xb5\x2f\xfd"):
        return _gather(_unpacked_zst(raw))
    if begin.startswith(b"\x1f\x8b"):
        opened = gzip.GzipFile(fileobj=raw)
    elif begin.startswith(b"\xfd7zXZ\0"):
        opened = lzma.LZMAFile(raw)  # noqa: SIM115 - its caller closes ``raw``
    elif begin.startswith(b"BZh"):
        opened = bz2.BZ2File(raw)
    elif begin and Path(raw.name).suffix.lower() in PACKED:
        raise EOFError  # its name says that it is packed
    return iter(partial(opened.read, CHUNK), b"")


def _unpacked_zst(raw: BinaryIO) -> Iterator[bytes]:
    """Unpack frame after frame; unlike the library's stream reader, notice a truncated frame."""
    zstandard = import_optional("zstandard")
    make = zstandard.ZstdDecompressor().decompressobj
    frame, fresh = make(), True
    for packed in iter(lambda: raw.read(_PACKED_BYTES), b""):
        while packed:
            try:
                yield frame.decompress(packed)
            except zstandard.ZstdError:
                raise EOFError from None
            packed, fresh = frame.unused_data, frame.eof
            if frame.eof:
                frame = make()
    if not fresh:
        raise EOFError


def _gather(pieces: Iterator[bytes]) -> Iterator[bytes]:
    held: List[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= CHUNK:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)


def detect_encoding(path: Path) -> str:
    """Return the encoding of a text file: utf-8, gb18030, or utf-16 or utf-32 with -le or -be.

    What can be UTF-8 is; so is a file with a few damaged lines, or none of whose first 64 MiB is beyond
    ASCII. UTF-16 and UTF-32 are known by their mark or zero bytes, GB18030 by its characters. Raises
    InputError naming the encoding for Korean, Japanese and Big5, and as `unpacked` does.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise unreadable(path, error) from None
    return _detect_encoding(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=256)
def _detect_encoding(path: Path, *stamp: int) -> str:
    passed, found = 0, "utf-8"
    for chunk in unpacked(path):
        found = encoding_in(chunk, is_first=not passed) or ""
        passed += len(chunk)
        if found or passed > _LOOKED_THROUGH:
            break
    if found in _CALLED:
        with open(path, "rb") as raw:
            packer = _packer_of(raw.read(6))
        name, given = _CALLED[found], shlex.quote(str(path))
        plain = path.with_suffix("") if packer and path.suffix in PACKED else path
        new = free_name(f"{plain.with_suffix('')}.utf8", plain.suffix, ".new")
        made = (
            f"{packer} {given} | iconv -f {name} -t UTF-8" if packer else f"iconv -f {name} -t UTF-8 {given}"
        )
        raise InputError(
            f"{path} is {name}, as its bytes show, and only UTF-8, GB18030 and UTF-16 are read; convert it: "
            f"{made} > {shlex.quote(new)}; then: {again_with({str(path): new})}"
        )
    return found or "utf-8"


def report_encodings(paths: Iterable[Path]) -> None:
    """Write a line to standard error for each encoding but UTF-8 that files are found to be in."""
    others: Dict[str, List[str]] = {}
    for path in paths:
        if detect_kind(path) == TEXT and detect_encoding(path) != "utf-8":
            others.setdefault(detect_encoding(path), []).append(str(path))
    for encoding, names in others.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        sys.stderr.write(f"read as {encoding.upper()}, as their bytes say: {', '.join(names[:3])}{more}\n")


def encoding_in(chunk: bytes, is_first: bool) -> Optional[str]:
    """Return the encoding of a text by its bytes; None where they are all ASCII."""
    if is_first:
        marked = next((name for mark, name in _MARKS.items() if chunk.startswith(mark)), None)
        wide = marked or _wide_encoding(chunk)
        if wide:
            return wide
    if chunk.isascii():
        return None
    if decodes(chunk, "utf-8", is_cut=True):
        return "utf-8"
    # A few damaged bytes among whole characters of three bytes.
    whole = sum(char >= "\u0800" for char in chunk.decode("utf-8", "ignore"))
    is_damaged = 6 * whole >= sum(byte > 127 for byte in chunk)
    *lines, last = chunk.split(b"\n")  # which may be cut
    others = [line for line in lines if not line.isascii()] or [last]
    foreign = b"\n".join(line for line in others if not is_utf8_line(line))
    # Lines of UTF-8 below are minded by `read_lines` and by tables.
    return "utf-8" if is_damaged or is_utf8_line(others[0]) else likely_encoding(foreign) or "utf-8"


def _wide_encoding(chunk: bytes) -> str:
    """Return UTF-16 or UTF-32 for a text with their zero bytes and no mark, else ''."""
    quarter = len(chunk) // 4
    zeros = [chunk[place::4].count(0) for place in range(4)]
    if quarter and not len(chunk) % 4:
        for order, last in (("le", 3), ("be", 0)):
            name, is_wide = f"utf-32-{order}", zeros[last] == quarter and 4 * zeros[3 - last] < quarter
            if is_wide and decodes(chunk, name, is_cut=True):
                return name
    low, high = zeros[1] + zeros[3], zeros[0] + zeros[2]  # of the byte order that begins with the low one
    most, least = max(low, high), min(low, high)
    order = "utf-16-le" if low == most else "utf-16-be"
    is_plain = most > len(chunk) // 3 and 4 * least < most
    if is_plain or 4 * least < most and not decodes(chunk, "utf-8", is_cut=True):
        return order if is_plain or decodes(chunk, order, is_cut=True) else ""
    return ""


def likely_encoding(text: bytes) -> str:
    """Return the one encoding in which ``text`` is of frequent characters; '' where that is not clear."""
    shares = {}
    for name, likely in _LIKELY.items():
        try:
            decoder = codecs.getincrementaldecoder(name)()
            characters = [char for char in decoder.decode(text[:_COMPARED]) if not char.isascii()]
        except UnicodeDecodeError:
            continue
        if characters:
            shares[name] = sum(char in likely for char in characters) / len(characters)
    if "big5" in shares:  # which the other one includes
        shares.pop("big5hkscs", None)
    if shares.get("cp1252", 0) < _OF_LETTERS or 4 * sum(byte > 127 for byte in text) > len(text):
        shares.pop("cp1252", None)  # decodes nearly anything
    best = max(shares, key=shares.__getitem__, default="")
    others = [share for name, share in shares.items() if name != best]
    is_clear = bool(best) and shares[best] >= _ENOUGH and max(others, default=0.0) <= _BESIDES * shares[best]
    return best if is_clear and (best == "gb18030" or shares[best] >= 1.5 * _ENOUGH) else ""


def decodes(text: bytes, encoding: str, is_cut: bool = False) -> bool:
    """Return whether ``text`` is of ``encoding``; ``is_cut``: its last character may be cut short."""
    try:
        codecs.getincrementaldecoder(encoding)().decode(text, not is_cut)
    except UnicodeDecodeError:
        return False
    return True


def num_invalid_bytes(line: bytes) -> int:
    """Count the bytes of ``line`` that are not UTF-8: those that `decoded` replaces if asked to."""
    return len(line) - len(line.decode("utf-8", "ignore").encode("utf-8"))


def is_utf8_line(line: bytes) -> bool:
    """Return whether a line is UTF-8 and can hardly be anything else: most characters are of three bytes."""
    try:
        others = [char for char in line.decode("utf-8") if char > "\x7f"]
    except UnicodeDecodeError:
        return False
    long = sum(char >= "\u0800" for char in others)
    return long > 1 and 2 * long > len(others)
