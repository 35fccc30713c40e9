"""Search: the texts of an index by their embeddings, by BM25 or by both, ordered by a pair classifier."""

import logging
import math
from collections import defaultdict
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from data_tools.text.text_files import is_blank
from ernie_pair.core.cli.options import check_whole_numbers, checked
from ernie_pair.core.cli.python_call import checks_names
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.core.files.json_file import shown
from ernie_pair.embeddings.open_embedder import open_embedder
from ernie_pair.evaluation.scorer import load
from ernie_pair.inference.embedder import EmbedderOptions, TextEmbedder, check_vectors
from ernie_pair.inference.opened import OpenedFolder
from ernie_pair.inference.scores import COSINE, PRODUCT, ScoreUnit, Window, best_places
from ernie_pair.inference.word_index import WordIndex
from ernie_pair.retrieval.index import VectorIndex
from ernie_pair.retrieval.index_folder import (
    BM25,
    BOTH,
    INDEX_FILE,
    INDEX_MANIFEST,
    VECTORS,
    Answering,
    IndexFolder,
    State,
    open_index_folder,
    state_of,
)
from ernie_pair.runtime.cpu import cpu_threads


class Hit(NamedTuple):
    """A text of the index that may answer a query."""

    id: str
    text: str
    score: float  # of the classifier, a probability if it has classes; without a classifier by retrieval
    similarity: Optional[float]  # the cosine of the embeddings, from -1 to 1; of some models their product
    bm25: Optional[float] = None  # None, like ``similarity``: not among the texts that were found by it
    payload: Dict[str, str] = {}  # what rides along with the text, such as its answer
    probability: Optional[float] = None  # that it answers; None: it was not measured for this search
    window: Optional[Window] = None  # the best of a text that is longer than a model reads; None: it is not

    def read_in(self, window: Optional[Window]) -> "Hit":
        """Return the hit with the ``window`` that its classifier scores best, if it reads it in windows."""
        return self if window is None else self._replace(window=window)

    def content(self, digits: int) -> Dict[str, object]:
        """Return the hit as JSON content, numbers rounded to ``digits``; bm25 only if it was found by it."""
        return {
            "id": self.id,
            "text": self.text,
            "score": round(self.score, digits),
            "similarity": None if self.similarity is None else round(self.similarity, digits),
            **({} if self.bm25 is None else {"bm25": round(self.bm25, digits)}),
            **({} if self.probability is None else {"probability": round(self.probability, digits)}),
            **({"payload": self.payload} if self.payload else {}),
            **({} if self.window is None else {"window": vars(self.window)}),
        }


def rerank(
    hits: Sequence[Hit],
    scores: np.ndarray,
    top_k: int,
    threshold: Optional[float] = None,
    answering: Optional[Answering] = None,
) -> List[Hit]:
    """Return the ``top_k`` hits by ``scores`` [N], best first, but those below ``threshold``; ties stay.

    ``answering``: what was measured of this search; its threshold holds where none is given.
    """
    if threshold is None and answering is not None:
        threshold = answering.threshold
    ordered = [hits[place]._replace(score=float(scores[place])) for place in best_places(scores, top_k)]
    found = [hit for hit in ordered if threshold is None or hit.score >= threshold]
    if answering is None:
        return found
    return [hit._replace(probability=answering.probability(hit.score)) for hit in found]


RECALL_K = 50  # texts retrieved for a query, which the classifier reranks
WIDER = 8  # times as many are looked at where texts may have the same answer
QUERIES = 64  # searched at a time
# Cormack, Clarke and Büttcher 2009 add 60 to a rank. 10 gives more weight to what one of the two puts first:
# recall@10 is 0.98 instead of 0.96 on the built-in sample, 0.46 instead of 0.45 on AFQMC.
RANK_OFFSET = 10
UNITS = {BM25: ScoreUnit("a BM25 score", 0), BOTH: ScoreUnit("a fused rank", 0, 2 / (RANK_OFFSET + 1))}

EMPTY: Mapping[str, str] = MappingProxyType({})

logger = logging.getLogger(__name__)


def fuse(rankings: Sequence[Mapping[int, float]]) -> Dict[int, float]:
    """Return {position: score} of several {position: score}, the best first: reciprocal rank fusion.

    The score of a text is the sum of 1 / (RANK_OFFSET + its rank), from 1 on; texts with equal scores have
    the rank of the first of them. Ties in the order of the texts.
    """
    scores: Dict[int, float] = defaultdict(float)
    for ranking in rankings:
        rank, before = 0, math.nan
        for number, (place, score) in enumerate(ranking.items(), start=1):
            rank, before = (rank, before) if score == before else (number, score)
            scores[place] += 1 / (RANK_OFFSET + rank)
    return dict(sorted(scores.items(), key=lambda item: (-item[1], item[0])))


