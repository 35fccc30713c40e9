"""An index of vectors by faiss: how it is made, written and opened.

flat   every vector is compared: exact, and slower the more there are
ivf    only the lists whose centres are nearest are compared (Jégou et al. 2011)
hnsw   a graph of near vectors is walked (Malkov and Yashunin 2016); needs the most memory, searches fastest

All vectors have length 1, so their inner product is their cosine. A file is checked before it is searched:
its kind, counts and links, and every number of its vectors. faiss's C++ trusts what it reads: a list that is
longer than its file, or a link to a vector that is not there, ends the process, and vectors compared by
distance would be ranked as if they were cosines.
"""

import logging
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple, Optional, Tuple

import numpy as np

from ernie_pair.core.errors import CheckpointError, MachineError
from ernie_pair.core.installation import import_optional
from ernie_pair.runtime.cpu import free_memory

CHUNK = 1 << 14  # vectors that are checked at a time
ID_BYTES = 8
# {kind: {precision: (the first bytes of the file, the class of faiss)}}
FORMS = {
    "flat": {"fp32": (b"IxFI", "IndexFlatIP"), "": (b"IxSQ", "IndexScalarQuantizer")},
    "ivf": {"fp32": (b"IwFl", "IndexIVFFlat"), "": (b"IwSq", "IndexIVFScalarQuantizer")},
    "hnsw": {"fp32": (b"IHNf", "IndexHNSWFlat"), "": (b"IHNs", "IndexHNSWSQ")},
}
NUMBER_BYTES = {"fp32": 4, "fp16": 2, "int8": 1}
UNIT_ERROR = {"fp32": 1e-3, "fp16": 1e-2, "int8": np.inf}  # of a length that was 1 before rounding


class Expected(NamedTuple):
    """What index.json says of the vectors; ``is_unit``: they are of length 1."""

    kind: str
    precision: str
    size: int
    dim: int
    is_unit: bool = True


def begins_as(path: Path, expected: Expected) -> bool:
    """Return whether a file begins as an index of the kind and precision that are expected."""
    begin, _ = _form_of(expected)
    with open(path, "rb") as file:
        return file.read(len(begin)) == begin


def fault_of(faiss: Any, index: Any, path: Path, expected: Expected) -> str:
    """Return what is wrong with the index that faiss has read from ``path``, in words; '' for a sound one."""
    kind, precision, count, dim, _ = expected
    if (index.ntotal, index.d) != (count, dim):
        return f"holds {index.ntotal} vectors of {index.d}, not {count} of {dim}"
    _, name = _form_of(expected)
    if type(index).__name__ != name:
        return f"is a {type(index).__name__}, not a {name}"
    if not _compares_by_products(faiss, index):
        return "compares vectors by distance, not by their product"
    codes = faiss.downcast_index(index.storage) if kind == "hnsw" else index
    fault = _fault_of_numbers(faiss, codes, expected)
    if not fault and kind == "ivf":
        fault = _fault_of_lists(faiss, index, path, expected)
    elif not fault:
        fault = _fault_of_codes(faiss, codes, expected)
    if not fault and kind == "hnsw":
        fault = _fault_of_links(faiss, index.hnsw, count)
    return fault or _fault_of_vectors(stored_vectors(index, count, CHUNK), expected)


def stored_vectors(index: Any, count: int, size: int) -> Iterator[np.ndarray]:
    """Yield the first ``count`` vectors as faiss's index stores them, float32 [``size`` at most, D]."""
    if hasattr(index, "make_direct_map"):  # of ivf; it would be written with the index
        index.make_direct_map(True)
    for first in range(0, count, size):
        yield index.reconstruct_n(first, min(size, count - first))


def refuse(path: Path, fault: str) -> CheckpointError:
    """Return the error of an index file, which says its fault."""
    return CheckpointError(f"{path} {fault}; make the index again")


def _form_of(expected: Expected) -> Any:
    forms = FORMS[expected.kind]
    return forms.get(expected.precision, forms[""])


def _compares_by_products(faiss: Any, index: Any) -> bool:
    return index.metric_type == faiss.METRIC_INNER_PRODUCT and index.is_trained


