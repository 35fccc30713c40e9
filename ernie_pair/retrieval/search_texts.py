"""ernie-pair search: the texts of an index that match a query, a file of queries, or what is typed.

For a file of queries it writes one line of JSON per query, and so it does for queries from a pipe:

    {"id": "0", "query": "怎么开户", "answered": true,
     "hits": [{"id": "a1", "text": "...", "score": 0.98, "similarity": 0.71}]}

or, by the ending of the output, a table with a row per text found: id, query, rank, text_id, text, score,
similarity, bm25, probability, window_begin, window_end (of a long text: the characters that match best), and
what rides along with the texts of the index ("payload" of a line of JSON).
"""

import json
import logging
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Literal, Optional, Sequence, TextIO, Tuple

from data_tools.text.table_writer import check_table_suffix, ending_to_write, table_writer
from data_tools.text.tables import JSON_ENDINGS, detect_form, records
from data_tools.text.text_files import LineRules
from data_tools.text.texts import INPUT_HELP, NamedText, TextFlags, read_texts
from ernie_pair.core.cli.options import (
    OverwriteFlag,
    data_option,
    evaluation_option,
    file_option,
    model_folder_option,
    speed_option,
)
from ernie_pair.core.cli.standard_streams import check_stdin, with_standard_streams
from ernie_pair.core.errors import InputError, counted
from ernie_pair.core.files.results import Results, files_of, followed, is_stream, settings_of
from ernie_pair.core.progress import CountProgress, say
from ernie_pair.inference.scores import Window
from ernie_pair.inference.token_rows import OVERLAP_HELP, BatchTokensFlag
from ernie_pair.models.model_folder import list_model_files
from ernie_pair.retrieval.build_index import THREADS_HELP
from ernie_pair.retrieval.index import SEARCH_LIBRARIES
from ernie_pair.retrieval.index_folder import BM25, BOTH, INDEX_MANIFEST, MEASURED, VECTORS
from ernie_pair.retrieval.searcher import RECALL_K, Hit, PairSearcher
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import World

DIGITS, PROMPT = 6, "> "
TYPED = "-"  # of --text: queries are read from standard input
RETRIEVAL_HELP = "by what texts are found; auto: all that the index was made for"
SCORES = {VECTORS: "cosine", BM25: "bm25", BOTH: "fused"}  # their name without a classifier
OF_A_HIT = ("text", "score", "similarity", "bm25", "probability", "window_begin", "window_end")
COLUMNS = {"id": str, "query": str, "rank": int, "text_id": str}  # of a table of answers, with their kinds
COLUMNS.update(zip(OF_A_HIT, (str, *[float] * 4, int, int)))
OF_PAYLOAD = "payload_"  # before the name of a column of the index that is one of COLUMNS
SPACES = str.maketrans("\t\r\n", "   ")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SearchFlags(OverwriteFlag, BatchTokensFlag, TextFlags):
    """The index that is searched, and how its embedding model is run."""

    NEEDS = SEARCH_LIBRARIES

    index: str = data_option(help="the folder that ernie-pair index made", reads="FOLDER")
    embedding_model: str = model_folder_option(
        "", help="the embedding model that the index was made with; not for BM25 alone"
    )
    long_query: Literal["stop", "cut"] = data_option(
        "stop", help="a query that is too long for the embedding model: stop with an error, or truncate it"
    )
    window_overlap: int = evaluation_option(
        0, help=f"to rank: {OVERLAP_HELP}", unit="tokens", at_least=0, only_with="model_path"
    )
    device: Literal["cpu", "gpu", "gpu:N"] = speed_option("cpu", help="where the models run")
    threads: int = speed_option(0, help=THREADS_HELP, unit="threads", at_least=0)


