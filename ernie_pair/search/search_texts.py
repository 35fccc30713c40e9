"""ernie-pair search: the texts of an index that match a query, a file of queries, or what is typed.

A file gives a line of JSON for each query, and so do queries from a pipe:

    {"id": "0", "query": "怎么开户", "hits": [{"id": "a1", "text": "...", "score": 0.98, "similarity": 0.71}]}
"""

import json
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterator, List, Literal, Optional, Sequence, TextIO

from data_tools.base.errors import InputError
from data_tools.base.options import Options, option
from data_tools.base.progress import CountProgress
from data_tools.files.atomic_folder import content_of
from data_tools.files.results import Results, files_of, settings_of
from data_tools.files.standard_streams import with_standard_streams
from data_tools.text.named_texts import NamedText, read_texts
from ernie_pair.inference.scores import COSINE
from ernie_pair.processes.console import start_console
from ernie_pair.processes.world import World
from ernie_pair.search.build_index import THREADS_HELP
from ernie_pair.search.hits import Hit
from ernie_pair.search.index_folder import INDEX_MANIFEST
from ernie_pair.search.searcher import RECALL_K, PairSearcher

DIGITS, PROMPT = 6, "> "
TYPED = "-"  # of --query: queries are read from standard input
BREADTH_HELP = (
    "of ivf the lists that are looked through, more where these are empty, of hnsw the candidates, flat has "
    "none; 0: 64"
)
SPACES = str.maketrans("\t\r\n", "   ")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SearchConfig(Options):
    """Find the texts of an index that match a query; without one, queries are read from standard input."""

    EXAMPLE = "--index faq.index --model_path embedder --reranker ship --query 怎么开户"

    index: str = option(help="the folder that ernie-pair index made", group="data")
    model_path: str = option(help="the embedding model that the index was made with", group="model")
    reranker: str = option(
        "",
        help="a pair classifier that orders what is found, trained or exported; empty: none",
        group="model",
    )
    query: str = option(
        TYPED,
        help="a query, answered on the console; -: a query on each line of standard input",
        group="data",
    )
    queries_file: str = option(
        "",
        help="queries, a line each; .tsv: id TAB query; .jsonl: id and text",
        group="data",
        stdin=(".txt", ".jsonl"),
    )
    answers_file: str = option(
        "", help="of --queries_file: a line of JSON for each query goes here", group="data", stdout=True
    )
    top_k: int = option(10, help="most texts of an answer", group="evaluation", unit="texts", at_least=1)
    recall_k: int = option(
        RECALL_K,
        help="nearest texts that the classifier chooses from",
        group="evaluation",
        unit="texts",
        at_least=1,
    )
    threshold: Optional[float] = option(
        None,
        help="leave out what scores less: a probability, of a --reranker without classes its score, without "
        "a --reranker a cosine; none: nothing",
        group="evaluation",
    )
    breadth: int = option(0, help=BREADTH_HELP, group="evaluation", at_least=0)
    long_query: Literal["stop", "cut"] = option(
        "stop", help="a query that is longer than the embedding model", group="data"
    )
    device: Literal["cpu", "gpu"] = option("cpu", help="where the models run", group="devices")
    threads: int = option(0, help=THREADS_HELP, group="devices", unit="threads", at_least=0)
    overwrite: bool = option(False, help="replace another result that is there", group="data")

    def __post_init__(self):
        super().__post_init__()
        if not self.query.strip():
            raise InputError("--query is empty; fill it in, or leave it out to be asked for queries")
        if self.query != TYPED and self.queries_file:
            raise InputError("--query and --queries_file are two ways to ask; give one of them")
        if bool(self.queries_file) != bool(self.answers_file):
            raise InputError("--queries_file and --answers_file go together; give both, or neither")
        if not self.reranker:
            COSINE.refuse_outside(self.threshold)
        if self.recall_k < self.top_k:
            raise InputError(
                f"--recall_k {self.recall_k} is below --top_k {self.top_k}; recall as many as are wanted"
            )