def _fault_of_numbers(faiss: Any, codes: Any, expected: Expected) -> str:
    """Return what is wrong with the type of the stored numbers, and the ranges of int8."""
    precision, dim = expected.precision, expected.dim
    if codes.code_size != dim * NUMBER_BYTES[precision]:
        return f"has {codes.code_size} bytes per vector, and {dim} numbers in {precision}"
    if precision == "fp32":
        return ""
    packing = faiss.ScalarQuantizer.QT_fp16 if precision == "fp16" else faiss.ScalarQuantizer.QT_8bit
    ranges = faiss.vector_to_array(codes.sq.trained)
    wanted = 0 if precision == "fp16" else 2 * dim
    if (codes.sq.qtype, codes.sq.d, codes.sq.code_size) != (packing, dim, codes.code_size):
        return f"does not store its numbers in {precision}"
    if len(ranges) != wanted or not np.isfinite(ranges).all():
        return f"has {len(ranges)} ranges of numbers, not {wanted} that are finite"
    return ""


def _fault_of_codes(faiss: Any, codes: Any, expected: Expected) -> str:
    """Return what is wrong with vectors that stand one after another."""
    _, name = _form_of(expected._replace(kind="flat"))
    if type(codes).__name__ != name or not _compares_by_products(faiss, codes):
        return f"stores its vectors as {type(codes).__name__}"
    if (codes.ntotal, codes.d) != (expected.size, expected.dim):
        return f"stores {codes.ntotal} vectors of {codes.d}, not {expected.size} of {expected.dim}"
    if codes.codes.size() != expected.size * codes.code_size:
        return f"has {codes.codes.size()} bytes of vectors, not {expected.size * codes.code_size}"
    return ""


def _fault_of_lists(faiss: Any, index: Any, path: Path, expected: Expected) -> str:
    """Return what is wrong with the lists of ivf and their centres."""
    centres, lists, count = faiss.downcast_index(index.quantizer), index.invlists, expected.size
    num, form = index.nlist, Expected("flat", "fp32", index.nlist, expected.dim)
    if not 1 <= num <= count or lists.nlist != num or lists.code_size != index.code_size:
        return f"has {num} lists of {count} vectors"
    fault = _fault_of_codes(faiss, centres, form)
    fault = fault or _fault_of_vectors(stored_vectors(centres, num, CHUNK), form._replace(is_unit=False))
    if fault:
        return f"{fault}: the centres of its lists"
    lists = faiss.downcast_InvertedLists(lists)
    sizes = [lists.list_size(number) for number in range(num)]
    if sum(sizes) != count:
        return f"has {sum(sizes)} vectors in its lists, not {count}"
    if isinstance(lists, faiss.OnDiskInvertedLists) and not _lie_in(lists, path):
        return "has lists that lie outside of the file"
    seen = np.zeros(count, dtype=bool)
    for number, size in enumerate(sizes):
        if size:
            ids = faiss.rev_swig_ptr(lists.get_ids(number), size)
            if ids.min() < 0 or ids.max() >= count:
                return f"has an id outside of its {count} vectors"
            seen[ids] = True
    return "" if seen.all() else f"lacks vector {int(seen.argmin())} in its lists"


def _lie_in(lists: Any, path: Path) -> bool:
    """Return whether all lists that are mapped from a file lie in that of the index, which has no name."""
    room = path.stat().st_size
    if lists.filename or lists.totsize > room:
        return False
    for number in range(lists.nlist):
        one = lists.lists.at(number)
        end = one.offset + one.capacity * (ID_BYTES + lists.code_size)
        if one.size and not (one.size <= one.capacity and 0 <= one.offset < end <= room):
            return False
    return True


def _fault_of_links(faiss: Any, graph: Any, count: int) -> str:
    """Return what is wrong with the graph of hnsw: a link must lead to a vector of its level."""
    levels, begins = faiss.vector_to_array(graph.levels), faiss.vector_to_array(graph.offsets)
    widths = faiss.vector_to_array(graph.cum_nneighbor_per_level).astype(np.int64)
    if len(levels) != count or len(begins) != count + 1 or len(widths) < 2 or widths[0] != 0:
        return f"has links of {len(levels)} vectors, not of {count}"
    if levels.min() < 1 or levels.max() >= len(widths) or (np.diff(widths) < 0).any():
        return "has levels of links that are not there"
    begins, links = begins.astype(np.int64), graph.neighbors
    are_whole = begins[0] == 0 and begins[-1] == links.size()
    if not are_whole or not np.array_equal(np.diff(begins), widths[levels]):
        return f"has {links.size()} links, not those of its levels"
    top, entry = int(levels.max()) - 1, graph.entry_point
    if graph.max_level != top or not 0 <= entry < count or levels[entry] != top + 1:
        return f"is entered at vector {entry} of level {graph.max_level}"
    links = faiss.rev_swig_ptr(links.data(), links.size())
    if links.min() < -1 or links.max() >= count:
        return f"has a link to none of its {count} vectors"
    for level in range(1, top + 1):
        nodes = np.flatnonzero(levels > level)
        columns = np.arange(widths[level], widths[level + 1])
        there = links[begins[nodes][:, None] + columns]
        if (levels[there[there >= 0]] <= level).any():
            return f"has a link to a vector that is not on level {level}"
    return ""


