"""Turn raw text into JSON lines, one document per line: {"text": "sentence\\nsentence"}.

python -m data_tools.trans_to_json --input_path raw/ --output_path data/baike

In the raw text a line is a sentence or a paragraph, and an empty line separates documents.
Writes OUTPUT.jsonl, its documents in an order that depends on the seed.
"""

import json
import mmap
import shutil
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np

from data_tools.corpus import create_flags
from data_tools.text.file_content import num_invalid_bytes, report_encodings
from data_tools.text.text_files import RAW, STRICT, LineRules, decoded, json_text, list_inputs, read_lines
from data_tools.text.texts import document_lines, holds_documents
from ernie_pair.core.cli.cli import run_command
from ernie_pair.core.cli.options import DASH, OverwriteFlag, data_option, path_option
from ernie_pair.core.cli.standard_streams import STANDARD_OUTPUT, as_called, with_standard_streams
from ernie_pair.core.errors import InputError, counted
from ernie_pair.core.files.atomic_files import folder_made, locked, naming, own_entries, own_name, shortened
from ernie_pair.core.files.results import Results, followed, is_stream, settings_of
from ernie_pair.core.process_pool import ordered_map
from ernie_pair.core.progress import Progress, say

LOCK = "lock"


@dataclass(frozen=True)
class TransConfig(create_flags.LineFlags, create_flags.RawTextFlags, OverwriteFlag):
    """Turn raw text into JSON lines, one document per line."""

    EXAMPLE = "--input_path raw/ --output_path data/baike"

    input_path: str = path_option(
        help="a text file, or a folder of .txt files (two levels), also packed: .gz, .zst, .bz2, .xz",
        stdin=(".txt",),
    )
    output_path: str = data_option(
        help="path of the output without .jsonl: OUTPUT writes OUTPUT.jsonl", stdout=True, writes="PREFIX"
    )
    log_interval: int = create_flags.log_interval_option()
    no_merge: bool = data_option(
        False, help="write one OUTPUT_NAME.jsonl per input file instead of OUTPUT.jsonl"
    )

    def __post_init__(self):
        super().__post_init__()
        if self.no_merge and self.output_path in (DASH, STANDARD_OUTPUT):
            raise InputError(
                "--no_merge true writes several files, and --output_path - is one; leave one out"
            )


class Part(NamedTuple):
    """The JSON lines of one input: their file, the byte each begins at (int64 [lines]), and counts."""

    path: Path
    begins: np.ndarray
    num_short: int
    num_replaced: int


@with_standard_streams
def trans_to_json(config: TransConfig, endings: Sequence[str] = RAW) -> None:
    """Write the documents of ``input_path`` as JSON lines; of a folder the files with ``endings`` are read.

    Raises InputError for whatever the user can fix; then nothing new is on the disk.
    """
    started = time.monotonic()
    is_streamed = config.output_path == STANDARD_OUTPUT
    merged = Path(config.output_path if is_streamed else f"{config.output_path}.jsonl")
    inputs = list_inputs(config.input_path, endings, [merged])
    finals = [merged]
    if config.no_merge:
        root = Path(config.input_path)
        relative = [path.relative_to(root) if root.is_dir() else Path(path.name) for path in inputs]
        finals = [Path(f"{config.output_path}_{'_'.join(path.parts)}.jsonl") for path in relative]
        twice = [name for name in finals if finals.count(name) > 1]
        if twice:
            raise InputError(f"two inputs would both become {twice[0]}; rename one, or merge them")
    settings = settings_of(config, "input_path", "output_path")
    results = Results("trans_to_json", finals, {"input_path": inputs}, settings, config.overwrite)
    if results.are_done():
        return
    report_encodings(inputs)
    with _working_folder(merged) as folder:
        jobs = ((path, folder / f"{number:06d}") for number, path in enumerate(inputs))
        parts = []
        with Progress(inputs, config.log_interval) as progress:
            for path, part in zip(inputs, ordered_map(partial(_convert_file, config), jobs, config.workers)):
                progress.read(path.stat().st_size)
                progress.made(len(part.begins))
                parts.append(part)
        num_documents = sum(len(part.begins) for part in parts)
        if not num_documents:
            raise InputError(
                f"{config.input_path}: no document has {config.min_doc_length} characters; lower "
                "--min_doc_length, or give longer texts"
            )
        groups = [[part] for part in parts] if config.no_merge else [parts]
        with results.published() as drafts:
            for number, (group, draft) in enumerate(zip(groups, drafts)):
                order = None if config.no_shuffle else np.random.default_rng([config.seed, number])
                _write(group, draft, order)
    num_short, num_replaced = (sum(getattr(part, name) for part in parts) for name in Part._fields[2:])
    replaced = f", {num_replaced} bytes replaced" if config.encoding_errors == "replace" else ""
    say(
        f"{as_called(config.output_path)}: {counted(num_documents, 'document')} from "
        f"{counted(len(inputs), 'file')} ({num_short} shorter than {config.min_doc_length} characters left "
        f"out{replaced}) in {time.monotonic() - started:.1f} s",
        sys.stderr,
    )


