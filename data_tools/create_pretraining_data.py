"""Turn documents into token ids, once, for pretraining.

python -m data_tools.create_pretraining_data --input_path baike.jsonl --output_prefix data/baike \
    --vocab_file vocab.txt --chinese --cn_whole_word_segment --workers 4

After a kill, the same command continues where it stopped.
"""

import json
import re
import sys
import time
from collections import Counter
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, fields, replace
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, Dict, Generator, Iterable, List, Optional, Sequence, Tuple

from data_tools.corpus.create_flags import CreateConfig
from data_tools.corpus.format import corpus_paths, marks_path
from data_tools.corpus.shards import (
    CHINESE_END,
    COUNTED,
    LATIN_END,
    LINE_END,
    EncodingRules,
    Shard,
    ShardMaker,
    encoder_for,
    read_shard,
    shard_folder,
    shard_jobs,
)
from data_tools.corpus.writer import CorpusWriter, Joining
from data_tools.text.file_content import report_encodings
from data_tools.text.folder_tokenizer import AnyTokenizer, find_tokenizer, open_vocabulary, vocabulary_file
from data_tools.text.text_files import DOCUMENTS, REJECTED, json_text, list_inputs
from data_tools.text.texts import document_lines, holds_documents
from ernie_pair.core.cli.cli import run_command
from ernie_pair.core.cli.options import defaults_of
from ernie_pair.core.cli.standard_streams import as_called, original_value, with_standard_streams
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.core.files.results import Results, settings_of
from ernie_pair.core.process_pool import ordered_map
from ernie_pair.core.progress import Progress, say

TOOL = "data_tools.create_pretraining_data 3"
# What is looked at of a text to see its language: of so many files, so many documents, so many characters.
LOOKED_AT = (8, 32, 1000)
CHINESE_SHARE = 0.5  # of the words of a text: a Chinese character is one, and so is a word of Latin letters
_WORD = re.compile(r"[A-Za-z]+|[^\W\d_]")
_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")


def rules_of(config: CreateConfig) -> EncodingRules:
    """Return the encoding rules of the flags. Raises InputError if --model_name has no vocabulary."""
    vocab_file = Path(config.vocab_file or config.model_name)
    if not config.vocab_file and not find_tokenizer(vocab_file).is_file():
        raise InputError(
            f"--model_name {config.model_name} is not a folder with a vocab.txt; download the model "
            "first, or pass --vocab_file instead"
        )
    ends = [LINE_END]
    if config.chinese or config.split_sentences:
        ends += [CHINESE_END] if config.chinese else [CHINESE_END, LATIN_END]
    finds_words = config.cn_whole_word_segment and not config.cn_splited
    return EncodingRules(
        vocab_file=str(vocab_file),
        ends="|".join(ends),
        segmenter=(config.cn_seg_func or "rjieba") if finds_words else None,
        separator=config.cn_split_dimer if config.cn_splited else None,
        max_sentence_length=config.max_sentence_length,
        lexicon=config.user_lexicon or None,
    )


