"""ernie-pair select and audit labels: which pairs to label next, and the labels that come back.

A pair is wanted the more, the nearer it is to the threshold: with q, the probability whose log-odds are those
of the pair minus those of the threshold, it counts 1 - |2q - 1|; of more than two classes, 1 minus the margin
of the likeliest two. How far a second model disagrees is added: |p - p'|. The best pairs alone are much alike
(Zhdanov 2019, arXiv:1901.05954): of TIMES as many, that one comes next whose score times its distance from
the nearest one before it is highest (Sener & Savarese 2018, arXiv:1708.00489), by character n-grams. Every
tenth is drawn at random: a model may be surely wrong, and uncertain pairs alone are a biased sample (Dasgupta
& Hsu 2008, Hierarchical sampling for active learning).
"""

import hashlib
import json
import logging
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Literal, Optional, Sequence, Tuple
from xml.sax.saxutils import quoteattr

import numpy as np

from data_tools.text.table_writer import check_table_suffix, table_writer
from data_tools.text.tables import detect_form, records
from ernie_pair.core.cli.options import OverwriteFlag, classes_option, data_option, file_option
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.json_file import is_texts
from ernie_pair.core.files.results import paths_named
from ernie_pair.core.progress import say
from ernie_pair.evaluation.scorer import open_scorer, read_pairs, results_of
from ernie_pair.inference.predictor import PairScorer, TextPair
from ernie_pair.models.labels import UNLABELLED, Labels, bare_label, check_has_classes, parse_label_map
from ernie_pair.models.model_folder import with_model_folder
from ernie_pair.pairs.audit.new_pairs import pair_keys
from ernie_pair.pairs.config.ask_config import InferenceFlags
from ernie_pair.pairs.data.label_checks import LabelsOfFile
from ernie_pair.pairs.data.pair_file import check_pair_file, is_missing
from ernie_pair.pairs.data.pair_records import LABEL_MAP_HELP
from ernie_pair.pairs.data.pair_source import PairSource
from ernie_pair.service.request_log import is_log, log_lines

ID, LEFT, RIGHT, LABEL = "pair_id", "text_a", "text_b", "label"
COLUMNS = (ID, LEFT, RIGHT, "priority", "why")
WHY = ("near the threshold", "two models disagree", "at random")
TIMES, EVERY = 5, 10  # candidates for each row; of so many rows one is drawn at random
NEAR = 0.9  # similarity from which on two pairs are alike
ENDINGS = {"label_studio": ".json", "doccano": ".jsonl"}
TABLES = ".xlsx, .tsv, .csv, .jsonl or .parquet"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SelectConfig(InferenceFlags):
    """Choose the pairs to label next: those that a classifier is least sure of and that are not alike."""

    EXAMPLE = "--model_path output/best --input_file pairs.tsv --output_file asked.xlsx --rows 500"
    NEEDS = {"sklearn": ""}

    input_file: str = file_option(help="pairs, or the log of serve --log_requests FILE --log_texts text")
    output_file: str = data_option(help=f"table to fill, {TABLES}, or see --format", writes="FILE")
    rows: int = data_option(500, help="pairs to label", unit="pairs", at_least=1, usual=True)
    other_model_path: str = data_option("", help="a second model, which may disagree", reads="MODEL")
    labelled_files: str = file_option("", help="pairs that are labelled or asked already", usual=True)
    format: Literal["table", "label_studio", "doccano"] = data_option(
        "table",
        help="a table, or tasks: .json of Label Studio, its configuration beside it; .jsonl of doccano",
    )
    annotators: int = data_option(1, help="columns to fill", at_least=1, only_with="format=table")
    threshold: Optional[float] = classes_option(None, help="of class 1; none: as saved with the model")
    seed: int = data_option(1234, help="seed of the pairs that are drawn at random", at_least=0)


