"""ernie-pair evaluate search: how well an index answers questions whose texts are known, stage by stage.

The files of questions are those of `questions`. Of the ranked texts of a question that has an answer

    hit@k       1 if one of the first k answers it
    recall@k    the share of its texts among the first k
    mrr         1 / the rank of the first that answers it, 0 where none of those found does
    ndcg@10     their discounted gain among the first 10, of what it could be (Järvelin and Kekäläinen 2002);
                the gain of a text is its grade, 1 without grades

    map         the mean over its texts of the share of texts that answer among those up to it

and their means over the questions, with 95 % bootstrap intervals over the questions. Of an index with answers
these are ranked, and not texts: of several texts with the same answer a search finds the best.

Which score is an answer: the lowest threshold from which on the best text answers for --at_precision of the
questions that are answered at all; and how many these are (coverage), of all questions.
"""

import logging
import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence

import numpy as np

from data_tools.text.text_files import LineRules
from ernie_pair.core.cli.options import (
    classes_option,
    data_option,
    evaluation_option,
    file_option,
    model_folder_option,
)
from ernie_pair.core.errors import InputError, counted
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.core.progress import CountProgress, say
from ernie_pair.embeddings.open_embedder import open_embedder
from ernie_pair.evaluation.calibration import at_precision, precision_interval, threshold_curve
from ernie_pair.evaluation.scorer import load, measured_once
from ernie_pair.inference.embedder import EmbedderOptions
from ernie_pair.inference.predictor import PairScorer
from ernie_pair.pairs.targets.metrics import percentile_interval, resamples
from ernie_pair.retrieval.index_folder import (
    BLOCK,
    BM25,
    BOTH,
    INDEX_MANIFEST,
    MEASURED,
    RETRIEVALS,
    VECTORS,
    Answering,
    IndexFolder,
    keep_measured,
    open_index_folder,
)
from ernie_pair.retrieval.questions import Known, Question, read_questions
from ernie_pair.retrieval.search_texts import SearchFlags
from ernie_pair.retrieval.searcher import QUERIES, RECALL_K, TextRecall, rerank
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import World

METRICS = ("hit@1", "hit@10", "recall@1", "recall@10", "mrr", "ndcg@10", "map")
PRECISIONS = (0.8, 0.9, 0.95, 0.99)  # whose coverage is told beside that of --at_precision
LEAST_FITTED = 50  # questions from which a probability is fitted
RERANKED = ", reranked"
MOST_LOST = 50  # questions that are listed of a stage
SAMPLES, SEED = 1000, 1234  # resamples of the questions
DIGITS = 6

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvaluateSearchConfig(SearchFlags):
    """Measure how well an index finds the texts that answer questions, by each way that it was made for."""

    EXAMPLE = "--index faq.index --embedding_model embedder --input_file questions.tsv"

    input_file: str = file_option(
        help="a table or JSON of questions, each with the id of a text of the index that answers it; several "
        "rows of a question: any of their texts does; or query, pos and neg in JSON; or queries with ids, "
        "for --relevant"
    )
    relevant: str = file_option(
        "",
        help="which texts answer the queries of --input_file, by their ids: judgements of TREC or BEIR; "
        "empty: --input_file says it",
    )
    model_path: str = model_folder_option(
        "", help="pair classifier that reranks the texts found, as a stage of its own; empty: none"
    )
    output_file: str = data_option("", help="JSON file for the measures; empty: none", writes="FILE")
    recall_k: int = evaluation_option(
        RECALL_K, help="texts found for a question, which the classifier reranks", unit="texts", at_least=10
    )
    at_precision: float = classes_option(
        0.95, help="report the threshold that gives this precision, and its recall", above=0, at_most=1
    )
    save_threshold: bool = data_option(
        False,
        help="write the thresholds of --at_precision beside the index, where search and serve obey them: "
        "below there is no answer",
    )