def _fault_of_vectors(chunks: Iterator[np.ndarray], expected: Expected) -> str:
    """Return which vector of float32 [n, D] at a time is not finite, or not of length 1 where it must be."""
    first, most = 0, UNIT_ERROR[expected.precision] if expected.is_unit else np.inf
    for chunk in chunks:
        with np.errstate(all="ignore"):  # the result says it
            lengths = np.sqrt(np.square(chunk, dtype=np.float64).sum(axis=1))
        good = np.isfinite(lengths) & (np.abs(lengths - 1) <= most)
        if not good.all():
            place = int(good.argmin())
            return f"has a vector, {first + place}, of length {lengths[place]:.4g}"
        first += len(chunk)
    return ""


SEARCH_LIBRARIES = dict.fromkeys(("faiss", "bm25s", "rjieba"), "")  # the libraries of an index
KINDS, PRECISIONS = tuple(FORMS), tuple(NUMBER_BYTES)
_CODES = {"fp32": "Flat", "fp16": "SQfp16", "int8": "SQ8"}  # faiss's names
TRAINED_ON = 64  # vectors per list; faiss wants at least 39
MIN_PER_LIST = 39
SMALL_GRAPH = 10_000  # vectors; in a smaller one all are compared: equal ones cut parts of a graph off
FOR_RANGES = 1 << 16  # vectors that the ranges of int8 are estimated from
SEED = 1234
DEFAULT_BREADTH = 64  # a million texts, 1024 lists: 80% of the nearest ten, where 16 lists gave 59%
SPARE = 1.2  # factor of memory, for what is not counted
Chunks = Callable[[], Iterator[np.ndarray]]  # the vectors in order, float32 [n, D] at a time


def require_faiss() -> Any:
    """Return the module of faiss. Raises InputError if it is not installed."""
    log = logging.getLogger("faiss")
    if log.level == logging.NOTSET:  # it tells which instructions it tries; a caller's own level stays
        log.setLevel(logging.WARNING)
    return import_optional("faiss")


