"""The objectives besides the contrastive one: graded pairs, and the scores of a teacher.

CoSENT and AnglE learn pairs with a graded score by the order of their similarities, of the whole step:

    loss = log(1 + sum of exp((s(k) - s(i)) / temperature) over all i, k where pair i has the higher score)

CoSENT (Huang et al. 2024, "CoSENT: Consistent Sentence Embedding via Similarity Ranking"): s is the cosine.
AnglE (Li and Li 2023, "AnglE-optimized Text Embeddings", arXiv:2309.12871): s is the difference of angles
in complex space, which has a gradient where the cosine is flat.

GIST learns pairs as the contrastive objective does, without the negatives that a guide takes for matches.

MarginMSE and KL: an encoder learns how a reranker scores a query's match and its hard negatives.
The student's score of a text is its cosine with the query divided by --temperature; the teacher's is a log
odds: the difference of the logits of two classes, or the one logit of a ranker or a published cross-encoder.
MarginMSE (Hofstätter et al. 2020, arXiv:2010.02666): mean((margin of student - margin of teacher)^2), where a
margin is the score of the match less that of a negative. KL (Lin et al. 2020, arXiv:2010.11386): KL(p|q) of
the softmax of both over the texts of a query.
"""

import hashlib
import logging
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import paddle
from paddle.nn import functional as F

from ernie_pair.core.errors import InputError, counted
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.core.files.atomic_files import keeps
from ernie_pair.core.files.atomic_folder import list_content
from ernie_pair.core.files.keyed_cache import ArrayKind, array_cache
from ernie_pair.embeddings.open_embedder import open_embedder
from ernie_pair.embeddings.train.contrastive import (
    HIDDEN,
    Describe,
    StepTexts,
    TrainingTexts,
    describe_step,
    sha256_of_texts,
)
from ernie_pair.embeddings.train.embedding_config import EmbeddingConfig
from ernie_pair.inference.embedder import TextEmbedder, unit_rows
from ernie_pair.inference.token_rows import encode_texts, evaluation_batches, open_tokenizer
from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.models.labels import RANKING, SIGMOID, match_class
from ernie_pair.models.model_folder import no_model_folder, resolve_model_folder
from ernie_pair.models.networks.classifier import load_classifier
from ernie_pair.models.networks.encoders import predict_logits
from ernie_pair.models.networks.kernel_path import choose_path
from ernie_pair.models.temperature import read_calibration, score_pairs
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.data.row_cache import LOCK_SECONDS
from ernie_pair.pairs.targets.metrics import number_texts