class Stage(NamedTuple):
    """What one way of searching found.

    ``values`` float64 [Q, METRICS]; ``found``: the texts that stand first, '' where nothing was found, their
    ``scores`` float64 [Q], -inf there, and whether they are ``right``, bool [Q]; ``milliseconds`` a question.
    """

    values: np.ndarray
    scores: np.ndarray
    right: np.ndarray
    found: List[str]
    milliseconds: float


def evaluate_search(config: EvaluateSearchConfig) -> Dict[str, Any]:
    """Print what each stage finds, keep it if asked, and return it.

    {"questions": N, "texts": N, "best": name, "stages": {name: {METRICS: value, "intervals": {METRICS: [low,
    high]}, "gain": that of mrr over the first stage with its interval, "milliseconds": a question, "lost":
    questions without an answer among the first ten, "answering": see `_threshold_of`}}}. "best": of the
    highest mrr. Raises an ErniePairError; InputError where --save_threshold has nothing to save.
    """
    start_console(World())
    measured = measured_once("evaluate search", config, _measure, MEASURED)
    say(f"{counted(measured['questions'], 'question')} search {counted(measured['texts'], 'text')}")
    for name, stage in measured["stages"].items():
        metrics = "  ".join(f"{metric} {stage[metric]:.4f}" for metric in METRICS)
        say(f"{name:<{len(VECTORS + RERANKED) + 2}}{metrics}  {stage['milliseconds']:.1f} ms")
    for name, stage in measured["stages"].items():
        found = stage["answering"]
        reached = "from a score of {threshold:.4g} on: precision {precision:.4f} ({interval[0]:.4f} to "
        reached += "{interval[1]:.4f}), coverage {coverage:.4f}"
        line = reached.format(**found) if found["reached"] else f"no score reaches {found['asked']:g}"
        say(f"{name:<{len(VECTORS + RERANKED) + 2}}{line}")
    if config.save_threshold:
        _save(config, measured)
    return measured


def _save(config: EvaluateSearchConfig, measured: Dict[str, Any]) -> None:
    """Write the thresholds that were reached beside the index. Raises InputError without one."""
    kept, keys = [], []
    for name, stage in measured["stages"].items():
        found = dict(stage["answering"])
        keys.append((name.removesuffix(RERANKED), measured["reranker"] if name.endswith(RERANKED) else ""))
        if found.pop("reached"):
            del found["coverage_at"]
            found.update(interval=tuple(found["interval"]), recall_k=config.recall_k)
            found.update(questions=measured["questions"], index_sha256=measured["index_sha256"])
            found["fingerprint"] = "" if name.partition(RERANKED)[0] == BM25 else measured["fingerprint"]
            kept.append(Answering(*keys[-1], **found))
    if sha256_of_file(Path(config.index, INDEX_MANIFEST)) != measured["index_sha256"]:
        raise InputError(
            f"--save_threshold true: {config.index} was changed since it was measured, and nothing was "
            "saved; measure it again"
        )
    if not kept:
        raise InputError(
            f"--save_threshold true: no way of searching reaches precision {config.at_precision:g} on "
            f"{config.input_file}, and nothing was saved; ask for less with --at_precision"
        )
    keep_measured(Path(config.index), answering=kept, measured=keys)
    reached = {one.key for one in kept}
    say(
        f"saved beside {config.index}; search and serve give no answer below it, unless a search says another"
    )
    lost = [name for name, key in zip(measured["stages"], keys) if key not in reached]
    if lost:
        say(f"without a threshold now: {' and '.join(lost)}; they answer everything")