@dataclass(frozen=True)
class IndexShape:
    """How an index is built; ``lists`` of ivf and ``links`` of hnsw; 0: chosen by the number of vectors."""

    kind: str = "flat"
    precision: str = "fp32"
    lists: int = 0
    links: int = 32
    ef_construction: int = 80

    def lists_for(self, count: int) -> int:
        """Return the number of lists for ``count`` vectors: 4 sqrt(count), fewer for short lists."""
        return self.lists or max(1, min(round(4 * math.sqrt(count)), count // MIN_PER_LIST))

    def few_for_lists(self, count: int) -> str:
        """Return in words that ``count`` vectors are few for the requested lists, or ''."""
        if self.kind != "ivf" or self.lists < 2 or self.lists * MIN_PER_LIST <= count:
            return ""
        return (
            f"{count} texts are few for {self.lists} lists, of which some may stay empty: --lists "
            f"{replace(self, lists=0).lists_for(count)} has {MIN_PER_LIST} texts or more for each"
        )

    def words(self, count: int) -> str:
        """Return the description for faiss's index_factory."""
        before = {"flat": "", "ivf": f"IVF{self.lists_for(count)},", "hnsw": f"HNSW{self.links},"}
        return before[self.kind] + _CODES[self.precision]

    def size(self, count: int, dim: int) -> int:
        """Return about how many bytes the index takes in memory, and on disk."""
        per_vector = dim * NUMBER_BYTES[self.precision]
        per_vector += {"flat": 0, "ivf": 8, "hnsw": 4 * (2 * self.links + 2)}[self.kind]
        return count * per_vector + 4 * dim * self.sample_size(count)

    def sample_size(self, count: int) -> int:
        """Return how many vectors the index is trained on; 0 for a kind that is not trained."""
        of_lists = TRAINED_ON * self.lists_for(count) if self.kind == "ivf" else 0
        of_ranges = FOR_RANGES if self.precision == "int8" else 0
        return min(count, max(of_lists, of_ranges))


def check_memory(shape: IndexShape, count: int, dim: int) -> None:
    """Raise MachineError if the index will not fit into the memory of this machine."""
    needed, free = SPARE * shape.size(count, dim), free_memory()
    if needed > free:
        raise MachineError(
            f"the index of {count:,} vectors of {dim} takes about {needed / 1e9:.1f} GB, and "
            f"{free / 1e9:.1f} GB are free; use --dtype fp16 or int8, or a smaller --dim"
        )


def train_index(shape: IndexShape, count: int, dim: int, chunks: Chunks) -> Any:
    """Return faiss's index for the ``count`` vectors of ``chunks``, to which none has been added yet.

    The same vectors give the same bytes, except for hnsw, which several threads build in the order in which
    they run. A chunk of vectors and the index itself are in memory.
    """
    faiss = require_faiss()
    index = faiss.index_factory(dim, shape.words(count), faiss.METRIC_INNER_PRODUCT)
    if shape.kind == "hnsw":
        index.hnsw.efConstruction = shape.ef_construction
    elif shape.kind == "ivf":
        index.cp.min_points_per_centroid = 1  # otherwise its C++ warns; `few_for_lists` says it
    if not index.is_trained:
        size, first, done = shape.sample_size(count) or count, 0, 0
        picked = np.sort(np.random.default_rng(SEED).choice(count, size, replace=False))
        sample = np.empty((size, dim), dtype=np.float32)
        for chunk in chunks():
            begin, end = np.searchsorted(picked, [first, first + len(chunk)])
            sample[done : done + end - begin] = chunk[picked[begin:end] - first]
            first, done = first + len(chunk), done + end - begin
        index.train(sample)
    return index


def keep_rows(index: Any, is_kept: np.ndarray) -> None:
    """Remove the vectors that are not kept, bool [N], from faiss's index in memory; those behind move up.

    The others stay as they are stored. A graph has links to those that go: it is built again of the others.
    """
    faiss = require_faiss()
    if is_kept.all():
        return
    if hasattr(index, "hnsw"):
        stored, first = faiss.clone_index(faiss.downcast_index(index.storage)), 0
        index.reset()
        for chunk in stored_vectors(stored, len(is_kept), CHUNK):
            index.add(np.ascontiguousarray(chunk[is_kept[first : first + len(chunk)]]))
            first += len(chunk)
        return
    index.remove_ids(np.flatnonzero(~is_kept))
    moved = np.cumsum(is_kept) - 1
    for number in range(index.nlist if hasattr(index, "nlist") else 0):  # the ids in lists do not move
        size = index.invlists.list_size(number)
        if size:
            ids = faiss.rev_swig_ptr(index.invlists.get_ids(number), size)
            ids[:] = moved[ids]


def write_index(index: Any, path: Path) -> None:
    """Write the index. Raises OSError if that fails, for example on a full disk."""
    try:
        require_faiss().write_index(index, str(path))
    except RuntimeError as error:  # from its C++, which gives no more detail
        raise OSError(5, f"faiss could not write it ({_first_line(error)})", str(path)) from None


def read_index(path: Path, expected: Expected, flags: int = 0) -> Any:
    """Read faiss's index, into memory unless ``flags`` map it.

    Raises CheckpointError for a file that is damaged, not as ``expected``, or has a number that is not.
    """
    faiss = require_faiss()
    if not begins_as(path, expected):
        raise refuse(path, f"is no {expected.kind} index of {expected.precision}")
    if hasattr(faiss, "set_deserialization_vector_byte_limit"):  # since 1.13; a length may be made up
        faiss.set_deserialization_vector_byte_limit(path.stat().st_size)
    try:
        index = faiss.read_index(str(path), flags)
        fault = fault_of(faiss, index, path, expected)
    except (RuntimeError, MemoryError, AttributeError) as error:  # of its C++; of another class of index
        fault = f"cannot be read ({_first_line(error)})"
    if fault:
        raise refuse(path, fault)
    if hasattr(index, "make_direct_map"):
        index.make_direct_map(False)
    return index


class VectorIndex:
    """An index on disk, opened for search; its vectors are memory-mapped.

    ``breadth``: for ivf how many lists are searched (nprobe), for hnsw how many candidates are kept
    (efSearch; below SMALL_GRAPH all); 0: DEFAULT_BREADTH. CheckpointError: the file is not as ``expected``.
    """

    def __init__(self, path: Path, expected: Expected, threads: int, breadth: int = 0):
        self._faiss = faiss = require_faiss()
        self._threads, kind = threads, expected.kind
        how = faiss.IO_FLAG_MMAP if kind == "ivf" else faiss.IO_FLAG_MMAP_IFC
        self._owner = self._index = read_index(path, expected, how)
        self._lists, self._is_graph = self._index.nlist if kind == "ivf" else 0, kind == "hnsw"
        self._breadth = min(breadth or DEFAULT_BREADTH, self._lists)
        if kind == "ivf":
            self._index.nprobe = self._breadth
        elif kind == "hnsw":
            self._index.hnsw.efSearch = breadth or DEFAULT_BREADTH
            if self._index.ntotal < SMALL_GRAPH:
                self._index = faiss.downcast_index(self._owner.storage)

    def nearest(
        self, vectors: np.ndarray, count: int, fits: Optional[np.ndarray] = None
    ) -> Tuple[np.ndarray, np.ndarray]:
        """Return the cosines float32 [N, count] and the positions int64 [N, count] of the nearest vectors.

        The nearest first, equally near ones in the order of their positions; a position is -1 if fewer are
        found. ``vectors`` float32 [N, D] of length 1. If the searched lists of an ivf index hold fewer, twice
        as many are searched, and so on. ``fits`` bool: only these are looked at, of hnsw each of them.
        """
        self._faiss.omp_set_num_threads(self._threads)
        most, selector = self._index.ntotal, None
        if fits is not None:
            most = int(np.count_nonzero(fits))
            selector = self._faiss.IDSelectorBitmap(np.packbits(fits, bitorder="little"))
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        cosines = np.zeros((len(vectors), count), dtype=np.float32)
        places, open_rows = np.zeros((len(vectors), count), dtype=np.int64), np.arange(len(vectors))
        asked = max(count, min(count + 1, most))
        while len(open_rows):
            scores, found = self._search(vectors[open_rows], asked, min(count, most), selector)
            order = np.lexsort((found, -scores))[:, :count]
            cosines[open_rows] = np.take_along_axis(scores, order, axis=1)
            places[open_rows] = np.take_along_axis(found, order, axis=1)
            if asked >= most:
                break
            # Of equally near ones faiss keeps those behind: all of them are asked for.
            open_rows = open_rows[(found[:, -1] >= 0) & (scores[:, count - 1] == scores[:, -1])]
            asked = min(2 * asked, most)
        return cosines, places

    def neighbours(self, places: np.ndarray, count: int) -> np.ndarray:
        """Return the positions int64 [P, count] of the nearest to the vectors at ``places``, but these."""
        found = self.nearest(self._stored(places), count + 1)[1]
        order = np.argsort(found == places[:, None], axis=1, kind="stable")[:, :count]
        return np.take_along_axis(found, order, axis=1)

    def near(self, places: np.ndarray, count: int) -> Tuple[np.ndarray, np.ndarray]:
        """Return cosines float32 [P, count] and positions of the nearest to the vectors at ``places``.

        They are among them; of equally near ones any may be.
        """
        self._faiss.omp_set_num_threads(self._threads)
        return self._search(self._stored(places), count, count, None)

    def _stored(self, places: np.ndarray) -> np.ndarray:
        if self._lists:
            self._owner.make_direct_map(True)
        return np.concatenate([self._owner.reconstruct_n(place, 1) for place in places.tolist()])

    def _search(
        self, vectors: np.ndarray, asked: int, count: int, selector: Any
    ) -> Tuple[np.ndarray, np.ndarray]:
        """Return what faiss finds of what ``selector`` lets pass: ``asked`` of each, at least ``count``."""
        index, breadth, params = self._index, self._breadth, None
        if self._lists:
            params = self._faiss.SearchParametersIVF(nprobe=breadth, sel=selector)
        elif selector is not None:
            params = self._faiss.SearchParameters(sel=selector)
            index = self._faiss.downcast_index(self._owner.storage) if self._is_graph else index
        cosines, places = index.search(vectors, asked, params=params)
        short = places[:, count - 1] < 0
        if self._is_graph and short.any():  # a part of the graph that no path leaves: all are compared
            storage = self._faiss.downcast_index(self._owner.storage)
            cosines[short], places[short] = storage.search(vectors[short], asked, params=params)
        while breadth < self._lists:
            short = places[:, count - 1] < 0
            if not short.any():
                break
            breadth = min(2 * breadth, self._lists)
            wider = self._faiss.SearchParametersIVF(nprobe=breadth, sel=selector)
            cosines[short], places[short] = index.search(vectors[short], asked, params=wider)
        return cosines, places


def _first_line(error: Exception) -> str:
    words = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return words.rpartition("Error: ")[2][:200] or words[:200]
