"""Measure searches by vectors, by BM25 and by both, with and without reranking.

python scripts/results/search_recall.py --pair_file test.tsv --embedding_model encoder --reranker pair

The first texts with a match search all second texts, as for the dev set of an embedding model. It prints the
tables of docs/*/search-and-rank.md; the group circle of run.py keeps what each query found.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import List, Literal, Optional

import numpy as np

from ernie_pair.core.cli.cli import run_command
from ernie_pair.core.cli.options import Options, data_option
from ernie_pair.core.files.atomic_files import published
from ernie_pair.core.files.json_file import write_json
from ernie_pair.embeddings.retrieval import RetrievalSet, build_retrieval_set
from ernie_pair.models.model_card import markdown_table
from ernie_pair.pairs.data.pair_source import read_pairs
from ernie_pair.retrieval.build_index import IndexConfig, make_index
from ernie_pair.retrieval.evaluate_search import METRICS as OF_A_QUERY
from ernie_pair.retrieval.evaluate_search import values_of
from ernie_pair.retrieval.index_folder import RETRIEVALS
from ernie_pair.retrieval.searcher import PairSearcher

BEST = 10
METRICS = ("recall@1", f"recall@{BEST}", f"nDCG@{BEST}")


@dataclass(frozen=True)
class RecallConfig(Options):
    """Print recall and nDCG of searches and the time of a query, by what finds the texts."""

    pair_file: str = data_option(help="labelled pairs, 1 for a match", reads="FILE")
    embedding_model: str = data_option(help="its folder", reads="PATH")
    reranker: str = data_option(
        "", help="a classifier of pairs or a ranker, trained or exported; empty: none", reads="PATH"
    )
    retrieval: Literal["", "vectors", "bm25", "both"] = data_option("", help="only this; empty: all three")
    output_dir: str = data_option(
        "output/search_recall", help="folder for the texts and their index", writes="FOLDER"
    )
    output_file: str = data_option(
        "", help="what each query found goes here, as JSON; empty: nowhere", writes="FILE"
    )


def values_of_each(found: RetrievalSet, searcher: PairSearcher) -> np.ndarray:
    """Return the METRICS of each query, float64 [Q, 3]; the query itself is none of what it finds."""
    values = []
    asked = [found.texts[query] for query in found.queries]
    for query, matches, hits in zip(found.queries, found.matches, searcher.search_many(asked, BEST + 1)):
        others = [hit for hit in hits if int(hit.id) != query or query in matches][:BEST]
        measured = dict(zip(OF_A_QUERY, values_of(list(map(str, matches)), others)))
        values.append([measured[name.lower()] for name in METRICS])
    return np.array(values)


def measure(config: RecallConfig) -> None:
    found = build_retrieval_set(read_pairs(config.pair_file, 2), config.pair_file)
    folder = Path(config.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    texts, index = folder / "texts.jsonl", str(folder / "index")
    rows = (json.dumps({"id": str(place), "text": found.texts[place]}) for place in found.corpus)
    texts.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    make_index(IndexConfig(str(texts), index, config.embedding_model, retrieval="both", overwrite=True))
    table: List[List[str]] = []
    of_queries = {}
    for retrieval in [config.retrieval] if config.retrieval else RETRIEVALS:
        for reranker in filter(None, ("none", config.reranker)):
            model: Optional[str] = "" if retrieval == "bm25" else config.embedding_model
            is_reranked = reranker == config.reranker
            given = reranker if is_reranked else ""
            searcher = PairSearcher(index, model, given, cuts=True, retrieval=retrieval)
            started = time.perf_counter()
            values = values_of_each(found, searcher)
            each = 1000 * (time.perf_counter() - started) / len(found.queries)
            shown = [f"{value:.3f}" for value in values.mean(axis=0)]
            table.append([retrieval, "yes" if is_reranked else "no", *shown, f"{each:.1f}"])
            of_queries[f"{retrieval}, reranked" if is_reranked else retrieval] = values.round(6).tolist()
    print(f"{len(found.queries)} queries, {len(found.corpus)} texts\n")
    print(markdown_table(["retrieval", "reranked", *METRICS, "ms per query"], table))
    if config.output_file:
        with published(Path(config.output_file)) as (draft,):
            write_json(draft, {"texts": len(found.corpus), "metrics": METRICS, "queries": of_queries})


if __name__ == "__main__":
    run_command(measure, RecallConfig)