def select(config: SelectConfig) -> None:
    """Write the pairs to label next. Raises an ErniePairError; InputError where every pair is labelled."""
    config, final = with_model_folder(config), Path(config.output_file)
    if config.format == "table":
        check_table_suffix("output_file", config.output_file)
    elif final.suffix != (ending := ENDINGS[config.format]):
        raise InputError(f"--output_file {final}: tasks of {config.format} are {ending}; use that ending")
    beside = [final.with_suffix(".xml")] if config.format == "label_studio" else []
    results = results_of("select", config, beside)
    if results.are_done():
        return
    scorer = open_scorer(config)
    check_has_classes(scorer.labels, scorer.where, "select")
    scorer.decide_by(config.threshold, config.symmetric)
    pairs, names = _unlabelled(config, scorer), ", ".join(scorer.class_names)
    left, right = ([pair[side] for pair in pairs] for side in (0, 1))
    shares = scorer.prediction_of(scorer.logits_in(left, right, scorer.symmetric)).rows
    uncertain, disputed = uncertainty(shares, scorer.threshold), np.zeros(len(pairs))
    if config.other_model_path:
        other = open_scorer(replace(config, model_path=config.other_model_path))
        other.decide_by(None, config.symmetric)
        if ", ".join(other.class_names) != names:
            raise InputError(f"--other_model_path {other.where} lacks the classes {names}; give its twin")
        theirs = other.prediction_of(other.logits_in(left, right, other.symmetric)).rows
        disputed = np.abs(shares - theirs).sum(axis=1) / 2
    scores, rows = (uncertain + disputed).round(6), []
    for place, is_drawn in choose(pairs, scores, config.rows, config.seed):
        why = WHY[2 if is_drawn else int(disputed[place] > uncertain[place])]
        rows.append([id_of(pairs[place]), *pairs[place], float(scores[place]), why])
    if scorer.world.is_first:
        columns = [f"{LABEL}_{n + 1}" if config.annotators > 1 else LABEL for n in range(config.annotators)]
        with results.published() as drafts:
            if config.format == "table":
                _write(drafts[0], final, [*COLUMNS, *columns], [[*row, *[""] * len(columns)] for row in rows])
            else:
                for draft, text in zip(drafts, _tasks(rows, scorer.class_names, config.format)):
                    draft.write_text(text, encoding="utf-8")
    scorer.wait()
    logger.info("%d of %d pairs to label with %s: %s", len(rows), len(pairs), names, config.output_file)


def id_of(pair: TextPair) -> str:
    """Return the id of a pair, by its texts alone; no spreadsheet takes it for a number."""
    return "p" + hashlib.sha256(json.dumps(pair).encode()).hexdigest()[:12]


def _write(draft: Path, final: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with table_writer(draft, final, columns, {"priority": float}) as write:
        for row in rows:
            write(row)


def _unlabelled(config: SelectConfig, scorer: PairScorer) -> List[TextPair]:
    """Return the pairs that may be asked, each once, in an order of their own."""
    found: Dict[TextPair, TextPair] = {}
    if is_log(Path(config.input_file)):
        given = list(_logged(config.input_file, scorer.identity[0]))
    else:
        read = read_pairs(config, "input_file", None, "test", scorer.world.is_first)
        given = [*zip(read.left, read.right)]
    known = PairSource.of(config, "labelled_files").read() if config.labelled_files else None
    labelled = {*pair_keys(known.left, known.right)} if known else set()
    for key, pair in zip(pair_keys([a for a, _ in given], [b for _, b in given]), given):
        found[key] = min(pair, found.get(key, pair))
    kept = [found[key] for key in sorted(found.keys() - labelled)]
    logger.info("left out: %d labelled, %d repeated pairs", len(found) - len(kept), len(given) - len(found))
    if not kept:
        raise InputError(f"{config.input_file}: every pair is in --labelled_files; give others")
    return kept


def _logged(path: str, model: str) -> Iterator[TextPair]:
    """Yield the pairs in a log of requests. Raises InputError for one without any, or without texts."""
    models, are_hashed = {""}, False
    for line in log_lines(path):
        texts: Any = line.get("texts")
        are_hashed |= "sha256" in line
        if is_texts(texts) and len(texts) == 2 and all(map(str.strip, texts)):
            models.add(line["model"])
            yield texts[0], texts[1]
    if models == {""}:
        fault = "hashes in place of texts" if are_hashed else "no pairs"
        raise InputError(f"{path}: the log holds {fault}; serve with --log_requests FILE --log_texts text")
    for other in sorted(models - {"", model}):
        logger.warning("%s: answers of the model %s, not of this one, are scored again", path, other[:12])


def uncertainty(shares: np.ndarray, threshold: Optional[float]) -> np.ndarray:
    """Return how near to its decision each of the probabilities [N, C] is, float64 [N]: 1 on it, or less."""
    if threshold is not None:  # the ratio of the two becomes that of the shifted odds
        shares = shares * [threshold, 1 - threshold]
        shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1e-300)
    best = np.sort(shares, axis=1)
    return 1 - (best[:, -1] - best[:, -2])


