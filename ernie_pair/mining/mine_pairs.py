"""ernie-pair mine: derive new training pairs from labelled ones.

ernie-pair mine --train_file train.tsv --output_file mined.tsv --dev_file dev.tsv --embedding_model tower

Each pair says where it comes from in the column `origin`. None stands in the files that measure, and no new
one is called different that the labels call equal, directly or by a chain. A run that is killed goes on where
it was and writes the same bytes. Texts that are equal when normalised are one node of the graph of labelled
pairs; see `ernie_pair.pair.audit.findings`.
"""

import logging
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Dict, Iterator, List, Literal, NamedTuple, Set, Tuple

import numpy as np

from data_tools.files.errors import InputError
from data_tools.options.options import (
    Options,
    data_option,
    devices_option,
    model_option,
    names_in,
    refuse_empty,
    refuse_unknown_names,
)
from data_tools.options.standard_streams import with_standard_streams
from data_tools.text.text_files import ENCODINGS
from ernie_pair.mining.neighbours import (
    NOBODY,
    Compare,
    Embeddings,
    KeptBlocks,
    Ngrams,
    Range,
    nearest,
    seen_range,
)
from ernie_pair.models.labels import Labels
from ernie_pair.models.source import files_of_model
from ernie_pair.pair.audit.audit_pairs import same_of
from ernie_pair.pair.audit.findings import Coded, Links, coded, is_contradicted
from ernie_pair.pair.audit.new_pairs import (
    KnownPairs,
    NewPair,
    read_splits,
    refuse_ending,
    results_of_pairs,
    write_new_pairs,
)
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.data.pair_records import (
    BAD_ROW_HELP,
    ENCODING_HELP,
    FIRST_TEXT_HELP,
    SECOND_TEXT_HELP,
    Columns,
    RowRules,
)
from ernie_pair.pair.data.pair_source import PairSource, labels_for
from ernie_pair.runtime.device import default_device
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import World

KINDS = ("transitive", "implied", "near")


@dataclass(frozen=True)
class MineConfig(Options):
    """Derive new training pairs from labelled ones: pairs that they imply, and similar texts that differ."""

    EXAMPLE = (
        "--train_file train.tsv --output_file mined.tsv --dev_file dev.tsv --test_file test.tsv "
        "--include_labelled true"
    )

    train_file: str = data_option(
        help="labelled pairs of two classes: a file, or a set such as lcqmc", stdin=(".tsv", ".jsonl")
    )
    output_file: str = data_option(
        help="file to write the new pairs to: .tsv, .csv, .json or .jsonl", stdout=True
    )
    dev_file: str = data_option("", help="pairs for choosing the best model; none of them is written")
    test_file: str = data_option("", help="test pairs, labelled or not; none of them is written")
    text_a: str = data_option("", help=FIRST_TEXT_HELP)
    text_b: str = data_option("", help=SECOND_TEXT_HELP)
    label: str = data_option("", help="the column of the label")
    encoding: str = data_option("utf-8", help=ENCODING_HELP, choices=ENCODINGS)
    on_bad_row: Literal["stop", "skip"] = data_option("stop", help=BAD_ROW_HELP)
    label_map: str = data_option(
        "", help="names of the classes, for example 0=different,1=same; empty: 0 and 1"
    )
    same: str = data_option("", help="label of pairs that mean the same; empty: class 1")
    kinds: str = data_option(
        "transitive implied near",
        help="transitive: a=b and b=c give a=c; implied: a=b and b!=c give a!=c; near: texts that look alike "
        "but are not known to be equal are labelled different",
    )
    include_labelled: bool = data_option(
        False, help="also write the labelled pairs, first, so that the file can be used for training"
    )
    hops: int = data_option(
        2, help="maximum number of labelled rows in a chain of equal texts", unit="rows", at_least=2
    )
    per_text: int = data_option(2, help="maximum new pairs of each kind per text", unit="pairs", at_least=1)
    limit: int = data_option(
        0, help="maximum new pairs of each kind, drawn with --seed; 0: all", unit="pairs", at_least=0
    )
    embedding_model: str = model_option(
        "", help="embedding model that decides which texts are near; empty: character n-grams"
    )
    max_similarity: float = data_option(
        0.6,
        help="maximum cosine similarity of near texts; more similar texts may well be equal and are left out",
        above=0,
        at_most=1,
    )
    min_similarity: float = data_option(
        0.3,
        help="minimum similarity of near texts; less similar texts are not hard negatives",
        at_least=0,
        at_most=1,
    )
    seed: int = data_option(1234, help="seed of the random draws", at_least=0)
    device: Literal["cpu", "gpu"] = devices_option(default_device(), help="where the embedding model runs")
    overwrite: bool = data_option(False, help="replace an existing result")

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output_file")
        fault = f" is no kind; name some of {', '.join(KINDS)}"
        refuse_unknown_names("kinds", names_in(self.kinds), KINDS, fault)
        if not self.chosen_kinds:
            raise InputError(f"--kinds names none; name some of {', '.join(KINDS)}")
        if self.embedding_model and "near" not in self.chosen_kinds:
            raise InputError(
                f"--embedding_model {self.embedding_model} tells what is near, and --kinds does not name "
                "near; leave one out"
            )
        if self.min_similarity > self.max_similarity:
            raise InputError(
                f"--min_similarity {self.min_similarity} is above --max_similarity {self.max_similarity}: no "
                "texts lie between; lower it"
            )

    @property
    def chosen_kinds(self) -> Tuple[str, ...]:
        """Return the kinds in the order of KINDS."""
        return tuple(kind for kind in KINDS if kind in names_in(self.kinds))


