"""The flags of making a corpus, which make sense together or are refused."""

from dataclasses import dataclass
from typing import Iterator, Literal, Optional, Tuple

from data_tools.base.errors import InputError
from data_tools.base.options import Options, option, refuse_empty
from data_tools.corpus.join_documents import Joining
from data_tools.text.lines import LONGEST_LINE

JOIN_TOKENS = Joining().max_tokens


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
    model_name: str = option("", help="folder of a model, for its vocab.txt", group="model")
    vocab_file: str = option("", help="the vocab.txt itself, in place of --model_name", group="data")
    tokenizer_name: Literal["ErnieTokenizer", "ErnieGramTokenizer"] = option(
        "ErnieTokenizer", help="both cut text in the same way", group="data"
    )
    data_format: Literal["JSON"] = option("JSON", help="JSON lines, a document per line", group="data")
    json_key: str = option("text", help="the key of a document's text", group="data")
    split_sentences: bool = option(
        False,
        help="split lines at sentence ends; without it, or --chinese, a line is a sentence",
        group="data",
    )
    chinese: bool = option(
        False, help="split lines at Chinese sentence ends only; implies --split_sentences", group="data"
    )
    cn_whole_word_segment: bool = option(
        False, help="mark Chinese words, so that masking hides them whole", group="data"
    )
    cn_seg_func: Optional[Literal["rjieba", "jieba", "lac"]] = option(
        None,
        help="who finds the words: rjieba (when left out), jieba, or lac, which needs Paddle and is slow",
        group="data",
    )
    cn_splited: bool = option(False, help="the text has its words apart already; they are kept", group="data")
    cn_split_dimer: str = option(" ", help="what stands between the words of --cn_splited text", group="data")
    user_lexicon: str = option(
        "",
        help="file of words that stay whole, one per line: WORD [TAB character|phrase|entity [TAB weight]]",
        group="data",
    )
    append_eos: bool = option(
        False, help="not for ERNIE, whose samples get their [SEP] when they are made", group="data"
    )
    max_sentence_length: int = option(
        510, help="tokens; a longer sentence is cut into several", group="data", unit="tokens", at_least=1
    )
    join_documents: Literal["none", "one_sentence", "short"] = option(
        "none",
        help="join consecutive documents of a file while they fit into --join_tokens: those of one sentence, "
        "or any. The order of two segments then often is that of unrelated texts, from which the "
        "sentence-order task learns nothing",
        group="data",
    )
    join_tokens: int = option(
        JOIN_TOKENS,
        help="tokens of a joined document at most; 509 fit a sample of 512",
        group="data",
        unit="tokens",
        at_least=2,
    )
    on_bad_line: Literal["error", "skip"] = option(
        "error",
        help="a line that is no document ends the run, or goes to PREFIX.rejected.jsonl",
        group="data",
    )
    max_bad_lines: Optional[int] = option(
        None,
        help="with --on_bad_line skip: more bad lines than this end the run; none: any number is skipped",
        group="data",
        at_least=0,
    )
    encoding_errors: Literal["strict", "replace"] = option(
        "strict",
        help="a line that is not UTF-8 is bad, or U+FFFD takes the place of its bad bytes",
        group="data",
    )
    max_line_bytes: int = option(
        LONGEST_LINE, help="a longer line is bad", group="data", unit="bytes", at_least=1
    )
    log_interval: int = option(
        0, help="documents between two lines of progress; 0: none", group="data", unit="documents", at_least=0
    )
    workers: int = option(
        1,
        help="processes; the files are the same for any number",
        group="devices",
        unit="processes",
        at_least=1,
    )
    overwrite: bool = option(False, help="replace the corpus of that prefix", group="data")

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output_prefix")
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
        yield (
            bool(self.user_lexicon) and not marks_words,
            ("--user_lexicon needs --cn_whole_word_segment; add it"),
        )
        if self.join_tokens != JOIN_TOKENS:
            yield self.join_documents == "none", "--join_tokens needs --join_documents; add it"
        if self.max_bad_lines is not None:
            yield self.on_bad_line == "error", "--max_bad_lines needs --on_bad_line skip; add it"
