"""Measure recall@10 of searches by vectors, by BM25 and by both, with and without reranking.

python scripts/results/search_recall.py --pair_file test.tsv --embedding_model encoder --reranker pair

The first texts with a match search all second texts, as for the dev set of an embedding model. It prints the
table of docs/*/search-and-rank.md.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import numpy as np

from data_tools.options.cli import run_command
from data_tools.options.options import Options, data_option
from ernie_pair.embedding.retrieval import RetrievalSet, build_retrieval_set
from ernie_pair.models.model_card import markdown_table
from ernie_pair.pair.data.pair_file import read_pairs
from ernie_pair.search.build_index import IndexConfig, make_index
from ernie_pair.search.index_folder import RETRIEVALS
from ernie_pair.search.searcher import PairSearcher

BEST = 10


@dataclass(frozen=True)
class RecallConfig(Options):
    """Print recall@10 and the time of a query, by what finds the texts."""

    pair_file: str = data_option(help="labelled pairs, 1 for a match")
    embedding_model: str = data_option(help="its folder")
    reranker: str = data_option(help="a classifier of pairs, trained or exported")
    output_dir: str = data_option("output/search_recall", help="folder for the texts and their index")


def recall_of(found: RetrievalSet, searcher: PairSearcher) -> float:
    """Return the mean share of a query's matches among its ten best; the query itself is none of these."""
    shares = []
    asked = [found.texts[query] for query in found.queries]
    for query, matches, hits in zip(found.queries, found.matches, searcher.search_many(asked, BEST + 1)):
        places = [int(hit.id) for hit in hits if int(hit.id) != query or query in matches][:BEST]
        shares.append(np.isin(matches, places).mean())
    return float(np.mean(shares))


def measure(config: RecallConfig) -> None:
    found = build_retrieval_set(read_pairs(config.pair_file, 2), config.pair_file)
    folder = Path(config.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    texts, index = folder / "texts.jsonl", str(folder / "index")
    rows = (json.dumps({"id": str(place), "text": found.texts[place]}) for place in found.corpus)
    texts.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    make_index(IndexConfig(str(texts), index, config.embedding_model, retrieval="both", overwrite=True))
    table = []
    for retrieval in RETRIEVALS:
        for reranker in ("", config.reranker):
            model: Optional[str] = "" if retrieval == "bm25" else config.embedding_model
            searcher = PairSearcher(index, model, reranker, cuts=True, retrieval=retrieval)
            started = time.perf_counter()
            share = recall_of(found, searcher)
            each = 1000 * (time.perf_counter() - started) / len(found.queries)
            table.append([retrieval, "yes" if reranker else "no", f"{share:.3f}", f"{each:.1f}"])
    print(f"{len(found.queries)} queries, {len(found.corpus)} texts\n")
    print(markdown_table(["retrieval", "reranked", "recall@10", "ms per query"], table))


if __name__ == "__main__":
    run_command(measure, RecallConfig)