def read_documents(path: Path, splitter: str, rules: LineRules = STRICT) -> Iterator[Tuple[List[str], int]]:
    """Yield each document of raw text, JSON or a table: its stripped lines, and the number of bytes replaced.

    Raises InputError with file:line for a line that is not UTF-8, and for a too long line or document.
    """
    lines: List[str] = []
    size = num_replaced = 0
    if holds_documents(path, rules):
        for number, content in enumerate(document_lines(path, rules), start=1):
            if content.strip():
                replaced = num_invalid_bytes(content) if rules.replaces else 0
                found = json_text(str(path), number, content, rules).split("\n")
                yield list(filter(None, map(str.strip, found))), replaced
        return
    for number, content in enumerate(read_lines(path, max_bytes=rules.max_bytes), start=1):
        line = decoded(str(path), number, content, rules).strip()
        num_replaced += num_invalid_bytes(content) if rules.replaces else 0
        if line == splitter.strip():
            if lines:
                yield lines, num_replaced
            lines, size, num_replaced = [], 0, 0
        elif line:
            lines.append(line)
            size += len(content)
        if size > rules.max_bytes:
            raise InputError(
                f"{path}:{number}: here the document grows above {rules.max_bytes} bytes; split it with "
                "empty lines, or raise --max_line_bytes"
            )
    if lines:
        yield lines, num_replaced


@contextmanager
def _working_folder(merged: Path) -> Iterator[Path]:
    """Make a folder of this run beside the output, or of a temporary one; remove those of killed runs."""
    if is_stream(followed(merged)):
        with TemporaryDirectory(prefix="ernie-pair-") as temporary:
            yield Path(temporary)
        return
    with folder_made(merged.parent):
        stem = f".{shortened(merged.name)}.parts"
        for leftover in own_entries(merged.parent, lambda found: found == stem):
            with locked(leftover / LOCK, seconds=0):
                shutil.rmtree(leftover)
        folder = merged.with_name(own_name(stem))
        folder.mkdir()
        with locked(folder / LOCK, seconds=0):
            try:
                with naming(folder):
                    yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)


def _convert_file(config: TransConfig, job: Tuple[Path, Path]) -> Part:
    source, target = job
    begins, num_short, num_replaced, place = [], 0, 0, 0
    with open(target, "wb") as out:
        for lines, replaced in read_documents(source, config.doc_spliter, config.line_rules):
            num_replaced += replaced
            if sum(map(len, lines)) < config.min_doc_length:
                num_short += 1
                continue
            record = json.dumps({config.json_key: "\n".join(lines)}, ensure_ascii=False)
            begins.append(place)
            place += out.write(record.encode("utf-8") + b"\n")
    return Part(target, np.array(begins, dtype=np.int64), num_short, num_replaced)


def _write(parts: List[Part], draft: Path, rng) -> None:
    """Write the lines of all parts in the order that ``rng`` draws, or in their own when it is None."""
    gathered, begins, size = parts[0].path.with_suffix(".gathered"), [], 0
    with open(gathered, "wb") as out:
        for part in parts:
            begins.append(part.begins + size)
            with open(part.path, "rb") as lines:
                shutil.copyfileobj(lines, out, 1 << 20)
            size += part.path.stat().st_size
            part.path.unlink()
    if rng is None or not size:
        shutil.move(gathered, draft)
        return
    ends = np.concatenate([*begins, [size]])  # where each line begins, and the end
    with open(gathered, "rb") as content:
        mapped = mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ)
    with mapped, open(draft, "wb") as out:
        for document in rng.permutation(len(ends) - 1).tolist():
            out.write(mapped[ends[document] : ends[document + 1]])


if __name__ == "__main__":
    run_command(trans_to_json, TransConfig)
