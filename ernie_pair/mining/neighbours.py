"""The nearest texts of each text, by embedding or by character n-grams, in blocks that a killed run keeps.

A block compares some texts with all others. Memory: the vectors lie on the disk, the n-grams of all texts are
held (about 300 bytes a text), and a block of similarities takes BLOCK_BYTES.
"""

import contextlib
import logging
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from data_tools.files.keyed_cache import KeyedCache, array_cache, remove_arrays
from data_tools.files.progress import CountProgress
from data_tools.files.results import followed, is_stream
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
        return self._cache(name).get(compute, LOCK_SECONDS)

    def read(self, name: str) -> Optional[np.ndarray]:
        """Return the block ``name``, None where it is not there."""
        return self._cache(name).read()

    def remove(self) -> None:
        """Delete the blocks, those of other flags too, and their folder where nothing else is in it."""
        remove_arrays(self.folder, KIND)
        with contextlib.suppress(OSError):  # it is not there, or a person keeps something in it
            self.folder.rmdir()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _cache(self, name: str) -> "KeyedCache[np.ndarray]":
        return array_cache(self.folder, {**self._key, "block": name}, KIND)


BLOCK_BYTES = 1 << 26
EMBEDDED_AT_ONCE = 4096  # texts
NGRAMS = (1, 2)
COMMON_SHARE, LEAST_COMMON = 0.02, 200  # an n-gram of more texts than both says little and costs much
NEAR = np.dtype([("node", "<i8"), ("similarity", "<f4")])
NOBODY = -1

logger = logging.getLogger(__name__)


class Range(NamedTuple):
    """Which similarities count, and how many neighbours a text may have."""

    least: float
    most: float
    most_texts: int


Compare = Union["Embeddings", "Ngrams"]  # the texts of a list


def nearest(compare: Compare, group: np.ndarray, wanted: Range, kept: KeptBlocks) -> Iterator[np.ndarray]:
    """Yield the nearest texts of each text, NEAR [most_texts] by falling similarity, the rest NOBODY.

    ``group`` int64 [N]: texts of one group are equal and never neighbours. Those above ``wanted.most`` are
    left out too: they may well be equal.
    """
    size = max(1, min(4096, BLOCK_BYTES // (4 * len(group))))
    with CountProgress(len(group), "text") as progress:
        for first in range(0, len(group), size):
            end = min(first + size, len(group))
            find = partial(_block, compare, group, wanted, (first, end))
            yield from kept.get(f"neighbours {first} {end}", find)
            progress.advance(end - first)


def seen_range(compare: Compare, group: np.ndarray, count: int) -> Tuple[float, float]:
    """Return least and greatest similarity of ``count`` texts with other groups' [N]; inf, -inf: none."""
    least, most = np.inf, -np.inf
    for row, (nodes, similarities) in enumerate(compare.block(0, min(count, len(group)))):
        others = similarities[group[nodes] != group[row]]
        if len(others):
            least, most = min(least, float(others.min())), max(most, float(others.max()))
    return least, most


def _block(compare: Compare, group: np.ndarray, wanted: Range, span: Tuple[int, int]) -> np.ndarray:
    first, end = span
    found = np.zeros((end - first, wanted.most_texts), dtype=NEAR)
    found["node"] = NOBODY
    for row, (nodes, similarities) in enumerate(compare.block(first, end)):
        fits = (similarities >= wanted.least) & (similarities <= wanted.most)
        fits &= group[nodes] != group[first + row]
        nodes, similarities = nodes[fits], similarities[fits]
        if len(nodes) > wanted.most_texts:  # as near as the last one stay: no order of ties decides
            last = np.partition(similarities, -wanted.most_texts)[-wanted.most_texts]
            nodes, similarities = nodes[similarities >= last], similarities[similarities >= last]
        order = np.lexsort((nodes, -similarities))[: wanted.most_texts]
        found["node"][row, : len(order)] = nodes[order]
        found["similarity"][row, : len(order)] = similarities[order]
    return found


class Embeddings:
    """A comparison by the product of unit vectors, which are computed first and kept on the disk.

    A text asks with the prompt of queries, if the model has one, and is found with that of passages.
    """

    def __init__(self, embedder: TextEmbedder, texts: Sequence[str], kept: KeptBlocks):
        self.parts: List[np.ndarray] = []
        self.everyone, self.size = np.arange(len(texts)), EMBEDDED_AT_ONCE
        self.asking = [] if embedder.has_roles else self.parts
        with CountProgress(len(texts), "embedded text") as progress:
            for first in range(0, len(texts), self.size):
                part = texts[first : first + self.size]
                vectors = partial(embedder.unit_vectors, part)
                self.parts.append(kept.get(f"vectors {first}", partial(vectors, "passage")))
                if self.asking is not self.parts:
                    self.asking.append(kept.get(f"queries {first}", partial(vectors, "query")))
                progress.advance(len(part))

    def block(self, first: int, end: int) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
        """Yield, text by text from ``first`` to ``end``, all texts int64 and their similarities float32."""
        asked = self._rows(self.asking, self.everyone[first:end])
        for similarities in np.concatenate([asked @ part.T for part in self.parts], axis=1):
            yield self.everyone, similarities

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


class Ngrams:
    """A comparison by the cosine of character n-grams, weighted by TF-IDF."""

    def __init__(self, texts: Sequence[str]):
        most = min(max(int(COMMON_SHARE * len(texts)), LEAST_COMMON), len(texts))
        try:
            self.weights = _count_ngrams(texts, most)
        except ValueError:  # none is left: of a small alphabet all may be common
            logger.info("every character n-gram is in more than %d texts: the common ones count too", most)
            self.weights = _count_ngrams(texts, len(texts))
        self.others = self.weights.T.tocsr()

    def block(self, first: int, end: int) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
        """Yield, text by text, the texts that share an n-gram with it and their similarities."""
        found = (self.weights[first:end] @ self.others).tocsr()
        for begin, stop in zip(found.indptr, found.indptr[1:]):
            yield found.indices[begin:stop], found.data[begin:stop]

    def pairs(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return the similarities of pairs, float32 [N]."""
        return np.asarray(self.weights[left].multiply(self.weights[right]).sum(axis=1)).ravel()


def _count_ngrams(texts: Sequence[str], most: int) -> Any:
    """Return TF-IDF of n-grams of at most ``most`` texts, sparse float32 [texts, n-grams], or ValueError."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    counted = TfidfVectorizer(analyzer="char", ngram_range=NGRAMS, max_df=most, dtype=np.float32)
    return counted.fit_transform(texts)