def _measure(config: EvaluateSearchConfig) -> Dict[str, Any]:
    sha256 = sha256_of_file(Path(config.index, INDEX_MANIFEST)) if Path(config.index).is_dir() else ""
    folder = open_index_folder(Path(config.index))
    known = {folder.ids[place]: folder.answer_of(place) for place in range(len(folder.ids))}
    about = Known(config.index, known, partial(_ids_of_texts, folder))
    rules = LineRules(place=config.place)
    questions = read_questions(Path(config.input_file), config.relevant, about, rules, config.text_columns)
    made, stages = folder.manifest.retrieval, {}
    same: Dict[str, Any] = {"threads": config.threads, "batch_tokens": config.batch_tokens}
    model, options = config.embedding_model, EmbedderOptions(**same)
    if made == BM25 and model:
        raise InputError(f"--embedding_model {model}: BM25 takes no model; leave it out")
    embedder = open_embedder(model, config.device, options) if model else None
    same["window_overlap"] = config.window_overlap or folder.manifest.window_overlap
    scorer = load(config.model_path, config.device, **same) if config.model_path else None
    ways = [BM25, *(way for way in RETRIEVALS if way != BM25)] if made == BOTH else [made]
    for way in ways:
        texts = TextRecall(folder, embedder, config.recall_k, config.threads, retrieval=way)
        for question in questions:
            if reason := texts.why_refused(question.text, config.long_query == "cut"):
                raise InputError(f"{config.input_file}:{question.line}: {reason}")
        stages[way] = _search(texts, questions, known, None)
        if scorer is not None:
            stages[f"{way}{RERANKED}"] = _search(texts, questions, known, scorer)
    first = next(iter(stages.values())).values
    shown_stages = {name: _describe(stage, first, questions) for name, stage in stages.items()}
    for name, stage in stages.items():
        shown_stages[name]["answering"] = _threshold_of(stage, config.at_precision)
    return {
        "questions": len(questions),
        "unanswerable": sum(not one.grades for one in questions),
        "texts": folder.manifest.texts,
        "fingerprint": folder.manifest.fingerprint,
        "index_sha256": sha256,
        "reranker": "" if scorer is None else scorer.ranked_by,
        "best": max(shown_stages, key=lambda name: shown_stages[name]["mrr"]),
        "stages": shown_stages,
    }


def _ids_of_texts(folder: IndexFolder) -> Dict[str, List[str]]:
    found: Dict[str, List[str]] = {}
    for place, text in enumerate(text for chunk in folder.texts.chunks(BLOCK) for text in chunk):
        found.setdefault(text, []).append(folder.ids[place])
    return found


def _search(
    texts: TextRecall, questions: List[Question], known: Mapping[str, object], scorer: PairScorer | None
) -> Stage:
    """Return what is found of each question, by ``scorer`` if that is given."""
    values, found, scored, started = [], [], [], time.perf_counter()
    with CountProgress(len(questions), "question") as progress:
        for begin in range(0, len(questions), QUERIES):
            asked = questions[begin : begin + QUERIES]
            for question, hits in zip(asked, texts.recall([one.text for one in asked])):
                if scorer is not None and hits:
                    scores = scorer.score([(question.text, hit.text) for hit in hits])
                    hits = rerank(hits, scores, len(hits))
                right: Dict[object, float] = {}
                for name, grade in question.grades.items():
                    right[known[name]] = max(grade, right.get(known[name], 0.0))
                values.append(values_of(right, [known[hit.id] for hit in hits]))
                found.append(hits[0].text if hits else "")
                scored.append((hits[0].score, known[hits[0].id] in right) if hits else (-np.inf, False))
            progress.advance(len(asked))
    milliseconds = 1000 * (time.perf_counter() - started) / len(questions)
    scores, is_right = map(np.array, zip(*scored))
    return Stage(np.array(values), scores, is_right, found, milliseconds)