class Edge(NamedTuple):
    """A labelled row between two nodes, that to ``node`` seen from the other; ``row`` is its first row."""

    node: int
    row: int


class TextGraph:
    """The graph of a labelled file; ``same`` is its class of equal texts.

    ``group`` int64 [nodes] is equal for texts that a chain of rows labelled the same joins, contradicted rows
    among them: two texts of one group are never called different. ``is_sound`` bool [groups]: no row
    contradicts the chains of the group, so they may be followed.
    """

    def __init__(self, file: Coded, same: int):
        self.file, self.pairs = file, file.pairs
        is_same = self.pairs.known_labels == same
        is_loop = file.left == file.right
        doubtful = is_contradicted(file)
        self.equal_rows = np.flatnonzero(is_same & ~is_loop & ~doubtful)
        self.different_rows = np.flatnonzero(~is_same & ~is_loop & ~doubtful)
        self.group = Links(file, np.flatnonzero(is_same & ~is_loop)).group
        inside = self.group[file.left] == self.group[file.right]
        self.is_sound = np.ones(int(self.group.max()) + 1, dtype=bool)
        self.is_sound[self.group[file.left[inside & ~is_same]]] = False
        self.is_sound[self.group[file.left[doubtful]]] = False
        self.is_sound[self.group[file.right[doubtful]]] = False

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

    @cached_property
    def equals(self) -> Dict[int, List[Edge]]:
        """Return {node: its neighbours by sure rows that are labelled the same}, in the order of the file."""
        found: Dict[int, Dict[int, int]] = {}
        for row in self.equal_rows.tolist():
            left, right = int(self.file.left[row]), int(self.file.right[row])
            found.setdefault(left, {}).setdefault(right, row)
            found.setdefault(right, {}).setdefault(left, row)
        return {node: [Edge(*edge) for edge in edges.items()] for node, edges in found.items()}

    def is_sound_node(self, node: int) -> bool:
        """Return whether the chains of the text's group may be followed."""
        return bool(self.is_sound[self.group[node]])


def key_of(one: int, other: int) -> int:
    """Return a number for two nodes, the same in either order, as ``Coded.unordered`` has it."""
    return (min(one, other) << 32) | max(one, other)


TRIES = 50  # pairs looked at for each that a text may have: a hub of thousands ends the search there
_TRANSITIVE, _IMPLIED = 1, 2  # set the draws of the kinds apart


class Mined(NamedTuple):
    """A new pair of two nodes. ``is_same``: its label; ``rows``: what it follows from."""

    left: int
    right: int
    is_same: bool
    kind: str
    rows: Tuple[int, ...]
    similarity: float = 0.0


class Quota:
    """Which pairs may be added yet: not labelled, not added, their texts below ``per_text`` pairs."""

    def __init__(self, graph: TextGraph, per_text: int, taken: Set[int]):
        self._labelled, self._per_text, self._taken = graph.labelled, per_text, taken
        self._counts: Dict[int, int] = Counter()

    def is_full(self, node: int) -> bool:
        """Return whether the text has all the new pairs that it may have."""
        return self._counts[node] >= self._per_text

    def take(self, one: int, other: int) -> bool:
        """Count a pair of two nodes, if it may be added; return whether it may."""
        key = key_of(one, other)
        if one == other or key in self._labelled or key in self._taken:
            return False
        if self.is_full(one) or self.is_full(other):
            return False
        self._taken.add(key)
        for node in (one, other):
            self._counts[node] += 1
        return True