@dataclass(frozen=True)
class SearchConfig(SearchFlags):
    """Find the texts of an index that match a query; without one, queries are read from standard input."""

    EXAMPLE = "--index faq.index --embedding_model embedder --model_path ship --text 怎么开户"

    model_path: str = model_folder_option(
        "", help="pair classifier that reranks the texts found, trained or exported; empty: none"
    )
    text: str = data_option(
        TYPED, help="a query, answered on the terminal; -: one query per line of standard input"
    )
    input_file: str = file_option(
        "", help=f"a file of queries, instead of --text; {INPUT_HELP}", stdin=(".txt", ".jsonl")
    )
    output_file: str = data_option(
        "",
        help="for --input_file: file to write, .jsonl with a line per query, or .tsv, .csv, .xlsx or "
        ".parquet with a row per text found",
        stdout=True,
        writes="FILE",
    )
    top_k: int = evaluation_option(10, help="maximum number of texts per answer", unit="texts", at_least=1)
    recall_k: int = evaluation_option(
        RECALL_K, help="texts found for a query, which the classifier reranks", unit="texts", at_least=1
    )
    threshold: Optional[float] = evaluation_option(
        None,
        help="drop texts that score less: a probability; with a model without classes, its score; without "
        "--model_path, a cosine, or the product of vectors of a model that compares by it, a BM25 score, or "
        "a fused rank; none: what evaluate search has saved, else keep all",
    )
    retrieval: Literal["auto", "vectors", "bm25", "both"] = evaluation_option("auto", help=RETRIEVAL_HELP)
    where: str = evaluation_option(
        "",
        help="only texts are searched with which this rides along, COLUMN=VALUE; of several, separated by "
        "commas, all; empty: all texts",
    )

    def __post_init__(self):
        super().__post_init__()
        self.filters  # noqa: B018 - which checks it
        if not self.text.strip():
            raise InputError("--text is empty; fill it in, or leave it out to be asked for queries")
        if self.text != TYPED and self.input_file:
            raise InputError("--text and --input_file exclude each other; give one of them")
        if bool(self.input_file) != bool(self.output_file):
            raise InputError("--input_file and --output_file go together; give both, or neither")
        if self.model_path and self.recall_k < self.top_k:
            raise InputError(f"--recall_k {self.recall_k} is below --top_k {self.top_k}; use --top_k or more")

    @property
    def filters(self) -> Dict[str, str]:
        """Return {column: value} of --where; a piece without = belongs to the value before it."""
        found: Dict[str, str] = {}
        for piece in self.where.split(",") if self.where else ():
            column, mark, value = piece.partition("=")
            if not (column.strip() if mark else found):
                raise InputError(f"--where {self.where}: {piece!r} is no COLUMN=VALUE; write category=账户")
            if mark and column.strip() in found:
                raise InputError(f"--where {self.where} names {column.strip()} twice; leave one value")
            if mark:
                found[column.strip()] = value
            else:
                found[[*found][-1]] += f",{piece}"
        return found


@with_standard_streams
def search_texts(config: SearchConfig) -> List[Hit]:
    """Answer the query, the file or standard input; return the hits of --text. Raises an ErniePairError."""
    start_console(World())
    if config.text == TYPED and not config.input_file:
        check_stdin("--text -", "give a query")
    if config.input_file:
        if not is_stream(followed(Path(config.output_file))):
            check_table_suffix("output_file", config.output_file)
        results = _results(config)
        if not results.are_done():
            _answer_file(config, results)
        return []
    searcher = open_searcher(config)
    if config.text == TYPED:
        _answer_lines(config, searcher, sys.stdin)
        return []
    hits = searcher.search(config.text, config.top_k, config.filters)
    _print_heads(config, searcher)
    _print_hits(hits, config, searcher)
    return hits


def open_searcher(config: SearchConfig) -> PairSearcher:
    """Return the index that the flags name, with its models. Raises an ErniePairError."""
    names = "recall_k threshold device threads retrieval batch_tokens window_overlap".split()
    same = {name: getattr(config, name) for name in names}
    cuts = config.long_query == "cut"
    searcher = PairSearcher(config.index, config.embedding_model, config.model_path, cuts=cuts, **same)
    searcher.texts.check_columns(config.filters)
    return searcher