def with_language(config: CreateConfig, inputs: Sequence[Path]) -> Tuple[CreateConfig, str]:
    """Return the options with values for those of the language, and why, in a line; '' if one was given.

    If none is given, the beginnings of some documents of ``inputs`` decide. Words are marked only if the
    vocabulary can express it. Raises InputError for a file, or a vocabulary, that cannot be read.
    """
    names = [*defaults_of(config, "language")]
    given: Dict[str, Any] = {name: getattr(config, name) for name in names}
    if any(value is not None for value in given.values()):
        given = {name: bool(value) for name, value in given.items()}
        return replace(config, **given), ""
    num_files, num_documents, num_characters = LOOKED_AT
    words = []
    for path in inputs[:: -(-len(inputs) // num_files)]:
        lines = islice(document_lines(path, config.line_rules), num_documents)
        for number, line in enumerate(lines, start=1):
            with suppress(InputError):  # of a bad line, which is reported when all are read
                text = json_text(str(path), number, line, config.line_rules)
                words += _WORD.findall(text[:num_characters])
    share = sum(map(bool, map(_HAN.match, words))) / max(len(words), 1)
    is_chinese = share >= CHINESE_SHARE
    vocab_file, note = rules_of(config).vocab_file, ""
    marks_words = is_chinese and bool((open_vocabulary(vocab_file).continuation_ids >= 0).any())
    if is_chinese and not marks_words:
        note = f" ({vocab_file} has no '##' twins to mark words with; build_vocab --add_twins_to adds them)"
    config = replace(config, chinese=is_chinese, split_sentences=True, cn_whole_word_segment=marks_words)
    chosen = " ".join(f"--{name} {str(getattr(config, name)).lower()}" for name in names)
    return config, (
        f"{as_called(config.input_path)}: {share:.0%} of the words looked at are Chinese characters, so "
        f"{chosen}{note}; give these flags to choose otherwise"
    )


@with_standard_streams
def create_pretraining_data(config: CreateConfig, run_map=ordered_map) -> None:
    """Make the corpus of ``output_prefix`` from the documents of ``input_path``.

    Raises InputError for whatever the user can fix; then nothing new is on the disk. Stopped by anything
    else, it leaves PREFIX.shards/ for the next run. ``run_map(function, items, workers)`` makes the shards:
    `ordered_map` or an equivalent; the files are the same.
    """
    started = time.monotonic()
    rejects, folder = Path(f"{config.output_prefix}{REJECTED}"), Path(f"{config.output_prefix}.shards")
    marks = marks_path(config.output_prefix)
    outputs = [*corpus_paths(config.output_prefix), marks, rejects]
    inputs = list_inputs(config.input_path, DOCUMENTS, apart_from=outputs)
    _check_documents(inputs, config)
    config, reason = with_language(config, inputs)
    rules = rules_of(config)
    results = _results(config, outputs, inputs, rules)
    if results.are_done():
        return
    if reason:
        say(reason, sys.stderr)
    report_encodings(inputs)
    encoder_for.cache_clear()  # the vocabulary may have changed since the last call
    tokenizer, lexicon = encoder_for(rules).tokenizer, encoder_for(rules).lexicon
    counts = {str(path): Counter(dict.fromkeys(COUNTED, 0)) for path in inputs}
    also = [rejects] if config.on_bad_line == "skip" else []
    written = [*also, *([marks] if lexicon else [])]
    outdated = [path for path in (marks, rejects) if path not in written and results.has_made(path)]
    lexicon_sha256 = sha256_of_file(Path(config.user_lexicon)) if config.user_lexicon else ""
    joining = Joining(config.join_documents, config.join_tokens)
    made_from = {  # all that determines the shards except the lines themselves
        "tool": TOOL,
        "inputs": [[str(path), path.stat().st_size] for path in inputs],
        "rules": asdict(rules),
        "line_rules": asdict(config.line_rules),
        "on_bad_line": config.on_bad_line,
        "joining": asdict(joining),
        "vocab_sha256": tokenizer.sha256,
        "lexicon_sha256": lexicon_sha256,
        "libraries": {name: version(name) for name in ("tokenizers", rules.segmenter) if name},
    }
    with shard_folder(folder, made_from) as digest:
        make = ShardMaker(folder, rules, config.line_rules, config.on_bad_line == "skip", joining, digest)
        # Closed, whatever happens: no worker may write into the folder while it is removed.
        made = closing(_shards(inputs, config, partial(run_map, make)))
        corpus = CorpusWriter(
            config.output_prefix,
            vocab_size=tokenizer.vocab_size,
            lexicon_marks=[entry._asdict() for entry in lexicon.marks] if lexicon else None,
            also=also,
            publish=results.published,
        )
        with corpus as writer, made as shards:
            total = _write(shards, writer, counts, config.max_bad_lines)
            _check_tokens(total, rules.vocab_file, config)
            writer.about.update(_about(config, tokenizer, lexicon_sha256, inputs, counts, total))
        for path in outdated:  # of the corpus that was replaced
            path.unlink(missing_ok=True)
    say(_summary(config, total, inputs, time.monotonic() - started), sys.stderr)


def _check_documents(inputs: List[Path], config: CreateConfig) -> None:
    """Raise InputError for a file that is neither JSON nor a table."""
    for path in inputs:
        if not holds_documents(path, config.line_rules):
            raise InputError(
                f"{path} is raw text, not JSON or a table with a document per row; ernie-pair prepare makes "
                "documents of it, with the same flags"
            )


def _results(config: CreateConfig, outputs: List[Path], inputs: List[Path], rules: EncodingRules) -> Results:
    read: Dict[str, Sequence[Path]] = {
        "input_path": inputs,
        "vocab_file": [vocabulary_file(rules.vocab_file)],
        "user_lexicon": [Path(config.user_lexicon)] if config.user_lexicon else [],
    }
    places = ("input_path", "output_prefix", "vocab_file", "model_name", "user_lexicon", "max_bad_lines")
    settings = {**settings_of(config, *places), "tool": TOOL}
    return Results("create_pretraining_data", outputs, read, settings, config.overwrite)


def _shards(inputs: List[Path], config: CreateConfig, make_all) -> Generator[Shard, None, None]:
    """Yield every shard of every file in order, with a progress bar on a terminal."""
    with Progress(inputs, config.log_interval) as progress:
        for path in make_all(shard_jobs(inputs, progress.read, config.line_rules), config.workers):
            shard = read_shard(path)
            yield shard
            progress.made(shard.counts["documents"])


def _write(
    shards: Iterable[Shard], writer: CorpusWriter, counts: Dict[str, Counter], max_bad_lines: Optional[int]
) -> Counter:
    """Write ``shards``, add their counts to {file: counts}, and return their sum.

    Raises InputError for too many bad lines.
    """
    num_bad = 0
    with ExitStack() as stack:
        notes = [
            stack.enter_context(open(draft, "w", encoding="utf-8", errors="backslashreplace"))
            for draft in writer.also_drafts
        ]
        for shard in shards:
            counts[shard.file].update(shard.counts)
            if max_bad_lines is not None and num_bad + len(shard.rejected) > max_bad_lines:
                file, line, reason = shard.rejected[max_bad_lines - num_bad]
                many = f"more bad lines than --max_bad_lines {max_bad_lines}"
                raise InputError(f"{file}:{line}: {reason} ({many})")
            num_bad += len(shard.rejected)
            marks = None if writer.lexicon_marks is None else shard.marks
            writer.extend(shard.ids, shard.lens, shard.documents, marks)
            for note in notes:
                for rejected in shard.rejected:
                    about = {**rejected._asdict(), "file": as_called(rejected.file)}
                    note.write(json.dumps(about, ensure_ascii=False) + "\n")
    total: Counter = Counter()
    for each in counts.values():
        total.update(each)  # unlike + of Counters it keeps zeros, for the manifest
    return total


def _check_tokens(total: Counter, vocab_file: str, config: CreateConfig) -> None:
    """Raise InputError for a text of another vocabulary, and if no line was split into words."""
    if total["unknown_tokens"] * 2 > total["tokens"]:
        raise InputError(
            f"{vocab_file}: {total['unknown_tokens']} of {total['tokens']} tokens are not in it; "
            "use the vocabulary of the text's language"
        )
    if config.cn_splited and not total["separators"]:
        raise InputError(
            f"{config.input_path}: --cn_split_dimer {config.cn_split_dimer!r} occurs nowhere, so every line "
            "would be one word; give the separator of the text, or leave --cn_splited out"
        )


def _about(config: CreateConfig, tokenizer: AnyTokenizer, lexicon_sha256: str, inputs, counts, total) -> dict:
    without_effect = ("workers", "log_interval", "overwrite", "max_bad_lines")
    names = [item.name for item in fields(config) if item.name not in without_effect]
    arguments = {name: original_value(getattr(config, name)) for name in names}
    files = [{"name": path.name, "bytes": path.stat().st_size, **counts[str(path)]} for path in inputs]
    return {
        "vocab_sha256": tokenizer.sha256,
        "lexicon_sha256": lexicon_sha256,
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
        notes["joined to the previous one"] = total["joined_documents"]
    found = f", {total['lexicon_words']} words of the lexicon" if config.user_lexicon else ""
    return (
        f"{config.output_prefix}: {total['documents']} documents from {total['lines']} lines "
        f"({', '.join(f'{count} {what}' for what, count in notes.items())}), {total['tokens']} tokens "
        f"({total['unknown_tokens']} unknown{found}), {total['cut_sentences']} sentences cut at "
        f"{config.max_sentence_length}; {megabytes:.1f} MB in {seconds:.1f} s, {megabytes / seconds:.1f} MB/s"
    )


if __name__ == "__main__":
    run_command(create_pretraining_data, CreateConfig)