@with_standard_streams
def search_texts(config: SearchConfig) -> None:
    """Answer the query, the file or standard input. Raises an ErniePairError."""
    start_console(World())
    results = _results(config)
    if results is not None and results.are_done():
        return
    if config.queries_file:
        count = sum(1 for _ in read_texts(Path(config.queries_file)))
        if not count:
            raise InputError(f"{config.queries_file} holds no query; give one on every line")
    searcher = PairSearcher(
        config.index,
        config.model_path,
        config.reranker,
        config.recall_k,
        config.threshold,
        config.device,
        config.threads,
        config.breadth,
        config.long_query == "cut",
    )
    if results is not None:
        _answer_file(config, searcher, results, count)
    elif config.query != TYPED:
        _print_hits(searcher.search(config.query, config.top_k), config)
    else:
        _answer_lines(config, searcher, sys.stdin)


def _results(config: SearchConfig) -> Optional[Results]:
    if not config.queries_file:
        return None
    inputs: Dict[str, Sequence[Path]] = {
        name: content_of(getattr(config, name)) for name in ("model_path", "reranker", "queries_file")
    }
    inputs["index"] = files_of(os.path.join(config.index, INDEX_MANIFEST))  # which has the hash of each file
    settings = settings_of(config, *inputs, "answers_file")
    return Results("search", [config.answers_file], inputs, settings, config.overwrite)


def _answer_file(config: SearchConfig, searcher: PairSearcher, results: Results, count: int) -> None:
    path = Path(config.queries_file)
    for row in read_texts(path):  # all of them, before the models work for the first
        searcher.refuse_query(row.text, f"{path}:{row.line}: ")
    progress = CountProgress(count, "query")
    with results.published() as (draft,), open(draft, "w", encoding="utf-8") as file, progress:
        answers = searcher.search_many((row.text for row in read_texts(path)), config.top_k)
        for row, hits in zip(read_texts(path), answers):
            file.write(_line_of(row, hits))
            progress.advance(1)
    logger.info("%d queries: %s", count, config.answers_file)


def _answer_lines(config: SearchConfig, searcher: PairSearcher, lines: TextIO) -> None:
    """Answer line by line: for a person, or where the answers are read by a program as JSON."""
    is_person = lines.isatty()
    for number, text in _typed(lines, PROMPT if is_person else ""):
        if not is_person:
            searcher.refuse_query(text, f"standard input:{number}: ")
            hits = searcher.search(text, config.top_k)
            sys.stdout.write(_line_of(NamedText(str(number - 1), text, number), hits))
            sys.stdout.flush()
            continue
        try:
            _print_hits(searcher.search(text, config.top_k), config)
        except InputError as error:  # the next one may do
            sys.stderr.write(f"{error.message}\n")


def _typed(lines: TextIO, prompt: str) -> Iterator:
    """Yield (number from 1, text) of the lines that are not blank, each asked for with ``prompt``."""
    number = 0
    while True:
        sys.stderr.write(prompt)
        sys.stderr.flush()
        number += 1
        try:
            line = lines.readline()
        except UnicodeDecodeError:
            raise InputError(f"standard input:{number}: not UTF-8; convert it by iconv -t UTF-8") from None
        if not line:
            return
        if line.strip():
            yield number, line.strip("\r\n")


def _line_of(row: NamedText, hits: List[Hit]) -> str:
    content = {"id": row.id, "query": row.text, "hits": [hit.content(DIGITS) for hit in hits]}
    return json.dumps(content, ensure_ascii=False) + "\n"


def _print_hits(hits: List[Hit], config: SearchConfig) -> None:
    for hit in hits:
        print(f"{hit.score:.4f}\t{hit.id.translate(SPACES)}\t{hit.text.translate(SPACES)}")
    if not hits:  # an index is never empty, and its lists are looked through until there are hits
        logger.info("nothing reaches --threshold %g", config.threshold)