@with_standard_streams
def search_file(config: SearchConfig) -> List[List[Hit]]:
    """Return the hits of each query of ``input_file``; nothing is written. Raises an ErniePairError."""
    start_console(World())
    rows, searcher = _read_queries(config)
    return list(searcher.search_many((row.text for row in rows), config.top_k, config.filters))


def _read_queries(config: SearchConfig) -> Tuple[List[NamedText], PairSearcher]:
    """Return the queries of ``input_file``, and what answers them: all are checked before the models run."""
    rules = LineRules(place=config.place)
    rows = list(read_texts(Path(config.input_file), rules=rules, columns=config.text_columns))
    if not rows:
        raise InputError(f"{config.input_file} holds no query; give one on every line")
    searcher = open_searcher(config)
    for row in rows:
        searcher.check_query(row.text, f"{config.input_file}:{row.line}: ")
    return rows, searcher


def _results(config: SearchConfig) -> Results:
    inputs: Dict[str, Sequence[Path]] = {
        "embedding_model": list_model_files(config.embedding_model),
        "model_path": list_model_files(config.model_path),
        "input_file": files_of(config.input_file),
        "index": [  # the first has the hash of each other file
            *files_of(os.path.join(config.index, INDEX_MANIFEST)),
            *(path for path in [Path(config.index, MEASURED)] if path.is_file()),
        ],
    }
    settings = settings_of(config, *inputs, "output_file")
    return Results("search", [config.output_file], inputs, settings, config.overwrite)


def _answer_file(config: SearchConfig, results: Results) -> None:
    rows, searcher = _read_queries(config)
    progress, final = CountProgress(len(rows), "query"), results.given[0]
    payload = searcher.texts.payload
    with results.published() as (draft,), _answer_writer(draft, final, payload) as write, progress:
        answers = searcher.search_many((row.text for row in rows), config.top_k, config.filters)
        for row, hits in zip(rows, answers):
            write(row, hits)
            progress.advance(1)
    logger.info("answers to %s: %s", counted(len(rows), "query", "queries"), config.output_file)


@contextmanager
def _answer_writer(
    draft: Path, final: Path, payload: Sequence[str]
) -> Iterator[Callable[[NamedText, List[Hit]], None]]:
    """Yield what writes the hits of a query: a line of JSON, or in a table a row each; see `table_writer`."""
    if is_stream(followed(final)) or ending_to_write(final) in JSON_ENDINGS:
        with open(draft, "w", encoding="utf-8") as file:
            yield lambda row, hits: print(_format_line(row, hits), end="", file=file)
        return
    named = {name: f"{OF_PAYLOAD}{name}" if name in COLUMNS else name for name in payload}
    kinds = {**dict.fromkeys(named.values(), str), **COLUMNS}
    columns = [*COLUMNS, *named.values()]
    with table_writer(draft, final, columns, kinds) as write_row:

        def write(row: NamedText, hits: List[Hit]) -> None:
            for rank, hit in enumerate(hits, start=1):
                found = hit.content(DIGITS)
                if hit.window is not None:
                    found.update(window_begin=hit.window.begin, window_end=hit.window.end)
                cells = [*(found.get(name) for name in OF_A_HIT), *map(hit.payload.get, payload)]
                write_row([row.id, row.text, rank, hit.id, *cells])
            if not hits:
                write_row([row.id, row.text, *[None] * (len(columns) - 2)])

        yield write


