"""ernie-pair mine: hard negatives, which are texts that look alike, from labelled pairs and a corpus.

ernie-pair mine --train_file train.tsv --output_file mined.tsv --dev_file dev.tsv --embedding_model tower

Each pair says how similar its texts are in the column `origin`. None stands in the files that measure, and
none is written whose texts the labels call equal, directly or by a chain. A run that is killed goes on where
it was and writes the same bytes. Texts that are equal when normalised are one node of the graph of labelled
pairs; see `ernie_pair.pairs.audit.findings`.
"""

import logging
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, compress, islice
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Literal, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from data_tools.text.table_writer import check_table_suffix
from data_tools.text.text_files import LineRules
from data_tools.text.texts import TEXT_COLUMN_HELP, LeftOut, TextColumns, read_texts
from ernie_pair.core.cli.options import (
    OverwriteFlag,
    data_option,
    file_option,
    model_folder_option,
    speed_option,
)
from ernie_pair.core.cli.standard_streams import with_standard_streams
from ernie_pair.core.errors import InputError, counted
from ernie_pair.core.files.atomic_folder import list_content
from ernie_pair.evaluation.scorer import load
from ernie_pair.inference.embedder import EmbedderOptions, TextEmbedder, unit_rows
from ernie_pair.inference.predictor import PairScorer
from ernie_pair.inference.token_rows import BatchTokensFlag
from ernie_pair.mining.encoder_files import PAIRS, check_format, write_groups
from ernie_pair.mining.neighbours import (
    NOBODY,
    Compare,
    Corpus,
    Embeddings,
    KeptBlocks,
    Ngrams,
    Range,
    find_similarity_range,
    nearest,
)
from ernie_pair.models.labels import Labels
from ernie_pair.models.model_folder import list_model_files
from ernie_pair.pairs.audit.findings import Coded, Links, coded, compared_texts, equal_class, is_contradicted
from ernie_pair.pairs.audit.new_pairs import (
    KnownPairs,
    NewPair,
    read_splits,
    results_of_pairs,
    write_new_pairs,
)
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.data.pair_records import LABEL_MAP_HELP, RowFlags
from ernie_pair.pairs.data.pair_source import PairSource, labels_for
from ernie_pair.pairs.targets.metrics import number_texts
from ernie_pair.retrieval.index import read_index, stored_vectors
from ernie_pair.retrieval.index_folder import BM25, INDEX_FILE, open_index_folder
from ernie_pair.runtime.device import default_device
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import World