class TextRecall:
    """An index and the embedding model that made it, None for BM25 alone. Not thread-safe.

    ``recall_k``: texts for each query. ``breadth``: see `VectorIndex`. ``retrieval``: vectors, bm25, both, or
    auto for all that the index was made for. ``reranker``: the hash of the classifier that orders what is
    found, '' without one; None: no saved threshold is looked for. Raises InputError if ``embedder`` is not
    the model that made the index, or a flag does not fit it, CheckpointError if it is damaged or ``folder``
    is there no more.
    """

    def __init__(
        self,
        folder: IndexFolder,
        embedder: Optional[TextEmbedder],
        recall_k: int = RECALL_K,
        threads: int = 0,
        breadth: int = 0,
        retrieval: str = "auto",
        reranker: Optional[str] = None,
    ):
        folder.check_breadth(breadth)
        manifest, self.retrieval = folder.manifest, folder.choose_retrieval(retrieval)
        self.recall_k, self.count = min(recall_k, manifest.texts), manifest.texts
        self.payload, self.example, self.verdict = manifest.payload, folder.texts[0], folder.verdict
        self._folder, self._embedder, self.check_columns = folder, None, folder.check_columns
        self._has_told = False
        self._given = (embedder, recall_k, threads, breadth, retrieval, reranker)
        self.answering = None if reranker is None else self._find_answering(reranker)
        self._words = None if self.retrieval == VECTORS else WordIndex(folder.folder, manifest.rows)
        if self.retrieval == BM25:
            self.unit = UNITS[BM25]
            folder.check_current()
            return
        if embedder is None:
            raise InputError(f"{folder.folder} holds vectors; name their model with --embedding_model")
        self._embedder = embedder = folder.fit_embedder(embedder)
        wanted = embedder.settings.prompt_of("passage")
        if manifest.prompt != wanted:
            message = "%s: its texts were read with the prompt %s, and the model wants %s; make the vectors "
            message += "again with embed --prompt, or the index with --model_path"
            logger.warning(message, folder.folder, shown(manifest.prompt), shown(wanted))
        unit = COSINE if embedder.settings.has_unit_products else PRODUCT
        self.unit = UNITS.get(self.retrieval, unit)
        path, threads = folder.folder / INDEX_FILE, threads or cpu_threads()
        self._index = VectorIndex(path, manifest.expected, threads, breadth)
        folder.check_current()

    @classmethod
    def open(cls, folder: IndexFolder, *given: Any, **named: Any) -> "TextRecall":
        """Return the texts of ``folder``, or of the state that takes its place while they are opened."""
        while True:
            try:
                return cls(folder, *given, **named)
            except CheckpointError:
                if state_of(folder.folder) == folder.state:
                    raise
            folder = open_index_folder(folder.folder)

    @property
    def state(self) -> Tuple[State, State]:
        """Return which state of the index is open, and which is there now; see `state_of`."""
        return self._folder.state, state_of(self._folder.folder)

    def reopened(self) -> "TextRecall":
        """Return the texts as they are there now, with the same model and flags. Raises as the class does."""
        return self.open(open_index_folder(self._folder.folder), *self._given)

    def _find_answering(self, reranker: str) -> Optional[Answering]:
        """Return what `evaluate search` has saved of this way of searching, and log it."""
        folder = self._folder
        found = folder.answering_by(self.retrieval, reranker)
        if found is not None:
            is_same = sha256_of_file(folder.folder / INDEX_MANIFEST) == found.index_sha256
            after = "" if is_same else ", before the index was changed; measure again"
            logger.info(
                "%s: answers from a score of %.4g on, by %s: precision %.3f (%.3f to %.3f), coverage %.3f, "
                "of %d questions%s",
                folder.folder, found.threshold, self.retrieval, found.precision, *found.interval,
                found.coverage, found.questions, after,
            )  # fmt: skip
        elif folder.answering:
            saved = (" reranked by ".join(filter(None, one.key)) for one in folder.answering)
            own = " reranked by ".join(filter(None, (self.retrieval, reranker)))
            logger.info(
                "%s: its thresholds are for %s, and none for %s", folder.folder, " and ".join(saved), own
            )
        return found

    def answering_of(self, where: Mapping[str, str], top_k: int) -> Optional[Answering]:
        """Return the saved threshold of a search; a fused rank has none where other texts are ranked."""
        found = self.answering
        if found is None or found.reranker or self.retrieval != BOTH:
            return found
        if not where and max(self._given[1], top_k) == found.recall_k:
            return found
        if not self._has_told:
            message = (
                "%s: the threshold of a fused rank holds for %d texts found, without a filter; it is not "
            )
            logger.warning(message + "used for other searches", self._folder.folder, found.recall_k)
        self._has_told = True
        return None

    def recall(
        self,
        queries: Sequence[str],
        top_k: int = 0,
        where: Mapping[str, str] = EMPTY,
        embedder: Optional[TextEmbedder] = None,
    ) -> List[List[Hit]]:
        """Return the best texts of each query, the best first; longer queries are cut.

        They are recall_k, or ``top_k`` if that is more, of those with the same answer one; fewer if no more
        share a word with the query and there are no vectors, or if WIDER times as many have fewer answers.
        ``where``: only texts are searched with which all these {column: value} ride along. ``embedder``: a
        copy of the model that is asked instead, where threads ask at a time, each its own.
        Raises NumbersError for a vector that is not finite, InputError for a column that is not there.
        """
        folder, own = self._folder, self._embedder
        embedder = own if own is None or embedder is None else folder.fit_embedder(embedder)
        fits = folder.rows_where(where) if where else None
        most = folder.manifest.rows if fits is None else int(np.count_nonzero(fits))
        if not most:
            return [[] for _ in queries]
        count = min(max(self.recall_k, top_k), most)
        has_groups = folder.manifest.answer or folder.spans is not None
        asked = min(WIDER * count, most) if has_groups else count
        nothing: List[Dict[int, float]] = [{}] * len(queries)
        near, ids, texts, found = nothing, folder.ids, folder.texts, []
        if embedder is not None:
            vectors = embedder.comparable(embedder.embed_queries(queries))
            check_vectors(vectors, embedder.model.name, is_unit=embedder.settings.has_unit_products)
            found_places = zip(*(array.tolist() for array in self._index.nearest(vectors, asked, fits)))
            near = [{place: cosine for cosine, place in zip(*row) if place >= 0} for row in found_places]
        by_words = nothing if self._words is None else self._words.best(queries, asked, fits)
        for of_rows in zip(near, by_words):
            rows: Dict[int, int] = {}  # the best of each text
            cosines, scores = (folder.by_texts(each, rows) for each in of_rows)
            best: Dict[Union[str, int], int] = {}
            ranked = fuse([cosines, scores]) if self.retrieval == BOTH else cosines or scores
            for n in ranked:
                if len(best) < count:
                    best.setdefault(folder.answer_of(n), n)
            hits = [
                Hit(ids[n], texts[n], ranked[n], cosines.get(n), scores.get(n), folder.payload_of(n))
                for n in best.values()
            ]
            hits = [hit.read_in(folder.window_of(rows[n])) for hit, n in zip(hits, best.values())]
            found.append(hits)
        return found

    def why_refused(self, query: str, cuts: bool = False) -> str:
        """Return why a query is refused, in a line; '' if it is not. ``cuts``: a long one is not."""
        if not query.strip():
            return "the query is empty; fill it in"
        if is_blank(query):
            return "the query has no visible character; fill it in"
        if cuts or self._embedder is None:
            return ""
        tokens, most = self._embedder.num_tokens(query, "query"), self._embedder.max_seq_len
        if tokens > most:
            cure = "shorten it, or have it cut: --long_query cut"
            return f"the query has {tokens} tokens, above the {most} of the model; {cure}"
        return ""


