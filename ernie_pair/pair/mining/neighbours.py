"""The nearest texts of each text, by embedding or by character n-grams, in blocks that a killed run keeps.

A block compares some texts with all others. Memory: the vectors lie on the disk, the n-grams of all texts are
held (about 300 bytes a text), and a block of similarities takes BLOCK_BYTES.
"""

from functools import partial
from typing import Callable, Iterator, List, NamedTuple, Protocol, Sequence, Tuple

import numpy as np

from data_tools.base.progress import CountProgress
from ernie_pair.pair.mining.kept_blocks import KeptBlocks

BLOCK_BYTES = 1 << 26
EMBEDDED_AT_ONCE = 4096  # texts
NGRAMS = (1, 2)
COMMON_SHARE, LEAST_COMMON = 0.02, 200  # an n-gram of more texts than both says little and costs much
NEAR = np.dtype([("node", "<i8"), ("similarity", "<f4")])
NOBODY = -1


class Embeds(Protocol):
    """What makes vectors of texts: `ernie_pair.inference.embedder.TextEmbedder`."""

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return float32 [N, D], each row of length 1."""


class Range(NamedTuple):
    """Which similarities count, and how many neighbours a text may have."""

    least: float
    most: float
    most_texts: int


# Takes the first and the end of a block of texts; yields, text by text, others and their similarities.
Compare = Callable[[int, int], Iterator[Tuple[np.ndarray, np.ndarray]]]


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


def _block(compare: Compare, group: np.ndarray, wanted: Range, span: Tuple[int, int]) -> np.ndarray:
    first, end = span
    found = np.zeros((end - first, wanted.most_texts), dtype=NEAR)
    found["node"] = NOBODY
    for row, (nodes, similarities) in enumerate(compare(first, end)):
        fits = (similarities >= wanted.least) & (similarities <= wanted.most)
        fits &= group[nodes] != group[first + row]
        nodes, similarities = nodes[fits], similarities[fits]
        if (
            len(nodes) > wanted.most_texts
        ):  # those as near as the last one stay, so that no order of ties decides
            last = np.partition(similarities, -wanted.most_texts)[-wanted.most_texts]
            nodes, similarities = nodes[similarities >= last], similarities[similarities >= last]
        order = np.lexsort((nodes, -similarities))[: wanted.most_texts]
        found["node"][row, : len(order)] = nodes[order]
        found["similarity"][row, : len(order)] = similarities[order]
    return found


def compare_embeddings(embedder: Embeds, texts: Sequence[str], kept: KeptBlocks) -> Compare:
    """Return a comparison by the product of unit vectors, which are computed first and kept on the disk."""
    parts: List[np.ndarray] = []
    with CountProgress(len(texts), "embedded text") as progress:
        for first in range(0, len(texts), EMBEDDED_AT_ONCE):
            part = texts[first : first + EMBEDDED_AT_ONCE]
            parts.append(kept.get(f"vectors {first}", partial(embedder.embed, part)))
            progress.advance(len(part))
    everyone = np.arange(len(texts))

    def compare(first: int, end: int) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
        rows = np.arange(first, end)
        asked = np.stack([parts[row // EMBEDDED_AT_ONCE][row % EMBEDDED_AT_ONCE] for row in rows.tolist()])
        for similarities in np.concatenate([asked @ part.T for part in parts], axis=1):
            yield everyone, similarities

    return compare


def compare_ngrams(texts: Sequence[str]) -> Compare:
    """Return a comparison by the cosine of character n-grams, weighted by TF-IDF."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    most = max(int(COMMON_SHARE * len(texts)), LEAST_COMMON)
    weights = TfidfVectorizer(
        analyzer="char", ngram_range=NGRAMS, max_df=min(most, len(texts)), dtype=np.float32
    ).fit_transform(texts)
    others = weights.T.tocsr()

    def compare(first: int, end: int) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
        block = (weights[first:end] @ others).tocsr()
        for begin, stop in zip(block.indptr, block.indptr[1:]):
            yield block.indices[begin:stop], block.data[begin:stop]

    return compare