@dataclass(frozen=True)
class MineConfig(BatchTokensFlag, RowFlags, OverwriteFlag):
    """Find hard negatives: texts that look alike and are not known to mean the same."""

    EXAMPLE = (
        "--train_file train.tsv --output_file mined.tsv --dev_file dev.tsv --test_file test.tsv "
        "--include_labelled true"
    )
    MOST_CLASSES = 2

    train_file: str = file_option(
        help="labelled pairs of two classes: files, folders, or a set such as lcqmc", stdin=(".tsv", ".jsonl")
    )
    output_file: str = data_option(
        help="file to write the new pairs to: .tsv, .csv, .xlsx, .jsonl or .parquet",
        stdout=True,
        writes="FILE",
    )
    dev_file: str = file_option(
        "", help="pairs for choosing the best model; none of them is written", usual=True
    )
    test_file: str = file_option("", help="test pairs, labelled or not; none of them is written", usual=True)
    label_map: str = data_option("", help=LABEL_MAP_HELP, usual=True)
    same: str = data_option(
        "", help="label of pairs that mean the same; empty: the match, class 1", usual=True
    )
    format: Literal["pairs", "query_pos_neg", "anchor_positive_negative"] = data_option(
        "pairs",
        help="rows of output_file: a pair each; or a text with its matches and negatives, the labelled ones "
        "among them: query, pos and neg (.jsonl, as of FlagEmbedding), or anchor, positive and negative_1 to "
        "negative_N of --per_text N (as of sentence-transformers)",
        usual=True,
    )
    include_labelled: bool = data_option(
        False,
        help="also write the labelled pairs, first, so that the file can be used for training",
        usual=True,
    )
    per_text: int = data_option(
        2,
        help="maximum new pairs per text; four times as many near texts of it are looked at",
        unit="pairs",
        at_least=1,
        usual=True,
    )
    limit: int = data_option(0, help="maximum new pairs, drawn with --seed; 0: all", unit="pairs", at_least=0)
    corpus: str = data_option(
        "",
        help="texts among which each first text of a pair with the same meaning searches near ones: a file, "
        "or a folder of ernie-pair index; empty: all texts of the pairs search each other",
        usual=True,
    )
    embedding_model: str = model_folder_option(
        "", help="embedding model that decides which texts are near; empty: character n-grams", usual=True
    )
    model_path: str = model_folder_option(
        "",
        help="pair classifier that reranks: a near text that it scores --threshold or more is a true match, "
        "and left out; empty: none",
        usual=True,
    )
    threshold: Optional[float] = data_option(
        None,
        help="for --model_path: least score of a true match, a probability if the model has classes; none: "
        "as in calibration.json, or 0.5",
        usual=True,
        only_with="model_path",
    )
    min_rank: int = data_option(
        0,
        help="leave out this many nearest texts of a text, which may well be equal",
        unit="texts",
        at_least=0,
    )
    max_rank: int = data_option(
        0, help="only consider this many nearest texts of a text; 0: all", unit="texts", at_least=0
    )
    absolute_margin: Optional[float] = data_option(
        None,
        help="how much less similar than the least similar match of a text a near one is; none: no limit",
        at_least=0,
    )
    relative_margin: Optional[float] = data_option(
        None,
        help="how much less similar, as a share of the similarity of that match: 0.05 allows 0.95 times it; "
        "none: no limit",
        at_least=0,
        at_most=1,
    )
    max_similarity: Optional[float] = data_option(
        None,
        help="maximum cosine similarity of near texts; more similar texts may well be equal and are left "
        "out; none: below what evaluate --save_threshold saved of the embedding model, otherwise 0.6",
        above=0,
        at_most=1,
        usual=True,
    )
    min_similarity: float = data_option(
        0.3,
        help="minimum similarity of near texts; less similar texts are not hard negatives",
        at_least=0,
        at_most=1,
        usual=True,
    )
    seed: int = data_option(1234, help="seed of the random draws", at_least=0, usual=True)
    device: Literal["cpu", "gpu", "gpu:N"] = speed_option(default_device(), help="where the models run")
    text_column: str = data_option("", help=f"of --corpus: {TEXT_COLUMN_HELP}")

    def __post_init__(self):
        super().__post_init__()
        if 0 < self.max_rank <= self.min_rank:
            raise InputError(
                f"--min_rank {self.min_rank} leaves none of --max_rank {self.max_rank} texts; lower it"
            )
        if self.max_similarity is not None and self.min_similarity > self.max_similarity:
            raise InputError(
                f"--min_similarity {self.min_similarity} is above --max_similarity {self.max_similarity}: no "
                "texts lie between; lower it"
            )


class TextGraph:
    """The graph of a labelled file; ``same`` is its class of equal texts.

    ``group`` int64 [nodes] is equal for texts that a chain of rows labelled the same joins, contradicted rows
    among them: two texts of one group are never called different.
    """

    def __init__(self, file: Coded, same: int):
        self.file, self.pairs = file, file.pairs
        is_same = self.pairs.known_labels == same
        is_loop = file.left == file.right
        doubtful = is_contradicted(file)
        self.equal_rows = np.flatnonzero(is_same & ~is_loop & ~doubtful)
        self.different_rows = np.flatnonzero(~is_same & ~is_loop & ~doubtful)
        self.group = Links(file, np.flatnonzero(is_same & ~is_loop)).group

    @cached_property
    def texts(self) -> List[str]:
        """Return the text of each node, as it stands first in the file."""
        found = [""] * len(self.group)
        for numbers, side in ((self.file.right, self.pairs.right), (self.file.left, self.pairs.left)):
            for node, text in zip(numbers[::-1].tolist(), reversed(side)):
                found[node] = text
        return found

    @cached_property
    def labelled(self) -> Dict[int, int]:
        """Return {key of two nodes: the first row that labels them}; see `key_of`."""
        keys, rows = np.unique(self.file.unordered, return_index=True)
        return dict(zip(keys.tolist(), rows.tolist()))

    def add(self, texts: Sequence[str]) -> np.ndarray:
        """Add ``texts``, new ones in groups of their own, and return the node of each, int64 [M]."""
        before, known = len(self.texts), dict(zip(compared_texts(self.texts), range(len(self.texts))))
        nodes = number_texts(compared_texts(list(texts)), known)
        found, firsts = np.unique(nodes, return_index=True)
        self.texts.extend(texts[place] for place in firsts[found >= before].tolist())
        self.group = np.append(self.group, self.group.max() + 1 + np.arange(len(self.texts) - before))
        return nodes


def key_of(one: int, other: int) -> int:
    """Return a number for two nodes, the same in either order, as ``Coded.unordered`` has it."""
    return (min(one, other) << 32) | max(one, other)