def transitive_pairs(graph: TextGraph, config: MineConfig, taken: Set[int]) -> Iterator[Mined]:
    """Yield equal pairs whose texts a chain of 2 to ``hops`` sure rows joins; ``taken`` grows by them."""
    quota = Quota(graph, config.per_text, taken)
    for node in sorted(graph.equals):
        if graph.is_sound_node(node) and not quota.is_full(node):
            rng = np.random.default_rng([config.seed, _TRANSITIVE, node])
            for tries, (other, rows) in enumerate(_reached(graph, node, config.hops, rng)):
                if quota.take(node, other):
                    yield Mined(node, other, True, "transitive", rows)
                if quota.is_full(node) or tries >= TRIES * config.per_text:
                    break


def _reached(
    graph: TextGraph, begin: int, hops: int, rng: np.random.Generator
) -> Iterator[Tuple[int, Tuple[int, ...]]]:
    """Yield the nodes at 2 to ``hops`` rows from ``begin``, each once, nearer ones first, and the rows."""
    seen: Set[int] = {begin}
    ring: List[Tuple[int, Tuple[int, ...]]] = [(begin, ())]
    for hop in range(1, hops + 1):
        following: List[Tuple[int, Tuple[int, ...]]] = []
        for node, rows in ring:
            edges = graph.equals[node]
            first = int(rng.integers(len(edges)))  # a permutation would look at all of a hub's
            for place in range(len(edges)):
                edge = edges[(first + place) % len(edges)]
                if edge.node not in seen:
                    seen.add(edge.node)
                    following.append((edge.node, (*rows, edge.row)))
                    if hop > 1:
                        yield following[-1]
        ring = following


def implied_differences(graph: TextGraph, config: MineConfig, taken: Set[int]) -> Iterator[Mined]:
    """Yield different pairs: a row a/c says it of the equals of a beside c, and of those of c beside a."""
    quota = Quota(graph, config.per_text, taken)
    order = np.random.default_rng([config.seed, _IMPLIED]).permutation(graph.different_rows)
    for row in order.tolist():
        ends = int(graph.file.left[row]), int(graph.file.right[row])
        if not all(map(graph.is_sound_node, ends)):
            continue
        for one, other in (ends, ends[::-1]):
            for tries, edge in enumerate(graph.equals.get(one, ())):
                if quota.is_full(other) or tries >= TRIES * config.per_text:
                    break
                if quota.take(edge.node, other):
                    yield Mined(edge.node, other, False, "implied", (edge.row, row))


LABELLED = "labelled"
SPARE = 4  # neighbours looked at for each that a text may have: some are taken or known
LOOKED_AT = 1000  # texts whose similarities are told where no near pair was found
_DRAWN = 3  # sets the draws of --limit apart

logger = logging.getLogger(__name__)


@with_standard_streams
def mine_pairs(config: MineConfig) -> None:
    """Write the new pairs of ``train_file``, and log how many of each kind. Raises InputError."""
    start_console(World())
    refuse_ending("output_file", config.output_file)
    columns = Columns(config.text_a, config.text_b, config.label)
    source = PairSource("train_file", config.train_file, "train", None, columns, RowRules.of(config))
    models = {"embedding_model": files_of_model(config.embedding_model)}
    results = results_of_pairs("mine", config, [Path(config.output_file)], "output_file", models)
    if results.are_done():
        return
    labels = labels_for(source, config.label_map)
    if len(labels.names) != 2:
        raise InputError(
            f"mining needs two classes, same and different, not {len(labels.names)}; fix --label_map"
        )
    same = same_of(labels, config.same)
    assert same is not None  # of two classes
    read = read_splits(config, columns, labels)
    graph = TextGraph(coded({"train": read.pop("train")})["train"], same)
    known, known_labelled = KnownPairs(read), KnownPairs(read)
    kept = KeptBlocks(results.outputs[0], results.about({}))
    mined = {kind: _limited(pairs, kind, config) for kind, pairs in _mine(graph, known, kept, config).items()}
    with results.published() as (draft,):
        labelled = _labelled(graph.pairs, known_labelled, labels) if config.include_labelled else []
        rows = chain(labelled, _rows(graph, mined, labels, same))
        write_new_pairs(draft, results.outputs[0], rows)
    kept.remove()
    if config.include_labelled:
        for line in known_labelled.lines("labelled pairs"):
            logger.info("%s", line)
    for line in known.lines():
        logger.info("%s", line)
    doubtful = int((~graph.is_sound).sum())
    if doubtful:
        logger.info(
            "%d groups of texts have a row that contradicts them: nothing is inferred in them", doubtful
        )
    for kind, pairs in mined.items():
        logger.info("%s: %d new pairs", kind, len(pairs))
    logger.info("new pairs: %s", config.output_file)


