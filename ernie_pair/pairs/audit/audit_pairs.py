"""ernie-pair audit pairs: check labelled pairs before training on them.

ernie-pair audit pairs --train_file train.tsv --dev_file dev.tsv --output_dir audit --drop_leaks exact

Reports repeats, pairs with two labels, pairs that training and evaluation share, breaks of transitivity,
the balance of the labels and the lengths. With --drop_leaks it writes the training file again, without
the rows that are wrong or known to the other files; those stay as they are, for they measure. `exact`
compares texts character by character; `normalised` also drops what differs in width, case, white space
and punctuation alone.
"""

import json
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Iterable, Iterator, Literal

import numpy as np

from data_tools.corpus.create_flags import VOCABULARY_HELP
from data_tools.text.file_content import detect_encoding
from data_tools.text.folder_tokenizer import open_vocabulary, vocabulary_file
from data_tools.text.tables import detect_form
from data_tools.text.text_files import PACKED
from ernie_pair.core.cli.options import OverwriteFlag, data_option, file_option
from ernie_pair.core.cli.standard_streams import as_called, with_standard_streams
from ernie_pair.core.errors import InputError, printable
from ernie_pair.core.files.results import Results
from ernie_pair.core.progress import say
from ernie_pair.models.labels import MAX_WORDS, Labels
from ernie_pair.models.spec import MIN_PAIR_LENGTH
from ernie_pair.pairs.audit import findings
from ernie_pair.pairs.audit.new_pairs import results_of_pairs
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.data.pair_records import LABEL_MAP_HELP, RowFlags
from ernie_pair.pairs.data.pair_source import WORDS, PairSource, check_columns, labels_for, read_all
from ernie_pair.pairs.data.rejected import ENDING, log_rejected

SHOWN_ROWS, SHOWN_CHARACTERS = 3, 40  # at the head of a report
JSON_FILE, PICTURE_FILE = "audit.json", "audit.png"


@dataclass(frozen=True)
class AuditPairsConfig(RowFlags, OverwriteFlag):
    """Check labelled pairs before training on them."""

    EXAMPLE = "--train_file train.tsv --dev_file dev.tsv --output_dir audit --drop_leaks exact"
    MOST_CLASSES = MAX_WORDS

    train_file: str = file_option(
        help="labelled pairs: files, folders, or a set such as lcqmc", stdin=(".tsv", ".jsonl")
    )
    dev_file: str = file_option("", help="labelled pairs for choosing the best model")
    test_file: str = file_option("", help="test pairs; labels are ignored")
    label_map: str = data_option("", help=LABEL_MAP_HELP)
    same: str = data_option("", help="label of pairs that mean the same; empty: the match, class 1 of two")
    vocab_file: str = file_option(
        "", help=f"measures lengths in tokens instead of characters: {VOCABULARY_HELP}"
    )
    max_seq_len: int = data_option(
        128,
        help="tokens per pair, [CLS] and [SEP] included; longer ones are counted",
        unit="tokens",
        at_least=MIN_PAIR_LENGTH,
    )
    output_dir: str = data_option(
        "",
        help=f"folder for {JSON_FILE} and {PICTURE_FILE}; empty: print to the terminal only",
        writes="FOLDER",
    )
    drop_leaks: Literal["none", "exact", "normalised"] = data_option(
        "none",
        help="write the training file to --output_dir without shared, contradictory or repeated pairs; texts "
        "are compared character by character (exact), or after NFKC, lower-casing and removing white space "
        "and punctuation (normalised)",
    )

    def __post_init__(self):
        super().__post_init__()
        if self.drop_leaks != "none" and not self.output_dir:
            raise InputError(
                f"--drop_leaks {self.drop_leaks} has no place to write to; pass --output_dir FOLDER"
            )


@with_standard_streams
def audit_pairs(config: AuditPairsConfig) -> dict[str, Any]:
    """Look for duplicates, leaks and contradictions in labelled pairs; print the report, and return it.

    It is written below ``output_dir``, with its picture and the cleaned file. Raises InputError.
    """
    known = {"train": Labels.numbered(2), "dev": Labels.numbered(2), "test": None}
    sources = {
        split: PairSource.of(config, f"{split}_file", labels)
        for split, labels in known.items()
        if getattr(config, f"{split}_file")
    }
    if config.drop_leaks != "none":
        _check_cleanable(sources["train"], Path(config.output_dir))
    check_columns([*sources.values()])
    labels = labels_for(sources["train"], config.label_map, stops=False)
    sources = {
        split: source if split == "test" else replace(source, labels=labels)
        for split, source in sources.items()
    }
    tokenizer = open_vocabulary(config.vocab_file) if config.vocab_file else None
    same = findings.equal_class(labels, config.same)
    results = _results(config)
    are_there = config.output_dir and results.are_done()
    read = dict(zip(sources, read_all([*sources.values()])))
    for split, pairs in read.items():
        path = Path(config.output_dir) / f"{split}{ENDING}" if config.output_dir else None
        log_rejected(pairs.path, pairs.bad, len(pairs), path)
    files = findings.coded(read)
    audit = findings.audit_of(files, labels, same, tokenizer, config.max_seq_len)
    lines: list[Iterable[bytes]] = []
    if config.drop_leaks != "none":
        cleaned, kept = _clean(files, Path(config.output_dir), config.drop_leaks)
        audit, lines = replace(audit, cleaned=cleaned), [kept]
    read_as = [line for split, source in sources.items() for line in _first_rows(source, read[split], labels)]
    say(as_called("\n".join([*read_as, *findings.report_lines(audit)])))
    if config.output_dir and not are_there:
        with results.published() as (text, picture, *training):
            for draft, kept in zip(training, lines):
                with open(draft, "wb") as out:
                    out.writelines(kept)
            content = as_called(json.dumps(asdict(audit), ensure_ascii=False, indent=1))
            text.write_text(content + "\n", encoding="utf-8")
            findings.draw(picture, audit)
        say("wrote {} and {}".format(*results.given))
    return asdict(audit)