class Mined(NamedTuple):
    """A new pair of two nodes."""

    left: int
    right: int
    similarity: float


class Quota:
    """Which pairs may be added yet: not labelled, not added, their texts below ``per_text`` pairs.

    ``of_first``: only the first text of a pair counts; the other one may be in any number of them.
    """

    def __init__(self, graph: TextGraph, per_text: int, of_first: bool = False):
        self._labelled, self._per_text, self._taken = graph.labelled, per_text, set[int]()
        self._of_first = of_first
        self._counts: Dict[int, int] = Counter()

    def is_full(self, node: int) -> bool:
        """Return whether the text has all the new pairs that it may have."""
        return self._counts[node] >= self._per_text

    def take(self, one: int, other: int) -> bool:
        """Count a pair of two nodes, if it may be added; return whether it may."""
        key, counted_nodes = key_of(one, other), (one,) if self._of_first else (one, other)
        if one == other or key in self._labelled or key in self._taken:
            return False
        if any(map(self.is_full, counted_nodes)):
            return False
        self._taken.add(key)
        for node in counted_nodes:
            self._counts[node] += 1
        return True


LABELLED = "labelled"
MAX_SIMILARITY = 0.6
NO_MATCH = np.float32(2)  # a similarity that no two texts have
SPARE = 4  # neighbours looked at for each that a text may have: some are taken or known
SAMPLED = 1000  # texts whose similarities are logged where no near pair was found
RERANKED = 64  # texts whose near ones a reranker scores together, and keeps

logger = logging.getLogger(__name__)


@with_standard_streams
def mine_pairs(config: MineConfig) -> None:
    """Write the new pairs of ``train_file``, and log how many. Raises InputError."""
    start_console(World())
    check_table_suffix("output_file", config.output_file)
    check_format(config.format, "output_file", config.output_file)
    is_of_pairs = config.format == PAIRS
    source = PairSource.of(config, "train_file")
    models = {flag: list_model_files(getattr(config, flag)) for flag in ("embedding_model", "model_path")}
    more = {**models, "corpus": list_content(config.corpus)}
    results = results_of_pairs("mine", config, [Path(config.output_file)], "output_file", more)
    if results.are_done():
        return
    labels = labels_for(source, config.label_map, stops=not config.same)
    if len(labels.names) != 2:
        raise InputError(
            f"mining needs two classes, same and different, not {len(labels.names)}; fix --label_map"
        )
    same = equal_class(labels, config.same)
    assert same is not None  # of two classes
    read = read_splits(config, labels)
    graph = TextGraph(coded({"train": read.pop("train")})["train"], same)
    known, known_labelled = KnownPairs(read), KnownPairs(read)
    kept = KeptBlocks(results.outputs[0], results.about({}))
    mined = _mine(graph, known, kept, config)
    with results.published() as (draft,):
        has_labelled = config.include_labelled or not is_of_pairs
        labelled = _labelled(graph.pairs, known_labelled, labels) if has_labelled else []
        rows, final = chain(labelled, _rows(graph, mined, labels.names[1 - same])), results.given[0]
        if is_of_pairs:
            write_new_pairs(draft, final, rows)
        else:
            write_groups(draft, final, config.format, rows, labels.names[same], config.per_text)
    kept.remove()
    if has_labelled:
        for line in known_labelled.lines("labelled pairs"):
            logger.info("%s", line)
    for line in known.lines():
        logger.info("%s", line)
    logger.info("%d new pairs: %s", len(mined), config.output_file)


def _mine(graph: TextGraph, known: KnownPairs, kept: KeptBlocks, config: MineConfig) -> List[Mined]:
    """Return the new pairs that the files that measure do not have, --limit of them."""
    pairs = list(_near_pairs(graph, config, kept))
    left, right = ([graph.texts[getattr(pair, side)] for pair in pairs] for side in ("left", "right"))
    pairs = list(compress(pairs, known.unknown(left, right).tolist()))
    if not config.limit or len(pairs) <= config.limit:
        return pairs
    places = np.random.default_rng(config.seed).permutation(len(pairs))[: config.limit]
    return [pairs[place] for place in np.sort(places).tolist()]


