"""Turn documents into token ids, once, for pretraining.

python -m data_tools.create_pretraining_data --input_path baike.jsonl --output_prefix data/baike \
    --vocab_file vocab.txt --chinese --cn_whole_word_segment --workers 4

Reads JSON lines, one document per line; writes PREFIX_ids.npy, PREFIX_idx.npz, PREFIX.manifest.json.
"""

import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Literal, NamedTuple, Optional, Tuple

import numpy as np

from data_tools.command_line import option, run_command
from data_tools.corpus import CorpusWriter, corpus_paths
from data_tools.document_encoder import CHINESE_END, LATIN_END, LINE_END, DocumentEncoder, Rules
from data_tools.errors import InputError
from data_tools.process_pool import ordered_map
from data_tools.progress import Progress
from data_tools.publish import refuse_existing
from data_tools.text_files import LineBatch, json_text, line_batches, list_inputs
from data_tools.wordpiece import WordPiece

ENDINGS = (".jsonl", ".jsonl.gz", ".zst")
COUNTED = (
    "lines",
    "blank_lines",
    "documents",
    "empty_documents",
    "one_sentence_documents",
    "cut_sentences",
    "tokens",
    "unknown_tokens",
)


@dataclass(frozen=True)
class CreateConfig:
    """Turn JSON lines into the token ids that pretraining reads."""

    input_path: str = option(help="a .jsonl, .jsonl.gz or .zst file, or a folder of them (two levels)")
    output_prefix: str = option(help="PREFIX of PREFIX_ids.npy, PREFIX_idx.npz, PREFIX.manifest.json")
    model_name: str = option("", help="folder of a model, for its vocab.txt")
    vocab_file: str = option("", help="the vocab.txt itself, in place of --model_name")
    tokenizer_name: Literal["ErnieTokenizer", "ErnieGramTokenizer"] = option(
        "ErnieTokenizer", help="both cut text in the same way"
    )
    data_format: Literal["JSON"] = option("JSON", help="JSON lines, a document per line")
    json_key: str = option("text", help="the key of a document's text")
    split_sentences: bool = option(
        False, help="split lines at sentence ends; without it, or --chinese, a line is a sentence"
    )
    chinese: bool = option(False, help="split lines at Chinese sentence ends only; implies --split_sentences")
    cn_whole_word_segment: bool = option(False, help="mark Chinese words, so that masking hides them whole")
    cn_seg_func: Optional[Literal["rjieba", "jieba"]] = option(
        None, help="who finds the words: rjieba (when left out) or jieba"
    )
    cn_splited: bool = option(False, help="the text has its words apart already; they are kept")
    cn_split_dimer: str = option(" ", help="what stands between the words of --cn_splited text")
    append_eos: bool = option(False, help="not for ERNIE, whose samples get their [SEP] when they are made")
    max_sentence_length: int = option(510, help="tokens; a longer sentence is cut into several")
    log_interval: int = option(0, help="documents between two lines of progress; 0: none")
    workers: int = option(1, help="processes; the files are the same for any number")
    overwrite: bool = option(False, help="replace the corpus of that prefix")

    def __post_init__(self):
        for is_wrong, message in self._faults():
            if is_wrong:
                raise InputError(message)

    def _faults(self) -> Iterator[Tuple[bool, str]]:
        marks_words, given_words = self.cn_whole_word_segment, self.cn_splited
        yield self.append_eos, "--append_eos is not for ERNIE, a sample gets its [SEP] later; leave it out"
        both_or_none = bool(self.model_name) == bool(self.vocab_file)
        yield both_or_none, "give --model_name (a folder with vocab.txt) or --vocab_file, one of the two"
        yield marks_words and not self.chinese, "--cn_whole_word_segment needs --chinese; add it"
        yield given_words and not marks_words, "--cn_splited needs --cn_whole_word_segment; add it"
        if self.cn_seg_func:
            yield not marks_words, "--cn_seg_func needs --cn_whole_word_segment; add it"
            yield given_words, "--cn_splited text has its words; leave --cn_seg_func out"
        if self.cn_split_dimer != " ":
            yield not given_words, "--cn_split_dimer needs --cn_splited; add it"
            yield not self.cn_split_dimer, "--cn_split_dimer is empty; give what stands between words"
        yield self.max_sentence_length < 1, "--max_sentence_length is below 1; 510 fits a sample of 512"
        yield self.log_interval < 0, "--log_interval is below 0; 0 means no lines"
        yield self.workers < 1, f"--workers {self.workers} is below 1; give at least one"


def rules_of(config: CreateConfig) -> Rules:
    """Raises InputError when --model_name is no folder with a vocabulary."""
    finds_words = config.cn_whole_word_segment and not config.cn_splited
    return Rules(
        vocab_file=str(_vocabulary_file(config)),
        ends=_sentence_ends(config),
        segmenter=(config.cn_seg_func or "rjieba") if finds_words else None,
        separator=config.cn_split_dimer if config.cn_splited else None,
        max_sentence_length=config.max_sentence_length,
    )


def _vocabulary_file(config: CreateConfig) -> Path:
    if config.vocab_file:
        return Path(config.vocab_file)
    if not (path := Path(config.model_name) / "vocab.txt").is_file():
        raise InputError(
            f"--model_name {config.model_name} is not a folder with a vocab.txt; download the model "
            "first, or pass --vocab_file in its place"
        )
    return path