def values_of(answers: Mapping[object, float], found: Sequence[object]) -> List[float]:
    """Return the METRICS of a question: {answer: grade} beside what was ``found``, the best first.

    They are NaN for a question without an answer.
    """
    if not answers:
        return [math.nan] * len(METRICS)
    is_answer = np.array([one in answers for one in found] + [False])
    first = int(is_answer.argmax()) + 1 if is_answer.any() else 0
    discounts = 1 / np.log2(np.arange(2, 12))
    gains = [answers.get(one, 0.0) for one in found[:10]]
    best = sorted(answers.values(), reverse=True)[:10]
    ndcg = float(discounts[: len(gains)] @ gains / (discounts[: len(best)] @ best))
    recall = [is_answer[:most].sum() / len(answers) for most in (1, 10)]
    precisions = is_answer.cumsum() / np.arange(1, len(is_answer) + 1)
    mean = precisions @ is_answer / len(answers)
    return [first == 1, 0 < first <= 10, *recall, 1 / first if first else 0, ndcg, mean]


def _shares_of(number: int) -> np.ndarray:
    """Return the share that each of ``number`` questions has in each of SAMPLES resamples, float64."""
    return np.array(list(resamples(number, SAMPLES, SEED)), dtype=np.float64) / number


def _threshold_of(stage: Stage, asked: float) -> Dict[str, Any]:
    """Return from which score on the best text answers, at the precision ``asked``, see `Answering`.

    {"asked", "reached", "threshold", "precision", "interval", "coverage", "slope", "intercept",
    "coverage_at": {precision: coverage}, 0 where it is not reached}. Where no threshold reaches it, "reached"
    is false, and the threshold that comes nearest is told, None where no text is right.
    """
    from sklearn.linear_model import LogisticRegression

    scores, right, has_found = stage.scores, stage.right, np.isfinite(stage.scores)
    found: Dict[str, Any] = {"asked": asked, "reached": False, "threshold": None}
    if not right.any():
        return {**found, "coverage_at": {str(each): 0.0 for each in PRECISIONS}}
    curve = threshold_curve(scores[has_found], right[has_found].astype(np.int64))
    chosen = {each: at_precision(curve, each, is_share=False) for each in (*PRECISIONS, asked)}
    threshold = chosen[asked]["threshold"]
    answered = scores >= threshold
    slope = intercept = 0.0
    if has_found.sum() >= LEAST_FITTED and not right[has_found].all():
        fitted = LogisticRegression(C=1e6).fit(scores[has_found, None], right[has_found])
        slope, intercept = float(fitted.coef_[0, 0]), float(fitted.intercept_[0])
    coverage = {
        str(each): float(np.mean(scores >= chosen[each]["threshold"])) * bool(chosen[each]["reached"])
        for each in PRECISIONS
    }
    found.update(reached=chosen[asked]["reached"], threshold=threshold)
    found.update(precision=float(right[answered].mean()))
    found.update(interval=precision_interval(int(right[answered].sum()), int(answered.sum())))
    found.update(coverage=float(answered.mean()), slope=slope, intercept=intercept, coverage_at=coverage)
    return found


def _describe(stage: Stage, first: np.ndarray, questions: Sequence[Question]) -> Dict[str, Any]:
    """Return the means of a stage, their intervals, the gain over the ``first`` one, and what it loses."""
    asked = np.flatnonzero([bool(one.grades) for one in questions])
    values, before, counts = stage.values[asked], first[asked], _shares_of(len(asked))
    means, mrr = values.mean(axis=0), METRICS.index("mrr")
    drawn, gain = counts @ values, values[:, mrr] - before[:, mrr]
    gains = [float(gain.mean()), *percentile_interval(counts @ gain)]
    lost = asked[values[:, METRICS.index("hit@10")] == 0][:MOST_LOST]
    intervals = [percentile_interval(column) for column in drawn.T]
    return {
        **dict(zip(METRICS, means.round(DIGITS).tolist())),
        "intervals": {name: np.round(each, DIGITS).tolist() for name, each in zip(METRICS, intervals)},
        "gain": np.round(gains, DIGITS).tolist(),
        "milliseconds": round(stage.milliseconds, 3),
        "lost": [
            {"question": questions[n].text, "answers": [*questions[n].grades], "found": stage.found[n]}
            for n in lost.tolist()
        ],
    }