def _mine(
    graph: TextGraph, known: KnownPairs, kept: KeptBlocks, config: MineConfig
) -> Dict[str, List[Mined]]:
    """Return the new pairs of each kind that the files that measure do not have."""
    taken: Set[int] = set()
    makers = {
        "transitive": lambda: transitive_pairs(graph, config, taken),
        "implied": lambda: implied_differences(graph, config, taken),
        "near": lambda: _near_pairs(graph, config, taken, kept),
    }
    found = {}
    for kind in config.chosen_kinds:
        pairs = list(makers[kind]())
        left, right = ([graph.texts[getattr(pair, side)] for pair in pairs] for side in ("left", "right"))
        mask = known.unknown(left, right)
        found[kind] = [pair for pair, is_new in zip(pairs, mask.tolist()) if is_new]
    return found


def _near_pairs(graph: TextGraph, config: MineConfig, taken: Set[int], kept: KeptBlocks) -> Iterator[Mined]:
    """Yield near texts of different groups, called different; ``taken`` grows by them."""
    quota = Quota(graph, config.per_text, taken)
    wanted = Range(config.min_similarity, config.max_similarity, SPARE * config.per_text)
    compare = _compare(graph, kept, config)
    _tell_doubt(graph, compare, config)
    found = nearest(compare, graph.group, wanted, kept)
    before = len(taken)
    for node, others in enumerate(found):
        for other, similarity in others.tolist():
            if other == NOBODY or quota.is_full(node):
                break
            if quota.take(node, other):
                yield Mined(node, other, False, "near", (), similarity)
    if len(taken) == before:
        _tell_range(graph, compare, config)


def _tell_range(graph: TextGraph, compare: Compare, config: MineConfig) -> None:
    """Log which similarities there are, where none makes a new pair, and which flag lets more of them in."""
    count, (least, most) = min(len(graph.group), LOOKED_AT), seen_range(compare, graph.group, LOOKED_AT)
    if least > most:
        logger.info("near: none of the first %d texts is similar to a text of another group", count)
        return
    cures = {
        "raise --max_similarity": least > config.max_similarity,
        "lower --min_similarity": most < config.min_similarity,
        "all pairs in this range are already known: lower --min_similarity or raise --max_similarity": True,
    }
    logger.info(
        "near: no new pair: similarities of the first %d texts go from %.4f to %.4f, and those from %g to %g "
        "are asked for; %s",
        count, least, most, config.min_similarity, config.max_similarity,
        next(cure for cure, is_so in cures.items() if is_so),
    )  # fmt: skip


def _tell_doubt(graph: TextGraph, compare: Compare, config: MineConfig) -> None:
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
            inside.sum(),
            config.min_similarity,
            config.max_similarity,
            100 * share,
        )


def _compare(graph: TextGraph, kept: KeptBlocks, config: MineConfig) -> Compare:
    if not config.embedding_model:
        return Ngrams(graph.texts)
    from ernie_pair.embedding.open_embedder import open_embedder

    embedder = open_embedder(config.embedding_model, config.device)
    embedder.settings.refuse_search(config.embedding_model)
    return Embeddings(embedder, graph.texts, kept)


def _limited(pairs: List[Mined], kind: str, config: MineConfig) -> List[Mined]:
    if not config.limit or len(pairs) <= config.limit:
        return pairs
    number = config.chosen_kinds.index(kind)
    rng = np.random.default_rng([config.seed, _DRAWN, number])
    return [pairs[place] for place in np.sort(rng.permutation(len(pairs))[: config.limit]).tolist()]


def _labelled(pairs: Pairs, known: KnownPairs, labels: Labels) -> Iterator[NewPair]:
    """Yield the labelled pairs that the files that measure do not have."""
    for row in np.flatnonzero(known.unknown(pairs.left, pairs.right)).tolist():
        name = labels.names[pairs.known_labels[row]]
        yield NewPair(pairs.left[row], pairs.right[row], name, LABELLED)


def _rows(graph: TextGraph, mined: Dict[str, List[Mined]], labels: Labels, same: int) -> Iterator[NewPair]:
    for pair in chain(*mined.values()):
        origin = f"near {pair.similarity:.4f}"
        if pair.kind != "near":  # transitive lines 3 17
            origin = " ".join([pair.kind, "lines", *(str(graph.pairs.number(row)) for row in pair.rows)])
        name = labels.names[same if pair.is_same else 1 - same]
        yield NewPair(graph.texts[pair.left], graph.texts[pair.right], name, origin)