def _sentence_ends(config: CreateConfig) -> str:
    if config.chinese:
        return f"{LINE_END}|{CHINESE_END}"
    if config.split_sentences:
        return f"{LINE_END}|{CHINESE_END}|{LATIN_END}"
    return LINE_END


class EncodedBatch(NamedTuple):
    """What a batch of lines became: ids and lens of its sentences, sentences of its documents."""

    path: str
    ids: np.ndarray
    lens: np.ndarray
    sentences_per_document: np.ndarray
    counts: Counter


def encode_batch(rules: Rules, json_key: str, batch: LineBatch) -> EncodedBatch:
    """Raises InputError with file:line for a line that is no document."""
    encoder = _encoder(rules)
    sentences: List[np.ndarray] = []
    documents: List[int] = []
    counts = Counter(dict.fromkeys(COUNTED, 0), lines=len(batch.lines))
    for number, line in batch.numbered():
        if not line.strip():
            counts["blank_lines"] += 1
            continue
        found, cut = encoder.sentences(json_text(batch.path, number, line, json_key))
        documents.append(len(found))
        sentences += found
        counts["cut_sentences"] += cut
    ids = np.concatenate(sentences) if sentences else np.zeros(0, dtype=np.int32)
    counts["empty_documents"] = documents.count(0)
    counts["one_sentence_documents"] = documents.count(1)
    counts["documents"] = len(documents) - documents.count(0)
    counts["tokens"] = len(ids)
    counts["unknown_tokens"] = int((ids == encoder.pieces.unk_id).sum())
    lens = np.array([len(sentence) for sentence in sentences], dtype=np.int32)
    return EncodedBatch(batch.path, ids, lens, np.array([n for n in documents if n], dtype=np.int64), counts)


@lru_cache(maxsize=1)
def _encoder(rules: Rules) -> DocumentEncoder:
    return DocumentEncoder(rules)


def create_pretraining_data(config: CreateConfig) -> None:
    """The command. Raises InputError for whatever a person can mend; then nothing new is on the disk."""
    started = time.monotonic()
    outputs = list(corpus_paths(config.output_prefix))
    inputs = list_inputs(config.input_path, ENDINGS, apart_from=outputs)
    refuse_existing(outputs, config.overwrite)
    rules = rules_of(config)
    _encoder.cache_clear()  # the vocabulary may be another one since the last call
    pieces = _encoder(rules).pieces
    counts: Dict[str, Counter] = {str(path): Counter() for path in inputs}
    with CorpusWriter(config.output_prefix, vocab_size=pieces.vocab_size) as writer:
        for encoded in _encoded(inputs, rules, config):
            writer.extend(encoded.ids, encoded.lens, encoded.sentences_per_document)
            counts[encoded.path].update(encoded.counts)
        total = _sum(counts.values())
        _refuse_a_wrong_vocabulary(total, rules.vocab_file)
        writer.about.update(_about(config, pieces, inputs, counts, total))
    sys.stderr.write(_summary(config, total, inputs, time.monotonic() - started) + "\n")


def _encoded(inputs: List[Path], rules: Rules, config: CreateConfig) -> Iterator[EncodedBatch]:
    """Every batch of every file in order, with a progress bar when somebody watches."""
    with Progress(inputs, config.log_interval) as progress:
        batches = (batch for path in inputs for batch in line_batches(path, progress.read))
        for encoded in ordered_map(partial(encode_batch, rules, config.json_key), batches, config.workers):
            yield encoded
            progress.made(encoded.counts["documents"])


def _sum(counts: Iterable[Counter]) -> Counter:
    """Unlike ``+`` of Counters it keeps what is zero: a manifest says so."""
    total: Counter = Counter()
    for counted in counts:
        total.update(counted)
    return total


def _refuse_a_wrong_vocabulary(total: Counter, vocab_file: str) -> None:
    if total["unknown_tokens"] * 2 > total["tokens"]:
        raise InputError(
            f"{vocab_file}: {total['unknown_tokens']} of {total['tokens']} tokens are not in it; "
            "use the vocabulary of the text's language"
        )


def _about(config: CreateConfig, pieces: WordPiece, inputs, counts, total) -> dict:
    without_effect = ("workers", "log_interval", "overwrite")
    arguments = {name: value for name, value in asdict(config).items() if name not in without_effect}
    files = [{"name": path.name, "bytes": path.stat().st_size, **counts[str(path)]} for path in inputs]
    return {
        "vocab_sha256": pieces.sha256,
        "tool": "data_tools.create_pretraining_data 1",
        "arguments": arguments,
        "inputs": files,
        "counts": dict(total),
    }


def _summary(config: CreateConfig, total: Counter, inputs: List[Path], seconds: float) -> str:
    megabytes = sum(path.stat().st_size for path in inputs) / 1e6
    return (
        f"{config.output_prefix}: {total['documents']} documents from {total['lines']} lines "
        f"({total['blank_lines']} blank, {total['empty_documents']} without text, "
        f"{total['one_sentence_documents']} of one sentence), {total['tokens']} tokens "
        f"({total['unknown_tokens']} unknown), {total['cut_sentences']} sentences cut at "
        f"{config.max_sentence_length}; {megabytes:.1f} MB in {seconds:.1f} s, {megabytes / seconds:.1f} MB/s"
    )


def main() -> None:
    run_command(create_pretraining_data, CreateConfig)


if __name__ == "__main__":
    main()
