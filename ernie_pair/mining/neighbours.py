"""The nearest texts of each text, by embedding or by character n-grams, in blocks that a killed run keeps.

A block compares some texts with all others, or with those of a corpus. Memory: the vectors lie on the disk
(those of an index are held), the n-grams of all texts are held (about 300 bytes a text), and a block of
similarities takes twice BLOCK_BYTES.
"""

import contextlib
import logging
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from ernie_pair.core.files.keyed_cache import array_cache, remove_arrays
from ernie_pair.core.files.results import followed, is_stream
from ernie_pair.core.progress import CountProgress
from ernie_pair.inference.embedder import TextEmbedder

ENDING, KIND = ".work", "block-"
LOCK_SECONDS = 24 * 3600.0


class KeptBlocks:
    """The blocks of the run that writes ``output``; ``key``: all that its arrays depend on, as JSON.

    What another key has left is not found, and removed with the rest at the end. A stream has no place next
    to it: its blocks are in a folder for temporary files, for this run alone.
    """

    def __init__(self, output: Path, key: Dict[str, object]):
        self.folder, self._key = output.with_name(output.name + ENDING), key
        self._temporary: Optional[TemporaryDirectory] = None
        if is_stream(followed(output)):
            self._temporary = TemporaryDirectory(prefix="ernie-pair-")  # deletes itself at the latest at exit
            self.folder = Path(self._temporary.name)

    def get(self, name: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the block ``name``, mapped into memory; ``compute`` makes it where it is not there."""
        return array_cache(self.folder, {**self._key, "block": name}, KIND).get(compute, LOCK_SECONDS)

    def remove(self) -> None:
        """Delete the blocks, those of other flags too, and their folder where nothing else is in it."""
        remove_arrays(self.folder, KIND)
        with contextlib.suppress(OSError):  # it is not there, or a person keeps something in it
            self.folder.rmdir()
        if self._temporary is not None:
            self._temporary.cleanup()


BLOCK_BYTES = 1 << 26
EMBEDDED_AT_ONCE = 4096  # texts
NGRAMS = (1, 2)
COMMON_SHARE, MIN_COMMON = 0.02, 200  # an n-gram of more texts than both says little and costs much
NEAR = np.dtype([("node", "<i8"), ("similarity", "<f4"), ("equals", "<i4")])
NOBODY = -1

logger = logging.getLogger(__name__)


class Range(NamedTuple):
    """Which neighbours count: those of the ranks from ``min_rank`` to below ``max_rank``, 0: to the last one.

    Of these, counted from 0, a text may have ``most_texts`` with similarities from ``least`` to its ``most``,
    float32 [Q].
    """

    least: float
    most: np.ndarray
    most_texts: int
    min_rank: int = 0
    max_rank: int = 0


class Corpus(NamedTuple):
    """The texts among which near ones are found: their nodes int64 [M], and their vectors, if they exist."""

    texts: Sequence[str]
    nodes: np.ndarray
    vectors: Optional[List[np.ndarray]] = None  # float32 [n, D] of length 1, one after another


Compare = Union["Embeddings", "Ngrams"]  # the texts of a list


def nearest(
    compare: Compare, asking: np.ndarray, group: np.ndarray, wanted: Range, kept: KeptBlocks
) -> Iterator[np.ndarray]:
    """Yield the nearest texts of each of ``asking``, NEAR [most_texts] by falling similarity, rest NOBODY.

    ``asking`` int64 [Q]: nodes. ``group`` int64 [N]: texts of one group are equal and never neighbours;
    ``equals`` counts those in the range that are at least as near, with NOBODY all of them. Texts above
    ``wanted.most`` are left out too: they may well be equal.
    """
    size = _count_per_block(group)
    with CountProgress(len(asking), "text") as progress:
        for first in range(0, len(asking), size):
            end = min(first + size, len(asking))
            part = wanted._replace(most=wanted.most[first:end])
            find = partial(_block, compare, asking[first:end], group, part)
            yield from kept.get(f"neighbours {first} {end}", find)
            progress.advance(end - first)


def find_similarity_range(compare: Compare, asking: np.ndarray, group: np.ndarray) -> Tuple[float, float]:
    """Return least and greatest similarity of texts with those of other groups [N]; inf, -inf: none."""
    least, most, size = np.inf, -np.inf, _count_per_block(group)
    for part in np.split(asking, range(size, len(asking), size)):
        for node, (nodes, similarities) in zip(part.tolist(), compare.block(part)):
            others = similarities[group[nodes] != group[node]]
            if len(others):
                least, most = min(least, float(others.min())), max(most, float(others.max()))
    return least, most


def _count_per_block(group: np.ndarray) -> int:
    return max(1, min(4096, BLOCK_BYTES // (4 * len(group))))


def _block(compare: Compare, asking: np.ndarray, group: np.ndarray, wanted: Range) -> np.ndarray:
    found = np.zeros((len(asking), wanted.most_texts), dtype=NEAR)
    found["node"] = NOBODY
    for row, (nodes, similarities) in enumerate(compare.block(asking)):
        fits = (similarities >= wanted.least) & (similarities <= wanted.most[row])
        is_equal = group[nodes] == group[asking[row]]
        equal = np.sort(similarities[fits & is_equal & (nodes != asking[row])])
        places = np.flatnonzero(~is_equal)
        if wanted.min_rank or wanted.max_rank:
            places = _take_nearest(places, nodes, similarities, wanted.max_rank)[wanted.min_rank :]
        places = _take_nearest(places[fits[places]], nodes, similarities, wanted.most_texts)
        found["node"][row, : len(places)] = nodes[places]
        found["similarity"][row, : len(places)] = similarities[places]
        found["equals"][row] = len(equal)
        found["equals"][row, : len(places)] -= np.searchsorted(equal, similarities[places]).astype(np.int32)
    return found


def _take_nearest(places: np.ndarray, nodes: np.ndarray, similarities: np.ndarray, count: int) -> np.ndarray:
    """Return the ``count`` nearest of ``places``, 0: all, the nearest first; of equal ones the first node."""
    if 0 < count < len(places):  # as near as the last one stay: no order of ties decides
        last = np.partition(similarities[places], -count)[-count]
        places = places[similarities[places] >= last]
    return places[np.lexsort((nodes[places], -similarities[places]))[: count or None]]


class Embeddings:
    """A comparison by the product of unit vectors, which are computed first and kept on the disk.

    A text asks with the prompt of queries, if the model has one, and is found with that of passages. What is
    found is ``corpus`` or, without one, the texts themselves.
    """

    def __init__(
        self, embedder: TextEmbedder, texts: Sequence[str], kept: KeptBlocks, corpus: Optional[Corpus] = None
    ):
        self.embedder, self.size = embedder, EMBEDDED_AT_ONCE
        self.parts = _vectors(embedder, texts, "passage", kept, "vectors")
        self.asking = self.parts
        if embedder.has_roles:
            self.asking = _vectors(embedder, texts, "query", kept, "queries")
        self.found, self.nodes = self.parts, np.arange(len(texts))
        if corpus is not None:
            self.found = corpus.vectors or _vectors(embedder, corpus.texts, "passage", kept, "corpus")
            self.nodes = corpus.nodes

    def block(self, asking: np.ndarray) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
        """Yield, text by text of ``asking`` int64, what can be found int64 and its similarities float32."""
        asked = self._rows(self.asking, asking)
        for similarities in np.concatenate([asked @ part.T for part in self.found], axis=1):
            yield self.nodes, similarities

    def pairs(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return the similarities float32 [N] of the texts ``left`` int64 [N] and ``right``."""
        found = np.zeros(len(left), dtype=np.float32)
        for first in range(0, len(left), self.size):
            part = slice(first, first + self.size)
            asked, others = self._rows(self.asking, left[part]), self._rows(self.parts, right[part])
            found[part] = np.einsum("nd,nd->n", asked, others)
        return found

    def _rows(self, parts: Sequence[np.ndarray], nodes: np.ndarray) -> np.ndarray:
        """Return the vectors of texts in ``parts``, float32 [N, D]."""
        return np.stack([parts[node // self.size][node % self.size] for node in nodes.tolist()])


def _vectors(
    embedder: TextEmbedder, texts: Sequence[str], role: str, kept: KeptBlocks, name: str
) -> List[np.ndarray]:
    parts = []
    with CountProgress(len(texts), "embedded text") as progress:
        for first in range(0, len(texts), EMBEDDED_AT_ONCE):
            part = texts[first : first + EMBEDDED_AT_ONCE]
            parts.append(kept.get(f"{name} {first}", partial(embedder.unit_vectors, part, role)))
            progress.advance(len(part))
    return parts


class Ngrams:
    """A comparison by the cosine of character n-grams, weighted by TF-IDF; see `Embeddings`."""

    def __init__(self, texts: Sequence[str], corpus: Optional[Corpus] = None):
        self.nodes = np.arange(len(texts)) if corpus is None else corpus.nodes
        first = 0 if corpus is None else len(texts)
        texts = texts if corpus is None else [*texts, *corpus.texts]
        most = min(max(int(COMMON_SHARE * len(texts)), MIN_COMMON), len(texts))
        try:
            self.weights = _count_ngrams(texts, most)
        except ValueError:  # none is left: of a small alphabet all may be common
            logger.info("every character n-gram is in more than %d texts: the common ones count too", most)
            self.weights = _count_ngrams(texts, len(texts))
        self.others = self.weights[first:].T.tocsr()

    def block(self, asking: np.ndarray) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
        """Yield, text by text, the texts that share an n-gram with it and their similarities."""
        found = (self.weights[asking] @ self.others).tocsr()
        for begin, stop in zip(found.indptr, found.indptr[1:]):
            yield self.nodes[found.indices[begin:stop]], found.data[begin:stop]

    def pairs(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return the similarities of pairs, float32 [N]."""
        return np.asarray(self.weights[left].multiply(self.weights[right]).sum(axis=1)).ravel()


def _count_ngrams(texts: Sequence[str], most: int) -> Any:
    """Return TF-IDF of n-grams of at most ``most`` texts, sparse float32 [texts, n-grams], or ValueError."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    counted = TfidfVectorizer(analyzer="char", ngram_range=NGRAMS, max_df=most, dtype=np.float32)
    return counted.fit_transform(texts)