def _answer_lines(config: SearchConfig, searcher: PairSearcher, lines: TextIO) -> None:
    """Answer line by line: for a person, or as JSON if a program reads the answers."""
    is_person = lines.isatty()
    if is_person:
        _print_heads(config, searcher)
    for number, text in _typed(lines, PROMPT if is_person else ""):
        if not is_person:
            searcher.check_query(text, f"standard input:{number}: ")
            hits = searcher.search(text, config.top_k, config.filters)
            sys.stdout.write(_format_line(NamedText(str(number - 1), text, number), hits))
            sys.stdout.flush()
            continue
        try:
            _print_hits(searcher.search(text, config.top_k, config.filters), config, searcher)
        except InputError as error:  # the next query may be fine
            sys.stderr.write(f"{error.message}\n")


def _typed(lines: TextIO, prompt: str) -> Iterator:
    """Yield (number from 1, text) of the lines that are not blank, with ``prompt`` before each."""
    number = 0
    while True:
        sys.stderr.write(prompt)
        sys.stderr.flush()
        number += 1
        try:
            line = lines.readline()
        except UnicodeDecodeError:
            raise InputError(f"standard input:{number}: not UTF-8; convert it with iconv -t UTF-8") from None
        if not line:
            return
        line = line.removeprefix("\ufeff") if number == 1 else line  # as read_texts does with a file's
        if line.strip():
            yield number, line.strip("\r\n")


def read_hits(path: Path) -> List[List[Hit]]:
    """Return the hits of each query in a file of answers, as it was written."""
    if ending_to_write(path) in JSON_ENDINGS:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [[_parse_hit(**hit) for hit in json.loads(line)["hits"]] for line in lines]
    found: List[List[Hit]] = []
    columns: List[str] = []
    for _, row in records(path, detect_form(path)):
        assert isinstance(row, list)  # of a file that was written here
        if not columns:
            columns = row
            continue
        _, _, rank, text_id, text, score, *others = row
        names = [name.removeprefix(OF_PAYLOAD) for name in columns[len(COLUMNS) :]]
        others, payload = others[:5], dict(zip(names, others[5:]))
        if rank in (None, "", "1", 1):
            found.append([])
        if rank not in (None, ""):
            similarity, bm25, probability, *ends = (
                None if one in (None, "") else float(one) for one in others
            )
            begin, end = (None if one is None else int(one) for one in ends)
            window = None if begin is None or end is None else Window(begin, end, text[begin:end])
            more = {name: str(value) for name, value in payload.items() if value not in (None, "")}
            found[-1].append(Hit(text_id, text, float(score), similarity, bm25, more, probability, window))
    return found


def _parse_hit(window: Optional[Dict[str, Any]] = None, **said: Any) -> Hit:
    return Hit(**said, window=Window(**window) if window else None)


def _format_line(row: NamedText, hits: List[Hit]) -> str:
    found = [hit.content(DIGITS) for hit in hits]
    content = {"id": row.id, "query": row.text, "answered": bool(found), "hits": found}
    return json.dumps(content, ensure_ascii=False) + "\n"


def _print_heads(config: SearchConfig, searcher: PairSearcher) -> None:
    """Print the column names on a terminal: a program reads only the hits."""
    if sys.stdout.isatty():
        score = "score" if config.model_path else SCORES[searcher.texts.retrieval]
        say("\t".join([score, "id", "text", *searcher.texts.payload]))


def _print_hits(hits: List[Hit], config: SearchConfig, searcher: PairSearcher) -> None:
    saved = searcher.texts.answering_of(config.filters, config.top_k)
    for hit in hits:
        cells = [hit.id, hit.text, *hit.payload.values()]
        say("\t".join([f"{hit.score:.4f}", *(cell.translate(SPACES) for cell in cells)]))
    if not hits and config.threshold is None and saved is not None:
        logger.info(
            "nothing reaches %.4g, the threshold saved with the index; --threshold says otherwise",
            saved.threshold,
        )
    elif not hits and config.where:
        logger.info("nothing with --where %s is found", config.where)
    elif not hits and config.threshold is None:  # of BM25: of vectors, lists are searched until there are any
        logger.info("no text of the index shares a word with the query")
    elif not hits:
        logger.info("nothing reaches --threshold %g", config.threshold)
