"""Documents encoded to ids, and kept on disk in pieces, so that a killed run continues where it stopped.

Texts are encoded several at a time, joined by line ends: nothing here looks past a line end, so the ids of a
document do not depend on the texts around it.

PREFIX.shards/made_from.json   all that the shards depend on besides the lines of the input
PREFIX.shards/00000007.shard   ids, lens and documents of about 1 MiB of lines, and their counts

A shard is an .npz that stores the hash of its lines and is reused only while they are the same; checksums of
its members detect one that a failing machine left half written. Shards do not depend on each other or on the
process that makes them: any pool, on one machine or on many that share the folder, may run a `ShardMaker`.
"""

import hashlib
import json
import re
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple
from zipfile import BadZipFile

import numpy as np

from data_tools.corpus.writer import Joining, join_documents
from data_tools.text.file_content import num_invalid_bytes
from data_tools.text.folder_tokenizer import open_vocabulary
from data_tools.text.text_files import LineRules, json_text
from data_tools.text.texts import LineBatch, line_batches
from data_tools.text.wordpiece import code_points
from data_tools.text.words import Lexicon, mark_words, presegmented, segmenter, word_begins
from ernie_pair.core.errors import InputError, MachineError
from ernie_pair.core.files.atomic_files import DRAFT, WORK_LOCK, published, stem_of, working_folder
from ernie_pair.core.files.json_file import parse_json

CHARACTERS_AT_ONCE = 1 << 15  # few enough that they, their words and ids stay in the CPU's cache
LINE_END = "\n"
CHINESE_END = "[。！？；…]+[”’」』）》〉】]*"
# A capital before the point is an initial, as in J. Smith; a new sentence begins with a capital or a digit.
LATIN_END = r"(?<!\b[A-Z])[.!?]+[\"')\]”’]*(?=\s+[\"'(“‘]?[A-Z0-9])"


@dataclass(frozen=True)
class EncodingRules:
    """All that determines the ids of a document; small enough to send to a worker.

    ends       regular expression of sentence ends
    segmenter  name of the word segmenter (`words.segmenter`); None: words are not marked
    separator  separator between the words of text that is already split; None: it is not split
    lexicon    file of words that are never split, by any segmenter (`Lexicon`); None: there is none
    """

    vocab_file: str
    ends: str = LINE_END
    segmenter: Optional[str] = None
    separator: Optional[str] = None
    max_sentence_length: int = 510
    lexicon: Optional[str] = None


class Encoded(NamedTuple):
    """The ids of several texts.

    ids    int32 [tokens], of all texts end to end
    lens   int32 [sentences], tokens of each sentence
    sizes  int64 [texts], sentences of each text; 0 when it has no tokens
    marks  uint8 [tokens], the lexicon's (`Lexicon.find_marks`); [0] without a lexicon
    """

    ids: np.ndarray
    lens: np.ndarray
    sizes: np.ndarray
    marks: np.ndarray
    num_cut: int
    num_lexicon_words: int


