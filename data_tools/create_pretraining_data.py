"""Turn documents into token ids, once, for pretraining.

python -m data_tools.create_pretraining_data --input_path baike.jsonl --output_prefix data/baike \
    --vocab_file vocab.txt --chinese --cn_whole_word_segment --workers 4

Reads JSON lines, one document per line; writes PREFIX_ids.npy, PREFIX_idx.npz, PREFIX.manifest.json;
with --user_lexicon PREFIX_marks.npy, with --on_bad_line skip PREFIX.rejected.jsonl. Killed, the same
command goes on where it was.
"""

import json
import sys
import time
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Dict, Generator, Iterable, Iterator, List, Literal, Optional, Sequence, Tuple

from data_tools.base.cli import run_command
from data_tools.base.errors import InputError
from data_tools.base.options import Options, option, refuse_empty
from data_tools.base.process_pool import ordered_map
from data_tools.base.progress import Progress
from data_tools.corpus.encoder import CHINESE_END, LATIN_END, LINE_END, Rules
from data_tools.corpus.format import corpus_paths, marks_path
from data_tools.corpus.join_documents import Joining
from data_tools.corpus.shards import (
    COUNTED,
    Rejected,
    Shard,
    ShardMaker,
    encoder_for,
    read_shard,
    shard_folder,
    shard_jobs,
)
from data_tools.corpus.writer import CorpusWriter
from data_tools.files.npy_stream import sha256_of_file
from data_tools.files.results import Results, settings_of
from data_tools.text.lines import LONGEST_LINE, LineRules
from data_tools.text.text_files import list_inputs
from data_tools.text.wordpiece import WordPiece

JOIN_TOKENS = Joining().max_tokens
ENDINGS = (".jsonl", ".jsonl.gz", ".zst")
TOOL = "data_tools.create_pretraining_data 3"


