"""Check faiss's index before it is searched: its kind, counts and links, and every number of its vectors.

Its C++ trusts what it reads: a list that is longer than its file, or a link to a vector that is not there,
ends the process, and vectors compared by distance would be ranked as if they were cosines.
"""

from pathlib import Path
from typing import Any, Iterator, NamedTuple

import numpy as np

from ernie_pair.core.errors import CheckpointError

CHUNK = 1 << 14  # vectors
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
    if not fault and kind == "hnsw":
        fault = _fault_of_codes(faiss, codes, expected) or _fault_of_links(faiss, index.hnsw, count)
    elif not fault and kind == "ivf":
        fault = _fault_of_lists(faiss, index, path, expected)
    elif not fault:
        fault = _fault_of_codes(faiss, codes, expected)
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
    form = FORMS["flat"].get(expected.precision, FORMS["flat"][""])
    if type(codes).__name__ != form[1] or not _compares_by_products(faiss, codes):
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
