"""Predict with an exported model: texts in, labels and probabilities out, without the training code."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple, Union

import numpy as np

from data_tools.text.folder_tokenizer import FAST_TOKENIZER, AnyTokenizer
from ernie_pair.core.cli.options import check_whole_numbers
from ernie_pair.core.cli.python_call import checks_names
from ernie_pair.core.errors import CheckpointError, InputError, NumbersError
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.core.progress import CountProgress
from ernie_pair.inference import scores
from ernie_pair.inference.backends import OnnxBackend, open_backend
from ernie_pair.inference.exported_model import EXPORT_MANIFEST, read_exported
from ernie_pair.inference.opened import OpenedFolder
from ernie_pair.inference.ray_flags import PickledByFolder
from ernie_pair.inference.token_rows import (
    BatchRules,
    EncodedPairs,
    encode_texts,
    evaluation_batches,
    open_tokenizer,
    windows_of,
)
from ernie_pair.models.labels import CLASSIFICATION, RANKING, Labels, find_match, match_class
from ernie_pair.models.spec import CONFIG, TOKENIZER, VOCAB, ModelSpec, read_spec
from ernie_pair.models.temperature import Calibration, describe_decision, score_pairs
from ernie_pair.runtime.cpu import cpu_threads
from ernie_pair.runtime.processes.world import World

if TYPE_CHECKING:
    from ernie_pair.inference.explanation import Explanation

BATCH_SIZE = 64  # pairs in one forward pass
WINDOW = 4096  # pairs of a file that are asked together

logger = logging.getLogger(__name__)

TextPair = Tuple[str, str]
Advance = Callable[[int], None]  # called with the rows of each batch


class PairScorer(PickledByFolder, OpenedFolder):
    """A pair model from any folder, loaded once: logits, decisions, scores. Not thread-safe; picklable.

    A subclass opens its folder, sets ``where`` (its name in errors), ``labels`` and ``calibration`` (how its
    logits become classes), ``spec``, ``tokenizer`` and ``max_seq_len``, and computes ``logits_of_rows``.
    ``world``: the processes that compute together; ``window``: how many pairs of a file are asked at a time.
    """

    where: str
    labels: Labels
    calibration: Calibration
    spec: ModelSpec
    tokenizer: AnyTokenizer
    max_seq_len: int
    shared_characters: Mapping[str, float] = {}  # thresholds of the baseline, see `best_thresholds`
    learned_nothing = ""  # why it is no better than without training
    window_overlap = room = 0  # of both texts of a pair, in tokens, see `use_windows`
    world, window = World(), WINDOW
    kept, kind = ("calibration", "decided"), "a model of pairs"
    device = "cpu"
    decided: Dict[str, Any] = {}  # what `decide_by` was asked for
    process_group: Any = None  # of a ``world`` of several

    def logits_of_texts(
        self, left: Sequence[str], right: Sequence[str], advance: Optional[Advance] = None
    ) -> np.ndarray:
        """Return the logits of the pairs (left[i], right[i]) in this order of the texts, float32 [N, C].

        With several processes all of them call this, and get the same.
        """
        return self.logits_of_rows(self.encode(left, right), advance)

    def encode(self, left: Sequence[str], right: Sequence[str]) -> EncodedPairs:
        """Return the pairs (left[i], right[i]) as token ids; a thread of its own may do so."""
        return encode_texts(left, right, None, self.tokenizer, self.max_seq_len)

    def logits_of_rows(self, rows: EncodedPairs, advance: Optional[Advance] = None) -> np.ndarray:
        """Return the logits of pairs as token ids, float32 [N, C]; see `logits_of_texts`."""
        raise NotImplementedError

    def wait(self) -> None:
        """Wait until all processes of the ``world`` are here."""

    @property
    def how(self) -> Dict[str, str]:
        """Return what computes it, as evaluations record it."""
        raise NotImplementedError

    @property
    def class_names(self) -> Sequence[str]:
        """Return the names of the classes; of a model without classes, that of its output."""
        return self.labels.names

    @property
    def num_classes(self) -> int:
        """Return the number of classes; 1 for a model without."""
        return len(self.class_names)

    def logits_in(self, left: Sequence[str], right: Sequence[str], symmetric: str) -> np.ndarray:
        """Return the logits of pairs, float32 [N, C]; ``symmetric``: see `score_pairs`."""
        return score_pairs(self.logits_of_texts, left, right, symmetric)

    @property
    def unit(self) -> scores.ScoreUnit:
        """Return the unit of its scores: a probability for two classes, a score for a model without."""
        return scores.find_unit(self.labels.has_classes, self.labels.label_range)

    @property
    def threshold(self) -> Optional[float]:
        """Return the probability from which on a pair is of class 1; None: the most probable class."""
        return self.calibration.threshold

    @property
    def symmetric(self) -> str:
        """Return how pairs are scored: none, or average for the mean of both orders."""
        return self.calibration.symmetric

    def decide_by(self, threshold: Optional[float], symmetric: str) -> None:
        """Decide by ``threshold`` if not None, ``symmetric`` if not auto. Raises InputError for a misfit."""
        self.calibration = scores.chosen_calibration(
            self.calibration, threshold, symmetric, len(self.class_names), self.where
        )
        self.decided = {"symmetric": symmetric, **({} if threshold is None else {"threshold": threshold})}

    @property
    def measured(self) -> Dict[str, Any]:  # type: ignore[override]
        """Return the options by which `evaluate` measures what it answers."""
        return {"model_path": self.where, "device": self.device, **self.decided}

    @property
    def ranked_by(self) -> str:
        """Return what scores depend on: the hash of the model, and the overlap of its windows, if any."""
        return self.identity[0] + (f" window_overlap {self.window_overlap}" if self.window_overlap else "")

    def use_windows(self, overlap: int) -> None:
        """Have `score` and `rank` read long texts in windows that share ``overlap`` tokens; 0: cut them.

        Raises InputError for an overlap as long as the window beside the longest query.
        """
        check_whole_numbers(0, window_overlap=overlap)
        self.room = self.max_seq_len - sum(map(len, self.tokenizer.pair_specials))
        least = (self.room + 1) // 2
        if overlap >= least:
            raise InputError(
                f"--window_overlap {overlap} is as long as a window: beside a long query {self.where} reads "
                f"{least} tokens of a text; use {least - 1} or less"
            )
        self.window_overlap = overlap

    def in_windows(self, pairs: Iterable[TextPair]) -> scores.WindowedPairs:
        """Return pairs, and further windows of the second texts that are cut; the first is what is read.

        Raises InputError for a query that leaves less than half of the tokens to a window.
        """
        left, right = split_texts(pairs)
        count, overlap = len(left), self.window_overlap
        queries = {text: len(self.tokenizer.encode(text)) for text in dict.fromkeys(left if overlap else ())}
        found, owners = list(zip(left, right)), list(range(count))
        spans: List[Optional[scores.Span]] = [None] * count
        for place, tokens in enumerate(map(len, self.tokenizer.encode_batch(right)) if overlap else ()):
            query, text = found[place]
            room = self.room - queries[query]
            if tokens <= room:
                continue
            if queries[query] > self.room // 2:
                raise InputError(
                    f"the query of {queries[query]} tokens leaves no room for a window of a longer text; "
                    f"shorten it to {self.room // 2}, or leave --window_overlap out"
                )
            spans[place], *more = windows_of(
                text, self.tokenizer, lambda part: len(self.tokenizer.encode(part)), room, overlap
            )
            found += [(query, text[begin:end]) for begin, end in more]
            owners += [place] * len(more)
            spans += more
        return scores.WindowedPairs(found, np.array(owners, dtype=np.int64), spans, count)

    def describe_decision(self, threshold: Optional[float]) -> str:
        """Return a line on how classes are chosen; ``threshold``: that of the flags."""
        return describe_decision(self.threshold, threshold is None, self.symmetric)

    @property
    def match(self) -> int:
        """Return the class, of two, of pairs that match, by which candidates are ranked."""
        return match_class(self.labels) or 0

    def match_threshold(self, asked: Optional[float]) -> float:
        """Return from which score on two texts match: ``asked``, that of the folder for a match, or 0.5.

        Raises InputError for an ``asked`` that is no score, and without one for a model without classes.
        """
        self.unit.check_inside(asked)
        if asked is not None:
            return asked
        if not self.labels.has_classes:
            raise InputError(f"--model_path {self.where} gives scores; name a match's with --threshold")
        if self.threshold is None:  # of class 1
            return 0.5
        return self.threshold if self.match else 1 - self.threshold

    def check_rankable(self) -> None:
        """Raise InputError for a model with more than two classes; log which of two is the match, if not 1.

        It is logged too where the names are yes and no the other way round: what they answer is not known.
        """
        scores.check_rankable(len(self.class_names), self.where)
        if self.labels.has_classes and (self.match == 0 or find_match(self.class_names) == 0):
            name = self.class_names[self.match]
            logger.warning("%s: class %d, %s, is taken as the match", self.where, self.match, name)

    def prediction_of(self, logits: np.ndarray) -> scores.Prediction:
        """Return what follows from logits [N, C]."""
        return scores.predict_from(logits, self.labels, self.calibration)

    def logits(self, pairs: Iterable[TextPair]) -> np.ndarray:
        """Return the logits of the pairs before temperature and softmax, float32 [N, C].

        Raises InputError for an item that is not a pair of texts, NumbersError for one that is not finite.
        """
        score = partial(self.logits_of_texts, advance=lambda rows: None)  # which shows no bar
        return score_pairs(score, *split_texts(pairs), self.symmetric)

    def predict(self, pairs: Iterable[TextPair]) -> scores.Prediction:
        """Predict the class, or the score, of every pair, in the order of ``pairs``. Raises as `logits`."""
        return self.prediction_of(self.logits(pairs))

    def score(self, pairs: Iterable[TextPair]) -> np.ndarray:
        """Return the ``scores`` of `predict`, float64 [N]; of a text in windows that of the best.

        Raises InputError for more than two classes, and as `in_windows`.
        """
        return self.best_windows(pairs)[0]

    def best_windows(self, pairs: Iterable[TextPair]) -> Tuple[np.ndarray, scores.Windows]:
        """Return what `score` does, and the window of each second text that it is of, None: read whole."""
        scores.check_rankable(len(self.class_names), self.where)
        cut = self.in_windows(pairs)
        given, more = cut.pairs[: cut.size], cut.pairs[cut.size :]  # apart: the batches of the first stay
        parts = [self.predict(each) for each in ([given, more] if more else [given])]
        return cut.best(parts)

    @checks_names
    def rank(self, query: str, candidates: Iterable[str], top_k: int = 10) -> List[scores.Ranked]:
        """Return the ``top_k`` candidates that match ``query`` best, best first: (place, text, score).

        >>> from ernie_pair import load
        >>> best = load("ship").rank("怎么开户", ["再见", "如何开户", "你好"], top_k=2)
        >>> len(best), best[0].score >= best[1].score
        (2, True)

        The score is that of `score`: with two classes, the probability that (query, candidate) match; a
        fourth item, ``window``, is the part of a long candidate that it is of, see `use_windows`. Ties keep
        their order. ``candidates`` may be an iterator of millions: only CANDIDATES of them are in memory at a
        time. Raises InputError for a model with more than two classes, NumbersError for logits that are not
        finite.
        """
        return scores.rank_texts(
            lambda window: self.best_windows([(query, text) for text in window]), candidates, top_k
        )

    def explain(self, text_a: str, text_b: str, train_pairs: Iterable[Sequence[str]] = ()) -> "Explanation":
        """Return why the pair has its score: tokens, what both texts share, the score without each word.

        Score, logits and class are those of `predict` of this pair alone. The words are jieba's, at most as
        many as tokens fit; the texts without each are scored in one call. ``train_pairs``: (text, text,
        label), of which the nearest by BM25 are told. Raises InputError without rjieba, or for no texts.
        """
        from ernie_pair.inference.explanation import explain_pair

        return explain_pair(self, text_a, text_b, train_pairs)


def split_texts(pairs: Iterable[TextPair]) -> Tuple[List[str], List[str]]:
    """Return the first and the second texts. Raises InputError for an item that is not a pair of texts."""
    pairs = list(pairs)  # an iterator can be read once
    for place, pair in enumerate(pairs):
        is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2
        if not (is_pair and all(isinstance(text, str) for text in pair)):
            raise InputError(f"pair {place} is {str(pair)[:60]}; give two texts")
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


class PairPredictor(PairScorer):
    """Predict with an exported model, which is loaded once. Not thread-safe.

    >>> from ernie_pair import PairPredictor
    >>> predictor = PairPredictor("ship")  # the folder that ernie-pair export made
    >>> found = predictor.predict([("怎么开户", "如何开户"), ("你好", "再见")])
    >>> found.probabilities.sum(axis=1).round(3).tolist()  # a row for each pair, a column for each class
    [1.0, 1.0]
    >>> found.labels == [predictor.class_names[number] for number in found.classes]
    True

    ``backend``: onnx | paddle | onnx-int8 | onnx-gpu | auto, see ``open_backend``, or one that is open.
    ``threads``: threads of one forward pass; 0: the number of cores of this process. ``threshold``: with two
    classes, the probability at or above which a pair is of class 1; None: the exported threshold if there is
    one, otherwise the more probable class. ``symmetric``: average scores (a, b) and (b, a), see
    `pair_symmetry`, none only (a, b), auto as exported. ``precision``: fp32, bf16 or fp16, and ``device``:
    cpu, gpu or gpu:N, see ``open_backend``. ``batch_tokens``: most tokens in one forward pass, 0: what suits
    the device. Raises an ErniePairError if the folder cannot be used with these.
    """

    @checks_names
    def __init__(
        self,
        folder: Union[str, Path],
        backend: Union[str, OnnxBackend] = "auto",
        threads: int = 0,
        threshold: Optional[float] = None,
        symmetric: str = "auto",
        precision: str = "fp32",
        device: str = "cpu",
        batch_tokens: int = 0,
    ):
        check_whole_numbers(0, threads=threads, batch_tokens=batch_tokens)
        self.exported = exported = read_exported(Path(folder).expanduser())
        self.where, self.calibration = str(folder), exported.calibration
        self.shared_characters, self.learned_nothing = exported.shared_characters, exported.learned_nothing
        self.labels = Labels.scores(exported.label_range)
        if exported.target == CLASSIFICATION:
            self.labels = Labels.named({name: number for number, name in enumerate(exported.labels)})
        elif exported.target == RANKING:
            self.labels = Labels.of_candidates()
        scores.PROBABILITY.check_inside(threshold)
        self.decide_by(threshold, symmetric)
        if TOKENIZER in exported.files:
            exported.file(TOKENIZER)  # checks its hash; read_spec reads it
        vocab_file = exported.file(FAST_TOKENIZER if FAST_TOKENIZER in exported.files else VOCAB)
        self.spec = read_spec(exported.file(CONFIG), vocab_file)
        self.max_seq_len = exported.max_seq_len
        self.tokenizer = open_tokenizer(vocab_file, self.spec, self.max_seq_len)
        self._backend: Any = backend
        if isinstance(backend, str):
            self._backend = open_backend(exported, backend, threads or cpu_threads(), precision, device)
            how = self._backend.name, threads, None, "auto", precision, device, batch_tokens
            self.opens = partial(PairPredictor, exported.folder.absolute(), *how)
        self.backend, self.device = self._backend.name, self._backend.where
        self.rules: BatchRules = self._backend.rules.holding(batch_tokens)

    @classmethod
    def of(cls, config) -> "PairPredictor":
        """Open the exported model that the flags of a command name. Raises an ErniePairError."""
        device = "cpu" if config.device == "auto" else config.device
        same = {name: getattr(config, name) for name in ("backend", "threads", "precision", "batch_tokens")}
        return cls(config.model_path, device=device, **same)

    @property
    def identity(self) -> Tuple[str, str]:
        """Return the hash of export.json, which holds that of each file, and ''."""
        return sha256_of_file(self.exported.folder / EXPORT_MANIFEST), ""

    def predict(self, pairs: Iterable[TextPair]) -> scores.Prediction:
        """Predict as `PairScorer.predict`, and say how the texts were read."""
        left, right = split_texts(pairs)
        encoded: List[EncodedPairs] = []

        def score(first: Sequence[str], second: Sequence[str]) -> np.ndarray:
            encoded.append(self.encode(first, second))
            return self.logits_of_rows(encoded[0], lambda rows: None)  # which shows no bar

        found = self.prediction_of(score_pairs(score, left, right, self.symmetric))
        return replace(found, reading=encoded[0].reading(self.tokenizer, len(left)))

    @property
    def how(self) -> Dict[str, str]:
        """Return {computed_by: the backend}."""
        return {"computed_by": self.describe()}

    def logits_in(self, left: Sequence[str], right: Sequence[str], symmetric: str) -> np.ndarray:
        """Return the logits of pairs, float32 [N, C], a window of them at a time as for a file."""
        parts = []
        with CountProgress(len(left), "pair") as progress:
            for first in range(0, len(left), self.window):
                part = slice(first, first + self.window)
                parts.append(super().logits_in(left[part], right[part], symmetric))
                progress.advance(len(parts[-1]))
        return np.concatenate(parts)

    @property
    def precision(self) -> str:
        """Return the precision of matrix products: fp32, bf16, fp16 or int8."""
        return self._backend.precision

    def describe(self) -> str:
        """Return the backend in words: onnx, paddle, paddle bf16 or onnx-int8, and the device if not cpu."""
        words = [self.backend] + [self.precision] * (self.precision not in ("fp32", "int8"))
        return " ".join(words + [f"on {self.device}"] * (self.device != "cpu"))

    def logits_of_rows(self, rows: EncodedPairs, advance: Optional[Advance] = None) -> np.ndarray:
        """Return the logits of pairs as token ids, float32 [N, C]; see ``logits``."""
        rules, longest = self.rules, self.max_seq_len
        logits = np.zeros((len(rows), len(self.class_names)), dtype=np.float32)
        for picked in evaluation_batches(rows.lengths, BATCH_SIZE, rules):
            more = (1 << (len(picked) - 1).bit_length()) - len(picked) if rules.rounds_rows else 0
            length = min(rules.padded(int(rows.lengths[picked].max())), longest)
            batch = rows.batch(np.pad(picked, (0, more), mode="edge"), length)
            found = self.logits_of_ids(batch.input_ids, batch.token_type_ids)[: len(picked)]
            if found.shape != (len(picked), len(self.class_names)):
                raise CheckpointError(
                    f"{self.exported.folder}: its model gives {list(found.shape)} for {len(picked)} pairs, "
                    f"and {EXPORT_MANIFEST} has {len(self.class_names)} labels; export the model again"
                )
            logits[picked] = found
            if advance is not None:
                advance(len(picked))
        if not np.isfinite(logits).all():
            raise NumbersError(f"{self.exported.folder} returns NaN or infinity; export the model again")
        return logits

    def logits_of_ids(self, input_ids: np.ndarray, token_type_ids: np.ndarray) -> np.ndarray:
        """Return the logits, float32 [B, C], of ids and token types int64 [B, S], in one forward pass."""
        return self._backend.logits(input_ids, token_type_ids)
