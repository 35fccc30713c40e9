"""The flags for creating a corpus, and the fields that the programs which read text have in common."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Iterator, Literal, Optional, Tuple

from data_tools.corpus.writer import Joining
from data_tools.text.text_files import MAX_LINE_BYTES, LineRules
from ernie_pair.core.cli.options import (
    Options,
    data_option,
    model_option,
    overwrite_option,
    refuse_empty,
    refuse_no_name,
    workers_option,
)
from ernie_pair.core.errors import InputError

JOIN_TOKENS = Joining().max_tokens
VOCABULARY_HELP = "vocab.txt, which is cut by ERNIE's rule, tokenizer.json, or the folder of a model"

json_key_option = partial(data_option, "text")
text_column_option = partial(
    data_option,
    "",
    help="the column of a document's text in a table (.csv, .tsv, .xlsx, .parquet), or its number; empty: "
    "the only one with texts",
)
line_bytes_option = partial(data_option, MAX_LINE_BYTES, unit="bytes", at_least=1)
encoding_errors_option = partial(
    data_option,
    "strict",
    help="a line that is not UTF-8: end the run with an error, or replace its invalid bytes with U+FFFD",
)
log_interval_option = partial(
    data_option,
    0,
    help="documents between progress lines; 0: no progress lines",
    unit="documents",
    at_least=0,
)


def build_line_rules(config: Any) -> LineRules:
    """Return how the lines of the input are read, by these fields of ``config``."""
    replaces = config.encoding_errors == "replace"
    return LineRules(config.json_key, config.max_line_bytes, replaces, text_column=config.text_column)


OF_LANGUAGE = ("chinese", "split_sentences", "cn_whole_word_segment")  # options that the text can decide


@dataclass(frozen=True)
class CreateConfig(Options):
    """Turn JSON lines into the token ids that pretraining reads."""

    EXAMPLE = (
        "--input_path baike.jsonl --output_prefix data/baike --vocab_file vocab.txt --chinese "
        "--cn_whole_word_segment --workers 4"
    )

    input_path: str = data_option(
        help="JSON lines, a JSON array or a table, a document per row: a file, or a folder of them (two "
        "levels); also packed: .gz, .zst, .bz2, .xz",
        stdin=(".jsonl",),
    )
    output_prefix: str = data_option(help="PREFIX of PREFIX_ids.npy, PREFIX_idx.npz, PREFIX.manifest.json")
    model_name: str = model_option("", help="model folder whose tokenizer is used")
    vocab_file: str = data_option("", help=f"instead of --model_name: {VOCABULARY_HELP}")
    tokenizer_name: Literal["ErnieTokenizer", "ErnieGramTokenizer"] = data_option(
        "ErnieTokenizer", help="name of the tokenizer; both split text in the same way"
    )
    data_format: Literal["JSON"] = data_option("JSON", help="JSON lines, a document per line")
    json_key: str = json_key_option(help="the key of a document's text, in JSON")
    text_column: str = text_column_option()
    split_sentences: Optional[bool] = data_option(
        None,
        help="split lines at sentence ends; otherwise, and without --chinese, a line is a sentence. If none "
        "of --split_sentences, --chinese and --cn_whole_word_segment is given, all three follow from the "
        "text, and a line says what was chosen; if one is given, the others are false by default",
    )
    chinese: Optional[bool] = data_option(
        None,
        help="split lines at Chinese sentence ends only; implies --split_sentences, where the default is "
        "explained",
    )
    cn_whole_word_segment: Optional[bool] = data_option(
        None, help="mark Chinese words, for whole-word masking; the default is that of --split_sentences"
    )
    cn_seg_func: Optional[Literal["rjieba", "jieba", "lac"]] = data_option(
        None,
        help="word segmenter: rjieba (used if none is given), jieba, or lac, which needs Paddle and is slow",
    )
    cn_splited: bool = data_option(False, help="the text is already split into words; keep them")
    cn_split_dimer: str = data_option(
        " ", help="separator between the words of --cn_splited text; a TAB is $'\\t' in bash and zsh"
    )
    user_lexicon: str = data_option(
        "",
        help="file of words that are never split, one per line: WORD [TAB character|phrase|entity [TAB "
        "weight]]",
    )
    append_eos: bool = data_option(False, help="not used with ERNIE: [SEP] is added when samples are built")
    max_sentence_length: int = data_option(
        510,
        help="maximum tokens per sentence; a longer one is split into several",
        unit="tokens",
        at_least=1,
    )
    join_documents: Literal["none", "one_sentence", "short"] = data_option(
        "none",
        help="join consecutive documents of a file as long as they fit into --join_tokens: those of one "
        "sentence, or any. The two segments of a sample are then often unrelated texts, from whose order "
        "the sentence-order task learns nothing",
    )
    join_tokens: int = data_option(
        JOIN_TOKENS,
        help="maximum tokens of a joined document; 509 fit into a sample of 512",
        unit="tokens",
        at_least=2,
    )
    on_bad_line: Literal["error", "skip"] = data_option(
        "error",
        help="a line that is not a document: end the run with an error, or write it to PREFIX.rejected.jsonl",
    )
    max_bad_lines: Optional[int] = data_option(
        None,
        help="with --on_bad_line skip: end the run after more bad lines than this; none: no limit",
        at_least=0,
    )
    encoding_errors: Literal["strict", "replace"] = data_option(
        "strict",
        help="a line that is not UTF-8: treat it as a bad line, or replace its invalid bytes with U+FFFD",
    )
    max_line_bytes: int = line_bytes_option(help="a line longer than this is a bad line")
    log_interval: int = log_interval_option()
    workers: int = workers_option(help="processes; the files do not depend on their number")
    overwrite: bool = overwrite_option(help="replace an existing corpus with this prefix")

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output_prefix")
        refuse_no_name(self, "output_prefix")
        for is_wrong, message in self._faults():
            if is_wrong:
                raise InputError(message)

    def _faults(self) -> Iterator[Tuple[bool, str]]:
        marks_words, is_split = bool(self.cn_whole_word_segment), self.cn_splited
        yield self.append_eos, "--append_eos is not for ERNIE, [SEP] is added to samples later; leave it out"
        both_or_none = bool(self.model_name) == bool(self.vocab_file)
        yield both_or_none, "give --model_name (a folder with vocab.txt) or --vocab_file, one of the two"
        yield marks_words and not self.chinese, "--cn_whole_word_segment needs --chinese; add it"
        yield is_split and not marks_words, "--cn_splited needs --cn_whole_word_segment; add it"
        if self.cn_seg_func:
            yield not marks_words, "--cn_seg_func needs --cn_whole_word_segment; add it"
            yield is_split, "--cn_splited text is already split into words; leave --cn_seg_func out"
        if self.cn_split_dimer != " ":
            yield not is_split, "--cn_split_dimer needs --cn_splited; add it"
            yield not self.cn_split_dimer, "--cn_split_dimer is empty; give the separator between words"
        if self.user_lexicon:
            yield not marks_words, "--user_lexicon needs --cn_whole_word_segment; add it"
        if self.join_tokens != JOIN_TOKENS:
            yield self.join_documents == "none", "--join_tokens needs --join_documents; add it"
        if self.max_bad_lines is not None:
            yield self.on_bad_line == "error", "--max_bad_lines needs --on_bad_line skip; add it"
