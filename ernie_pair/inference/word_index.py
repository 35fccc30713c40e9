"""BM25 of the texts of an index, by bm25s on words of jieba and characters (Robertson and Zaragoza 2009).

bm25.*.npy        the score of each word in each text that has it: a sparse matrix, memory-mapped by a search
bm25.vocab.json   {word: its number}
bm25.json         the parameters of BM25

A word is found in lower case and half width, whole and by its parts: 研究所 also by 研究, and by 研.
"""

import logging
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Sequence

import numpy as np

from data_tools.text.characters import compatible, is_letter_or_digit, lowered
from data_tools.text.wordpiece import is_cjk
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.core.files.arrays import mapped_array
from ernie_pair.core.files.json_file import is_whole_number, read_json_object
from ernie_pair.core.installation import import_optional

METHOD = "lucene"
MAX_BYTES = 1 << 30  # of the vocabulary
CURE = "make the index again"
BM25_FILES = ("bm25.scores.npy", "bm25.places.npy", "bm25.begins.npy", "bm25.vocab.json", "bm25.json")
_NAMED = dict(zip(("data_name", "indices_name", "indptr_name", "vocab_name", "params_name"), BM25_FILES))


def words_of(text: str) -> List[str]:
    """Return what BM25 counts of a text: its words, without punctuation, and its Chinese characters.

    Questions share characters where they share no word: of the pairs of the built-in sample, ten texts hold
    0.78 of the matches by both, 0.67 by words alone. Raises InputError without rjieba.
    """
    folded = lowered(compatible(text))
    words = import_optional("rjieba").cut_for_search(folded)
    longer = [word for word in words if len(word) > 1 or not is_cjk(word)]
    return [word for word in longer if any(map(is_letter_or_digit, word))] + list(filter(is_cjk, folded))


def write_bm25(folder: Path, texts: Iterable[str]) -> None:
    """Write BM25_FILES of ``texts``, always the same bytes. Raises InputError without a word or a library."""
    bm25s = _bm25s()
    vocabulary: Dict[str, int] = {}
    rows = [[vocabulary.setdefault(word, len(vocabulary)) for word in words_of(text)] for text in texts]
    if not vocabulary:
        raise InputError("no text has a word, so that BM25 finds none; use --retrieval vectors")
    scorer = bm25s.BM25(method=METHOD)
    scorer.index((rows, vocabulary), create_empty_token=False, show_progress=False)
    scorer.save(folder, show_progress=False, **_NAMED)


class WordIndex:
    """The BM25 index in ``folder``, of ``count`` texts. Raises CheckpointError if it does not fit them.

    Its files are read here, and not by bm25s, which would take any setting and any place for granted.
    """

    def __init__(self, folder: Path, count: int):
        scores, places, begins = (mapped_array(folder / name, CURE) for name in BM25_FILES[:3])
        vocabulary = read_json_object(folder / BM25_FILES[3], CURE, CheckpointError, most=MAX_BYTES)
        settings = read_json_object(folder / BM25_FILES[4], CURE, CheckpointError)
        if not is_whole_number(settings.get("num_docs"), count, count) or settings.get("method") != METHOD:
            raise CheckpointError(f"{folder / BM25_FILES[4]} is not of {count} texts by {METHOD}; {CURE}")
        fault = _fault_of(scores, places, begins, vocabulary, count)
        if fault:
            raise CheckpointError(f"{folder}: BM25 has {fault}; {CURE}")
        self._scorer = _bm25s().BM25(method=METHOD)
        self._scorer.vocab_dict, self._scorer.nonoccurrence_array = vocabulary, None
        self._scorer.scores = {"data": scores, "indices": places, "indptr": begins, "num_docs": count}

    def best(
        self, queries: Sequence[str], count: int, fits: Optional[np.ndarray] = None
    ) -> List[Dict[int, float]]:
        """Return {position: score} of at most ``count`` texts for each query, the best first.

        Only texts that share a word with the query are found, of those that ``fits``, bool, names; ties are
        in the order of the texts.
        """
        found: List[Dict[int, float]] = []
        for query in queries:
            known = self._scorer.get_tokens_ids(words_of(query))
            scores = self._scorer.get_scores_from_ids(known) if known else np.zeros(count)
            scores = scores if fits is None or not known else np.where(fits, scores, 0)
            least = np.partition(scores, -count)[-count]
            places = np.flatnonzero((scores >= least) & (scores > 0))
            places = places[np.argsort(-scores[places], kind="stable")][:count]
            found.append(dict(zip(places.tolist(), scores[places].tolist())))
        return found


def _fault_of(
    scores: np.ndarray, places: np.ndarray, begins: np.ndarray, vocabulary: Dict[str, Any], count: int
) -> str:
    """Return what is wrong with a sparse matrix, column by column of ``begins``, and its words; or ''."""
    if scores.dtype.kind != "f" or {places.dtype.kind, begins.dtype.kind} != {"i"}:
        return f"numbers of the types {scores.dtype}, {places.dtype} and {begins.dtype}"
    if not scores.ndim == places.ndim == begins.ndim == 1 or len(scores) != len(places) or len(begins) < 2:
        return f"{scores.shape} scores at {places.shape} places"
    if begins[0] != 0 or begins[-1] != len(places) or (np.diff(begins) < 0).any():
        return f"columns that do not divide its {len(places)} places"
    numbers = list(vocabulary.values())
    are_whole = all(is_whole_number(number, 0, len(begins) - 2) for number in numbers)
    if not are_whole or len(set(numbers)) != len(numbers) or len(numbers) != len(begins) - 1:
        return f"{len(numbers)} words, not numbered as its {len(begins) - 1} columns"
    if len(places) and (places.min() < 0 or places.max() >= count):
        return f"a place outside of its {count} texts"
    rises = np.diff(places) > 0
    rises[begins[(begins > 0) & (begins < len(places))] - 1] = True  # from one column to the next
    if not rises.all():
        return "places of a word that do not rise"
    return (
        "" if np.isfinite(scores).all() and (scores >= 0).all() else "a score that is not finite, or below 0"
    )


def _bm25s() -> Any:
    """Return the module of bm25s, which logs each of its steps otherwise. Raises InputError without it."""
    library = import_optional("bm25s")
    library.logger.setLevel(logging.WARNING)
    return library