class GradedStep(NamedTuple):
    """A global batch of N graded pairs, see `StepTexts`; ``scores`` float64 [N] are those of the file."""

    num_pairs: int
    numbers: np.ndarray
    scores: np.ndarray
    is_angle: bool

    @property
    def has_negatives(self) -> bool:
        """Return whether any pair has a higher score than another: else nothing is learned."""
        return bool((self.scores != self.scores[0]).any())

    def loss(self, rows: paddle.Tensor, temperature: float) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Return the loss; a pair counts as right by the share of all comparisons that come out right."""
        left, right = rows[: self.num_pairs], rows[self.num_pairs :]
        similarities_N = (left * right).sum(axis=1)
        if self.is_angle:
            similarities_N = (similarities_N + sines(left, right)).abs()
        similarities_N = similarities_N / temperature
        is_higher = self.scores[:, None] > self.scores[None]
        above_NN = similarities_N[None] - similarities_N[:, None]  # 0 or more: the lower one is not below
        hidden_NN = paddle.to_tensor(np.where(is_higher, 0, HIDDEN).astype(np.float32))
        terms = paddle.concat([paddle.zeros([1]), (above_NN + hidden_NN).flatten()])
        is_right = (above_NN < 0).astype("float32") * paddle.to_tensor(is_higher.astype(np.float32))
        return paddle.logsumexp(terms), is_right.sum() * (self.num_pairs / max(1, int(is_higher.sum())))


def sines(left: paddle.Tensor, right: paddle.Tensor) -> paddle.Tensor:
    """Return the imaginary part of left x conjugate of right, float32 [N]: complex numbers [N, D/2].

    Their real parts come first; an odd D gets a zero at its end.
    """
    if left.shape[1] % 2:
        left, right = (paddle.concat([one, paddle.zeros([len(one), 1])], axis=1) for one in (left, right))
    (a, b), (c, d) = paddle.chunk(left, 2, axis=1), paddle.chunk(right, 2, axis=1)
    return (b * c - a * d).sum(axis=1)


def graded_texts(pairs: Pairs, where: str, is_angle: bool) -> tuple[TrainingTexts, Describe]:
    """Return the texts of graded pairs, and what makes their steps. Raises InputError for equal scores."""
    places: dict[str, int] = {}
    left, right = (number_texts(side, places) for side in (pairs.left, pairs.right))
    scores = pairs.known_labels
    if (scores == scores[0]).all():
        raise InputError(
            f"{where}: all scores are {scores[0]:g}, and the order of scores is learned; take another file"
        )

    def describe(texts: TrainingTexts, pairs: np.ndarray, negatives: list[np.ndarray]) -> GradedStep:
        return GradedStep(len(pairs), np.concatenate([left[pairs], right[pairs]]), scores[pairs], is_angle)

    return TrainingTexts(list(places), left, right), describe


def guided_texts(
    texts: TrainingTexts, config: EmbeddingConfig, process_group
) -> tuple[TrainingTexts, Describe]:
    """Return ``texts``, and what makes their steps without the negatives that a guide takes for matches.

    Hidden from an anchor is every candidate that lies nearer to it than its positive does, by the vectors of
    the guide (GISTEmbed: Solatorio 2024, arXiv:2402.16829). Called by all ranks, which share the work.
    """
    guide, group = open_embedder(config.teacher, config.device), process_group
    logger.info("the guide %s embeds %d texts before the first step", config.teacher, len(texts.texts))
    vectors = as_query = _vectors_of_guide(guide, texts.texts, "passage", group)
    if guide.has_roles:
        as_query = _vectors_of_guide(guide, texts.texts, "query", group)

    def describe(texts: TrainingTexts, pairs: np.ndarray, negatives: list[np.ndarray]) -> StepTexts:
        step, own = describe_step(texts, pairs, negatives), np.arange(len(pairs))
        cosines = as_query[step.numbers[: len(pairs)]] @ vectors[step.numbers[len(pairs) :]].T
        is_nearer = cosines > cosines[own, own][:, None]
        return step._replace(is_hidden=step.is_hidden | is_nearer)

    return texts, describe


def _vectors_of_guide(guide: TextEmbedder, texts: list[str], role: str, process_group) -> np.ndarray:
    found = np.zeros((len(texts), guide.dim), np.float32)
    if not keeps():  # a dry run
        return found
    rows = guide.encode(texts, guide.settings.prompt_of(role))
    # A text is in the same batch in every layout.
    batches = evaluation_batches(rows.lengths, guide.batch_size, guide.model.rules)
    for picked in batches[process_group.rank :: process_group.size]:
        batch = rows.batch(picked)
        found[picked] = guide.model.forward(batch.input_ids, batch.token_type_ids)[:, : guide.dim]
    return unit_rows(process_group.all_reduce_now(found), guide.model.name)


VERSION = 1  # raised when the same teacher would give other scores
NEAREST = 1e-7  # to 0 and 1, of a probability whose log odds are taken

logger = logging.getLogger(__name__)


class TaughtStep(NamedTuple):
    """A global batch of N queries, see `StepTexts`, with the texts that a teacher has scored for each.

    ``candidates`` int64 [N, C] are rows of the step, the match first, -1 for none; ``taught`` float32 [N, C].
    """

    num_pairs: int
    numbers: np.ndarray
    candidates: np.ndarray
    taught: np.ndarray
    is_kl: bool
    has_negatives: bool = True

    def loss(self, rows: paddle.Tensor, temperature: float) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Return the loss, and how many queries the student finds the teacher's best text of."""
        shape, is_there = self.candidates.shape, (self.candidates >= 0).astype(np.float32)
        taken = np.maximum(self.candidates, 0)  # any row where there is none
        texts_NCD = rows[paddle.to_tensor(taken.ravel())].reshape([*shape, -1])
        scores_NC = (rows[: self.num_pairs].unsqueeze(1) * texts_NCD).sum(axis=2) / temperature
        hidden_NC, taught_NC = paddle.to_tensor((1 - is_there) * HIDDEN), paddle.to_tensor(self.taught)
        q_NC, p_NC = scores_NC + hidden_NC, taught_NC + hidden_NC
        right = (q_NC.argmax(axis=1) == p_NC.argmax(axis=1)).astype("float32").sum()
        if self.is_kl:
            log_q_NC, log_p_NC = F.log_softmax(q_NC), F.log_softmax(p_NC)
            return (log_p_NC.exp() * (log_p_NC - log_q_NC)).sum(axis=1).mean(), right
        margins, theirs = (scores[:, :1] - scores[:, 1:] for scores in (scores_NC, taught_NC))
        count_NC = paddle.to_tensor(is_there[:, 1:])
        return ((margins - theirs).square() * count_NC).sum() / count_NC.sum(), right