def _near_pairs(graph: TextGraph, config: MineConfig, kept: KeptBlocks) -> Iterator[Mined]:
    """Yield near texts of different groups."""
    quota = Quota(graph, config.per_text, of_first=bool(config.corpus))
    asking = np.arange(len(graph.texts))
    if config.corpus:
        asking = np.unique(graph.file.left[graph.equal_rows])
    is_match = _open_reranker(config)
    compare = _open_comparison(graph, kept, config)
    config = replace(config, max_similarity=_max_similarity(compare, config))
    _log_doubt(graph, compare, config)
    most = _most_similar(graph, compare, config)[asking]
    ranks = config.min_rank, config.max_rank
    wanted = Range(config.min_similarity, most, SPARE * config.per_text, *ranks)
    found = nearest(compare, asking, graph.group, wanted, kept)
    count, by_label, by_reranker = 0, 0, 0
    for number, nodes in enumerate(np.split(asking, range(RERANKED, len(asking), RERANKED))):
        rows = np.stack(list(islice(found, len(nodes))))
        matches = np.zeros(rows.shape, dtype=bool)
        if is_match is not None:
            matches = kept.get(f"matches {number}", partial(is_match, graph.texts, nodes, rows["node"]))
        for node, others, are_matches in zip(nodes.tolist(), rows.tolist(), matches.tolist()):
            equals = 0
            for (other, similarity, nearer), match in zip(others, are_matches):
                if quota.is_full(node):
                    break
                equals = nearer
                if other == NOBODY:
                    break
                if match:
                    by_reranker += key_of(node, other) not in graph.labelled
                elif quota.take(node, other):
                    count += 1
                    yield Mined(node, other, similarity)
            by_label += equals
    logger.info(
        "near: true matches in the range that were left out, counted from each text that searches: %d by the "
        "labels, %d by the reranker",
        by_label, by_reranker,
    )  # fmt: skip
    if not count:
        _log_seen_range(graph, compare, asking[:SAMPLED], config)


def _max_similarity(compare: Compare, config: MineConfig) -> float:
    """Return the similarity up to which texts are near: that of the flags, else as the model says, or 0.6."""
    if config.max_similarity is not None:
        return config.max_similarity
    if not isinstance(compare, Embeddings) or not compare.embedder.settings.has_unit_products:
        return MAX_SIMILARITY
    least = compare.embedder.match_threshold
    if least is None:
        return MAX_SIMILARITY
    if least <= config.min_similarity:
        raise InputError(
            f"{config.embedding_model}: texts match from a similarity of {least:.4f} on, and near ones have "
            f"{config.min_similarity:g} at least; give --max_similarity {MAX_SIMILARITY}"
        )
    logger.info("near: from a similarity of %.4f on texts match, as %s says", least, config.embedding_model)
    return float(np.nextafter(np.float32(least), np.float32(-1)))


def _most_similar(graph: TextGraph, compare: Compare, config: MineConfig) -> np.ndarray:
    """Return how similar what is near to a text may be, float32 [nodes]; below its matches by the margins.

    With a margin, a text without a match has no near ones.
    """
    most = np.full(len(graph.texts), config.max_similarity, dtype=np.float32)
    if config.absolute_margin is None and config.relative_margin is None:
        return most
    left, right = graph.file.left[graph.equal_rows], graph.file.right[graph.equal_rows]
    least = np.full(len(most), NO_MATCH, dtype=np.float32)
    for one, other in ((left, right), (right, left))[: 1 if config.corpus else 2]:
        np.minimum.at(least, one, compare.pairs(one, other))
    share = abs(least) * np.float32(config.relative_margin or 0)
    limit = least - np.maximum(np.float32(config.absolute_margin or 0), share)
    return np.where(least == NO_MATCH, -NO_MATCH, np.minimum(most, limit))


def _open_reranker(config: MineConfig) -> Optional[Callable[..., np.ndarray]]:
    if not config.model_path:
        return None
    scorer = load(config.model_path, config.device, batch_tokens=config.batch_tokens)
    scorer.check_rankable()
    return partial(_are_matches, scorer, scorer.match_threshold(config.threshold))


def _are_matches(
    scorer: PairScorer, threshold: float, texts: Sequence[str], asking: np.ndarray, found: np.ndarray
) -> np.ndarray:
    """Return which of ``found``, nodes int64 [Q, M], match those of ``asking`` int64 [Q], bool [Q, M]."""
    rows, columns = np.nonzero(found != NOBODY)
    pairs = [(texts[one], texts[other]) for one, other in zip(asking[rows], found[rows, columns])]
    matches = np.zeros(found.shape, dtype=bool)
    if pairs:
        matches[rows, columns] = scorer.score(pairs) >= threshold
    return matches