def choose(
    pairs: Sequence[TextPair], scores: np.ndarray, rows: int, seed: int, times: int = TIMES
) -> List[Tuple[int, bool]]:
    """Return the places of at most ``rows`` pairs, none like another, and whether each is drawn at random."""
    from sklearn.feature_extraction.text import HashingVectorizer

    chances = np.random.default_rng(seed).random(len(pairs))
    best, drawn = (np.argsort(-values, kind="stable") for values in (scores, chances))
    pool = np.union1d(best[: times * rows], drawn[:rows])
    cut = HashingVectorizer(analyzer="char", ngram_range=(1, 2), binary=True, alternate_sign=False)
    ngrams = cut.transform("\n".join(sorted(pairs[place])) for place in pool.tolist())
    nearest, taken = np.zeros(len(pool)), []  # type: np.ndarray, List[Tuple[int, bool]]
    while len(taken) < rows:
        is_drawn = len(taken) % EVERY == EVERY - 1
        values = np.where(nearest < NEAR, chances[pool] if is_drawn else scores[pool] * (1 - nearest), -1)
        place = int(values.argmax())
        if values[place] < 0:  # more candidates, where too many are alike
            return choose(pairs, scores, rows, seed, 2 * times) if len(pool) < len(pairs) else taken
        taken.append((int(pool[place]), is_drawn))
        nearest = np.maximum(nearest, (ngrams @ ngrams[place].T).toarray().ravel())
    return taken


def _tasks(rows: Sequence[List[Any]], names: Sequence[str], tool: str) -> List[str]:
    """Return the tasks of a labelling tool, and for Label Studio the configuration of its project."""
    tasks: List[Dict[str, Any]] = [dict(zip(COLUMNS, row)) for row in rows]
    if tool == "doccano":
        tasks = [{"text": f"{one[LEFT]}\n{one[RIGHT]}", **one, LABEL: []} for one in tasks]
        return ["".join(json.dumps(one, ensure_ascii=False) + "\n" for one in tasks)]
    texts = "".join(f'<Text name="{name}" value="${name}"/>' for name in (LEFT, RIGHT))
    choices = "".join(f"<Choice value={quoteattr(name)}/>" for name in names)
    page = f'<View>{texts}<Choices name="{LABEL}" toName="{LEFT}" choice="single">{choices}</Choices></View>'
    return [json.dumps([{"data": one} for one in tasks], ensure_ascii=False, indent=1), page]


@dataclass(frozen=True)
class AuditLabelsConfig(OverwriteFlag):
    """Measure how far annotators agree on the pairs that select asked, and write the labels to train on."""

    EXAMPLE = "--asked asked.xlsx --label_file filled.xlsx --output_file labelled.tsv"

    asked: str = file_option(help="what select wrote: its table or its tasks")
    label_file: str = file_option(
        help="filled tables, with commas between, or what the labelling tool exports"
    )
    output_file: str = data_option(help=f"pairs to train on: {TABLES}", writes="FILE")
    rule: Literal["majority", "unanimous", "first"] = data_option(
        "majority", help="the label that most annotators gave, or all, or the first; a tie is left out"
    )
    conflicts_file: str = data_option("", help=f"pairs whose labels differ: {TABLES}", writes="FILE")
    label_map: str = data_option("", help=LABEL_MAP_HELP, usual=True)