class PairSearcher(OpenedFolder):
    """Search an index with its two models, which are opened once. Not thread-safe.

    >>> from ernie_pair import PairSearcher
    >>> searcher = PairSearcher("faq.index", model_path="embedder", reranker="ship")
    >>> hits = searcher.search("怎么开户", top_k=3)
    >>> len(hits) <= 3 and all(0 <= hit.score <= 1 for hit in hits)
    True

    ``index``: a folder made by `ernie-pair index`; ``model_path``: the embedding model that it was made with,
    empty for BM25 alone. ``retrieval``: vectors, bm25, both, or auto for all that the index was made for.
    ``reranker``: a pair classifier with two classes or with none, exported or trained, that scores the
    ``recall_k`` best texts, or more if a search asks for a larger top_k; without one the score is their
    similarity, the BM25 score, or of both the fused rank. ``threshold``: drop hits with a lower score; None:
    that which `evaluate search --save_threshold` has saved for this search, if any.
    ``cuts``: truncate queries that are too long for the model instead of refusing them. ``breadth``: see
    `VectorIndex`. ``batch_tokens``: most tokens in one forward pass, 0: what suits the device.
    ``window_overlap``: of the windows in which ``reranker`` reads long texts, see `load`, 0: as the index was
    made. Raises an ErniePairError if these cannot be used together.
    """

    kind = "an index"

    @checks_names
    def __init__(
        self,
        index: Union[str, Path],
        model_path: Union[str, Path] = "",
        reranker: Union[str, Path, None] = None,
        recall_k: int = RECALL_K,
        threshold: Optional[float] = None,
        device: str = "cpu",
        threads: int = 0,
        breadth: int = 0,
        cuts: bool = False,
        retrieval: str = "auto",
        batch_tokens: int = 0,
        window_overlap: int = 0,
    ):
        check_whole_numbers(1, recall_k=recall_k)
        check_whole_numbers(0, threads=threads, breadth=breadth)
        paths = {"index": index, "embedding_model": model_path, "model_path": reranker or ""}
        self.measured = {
            **{name: str(path) for name, path in paths.items()},
            "recall_k": recall_k,
            "device": device,
        }
        checked(threshold, Optional[float], "--threshold")
        folder = open_index_folder(Path(index).expanduser())
        folder.check_breadth(breadth)
        if model_path and folder.choose_retrieval(retrieval) == BM25:
            raise InputError(f"--embedding_model {model_path}: BM25 takes no model; leave it out")
        embedder, self._scorer = None, None
        if model_path:
            options = EmbedderOptions(threads=threads, batch_tokens=batch_tokens)
            embedder = open_embedder(str(model_path), device, options)
        if reranker:
            overlap = window_overlap or folder.manifest.window_overlap
            self._scorer = load(reranker, device, threads, batch_tokens=batch_tokens, window_overlap=overlap)
            self._scorer.check_rankable()
        by = "" if self._scorer is None else self._scorer.ranked_by
        self.texts = TextRecall.open(folder, embedder, recall_k, threads, breadth, retrieval, by)
        self.threshold, self.cuts = threshold, cuts
        (self.texts.unit if self._scorer is None else self._scorer.unit).check_inside(threshold)

    @checks_names
    def search(self, query: str, top_k: int = 10, where: Mapping[str, str] = EMPTY) -> List[Hit]:
        """Return the ``top_k`` texts that match ``query`` best, best first: see `Hit`.

        Of texts with the same answer, if the index has answers, the one retrieved first stands for all.
        A ``top_k`` above recall_k retrieves, and reranks, that many texts. ``where``: only texts are searched
        with which all these {column: value} ride along. Raises InputError for a query that is empty or too
        long for the model, or a column that is not there, NumbersError for scores that are not finite.
        """
        (hits,) = self.search_many([query], top_k, where)
        return hits

    def search_many(
        self, queries: Iterable[str], top_k: int = 10, where: Mapping[str, str] = EMPTY
    ) -> Iterator[List[Hit]]:
        """Yield what `search` returns for each query, in order; QUERIES of them are searched at a time."""
        check_whole_numbers(1, top_k=top_k)
        if isinstance(queries, (str, bytes)):
            raise InputError(f"the queries are one text, {queries[:60]!r}; give a list, or use search")
        rest = iter(queries)
        for window in iter(lambda: list(islice(rest, QUERIES)), []):
            for query in window:
                self.check_query(query)
            recalled = self.texts.recall(window, top_k, where)
            scores = np.array([hit.score for hits in recalled for hit in hits], dtype=np.float64)
            if self._scorer is not None and len(scores):
                pairs = [(query, hit.text) for query, hits in zip(window, recalled) for hit in hits]
                scores, windows = self._scorer.best_windows(pairs)
                parts = iter(windows)
                recalled = [[hit.read_in(next(parts)) for hit in hits] for hits in recalled]
            first = 0
            for hits in recalled:
                own = scores[first : first + len(hits)]
                yield rerank(hits, own, top_k, self.threshold, self.texts.answering_of(where, top_k))
                first += len(hits)

    def check_query(self, query: str, where: str = "") -> None:
        """Raise InputError for a query that is not a text, empty or too long; ``where``: its location."""
        if not isinstance(query, str):
            raise InputError(f"the query is {str(query)[:60]}; give a text")
        reason = self.texts.why_refused(query, self.cuts)
        if reason:
            raise InputError(f"{where}{reason}")
