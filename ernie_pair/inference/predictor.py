"""Predict with an exported model: texts in, labels and probabilities out, without the training code."""

from pathlib import Path
from typing import Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from data_tools.files.errors import InputError, NumbersError
from ernie_pair.inference.backends import open_backend
from ernie_pair.inference.exported_model import read_exported
from ernie_pair.inference.ranking import Ranked, rank_texts
from ernie_pair.inference.scores import (
    decide,
    probabilities,
    refuse_threshold,
    refuse_threshold_out_of_range,
    refuse_unrankable,
    scores_of,
)
from ernie_pair.inference.token_rows import (
    Batch,
    EncodedPairs,
    encode_texts,
    evaluation_batches,
    open_tokenizer,
)
from ernie_pair.models.spec import CONFIG, TOKENIZER, read_spec
from ernie_pair.models.temperature import score_pairs
from ernie_pair.runtime.cpu_env import cpu_threads

BATCH_SIZE = 64  # pairs in one forward pass

TextPair = Tuple[str, str]


class Prediction(NamedTuple):
    """The predictions for pairs, in their order; the probabilities are calibrated if the model is."""

    classes: np.ndarray  # int64 [pairs]: the most probable class, or the one by the threshold
    labels: List[str]  # its name
    probabilities: np.ndarray  # float32 [pairs, classes]