def audit_labels(config: AuditLabelsConfig) -> Dict[str, Any]:
    """Write the labels to train on; print and return how far annotators agree. Raises InputError."""
    for flag in ("output_file", "conflicts_file"):
        check_table_suffix(flag, getattr(config, flag) or config.output_file)
    results = results_of("audit labels", config, [Path(one) for one in [config.conflicts_file] if one])
    are_there = results.are_done()
    asked = {id_of(texts): texts for _, texts, _ in _rows(config.asked)}
    table, names, labels = _read_labels(config, asked)
    words = {UNLABELLED: "", **dict(enumerate(labels.names))}
    kept, unlike, unfilled = [], [], 0
    for (pair_id, texts), row in zip(asked.items(), table.tolist()):
        counts = Counter(number for number in row if number != UNLABELLED)
        ranked = list(counts.items()) if config.rule == "first" else counts.most_common()
        is_tied = len(ranked) > 1 and (config.rule == "unanimous" or ranked[0][1] == ranked[1][1])
        word = words[ranked[0][0]] if ranked and (config.rule == "first" or not is_tied) else ""
        unfilled += not counts
        kept += [[*texts, word]] if word else []
        unlike += [[pair_id, *texts, *map(words.get, row), word]] if len(counts) > 1 else []
    found = {"asked": len(asked), "labelled": len(kept), "unfilled": unfilled, "conflicts": len(unlike)}
    found["left_out"] = len(asked) - len(kept) - unfilled
    told = measure_agreement(table, len(labels.names))
    same = [name for name, row in zip(names, table.T) if len({*row.tolist()} - {UNLABELLED}) == 1]
    say(", ".join(f"{name.replace('_', ' ')}: {count}" for name, count in found.items()))
    if told["agreement"] is not None:
        kappa = "undefined, for all labels are the same" if told["kappa"] is None else f"{told['kappa']:.4f}"
        say(f"agreement: {100 * told['agreement']:.1f} %, {told['kind']}'s kappa: {kappa}")
        for name in same:
            say(f"{name} gave one label only, of which kappa says nothing")
    if not are_there:
        with results.published() as drafts:
            _write(drafts[0], results.given[0], [LEFT, RIGHT, LABEL], kept)
            for draft in drafts[1:]:
                _write(draft, results.given[1], [ID, LEFT, RIGHT, *names, LABEL], unlike)
    return {**found, **told, "annotators": names, "one_label_only": same}


def measure_agreement(table: np.ndarray, num_classes: int) -> Dict[str, Any]:
    """Return {agreement, kappa, kind} of classes int64 [pairs, annotators], UNLABELLED where there is none.

    Of the pairs with two labels or more: the share of pairs of labels that are equal, and Cohen's kappa of
    two annotators, Fleiss' (1971) of more, for unequal numbers of labels too. None is what is not defined.
    """
    counts = (table[:, :, None] == np.arange(num_classes)).sum(axis=1)
    total = counts.sum(axis=1)
    table, counts, total = (values[total > 1] for values in (table, counts, total))
    agreement, kappa, kind = None, None, "Cohen" if table.shape[1] == 2 else "Fleiss"
    if len(table):
        agreement = float(((counts * (counts - 1)).sum(axis=1) / (total * (total - 1))).mean())
        shares = [counts.sum(axis=0) / total.sum()] * 2
        if kind == "Cohen":
            shares = [np.bincount(column, minlength=num_classes) / len(table) for column in table.T]
        chance = float(shares[0] @ shares[1])
        kappa = (agreement - chance) / (1 - chance) if chance < 1 else None
    return {"agreement": agreement, "kappa": kappa, "kind": kind}


