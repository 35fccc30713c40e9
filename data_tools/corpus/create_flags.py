"""The flags for creating a corpus, with the checks that they can be combined."""

from dataclasses import dataclass
from typing import Iterator, Literal, Optional, Tuple

from data_tools.corpus.writer import Joining
from data_tools.files.errors import InputError
from data_tools.options.options import Options, option, refuse_empty, refuse_no_name
from data_tools.text.text_files import LONGEST_LINE

JOIN_TOKENS = Joining().max_tokens
VOCABULARY_HELP = "vocab.txt, which is cut by ERNIE's rule, tokenizer.json, or the folder of a model"


@dataclass(frozen=True)
class CreateConfig(Options):
    """Turn JSON lines into the token ids that pretraining reads."""

    EXAMPLE = (
        "--input_path baike.jsonl --output_prefix data/baike --vocab_file vocab.txt --chinese "
        "--cn_whole_word_segment --workers 4"
    )

    input_path: str = option(
        help="a .jsonl, .jsonl.gz or .zst file, or a folder of them (two levels)",
        group="data",
        stdin=(".jsonl",),
    )
    output_prefix: str = option(
        help="PREFIX of PREFIX_ids.npy, PREFIX_idx.npz, PREFIX.manifest.json", group="data"
    )
    model_name: str = option("", help="model folder whose tokenizer is used", group="model")
    vocab_file: str = option("", help=f"instead of --model_name: {VOCABULARY_HELP}", group="data")
    tokenizer_name: Literal["ErnieTokenizer", "ErnieGramTokenizer"] = option(
        "ErnieTokenizer", help="name of the tokenizer; both split text in the same way", group="data"
    )
    data_format: Literal["JSON"] = option("JSON", help="JSON lines, a document per line", group="data")
    json_key: str = option("text", help="the key of a document's text", group="data")
    split_sentences: bool = option(
        False,
        help="split lines at sentence ends; without this flag or --chinese, a line is a sentence",
        group="data",
    )
    chinese: bool = option(
        False, help="split lines at Chinese sentence ends only; implies --split_sentences", group="data"
    )
    cn_whole_word_segment: bool = option(
        False, help="mark Chinese words, for whole-word masking", group="data"
    )
    cn_seg_func: Optional[Literal["rjieba", "jieba", "lac"]] = option(
        None,
        help="word segmenter: rjieba (used if none is given), jieba, or lac, which needs Paddle and is slow",
        group="data",
    )
    cn_splited: bool = option(False, help="the text is already split into words; keep them", group="data")
    cn_split_dimer: str = option(
        " ",
        help="separator between the words of --cn_splited text; a TAB is $'\\t' in bash and zsh",
        group="data",
    )
    user_lexicon: str = option(
        "",
        help="file of words that are never split, one per line: WORD [TAB character|phrase|entity [TAB "
        "weight]]",
        group="data",
    )
    append_eos: bool = option(
        False, help="not used with ERNIE: [SEP] is added when samples are built", group="data"
    )
    max_sentence_length: int = option(
        510,
        help="maximum tokens per sentence; a longer one is split into several",
        group="data",
        unit="tokens",
        at_least=1,
    )
    join_documents: Literal["none", "one_sentence", "short"] = option(
        "none",
        help="join consecutive documents of a file as long as they fit into --join_tokens: those of one "
        "sentence, or any. The two segments of a sample are then often unrelated texts, from whose order "
        "the sentence-order task learns nothing",
        group="data",
    )
    join_tokens: int = option(
        JOIN_TOKENS,
        help="maximum tokens of a joined document; 509 fit into a sample of 512",
        group="data",
        unit="tokens",
        at_least=2,
    )
    on_bad_line: Literal["error", "skip"] = option(
        "error",
        help="a line that is not a document: end the run with an error, or write it to PREFIX.rejected.jsonl",
        group="data",
    )
    max_bad_lines: Optional[int] = option(
        None,
        help="with --on_bad_line skip: end the run after more bad lines than this; none: no limit",
        group="data",
        at_least=0,
    )
    encoding_errors: Literal["strict", "replace"] = option(
        "strict",
        help="a line that is not UTF-8: treat it as a bad line, or replace its invalid bytes with U+FFFD",
        group="data",
    )
    max_line_bytes: int = option(
        LONGEST_LINE, help="a line longer than this is a bad line", group="data", unit="bytes", at_least=1
    )
    log_interval: int = option(
        0,
        help="documents between progress lines; 0: no progress lines",
        group="data",
        unit="documents",
        at_least=0,
    )
    workers: int = option(
        1,
        help="processes; the files do not depend on their number",
        group="devices",
        unit="processes",
        at_least=1,
    )
    overwrite: bool = option(False, help="replace an existing corpus with this prefix", group="data")

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output_prefix")
        refuse_no_name(self, "output_prefix")
        for is_wrong, message in self._faults():
            if is_wrong:
                raise InputError(message)

    def _faults(self) -> Iterator[Tuple[bool, str]]:
        marks_words, given_words = self.cn_whole_word_segment, self.cn_splited
        yield self.append_eos, "--append_eos is not for ERNIE, [SEP] is added to samples later; leave it out"
        both_or_none = bool(self.model_name) == bool(self.vocab_file)
        yield both_or_none, "give --model_name (a folder with vocab.txt) or --vocab_file, one of the two"
        yield marks_words and not self.chinese, "--cn_whole_word_segment needs --chinese; add it"
        yield given_words and not marks_words, "--cn_splited needs --cn_whole_word_segment; add it"
        if self.cn_seg_func:
            yield not marks_words, "--cn_seg_func needs --cn_whole_word_segment; add it"
            yield given_words, "--cn_splited text is already split into words; leave --cn_seg_func out"
        if self.cn_split_dimer != " ":
            yield not given_words, "--cn_split_dimer needs --cn_splited; add it"
            yield not self.cn_split_dimer, "--cn_split_dimer is empty; give the separator between words"
        yield (
            bool(self.user_lexicon) and not marks_words,
            ("--user_lexicon needs --cn_whole_word_segment; add it"),
        )
        if self.join_tokens != JOIN_TOKENS:
            yield self.join_documents == "none", "--join_tokens needs --join_documents; add it"
        if self.max_bad_lines is not None:
            yield self.on_bad_line == "error", "--max_bad_lines needs --on_bad_line skip; add it"