class DocumentEncoder:
    """Encodes texts to ids by ``rules`` alone. Raises InputError without '##' twins to mark words with."""

    def __init__(self, rules: EncodingRules):
        self.rules = rules
        self.tokenizer = open_vocabulary(rules.vocab_file)
        self._ends = re.compile(rules.ends)
        self._words_of = segmenter(rules.segmenter) if rules.segmenter else None
        self._given_words_of = presegmented(rules.separator) if rules.separator else None
        self.lexicon = Lexicon.from_file(rules.lexicon) if rules.lexicon else None
        if (rules.segmenter or rules.separator) and (self.tokenizer.continuation_ids < 0).all():
            cure = "give the vocabulary of an ERNIE or a BERT"
            if self.tokenizer.is_word_piece:
                cure = "add them with build_vocab --add_twins_to"
            raise InputError(
                f"{rules.vocab_file} has no '##' twins of Chinese characters, which "
                f"--cn_whole_word_segment needs; {cure}"
            )

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode texts, one document each, to ids and their division into sentences.

        The concatenated ids of a text's sentences are those of the text, except for '##' twins of words.
        """
        parts = [self._encode(group) for group in _groups(texts)]
        *arrays, num_cut, num_found = zip(*parts)
        joined: Any = [*map(np.concatenate, arrays), sum(num_cut), sum(num_found)]
        return Encoded(*joined)

    def _encode(self, texts: Sequence[str]) -> Encoded:
        text, words = "\n".join(texts), None
        if self._words_of:
            words = word_begins(self._words_of(text))
        elif self._given_words_of:
            text, words = self._given_words_of(text)
        ids, starts, _ = self.tokenizer.tokenize(text)
        # Where each of the texts ends: splitting into words keeps the lines.
        line_ends = np.append(np.flatnonzero(code_points(text) == ord("\n")), len(text))
        lines = np.cumsum([part.count("\n") + 1 for part in texts], dtype=np.int64)
        text_ends = line_ends[lines - 1].astype(np.int32)
        sentence_ends = [match.end() for match in self._ends.finditer(text)]
        ends = np.unique(np.concatenate([sentence_ends, text_ends]).astype(np.int32))
        marks, num_found = np.zeros(0, np.uint8), 0
        if words is not None:
            if self.lexicon:
                found = self.lexicon.find(text)
                self.lexicon.keep_whole(words, found)
                marks, num_found = self.lexicon.find_marks(starts, found), len(found)
            words[ends] = True  # a word may extend over a sentence end
            ids = mark_words(words, ids, starts, self.tokenizer.continuation_ids)
        bounds = np.unique(np.append(0, np.searchsorted(starts, ends)))
        cuts = self._cuts(ids, bounds)
        bounds = np.sort(np.concatenate([bounds, *cuts]))
        text_bounds = np.append(0, np.searchsorted(starts, text_ends))
        sizes = np.diff(np.searchsorted(bounds, text_bounds))
        return Encoded(ids, np.diff(bounds).astype(np.int32), sizes, marks, len(cuts), num_found)

    def _cuts(self, ids: np.ndarray, bounds: np.ndarray) -> List[List[int]]:
        """Return where each too long sentence is cut, inside a word only if that is too long itself."""
        limit = self.rules.max_sentence_length
        cuts: List[List[int]] = []
        for sentence in np.flatnonzero(np.diff(bounds) > limit).tolist():
            begin, end = bounds[sentence : sentence + 2].tolist()
            cuts.append([])
            while end - begin > limit:
                word_starts = np.flatnonzero(
                    ~self.tokenizer.is_continuation[ids[begin + 1 : begin + limit + 1]]
                )
                begin += int(word_starts[-1]) + 1 if len(word_starts) else limit
                cuts[-1].append(begin)
        return cuts


def _groups(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield ``texts`` in groups, at least one, in order; none but the last is below CHARACTERS_AT_ONCE."""
    first, size = 0, 0
    for number, text in enumerate(texts):
        if size >= CHARACTERS_AT_ONCE:
            yield texts[first:number]
            first, size = number, 0
        size += len(text)
    yield texts[first:]


SHARD_BYTES = 1 << 20  # of lines; decides where a run resumes, never the content of the corpus
COUNTED = (
    "lines blank_lines rejected_lines replaced_bytes documents empty_documents joined_documents"
    " one_sentence_documents cut_sentences lexicon_words tokens unknown_tokens"
).split()
_ARRAYS = ("ids", "lens", "documents", "marks")
_MADE_FROM, _SHARD = "made_from.json", re.compile(r"\d{8}\.shard")


class Rejected(NamedTuple):
    """A line that is not a document."""

    file: str
    line: int
    reason: str


class Shard(NamedTuple):
    """The documents of consecutive lines of one file.

    ids int32 [tokens], lens int32 [sentences], documents int64 [documents]: the sentences of each;
    marks uint8 [tokens], the lexicon's, [0] without one.
    counts has the keys of COUNTED; lines = blank_lines + rejected_lines + documents + empty_documents +
    joined_documents, which are those that were appended to the one before them. Of text that is already
    split into words it also has separators.
    """

    file: str
    ids: np.ndarray
    lens: np.ndarray
    documents: np.ndarray
    marks: np.ndarray
    counts: Dict[str, int]
    rejected: List[Rejected]


def shard_jobs(
    inputs: Iterable[Path], advance: Callable[[int], None], rules: LineRules
) -> Iterable[Tuple[int, LineBatch]]:
    """Cut the lines of all inputs into the jobs of shards, in the same way in every run."""
    return enumerate(line_batches(inputs, advance, SHARD_BYTES, rules))


@dataclass(frozen=True)
class ShardMaker:
    """Makes shards: (number, lines) -> the shard on disk, made or found there. Picklable; idempotent.

    Raises InputError with file:line for the first line that is not a document, unless ``skip_bad_lines``.
    """

    folder: Path
    rules: EncodingRules
    line_rules: LineRules
    skip_bad_lines: bool
    joining: Joining
    made_from: str

    def __call__(self, job: Tuple[int, LineBatch]) -> Path:
        """Make the shard of ``job``, unless it exists, and return its path."""
        number, batch = job
        path = self.folder / f"{number:08d}.shard"
        digest = hashlib.sha256(json.dumps([self.made_from, batch.path, batch.first]).encode())
        for line in batch.lines:
            digest.update(line + b"\n")
        key = digest.hexdigest()
        if _read(path, key) is None:
            encoder = encoder_for(self.rules)
            shard = encode_lines(encoder, self.line_rules, batch, self.skip_bad_lines, self.joining)
            about = json.dumps([key, shard.file, shard.counts, shard.rejected]).encode()
            arrays = {name: getattr(shard, name) for name in _ARRAYS}
            with published(path, forced=False) as (draft,), open(draft, "wb") as file:
                np.savez(file, about=np.frombuffer(about, np.uint8), **arrays)
        return path


