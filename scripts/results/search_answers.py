"""Measure from which score on a search answers: on labelled pairs, or on an FAQ made of documents.

python scripts/results/search_answers.py --pair_file dev.tsv --embedding_model encoder --reranker pair
python scripts/results/search_answers.py --document_file abstracts.txt --embedding_model encoder

Of pairs the first texts ask, and the second texts are what is searched; a first text that no row calls a
match of anything is a question without an answer. Of documents the first sentence asks and the rest
answers; the rest of every third document is left out, so that nothing answers its question. It prints the
tables of docs/*/search-and-rank.md.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Set

from ernie_pair.core.cli.cli import run_command
from ernie_pair.core.cli.options import Options, data_option
from ernie_pair.evaluation.calibration import precision_interval
from ernie_pair.models.model_card import markdown_table
from ernie_pair.pairs.data.pair_source import read_pairs
from ernie_pair.retrieval.build_index import IndexConfig, make_index
from ernie_pair.retrieval.evaluate_search import EvaluateSearchConfig, evaluate_search

LONGEST, SHORTEST = 60, 12  # characters of a first sentence that asks
UNANSWERED = 3  # of so many documents one is not searched
COLUMNS = ("stage", "recall@1", "recall@10", "precision", "coverage", "score from")


@dataclass(frozen=True)
class AnswersConfig(Options):
    """Print recall, precision and coverage of each stage of a search, with their intervals of 95 %."""

    embedding_model: str = data_option(help="its folder", reads="PATH")
    pair_file: str = data_option("", help="labelled pairs, 1 for a match; empty: none", reads="FILE")
    document_file: str = data_option(
        "", help="documents, a paragraph per line, an empty line between; empty: none", reads="FILE"
    )
    documents: int = data_option(3000, help="the first of them that are used", at_least=30)
    reranker: str = data_option("", help="a classifier of pairs; empty: none", reads="PATH")
    recall_k: int = data_option(50, help="texts that are found and reranked", at_least=10)
    window_overlap: int = data_option(0, help="tokens that the windows of long texts share; 0: they are cut")
    at_precision: float = data_option(0.9, help="precision to reach", above=0, at_most=1)
    output_dir: str = data_option("output/search_answers", help="folder for what is made", writes="FOLDER")


class Questions(NamedTuple):
    """The texts that are searched, by their ids, and the ids that answer each question."""

    texts: Dict[str, str]
    asked: Dict[str, Set[str]]


def questions_of_pairs(pair_file: str) -> Questions:
    """Return first texts that ask for the second ones."""
    pairs = read_pairs(pair_file, 2)
    numbers = {text: str(place) for place, text in enumerate(dict.fromkeys(pairs.right))}
    asked: Dict[str, Set[str]] = {text: set() for text in pairs.left}
    for left, right, label in zip(pairs.left, pairs.right, pairs.known_labels):
        asked[left].update([numbers[right]] if label else [])
    return Questions({number: text for text, number in numbers.items()}, asked)


def documents_in(path: str) -> Iterator[str]:
    """Yield the documents of a file, each in one line."""
    for block in re.split(r"\n\s*\n", Path(path).read_text(encoding="utf-8")):
        yield "".join(block.split("\n"))


def questions_of_documents(path: str, most: int) -> Questions:
    """Return first sentences that ask for what follows them."""
    found = Questions({}, {})
    for document in documents_in(path):
        first, end, rest = document.partition("。")
        if not (SHORTEST <= len(first) <= LONGEST and rest and first not in found.asked):
            continue
        number = str(len(found.asked))
        found.asked[first] = set()
        if len(found.asked) % UNANSWERED:
            found.texts[number] = rest
            found.asked[first].add(number)
        if len(found.asked) == most:
            break
    return found


def measure(config: AnswersConfig) -> None:
    folder = Path(config.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    found = (
        questions_of_pairs(config.pair_file)
        if config.pair_file
        else questions_of_documents(config.document_file, config.documents)
    )
    texts, asked, index = folder / "texts.jsonl", folder / "asked.jsonl", str(folder / "index")
    rows: List[Dict[str, str]] = [{"id": number, "text": text} for number, text in found.texts.items()]
    texts.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    rows = [{"query": text, "id": each} for text, ids in found.asked.items() for each in sorted(ids) or [""]]
    asked.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    model = config.embedding_model
    make_index(
        IndexConfig(
            str(texts), index, model, retrieval="both", overwrite=True, window_overlap=config.window_overlap
        )
    )
    flags = {"at_precision": config.at_precision, "model_path": config.reranker, "long_query": "cut"}
    flags["recall_k"] = config.recall_k
    measured = evaluate_search(EvaluateSearchConfig(index, model, input_file=str(asked), **flags))
    table = [row_of(name, stage, measured["questions"]) for name, stage in measured["stages"].items()]
    print(f"\n{measured['questions']} questions, {measured['unanswerable']} of them without an answer\n")
    print(markdown_table(COLUMNS, table))


def row_of(name: str, stage: Dict, questions: int) -> List[str]:
    """Return the cells of a stage."""
    of_recall = [f"{stage[each]:.3f} {interval(stage['intervals'][each])}" for each in COLUMNS[1:3]]
    answering = stage["answering"]
    if not answering["reached"]:
        return [name, *of_recall, "not reached", "", ""]
    coverage = answering["coverage"]
    of_coverage = interval(precision_interval(round(coverage * questions), questions))
    precise = f"{answering['precision']:.3f} {interval(answering['interval'])}"
    return [name, *of_recall, precise, f"{coverage:.3f} {of_coverage}", f"{answering['threshold']:.3f}"]


def interval(bounds) -> str:
    """Return an interval as it is shown."""
    return "({:.3f} to {:.3f})".format(*bounds)


if __name__ == "__main__":
    run_command(measure, AnswersConfig)