def _log_seen_range(graph: TextGraph, compare: Compare, asking: np.ndarray, config: MineConfig) -> None:
    """Log which similarities there are, where none makes a new pair."""
    least, most = find_similarity_range(compare, asking, graph.group)
    if least > most:
        logger.info("near: none of the first %d texts is similar to a text of another group", len(asking))
        return
    logger.info(
        "near: no new pair: similarities of the first %d texts go from %.4f to %.4f, and those from %g to %g "
        "are asked for; change --min_similarity or --max_similarity, or what else limits them: margins and "
        "ranks, --per_text, --threshold",
        len(asking), least, most, config.min_similarity, config.max_similarity,
    )  # fmt: skip


def _log_doubt(graph: TextGraph, compare: Compare, config: MineConfig) -> None:
    """Log how many labelled pairs that are as near as the new ones are equal: what these may hide too."""
    rows = np.concatenate([graph.equal_rows, graph.different_rows])
    near = compare.pairs(graph.file.left[rows], graph.file.right[rows])
    inside = (near >= config.min_similarity) & (near <= config.max_similarity)
    if inside.any():
        share = inside[: len(graph.equal_rows)].sum() / inside.sum()
        logger.info(
            "of the %d labelled pairs with a similarity from %g to %g, %.1f %% have the same meaning, so "
            "about as many of the new near pairs may be mislabelled; read some rows with the origin near, or "
            "lower --max_similarity",
            inside.sum(), config.min_similarity, config.max_similarity, 100 * share,
        )  # fmt: skip


def _open_comparison(graph: TextGraph, kept: KeptBlocks, config: MineConfig) -> Compare:
    embedder = None
    if config.embedding_model:
        from ernie_pair.embeddings.open_embedder import open_embedder

        options = EmbedderOptions(batch_tokens=config.batch_tokens)
        embedder = open_embedder(config.embedding_model, config.device, options)
        embedder.settings.check_search(config.embedding_model)
    texts, corpus = list(graph.texts), None  # without those of the corpus, which the graph gets
    if config.corpus:
        if not len(graph.equal_rows):
            raise InputError(
                f"{config.train_file} has no pair with the same meaning, whose first text would search "
                f"--corpus {config.corpus}; add some, or leave --corpus out"
            )
        corpus, embedder = _open_corpus(graph, embedder, config)
    return Ngrams(texts, corpus) if embedder is None else Embeddings(embedder, texts, kept, corpus)


def _open_corpus(
    graph: TextGraph, embedder: Optional[TextEmbedder], config: MineConfig
) -> Tuple[Corpus, Optional[TextEmbedder]]:
    """Return the texts of --corpus, which ``graph`` gets, and ``embedder`` at the length of their vectors.

    The vectors of an index are not computed again. Raises InputError if it is of another model.
    """
    path, vectors, index = Path(config.corpus), None, None
    if path.is_dir():
        index = open_index_folder(path)
        texts = list(chain(*index.rows.chunks(SAMPLED)))
    else:
        left_out = LeftOut() if config.on_bad_row == "skip" else None
        rules = LineRules(encoding=config.encoding, has_flag=True, place=config.place)
        columns = TextColumns(config.text_column)
        texts = [row.text.strip() for row in read_texts(path, left_out, rules=rules, columns=columns)]
        if left_out is not None and left_out.count:
            lines = counted(left_out.count, "line")
            logger.warning("%s: left out: %s, the first: %s", path, lines, left_out.first)
    nodes = graph.add(texts)
    is_first = np.zeros(len(texts), dtype=bool)
    is_first[np.unique(nodes, return_index=True)[1]] = True  # a text that is there twice is found once
    if index is not None and embedder is not None and index.manifest.retrieval != BM25:
        embedder = index.fit_embedder(embedder)
        stored = stored_vectors(read_index(path / INDEX_FILE, index.manifest.expected), len(texts), SAMPLED)
        index.check_current()
        of_parts = np.split(is_first, range(SAMPLED, len(texts), SAMPLED))
        vectors = [unit_rows(part[mask], config.corpus) for part, mask in zip(stored, of_parts)]
    return Corpus(list(compress(texts, is_first)), nodes[is_first], vectors), embedder


def _labelled(pairs: Pairs, known: KnownPairs, labels: Labels) -> Iterator[NewPair]:
    """Yield the labelled pairs that the files that measure do not have."""
    for row in np.flatnonzero(known.unknown(pairs.left, pairs.right)).tolist():
        name = labels.names[pairs.known_labels[row]]
        yield NewPair(pairs.left[row], pairs.right[row], name, LABELLED)


def _rows(graph: TextGraph, mined: List[Mined], different: str) -> Iterator[NewPair]:
    for pair in mined:
        left, right = graph.texts[pair.left], graph.texts[pair.right]
        yield NewPair(left, right, different, f"near {pair.similarity:.4f}")