class PairPredictor:
    """Predict with an exported model, which is loaded once. Not thread-safe.

    >>> from ernie_pair import PairPredictor
    >>> predictor = PairPredictor("ship")  # the folder that ernie-pair export made
    >>> classes, labels, probabilities = predictor.predict([("怎么开户", "如何开户"), ("你好", "再见")])
    >>> probabilities.sum(axis=1).round(3).tolist()  # a row for each pair, a column for each class
    [1.0, 1.0]
    >>> labels == [predictor.class_names[number] for number in classes]
    True

    ``backend``: onnx | paddle | onnx-int8 | auto, see ``open_backend``. ``threads``: threads of one forward
    pass; 0: the number of cores of this process. ``threshold``: with two classes, the probability at or above
    which a pair is of class 1; None: the exported threshold if there is one, otherwise the more probable
    class. ``symmetric``: average scores (a, b) and (b, a), see `pair_symmetry`, none only (a, b), auto as
    exported. ``precision``: fp32, bf16 or fp16, and ``device``: cpu or gpu, see ``open_backend``. Raises an
    ErniePairError if the folder cannot be used with these options. For a model without classes use ``score``
    instead of ``predict``.
    """

    def __init__(
        self,
        folder: Union[str, Path],
        backend: str = "auto",
        threads: int = 0,
        threshold: Optional[float] = None,
        symmetric: str = "auto",
        precision: str = "fp32",
        device: str = "cpu",
    ):
        self.exported = read_exported(Path(folder))
        self.class_names = self.exported.labels
        self.symmetric = self.exported.calibration.chosen_symmetry(symmetric, str(folder))
        self.threshold = self.exported.threshold if threshold is None else threshold
        refuse_threshold(threshold, len(self.class_names), str(folder))
        refuse_threshold_out_of_range(threshold)
        if TOKENIZER in self.exported.files:
            self.exported.file(TOKENIZER)  # checks its hash; read_spec reads it
        vocab_file = self.exported.tokenizer_file
        spec = read_spec(self.exported.file(CONFIG), vocab_file)
        self._tokenizer = open_tokenizer(vocab_file, spec, self.exported.max_seq_len)
        self._backend = open_backend(self.exported, backend, threads or cpu_threads(), precision, device)
        self.backend, self.device = self._backend.name, self._backend.where

    @property
    def precision(self) -> str:
        """Return the precision of matrix products: fp32, bf16, fp16 or int8."""
        return self._backend.precision

    def describe(self) -> str:
        """Return the backend in words: onnx, paddle, paddle bf16 or onnx-int8, and the device if not cpu."""
        named = self.precision if self.precision not in ("fp32", "int8") else ""
        on_gpu = "" if self.device == "cpu" else f"on {self.device}"
        return " ".join(filter(None, [self.backend, named, on_gpu]))

    def predict(self, pairs: Sequence[TextPair]) -> Prediction:
        """Predict the class of every pair, in the order of ``pairs``.

        Raises InputError for an item that is not a pair of texts and for a model without classes,
        NumbersError for logits that are not finite.
        """
        if not self.exported.has_classes:
            raise InputError(f"{self.exported.folder} is a model for {self.exported.target}; use its `score`")
        logits = self.logits(pairs)
        classes, shares = decide(logits, self.exported.temperature, self.threshold)
        names = [self.class_names[number] for number in classes]
        return Prediction(classes, names, shares.astype(np.float32))

    def score(self, pairs: Sequence[TextPair]) -> np.ndarray:
        """Return a number for every pair, float64 [N], in the order of ``pairs``.

        For a model without classes this is the score, for two classes the probability of class 1, calibrated
        if the model is. Raises InputError for more than two classes, and whatever ``logits`` raises.
        """
        self.refuse_unrankable()
        logits, exported = self.logits(pairs), self.exported
        if exported.has_classes:
            return probabilities(logits, exported.temperature)[:, 1]
        return scores_of(logits, exported.label_range)

    def rank(self, query: str, candidates: Iterable[str], top_k: int = 10) -> List[Ranked]:
        """Return the ``top_k`` candidates that match ``query`` best, best first: (place, text, score).

        >>> from ernie_pair import PairPredictor
        >>> best = PairPredictor("ship").rank("怎么开户", ["再见", "如何开户", "你好"], top_k=2)
        >>> len(best), best[0].score >= best[1].score
        (2, True)

        The score is that of ``score``: with two classes, the probability that (query, candidate) is of class
        1. Ties keep their order. ``candidates`` may be an iterator of millions: only a window of them is in
        memory at a time. Raises InputError for a model with more than two classes, NumbersError for logits
        that are not finite.
        """
        if not isinstance(query, str):
            raise InputError(f"the query is {str(query)[:60]}; give a text")
        return rank_texts(lambda window: self.score([(query, text) for text in window]), candidates, top_k)

    def refuse_unrankable(self) -> None:
        """Raise InputError for a model with more than two classes."""
        refuse_unrankable(len(self.class_names), str(self.exported.folder))

    def logits(self, pairs: Sequence[TextPair]) -> np.ndarray:
        """Return the logits of the pairs before temperature and softmax, float32 [N, C].

        Raises InputError for an item that is not a pair of texts, NumbersError for logits that are not
        finite.
        """
        return score_pairs(self._logits_of_texts, *self._texts_of(pairs), self.symmetric)

    def _logits_of_texts(self, left: Sequence[str], right: Sequence[str]) -> np.ndarray:
        rows = encode_texts(left, right, None, self._tokenizer, self.exported.max_seq_len)
        logits = np.zeros((len(rows), len(self.class_names)), dtype=np.float32)
        for picked in evaluation_batches(rows.lengths, BATCH_SIZE, self._backend.rules):
            batch = self._batch(rows, picked)
            logits[picked] = self.logits_of_ids(batch.input_ids, batch.token_type_ids)[: len(picked)]
        if not np.isfinite(logits).all():
            raise NumbersError(f"{self.exported.folder} returns NaN or infinity; export the model again")
        return logits

    def _batch(self, rows: EncodedPairs, picked: np.ndarray) -> Batch:
        """Return the batch of the ``picked`` rows, in a shape that suits the backend.

        If it takes few shapes, the last row may be repeated.
        """
        rules = self._backend.rules
        length = min(rules.padded(int(rows.lengths[picked].max())), self.exported.max_seq_len)
        if rules.rounds_rows:
            more = (1 << (len(picked) - 1).bit_length()) - len(picked)
            picked = np.pad(picked, (0, more), mode="edge")
        return rows.batch(picked, length)

    def logits_of_ids(self, input_ids: np.ndarray, token_type_ids: np.ndarray) -> np.ndarray:
        """Return the logits, float32 [B, C], of ids and token types int64 [B, S], in one forward pass."""
        return self._backend.logits(input_ids, token_type_ids)

    def _texts_of(self, pairs: Sequence[TextPair]) -> Tuple[List[str], List[str]]:
        for place, pair in enumerate(pairs):
            is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2
            if not (is_pair and all(isinstance(text, str) for text in pair)):
                raise InputError(f"pair {place} is {str(pair)[:60]}; give two texts")
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]