@dataclass(frozen=True)
class CreateConfig(Options):
    """Turn JSON lines into the token ids that pretraining reads."""

    EXAMPLE = (
        "--input_path baike.jsonl --output_prefix data/baike --vocab_file vocab.txt --chinese "
        "--cn_whole_word_segment --workers 4"
    )

    input_path: str = option(
        help="a .jsonl, .jsonl.gz or .zst file, or a folder of them (two levels)", group="data"
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


def rules_of(config: CreateConfig) -> Rules:
    """Raises InputError when --model_name is no folder with a vocabulary."""
    finds_words = config.cn_whole_word_segment and not config.cn_splited
    return Rules(
        vocab_file=str(_vocabulary_file(config)),
        ends=_sentence_ends(config),
        segmenter=(config.cn_seg_func or "rjieba") if finds_words else None,
        separator=config.cn_split_dimer if config.cn_splited else None,
        max_sentence_length=config.max_sentence_length,
        lexicon=config.user_lexicon or None,
    )


def line_rules_of(config: CreateConfig) -> LineRules:
    return LineRules(config.json_key, config.max_line_bytes, replaces=config.encoding_errors == "replace")


def joining_of(config: CreateConfig) -> Joining:
    return Joining(config.join_documents, config.join_tokens)


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


def create_pretraining_data(config: CreateConfig, run_map=ordered_map) -> None:
    """The command. Raises InputError for whatever a person can mend; then nothing new is on the disk.

    Stopped by anything else, it leaves PREFIX.shards/ for the next run. ``run_map(function, items,
    workers)`` is who makes the shards, `ordered_map` or its like; the files are the same.
    """
    started = time.monotonic()
    paths = corpus_paths(config.output_prefix)
    rejects, folder = Path(f"{config.output_prefix}.rejected.jsonl"), Path(f"{config.output_prefix}.shards")
    outputs = [*paths, marks_path(config.output_prefix), rejects]
    inputs = list_inputs(config.input_path, ENDINGS, apart_from=outputs)
    rules = rules_of(config)
    results = _results(config, outputs, inputs, rules)
    if results.are_done():
        return
    encoder_for.cache_clear()  # the vocabulary may be another one since the last call
    pieces, lexicon = encoder_for(rules).pieces, encoder_for(rules).lexicon
    counts = {str(path): Counter(dict.fromkeys(COUNTED, 0)) for path in inputs}
    also = [rejects] if config.on_bad_line == "skip" else []
    with shard_folder(folder, _made_from(config, rules, pieces, inputs)) as made_from:
        skip, joining = config.on_bad_line == "skip", joining_of(config)
        make = ShardMaker(folder, rules, line_rules_of(config), skip, joining, made_from)
        # Closed, whatever happens: no worker may write into the folder while it is removed.
        made = closing(_shards(inputs, config, partial(run_map, make)))
        corpus = CorpusWriter(
            config.output_prefix,
            vocab_size=pieces.vocab_size,
            lexicon_marks=lexicon.mark_list() if lexicon else None,
            also=also,
            publish=results.published,
        )
        with corpus as writer, made as shards:
            _write(_counted(shards, counts, config.max_bad_lines), writer)
            total = _sum(counts.values())
            _refuse_a_wrong_vocabulary(total, rules.vocab_file)
            writer.about.update(_about(config, pieces, inputs, counts, total))
        if not also:
            rejects.unlink(missing_ok=True)  # of the corpus that was replaced
    sys.stderr.write(_summary(config, total, inputs, time.monotonic() - started) + "\n")


def _results(config: CreateConfig, outputs: List[Path], inputs: List[Path], rules: Rules) -> Results:
    read: Dict[str, Sequence[Path]] = {
        "input_path": inputs,
        "vocab_file": [Path(rules.vocab_file)],
        "user_lexicon": [Path(config.user_lexicon)] if config.user_lexicon else [],
    }
    places = ("input_path", "output_prefix", "vocab_file", "model_name", "user_lexicon", "max_bad_lines")
    settings = {**settings_of(config, *places), "tool": TOOL}
    return Results("create_pretraining_data", outputs, read, settings, config.overwrite)


def _made_from(config: CreateConfig, rules: Rules, pieces: WordPiece, inputs: List[Path]) -> dict:
    """All that decides what is in the shards, but the lines themselves."""
    return {
        "tool": TOOL,
        "inputs": [[str(path), path.stat().st_size] for path in inputs],
        "rules": asdict(rules),
        "line_rules": asdict(line_rules_of(config)),
        "on_bad_line": config.on_bad_line,
        "joining": asdict(joining_of(config)),
        "vocab_sha256": pieces.sha256,
        "lexicon_sha256": _lexicon_sha256(config),
        "libraries": {name: version(name) for name in ("tokenizers", rules.segmenter) if name},
    }


def _lexicon_sha256(config: CreateConfig) -> str:
    return sha256_of_file(Path(config.user_lexicon)) if config.user_lexicon else ""


def _shards(inputs: List[Path], config: CreateConfig, make_all) -> Generator[Shard, None, None]:
    """Every shard of every file in order, with a progress bar when somebody watches."""
    with Progress(inputs, config.log_interval) as progress:
        for path in make_all(shard_jobs(inputs, progress.read, config.max_line_bytes), config.workers):
            shard = read_shard(path)
            yield shard
            progress.made(shard.counts["documents"])


def _counted(
    shards: Iterable[Shard], counts: Dict[str, Counter], max_bad_lines: Optional[int]
) -> Iterator[Shard]:
    """Raises InputError at the first bad line beyond ``max_bad_lines``."""
    num_bad = 0
    for shard in shards:
        counts[shard.file].update(shard.counts)
        if max_bad_lines is not None and num_bad + len(shard.rejected) > max_bad_lines:
            file, line, reason = shard.rejected[max_bad_lines - num_bad]
            raise InputError(f"{file}:{line}: {reason} (more bad lines than --max_bad_lines {max_bad_lines})")
        num_bad += len(shard.rejected)
        yield shard


def _write(shards: Iterable[Shard], writer: CorpusWriter) -> None:
    with ExitStack() as stack:
        notes = [
            stack.enter_context(open(draft, "w", encoding="utf-8", errors="backslashreplace"))
            for draft in writer.also_drafts
        ]
        for shard in shards:
            marks = None if writer.lexicon_marks is None else shard.marks
            writer.extend(shard.ids, shard.lens, shard.documents, marks)
            for note in notes:
                note.writelines(map(_json_line, shard.rejected))


def _json_line(rejected: Rejected) -> str:
    return json.dumps(rejected._asdict(), ensure_ascii=False) + "\n"


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
    without_effect = ("workers", "log_interval", "overwrite", "max_bad_lines")
    arguments = {name: value for name, value in asdict(config).items() if name not in without_effect}
    files = [{"name": path.name, "bytes": path.stat().st_size, **counts[str(path)]} for path in inputs]
    return {
        "vocab_sha256": pieces.sha256,
        "lexicon_sha256": _lexicon_sha256(config),
        "tool": TOOL,
        "arguments": arguments,
        "inputs": files,
        "counts": dict(total),
    }


def _summary(config: CreateConfig, total: Counter, inputs: List[Path], seconds: float) -> str:
    megabytes = sum(path.stat().st_size for path in inputs) / 1e6
    notes = {
        "blank": total["blank_lines"],
        "without text": total["empty_documents"],
        "of one sentence": total["one_sentence_documents"],
    }
    if config.on_bad_line == "skip":
        notes["rejected"] = total["rejected_lines"]
    if config.encoding_errors == "replace":
        notes["bytes replaced"] = total["replaced_bytes"]
    if config.join_documents != "none":
        notes["joined to the one before"] = total["joined_documents"]
    found = f", {total['lexicon_words']} words of the lexicon" if config.user_lexicon else ""
    return (
        f"{config.output_prefix}: {total['documents']} documents from {total['lines']} lines "
        f"({', '.join(f'{count} {what}' for what, count in notes.items())}), {total['tokens']} tokens "
        f"({total['unknown_tokens']} unknown{found}), {total['cut_sentences']} sentences cut at "
        f"{config.max_sentence_length}; {megabytes:.1f} MB in {seconds:.1f} s, {megabytes / seconds:.1f} MB/s"
    )


def main() -> None:
    run_command(create_pretraining_data, CreateConfig)


if __name__ == "__main__":
    main()