def taught_texts(
    texts: TrainingTexts, config: EmbeddingConfig, objective: str, where: str, process_group
) -> tuple[TrainingTexts, Describe]:
    """Return the pairs that have hard negatives, scored by the teacher, and what makes their steps.

    Called by all ranks together. Raises InputError for none of them, or a teacher of another kind.
    """
    kept = np.isin(texts.anchors, list(texts.negatives))
    if not kept.any():
        raise InputError(
            f"{where}: no pair has a hard negative, and --objective {objective} compares them with the "
            "match; add rows of label 0, or pass --negatives_file"
        )
    logger.info("%s: %d of %d pairs have hard negatives, and are used", where, kept.sum(), len(kept))
    texts = replace(texts, anchors=texts.anchors[kept], positives=texts.positives[kept])
    number = len(texts.texts)
    asked = [texts.anchors * number + texts.positives]
    asked += [anchor * number + found for anchor, found in texts.negatives.items()]
    keys = np.unique(np.concatenate(asked))
    left, right = ([texts.texts[place] for place in side] for side in np.divmod(keys, number))
    scores = scores_of_teacher(config, left, right, process_group)

    def describe(texts: TrainingTexts, pairs: np.ndarray, negatives: list[np.ndarray]) -> TaughtStep:
        anchors, count = texts.anchors[pairs], len(pairs)
        numbers = np.concatenate([anchors, texts.positives[pairs], *negatives])
        sizes = np.array(list(map(len, negatives)))[:, None]
        candidates = np.full((count, 1 + sizes.max()), -1)
        candidates[:, 0] = np.arange(count, 2 * count)
        candidates[:, 1:][np.arange(sizes.max()) < sizes] = np.arange(2 * count, len(numbers))
        found = np.searchsorted(keys, anchors[:, None] * number + numbers[candidates])
        taught = scores[np.minimum(found, len(keys) - 1)]  # whatever, where there is no candidate
        return TaughtStep(count, numbers, candidates, taught, objective == "kl")

    return texts, describe


def sha256_of_teacher(config: EmbeddingConfig) -> str:
    """Return the SHA-256 of the files of the teacher, in hex. Raises InputError where there is none."""
    if not Path(config.teacher).is_dir():
        raise no_model_folder("teacher", config.teacher, "give the OUT of a training run, or OUT/best")
    files = list_content(str(resolve_model_folder(Path(config.teacher))))
    return hashlib.sha256("".join(map(sha256_of_file, files)).encode()).hexdigest()


def scores_of_teacher(
    config: EmbeddingConfig, left: list[str], right: list[str], process_group
) -> np.ndarray:
    """Return the log odds of pairs, float32 [N], on every rank, from the cache of the run where they are.

    All ranks call it and share the work; rank 0 writes, and what it has is what all get. Raises InputError
    for a model that has no such score, NumbersError for one that is not finite.
    """
    folder, group = resolve_model_folder(Path(config.teacher)), process_group
    key = {"version": VERSION, "teacher": sha256_of_teacher(config), "pairs": sha256_of_texts(left + right)}
    wanted = ArrayKind(np.dtype(np.float32), (len(left),))
    cache = array_cache(Path(config.output_dir) / "cache", {**key}, "teacher-", wanted.fits)
    scores = cache.read() if group.rank == 0 else None
    if group.all_reduce(np.array([float(group.rank == 0 and scores is None)]))[0]:
        model, vocab_file = load_classifier(str(folder))
        labels, count = model.spec.labels, model.num_classes
        if count > 2 or not (labels.has_classes or labels.activation or labels.target == RANKING):
            raise InputError(
                f"--teacher {folder} is a model for {labels.target} with {counted(count, 'output')}; give "
                "one of two classes, one for ranking, or a cross-encoder"
            )
        logger.info("the teacher %s scores %d pairs before the first step", folder, len(left))
        if not keeps():  # a dry run
            return np.zeros(len(left), np.float32)
        choose_path(model, KernelFlags(kernels=config.kernels), config.device, group.size, group.all_reduce)
        length = model.spec.inference_length
        tokenizer = open_tokenizer(vocab_file, model.spec, length)

        def ask(left, right) -> np.ndarray:
            rows = encode_texts(left, right, None, tokenizer, length)
            return predict_logits(model, rows, config.eval_batch_size, group)

        logits = score_pairs(ask, left, right, read_calibration(folder, count).symmetric)
        odds = logits[:, -1].astype(np.float64) - (logits[:, 0] if labels.has_classes else 0)
        if match_class(labels) == 0:
            odds = -odds
        if labels.activation == SIGMOID:
            odds = np.log((share := np.clip(odds, NEAREST, 1 - NEAREST)) / (1 - share))
        scores = cache.get(lambda: odds.astype(np.float32), LOCK_SECONDS) if group.rank == 0 else None
    return group.all_reduce_now(np.zeros(len(left), np.float32) if scores is None else np.array(scores))
