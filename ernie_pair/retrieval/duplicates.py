"""ernie-pair audit duplicates: groups of texts of an index that ask the same, as a table to decide in.

A text is compared with its nearest ones alone: by the vectors of the index, by BM25, or by both. Two are the
same where the classifier gives them its threshold or more, without one where their vectors are as similar as
--threshold; and a group is what such pairs link. Rows of a group stand together, the largest group first:

group  id  text  nearest_id  nearest_text  score  keep

``score``: of the row and the text of its group that is nearest to it; ``keep`` is empty, to be filled in.
What rides along with the texts of the index follows.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterator, List, Literal, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from data_tools.text.table_writer import check_table_suffix, table_writer
from ernie_pair.core.cli.options import (
    OverwriteFlag,
    data_option,
    evaluation_option,
    model_folder_option,
    speed_option,
)
from ernie_pair.core.errors import InputError, counted
from ernie_pair.core.files.results import Results, files_of, settings_of
from ernie_pair.core.progress import CountProgress
from ernie_pair.evaluation.scorer import load
from ernie_pair.inference.predictor import PairScorer
from ernie_pair.inference.scores import COSINE, PRODUCT
from ernie_pair.inference.token_rows import BatchTokensFlag
from ernie_pair.inference.word_index import WordIndex
from ernie_pair.models.model_folder import list_model_files
from ernie_pair.retrieval.build_index import THREADS_HELP
from ernie_pair.retrieval.index import SEARCH_LIBRARIES, VectorIndex
from ernie_pair.retrieval.index_folder import (
    BM25,
    INDEX_FILE,
    INDEX_MANIFEST,
    VECTORS,
    IndexFolder,
    open_index_folder,
)
from ernie_pair.retrieval.search_texts import OF_PAYLOAD
from ernie_pair.runtime.cpu import cpu_threads
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import World

COLUMNS = {"group": int, "id": str, "text": str, "nearest_id": str, "nearest_text": str, "score": float}
COLUMNS["keep"] = str
BLOCK = 512  # texts whose nearest are looked for at a time
DIGITS = 6

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class AuditDuplicatesConfig(OverwriteFlag, BatchTokensFlag):
    """Find the texts of an index that ask the same, in groups, and write a table to decide in."""

    EXAMPLE = "--index faq.index --model_path ship --output_file same.xlsx"
    NEEDS = SEARCH_LIBRARIES

    index: str = data_option(help="the folder that ernie-pair index made", reads="FOLDER")
    output_file: str = data_option(
        help="table to write, a row per text that has another like it: .xlsx, .tsv, .csv, .jsonl or .parquet",
        writes="FILE",
    )
    model_path: str = model_folder_option(
        "", help="pair classifier, trained or exported, that decides; empty: the vectors of the index do"
    )
    threshold: Optional[float] = evaluation_option(
        None,
        help="from which score on two texts are the same: a probability, or a cosine without --model_path; "
        "none: the threshold of the classifier",
    )
    top_k: int = evaluation_option(
        10, help="nearest texts that each is compared with", unit="texts", at_least=1
    )
    device: Literal["cpu", "gpu", "gpu:N"] = speed_option("cpu", help="where the classifier runs")
    threads: int = speed_option(0, help=THREADS_HELP, unit="threads", at_least=0)


class Pair(NamedTuple):
    """Two texts by their positions, the lower first, and their score."""

    left: int
    right: int
    score: float


def audit_duplicates(config: AuditDuplicatesConfig) -> None:
    """Write the groups. Raises an ErniePairError; InputError where nothing says which texts are the same."""
    start_console(World())
    check_table_suffix("output_file", config.output_file)
    inputs: Dict[str, Sequence[Path]] = {
        "model_path": list_model_files(config.model_path),
        "index": files_of(str(Path(config.index) / INDEX_MANIFEST)),
    }
    settings = settings_of(config, *inputs, "output_file")
    results = Results("audit duplicates", [config.output_file], inputs, settings, config.overwrite)
    if results.are_done():
        return
    folder = open_index_folder(Path(config.index))
    if not config.model_path and (config.threshold is None or folder.manifest.retrieval == BM25):
        lacks = "a classifier" if folder.manifest.retrieval == BM25 else "one, or --threshold with a cosine"
        raise InputError(
            f"--model_path is empty, and {config.index} does not say which texts are the same: give {lacks}"
        )
    scorer = None
    if config.model_path:
        scorer = load(config.model_path, config.device, config.threads, batch_tokens=config.batch_tokens)
    threshold = _threshold_of(config, folder, scorer)
    pairs = [pair for pair in _scored(config, folder, scorer) if pair.score >= threshold]
    groups = group_pairs(pairs, len(folder.texts))
    found = counted(sum(map(len, groups)), "text"), counted(len(groups), "group"), len(folder.texts)
    with results.published() as (draft,):
        _write(draft, results.given[0], folder, groups)
    logger.info("%s in %s, of %d: %s", *found, config.output_file)


def _threshold_of(config: AuditDuplicatesConfig, folder: IndexFolder, scorer: Optional[PairScorer]) -> float:
    """Return the threshold of the flags, or of the classifier. Raises InputError for one without."""
    if scorer is None:
        unit = COSINE if folder.manifest.expected.is_unit else PRODUCT
        unit.check_inside(config.threshold)
        assert config.threshold is not None
        return config.threshold
    scorer.check_rankable()
    return scorer.match_threshold(config.threshold)


def _scored(
    config: AuditDuplicatesConfig, folder: IndexFolder, scorer: Optional[PairScorer]
) -> Iterator[Pair]:
    """Yield each text beside its nearest ones, every pair once, with what decides: cosine or classifier."""
    manifest, threads, rows = folder.manifest, config.threads or cpu_threads(), folder.rows
    seen: Dict[Tuple[int, int], float] = {}
    owners, total = rows.owners.tolist(), len(rows)
    vectors = words = None
    if manifest.retrieval != BM25:
        vectors = VectorIndex(folder.folder / INDEX_FILE, manifest.expected, threads)
    if manifest.retrieval != VECTORS and scorer is not None:
        words = WordIndex(folder.folder, total)
    count = min(config.top_k, total - 1)
    with CountProgress(total, "text") as progress:
        for begin in range(0, total if count else 0, BLOCK):
            places = np.arange(begin, min(begin + BLOCK, total))
            found: Dict[Tuple[int, int], float] = {}
            if vectors is not None:
                cosines, near = (one.tolist() for one in vectors.near(places, count + 1))
                for place, row in zip(places.tolist(), map(zip, cosines, near)):
                    for cosine, other in row:  # of two texts the windows that are nearest count
                        pair = _ordered(owners[place], owners[other])
                        if other != -1 and pair[0] != pair[1]:
                            found[pair] = max(cosine, found.get(pair, cosine))
            if words is not None:
                texts = [rows[place] for place in places.tolist()]
                for place, best in zip(places.tolist(), words.best(texts, count + 1)):
                    others = (_ordered(owners[place], owners[other]) for other in best)
                    found.update({pair: 0.0 for pair in others if pair[0] != pair[1]} | found)
            new = {pair: score for pair, score in found.items() if score > seen.get(pair, -np.inf)}
            once = scorer is not None or folder.spans is None  # by cosines a later window may be nearer
            seen.update(dict.fromkeys(new, np.inf) if once else new)
            scores: Sequence[float] = list(new.values())
            if scorer is not None and new:
                scores = scorer.score([(folder.texts[a], folder.texts[b]) for a, b in new]).tolist()
            yield from (Pair(*pair, score) for pair, score in zip(new, scores))
            progress.advance(len(places))


def _ordered(one: int, other: int) -> Tuple[int, int]:
    return (one, other) if one < other else (other, one)


def group_pairs(pairs: Sequence[Pair], count: int) -> List[List[Tuple[int, Pair]]]:
    """Return the groups that ``pairs`` of ``count`` texts link, each text with its best pair.

    The largest group comes first; texts are in their order.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    if not pairs:
        return []
    left, right, _ = (np.array(side) for side in zip(*pairs))
    linked = coo_array((np.ones(len(pairs)), (left, right)), shape=(count, count))
    _, labels = connected_components(linked, directed=False)
    best: Dict[int, Pair] = {}
    for pair in pairs:
        for place in pair[:2]:
            if place not in best or best[place].score < pair.score:
                best[place] = pair
    groups: Dict[int, List[Tuple[int, Pair]]] = {}
    for place in sorted(best):
        groups.setdefault(int(labels[place]), []).append((place, best[place]))
    return sorted(groups.values(), key=lambda group: -len(group))


def _write(draft: Path, final: Path, folder: IndexFolder, groups: List[List[Tuple[int, Pair]]]) -> None:
    columns = folder.manifest.payload
    named = [f"{OF_PAYLOAD}{name}" if name in COLUMNS else name for name in columns]
    kinds: Dict[str, type] = {**COLUMNS, **dict.fromkeys(named, str)}
    with table_writer(draft, final, [*COLUMNS, *named], kinds) as write:
        for number, group in enumerate(groups, start=1):
            for place, pair in group:
                near = pair.right if pair.left == place else pair.left
                named_texts = [table[n] for n in (place, near) for table in (folder.ids, folder.texts)]
                more = map(folder.payload_of(place).get, columns)
                write([number, *named_texts, round(pair.score, DIGITS), "", *more])