def _first_rows(source: PairSource, pairs: Pairs, labels: Labels) -> Iterator[str]:
    """Yield how a file is read, in words, and its first rows as they are read."""
    words = [f"{word} = {number}" for word, number in labels.classes.items() if word != str(number)]
    known = f"; {', '.join(words)}" if words and pairs.labels is not None else ""
    for part in source.parts:
        reader, _ = part.open(source.labels is not None)
        columns = reader.said if reader and reader.said else "the columns are text, text, label"
        yield f"{part.name if part.is_file else pairs.path}: {columns}{known}"
    as_words = replace(source, labels=source.labels and WORDS, rules=replace(source.rules, skips=True))
    good = {pairs.number(row) for row in range(min(SHOWN_ROWS, len(pairs)))}
    for row in islice((row for row in as_words.rows() if row.number in good), len(good)):
        label = [] if row.label is None else [str(row.label)]
        cells = (printable(text[:SHOWN_CHARACTERS]) for text in (row.left, row.right, *label))
        yield f"  {row.number}: {' | '.join(cells)}"


def _check_cleanable(source: PairSource, folder: Path) -> None:
    path = Path(source.name)
    if not source.is_file or len(source.parts) > 1:
        what = "several files" if source.is_file else "a set"
        raise InputError(f"--drop_leaks cleans one file, and {source.name} is {what}; give each file alone")
    if path.suffix in PACKED:
        raise InputError(f"{path}: --drop_leaks does not write packed files; unpack it first")
    if path.is_file() and detect_form(path, source.rules.encoding).kind not in ("tab", "csv", "json"):
        raise InputError(f"{path}: --drop_leaks keeps lines as they are, and it has none; save it as .csv")
    if (folder / path.name).resolve() == path.resolve():
        raise InputError(f"--output_dir {folder} is the folder of {path.name} itself; choose another one")
    if path.name in (JSON_FILE, PICTURE_FILE, *(f"{split}{ENDING}" for split in ("train", "dev", "test"))):
        raise InputError(
            f"{path}: --drop_leaks writes it to --output_dir under its own name, and {folder / path.name} is "
            "a report; rename it"
        )


def _clean(
    files: dict[str, findings.Coded], folder: Path, compared: str
) -> tuple[findings.Cleaned, Iterable[bytes]]:
    """Return what is left of the training file, and its lines as they are. Raises InputError for none."""
    if compared == "exact":
        files = {name: file.by_characters for name, file in files.items()}
    train = files["train"]
    others = [file for name, file in files.items() if name != "train"]
    kept = np.ones(len(train.pairs), dtype=bool)
    removed = {"bad rows": len(train.pairs.bad)} if train.pairs.bad else {}
    for kind, wrong in (
        ("shared", findings.is_shared(train, others)),
        ("contradicted", findings.is_contradicted(train)),
        ("repeated", findings.is_repeated(train)),
    ):
        removed[kind] = int((kept & wrong).sum())
        kept &= ~wrong
    if not kept.any():
        raise InputError(
            f"{train.pairs.path}: --drop_leaks would leave no pair; are the files the right ones?"
        )
    path = Path(train.pairs.path)
    cleaned = findings.Cleaned(str(folder / path.name), int(kept.sum()), removed, compared)
    return cleaned, _kept_lines(path, train.pairs, kept)


def _kept_lines(path: Path, pairs: Pairs, kept: np.ndarray) -> Iterator[bytes]:
    """Yield the header, and every line of the rows that are kept: one of a .csv may have several."""
    fate = {row.number: False for row in pairs.bad}
    fate.update((pairs.number(row), bool(is_kept)) for row, is_kept in enumerate(kept))
    is_kept = True
    # Bytes as characters, but in UTF-16, where two make the end of a line.
    encoding = detect_encoding(path) if detect_encoding(path).startswith("utf-16") else "latin-1"
    with open(path, encoding=encoding, newline="\n") as lines:
        for number, line in enumerate(lines, start=1):
            is_kept = fate.get(number, is_kept)
            if is_kept:
                yield line.encode(encoding)


def _results(config: AuditPairsConfig) -> Results:
    names = [JSON_FILE, PICTURE_FILE]
    if config.drop_leaks != "none":
        names.append(Path(config.train_file).name)
    outputs = [Path(config.output_dir, name) for name in names]
    vocabulary = [vocabulary_file(config.vocab_file)] if config.vocab_file else []
    unread = {} if vocabulary else {"vocab_file": ""}
    return results_of_pairs("audit pairs", config, outputs, "output_dir", {"vocab_file": vocabulary}, unread)