@lru_cache(maxsize=1)
def encoder_for(rules: EncodingRules) -> DocumentEncoder:
    """Return the encoder of ``rules``, created once per process instead of once per shard."""
    return DocumentEncoder(rules)


def encode_lines(
    encoder: DocumentEncoder, line_rules: LineRules, batch: LineBatch, skip_bad_lines: bool, joining: Joining
) -> Shard:
    """Encode documents to a shard. Raises InputError with file:line for a bad line, unless to be skipped."""
    texts: List[str] = []
    rejected: List[Rejected] = []
    blank = replaced = 0
    for number, line in batch.numbered():
        if not line.strip():
            blank += 1
            continue
        try:
            text = json_text(batch.path, number, line, line_rules)
        except InputError as error:
            if not skip_bad_lines:
                raise
            # 'in.jsonl:7:5: not JSON' -> 'not JSON': the place is stored beside it.
            reason = error.message[len(f"{batch.path}:{number}") :].split(": ", 1)[1]
            rejected.append(Rejected(batch.path, number, reason))
        else:
            texts.append(text)
            replaced += num_invalid_bytes(line) if line_rules.replaces else 0
    encoded = encoder.encode(texts)
    with_text = encoded.sizes[encoded.sizes > 0]
    documents = join_documents(with_text, encoded.lens, joining)
    counts = {
        "lines": len(batch.lines),
        "blank_lines": blank,
        "rejected_lines": len(rejected),
        "replaced_bytes": replaced,
        "documents": len(documents),
        "empty_documents": len(texts) - len(with_text),
        "joined_documents": len(with_text) - len(documents),
        "one_sentence_documents": int((documents == 1).sum()),
        "cut_sentences": encoded.num_cut,
        "lexicon_words": encoded.num_lexicon_words,
        "tokens": len(encoded.ids),
        "unknown_tokens": int((encoded.ids == encoder.tokenizer.unk_id).sum()),
    }
    if encoder.rules.separator:
        counts["separators"] = sum(text.count(encoder.rules.separator) for text in texts)
    return Shard(batch.path, encoded.ids, encoded.lens, documents, encoded.marks, counts, rejected)


def read_shard(path: Path) -> Shard:
    """Read the shard that a ShardMaker left at ``path``. Raises MachineError if it is not intact."""
    shard = _read(path)
    if shard is None:
        raise MachineError(f"{path}: cannot be read back as written; check the disk, run again")
    return shard


def _read(path: Path, wanted_key: Optional[str] = None) -> Optional[Shard]:
    """Read a shard; None when it is not there, damaged (its members have checksums), or of other lines."""
    try:
        with open(path, "rb") as content, np.load(content, allow_pickle=False) as stored:
            key, file, counts, rejected = parse_json(stored["about"].tobytes())
            if wanted_key not in (None, key):
                return None
            arrays = {name: stored[name] for name in _ARRAYS}
        return Shard(file, **arrays, counts=counts, rejected=[Rejected(*fields) for fields in rejected])
    except (AttributeError, OSError, EOFError, ValueError, TypeError, KeyError, BadZipFile, zlib.error):
        return None


@contextmanager
def shard_folder(folder: Path, made_from: Dict[str, Any]) -> Iterator[str]:
    """Lock ``folder`` for shards made from ``made_from``, and yield the digest that a ShardMaker needs.

    Shards that a stopped run made from the same are kept, any others removed. The folder is removed
    on success and for bad input; it stays if the machine or Ctrl-C stopped the run. Raises
    MachineError if another process holds it, or if it contains files that no run made.
    """
    content = json.dumps(made_from, ensure_ascii=False, indent=1, sort_keys=True)
    busy = f"{folder}: another run is making this corpus; let it end, then run again"
    with working_folder(folder, _is_ours, busy) as remove:
        try:
            note = folder / _MADE_FROM
            before = note.read_text(encoding="utf-8", errors="replace") if note.exists() else ""
            if before != content:
                for path in folder.iterdir():
                    if path.name != WORK_LOCK:
                        path.unlink()
                with published(note) as (draft,):
                    draft.write_text(content, encoding="utf-8", errors="surrogateescape")
            yield hashlib.sha256(content.encode("utf-8", "surrogateescape")).hexdigest()
            remove()
        except InputError:
            remove()
            raise


def _is_ours(name: str) -> bool:
    stem, _, _ = name.partition(DRAFT)
    return name in (WORK_LOCK, _MADE_FROM) or _SHARD.fullmatch(name) is not None or bool(stem_of(stem))
