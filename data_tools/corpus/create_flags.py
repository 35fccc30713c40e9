"""The flags for creating a corpus, and the fields that the programs which read text have in common."""

from dataclasses import dataclass
from functools import partial
from typing import Literal, Optional

from data_tools.corpus.writer import Joining
from data_tools.text.tables import SheetFlags
from data_tools.text.text_files import MAX_LINE_BYTES, LineRules
from ernie_pair.core.cli.options import (
    Options,
    OverwriteFlag,
    data_option,
    file_option,
    model_folder_option,
    path_option,
    processes_option,
)
from ernie_pair.core.errors import InputError

JOIN_TOKENS = Joining().max_tokens
VOCABULARY_HELP = "vocab.txt, which is cut by ERNIE's rule, tokenizer.json, or the folder of a model"
text_option = partial(data_option, affects="text")
raw_text_option = partial(data_option, affects="raw text")
language_option = partial(data_option, affects="language", usual=True)
log_interval_option = partial(
    data_option,
    0,
    help="documents between progress lines; 0: no progress lines",
    unit="documents",
    at_least=0,
    affects="speed",
)


@dataclass(frozen=True, kw_only=True)
class LineFlags(SheetFlags):
    """How lines of raw text, JSON lines and tables are read; a part of the commands that read text."""

    json_key: str = text_option("text", help="the key of a document's text in JSON", usual=True)
    text_column: str = text_option(
        "",
        help="the column of a document's text in a table (.csv, .tsv, .xlsx, .parquet), or its number; "
        "empty: the only one with texts",
        usual=True,
    )
    encoding_errors: Literal["strict", "replace"] = text_option(
        "strict",
        help="a line that is not UTF-8: it is a bad line, or its invalid bytes are replaced with U+FFFD",
    )
    max_line_bytes: int = text_option(
        MAX_LINE_BYTES, help="a line or document longer than this is a bad line", unit="bytes", at_least=1
    )
    workers: int = processes_option(
        1, help="processes; the output does not depend on their number", affects="speed, text", usual=True
    )

    @property
    def line_rules(self) -> LineRules:
        """Return how the lines of the input are read."""
        replaces = self.encoding_errors == "replace"
        return LineRules(
            self.json_key, self.max_line_bytes, replaces, text_column=self.text_column, place=self.place
        )


@dataclass(frozen=True, kw_only=True)
class RawTextFlags(Options):
    """How raw text is cut into documents."""

    doc_spliter: str = raw_text_option(
        "", help="of raw text: the line that separates two documents; empty: an empty line"
    )
    min_doc_length: int = raw_text_option(
        10,
        help="of raw text: minimum characters per document; shorter ones are dropped and counted",
        unit="characters",
        at_least=0,
    )
    no_shuffle: bool = raw_text_option(False, help="of raw text: keep the order of the input")
    seed: int = raw_text_option(42, help="of raw text: decides the order of the documents", at_least=0)


@dataclass(frozen=True)
class CreateConfig(LineFlags, OverwriteFlag):
    """Turn JSON lines into the token ids that pretraining reads."""

    EXAMPLE = (
        "--input_path baike.jsonl --output_prefix data/baike --vocab_file vocab.txt --chinese "
        "--cn_whole_word_segment --workers 4"
    )

    input_path: str = path_option(
        help="JSON lines, a JSON array or a table, a document per row: a file, or a folder of them (two "
        "levels); also packed: .gz, .zst, .bz2, .xz",
        stdin=(".jsonl",),
    )
    output_prefix: str = data_option(
        help="PREFIX of PREFIX_ids.npy, PREFIX_idx.npz, PREFIX.manifest.json", writes="PREFIX"
    )
    model_name: str = model_folder_option("", help="the model whose tokenizer is used", usual=True)
    vocab_file: str = file_option("", help=f"instead of --model_name: {VOCABULARY_HELP}", usual=True)
    chinese: Optional[bool] = language_option(
        None,
        help="split lines at Chinese sentence ends only; implies --split_sentences, where the default is "
        "explained",
    )
    split_sentences: Optional[bool] = language_option(
        None,
        help="split lines at sentence ends; otherwise, and without --chinese, a line is a sentence. If none "
        "of --split_sentences, --chinese and --cn_whole_word_segment is given, all three follow from the "
        "text, and a line says what was chosen; if one is given, the others are false by default",
    )
    cn_whole_word_segment: Optional[bool] = language_option(
        None,
        help="mark Chinese words, for whole-word masking; the default is that of --split_sentences",
        only_with="chinese",
    )
    cn_seg_func: Optional[Literal["rjieba", "jieba", "lac"]] = data_option(
        None,
        help="word segmenter: rjieba (used if none is given), jieba, or lac, which needs Paddle and is slow",
        usual=True,
        only_with="cn_whole_word_segment",
    )
    cn_splited: bool = data_option(
        False, help="the text is already split into words; keep them", only_with="cn_whole_word_segment"
    )
    cn_split_dimer: str = data_option(
        " ",
        help="separator between the words of --cn_splited text; a TAB is $'\\t' in bash and zsh",
        only_with="cn_splited",
    )
    user_lexicon: str = file_option(
        "",
        help="file of words that are never split, one per line: WORD [TAB character|phrase|entity [TAB "
        "weight]]",
        usual=True,
        only_with="cn_whole_word_segment",
    )
    max_sentence_length: int = data_option(
        510,
        help="maximum tokens per sentence; a longer one is split into several",
        unit="tokens",
        at_least=1,
        usual=True,
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
        only_with="join_documents",
    )
    on_bad_line: Literal["error", "skip"] = data_option(
        "error",
        help="a line that is not a document: end the run with an error, or write it to PREFIX.rejected.jsonl",
        usual=True,
    )
    max_bad_lines: Optional[int] = data_option(
        None,
        help="with --on_bad_line skip: end the run after more bad lines than this; none: no limit",
        at_least=0,
        only_with="on_bad_line=skip",
    )
    log_interval: int = log_interval_option()

    def __post_init__(self):
        super().__post_init__()
        if bool(self.model_name) == bool(self.vocab_file):
            raise InputError("give --model_name (a folder with vocab.txt) or --vocab_file, one of the two")
        if self.cn_seg_func and self.cn_splited:
            raise InputError("--cn_splited text is already split into words; leave --cn_seg_func out")
        if not self.cn_split_dimer:
            raise InputError("--cn_split_dimer is empty; give the separator between words")