def _rows(path: str) -> Iterator[Tuple[str, TextPair, Dict[str, Any]]]:
    """Yield where each row is, its texts, and {column: cell}, of Label Studio its data beside the rest."""
    check_pair_file(Path(path))
    names: List[Any] = []
    for number, found in records(Path(path), detect_form(Path(path))):
        if isinstance(found, InputError):
            raise found
        if isinstance(found, list) and not names:
            names = [*map(str, found)]
            continue
        row: Dict[str, Any] = dict(zip(names, found)) if isinstance(found, list) else found
        row = {**row, **row["data"]} if isinstance(row.get("data"), dict) else row
        if not {LEFT, RIGHT} <= row.keys():
            raise InputError(f"{path}:{number}: no {LEFT} and {RIGHT}; give back the columns of select")
        yield f"{path}:{number}", (str(row[LEFT]), str(row[RIGHT])), row


def _labels_in(where: str, row: Dict[str, Any], annotator: str) -> Iterator[Tuple[str, str]]:
    """Yield (annotator, label) of a row; ``annotator``: who filled the column label."""
    found = []
    for name in filter(re.compile(rf"{LABEL}(_[0-9]+)?").fullmatch, row):
        cells = row[name] if isinstance(row[name], list) else [row[name]]  # a list of doccano
        found += [(annotator if name == LABEL else name, label) for label in cells]
    try:
        for one in row.get("annotations") or ():
            who = one.get("completed_by")
            who = who.get("email") or who.get("id") if isinstance(who, dict) else who
            for result in [] if one.get("was_cancelled") else one["result"]:
                found += [(str(who), label) for label in result["value"].get("choices", ())]
    except (AttributeError, KeyError, TypeError):
        raise InputError(f"{where}: annotations unlike those of Label Studio; export JSON again") from None
    return ((who, bare_label(label)) for who, label in found if not is_missing(label) and bare_label(label))


def _read_labels(config: AuditLabelsConfig, asked: Dict[str, TextPair]) -> Tuple[Any, List[str], Labels]:
    """Return the classes int64 [pairs, annotators], who these are, and the labels. Raises InputError."""
    marks: Dict[Tuple[str, str], Tuple[str, str]] = {}  # {(annotator, id): (label, where)}
    faults: Dict[str, List[str]] = {}
    for path in paths_named(config.label_file):
        for where, texts, row in _rows(path):
            pair_id = next((one for one in (str(row.get(ID)), id_of(texts)) if one in asked), "")
            if not pair_id:
                faults.setdefault("never asked, by id and by texts; take it out", []).append(where)
            elif [*map(str.split, texts)] != [*map(str.split, asked[pair_id])]:
                faults.setdefault("the texts were edited; put back those that were asked", []).append(where)
            for who, label in _labels_in(where, row, path):
                if marks.setdefault((who, pair_id), (label, where))[0] != label:
                    faults.setdefault(f"a second label by {who}; keep one", []).append(where)
    labels = parse_label_map(config.label_map) if config.label_map else Labels.numbered(2)
    known = LabelsOfFile.of(labels, lambda: Counter(label for label, _ in marks.values()))
    classes = {mark: known.value_of(label) for mark, (label, _) in marks.items()}
    for label, where in (marks[mark] for mark, number in classes.items() if number is None):
        fault = f"label {label} is not one of {labels.allowed}; correct it, or name it with --label_map"
        faults.setdefault(fault, []).append(where)
    for fault, places in faults.items():
        raise InputError(f"{', '.join(places[:5])}{', ...' if places[5:] else ''}: {fault}")
    if not marks:
        raise InputError(f"--label_file {config.label_file}: no row has a label; fill the column, save it")
    names = list(dict.fromkeys(who for who, _ in marks))
    return np.array([[classes.get((who, one), UNLABELLED) for who in names] for one in asked]), names, labels
