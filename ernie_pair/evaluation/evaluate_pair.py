"""Evaluate a model on labelled pairs, and save what later predictions are to decide by."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

import numpy as np

from data_tools.text.table_writer import check_table_suffix
from ernie_pair.checkpoint.checkpoint_folder import MANIFEST
from ernie_pair.core.cli.standard_streams import as_called, with_standard_streams
from ernie_pair.core.errors import InputError, counted
from ernie_pair.core.files.json_file import write_json
from ernie_pair.core.files.results import Results
from ernie_pair.core.progress import say
from ernie_pair.evaluation.calibration import fit_temperature, is_at_the_end
from ernie_pair.evaluation.evaluation import (
    GOALS,
    Answers,
    Fitted,
    ScoreAnswers,
    Scored,
    compare_with_start,
    evaluate_classes,
    evaluate_ranking,
    evaluate_scores,
    thresholds_of,
)
from ernie_pair.evaluation.evaluation_report import FILES, read_origin, write_report
from ernie_pair.evaluation.robustness_table import Robustness, new_pairs_of, table_lines
from ernie_pair.evaluation.scorer import open_scorer, read_pairs, results_of, start_logits
from ernie_pair.inference.exported_model import EXPORT_MANIFEST
from ernie_pair.inference.predictor import PairPredictor, PairScorer
from ernie_pair.inference.scores import check_threshold
from ernie_pair.models.labels import CLASSIFICATION, RANKING, Labels
from ernie_pair.models.model_card import describe_worth
from ernie_pair.models.model_folder import with_model_folder
from ernie_pair.models.temperature import CALIBRATION, Calibration, read_calibration, write_calibration
from ernie_pair.pairs.audit.new_pairs import write_new_pairs
from ernie_pair.pairs.audit.trained_pairs import describe_trained_on, was_trained_on
from ernie_pair.pairs.config.ask_config import EvaluateConfig
from ernie_pair.pairs.config.pair_config import refuse_class_flags, refuse_query
from ernie_pair.pairs.data.label_checks import MIN_COMPARED, TURNED, describe_baseline
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.data.pair_source import PairSource, check_of_matches
from ernie_pair.pairs.robustness.perturb import parse_kinds, perturb
from ernie_pair.pairs.targets.metrics import METRICS, OF_TARGET, choose_measure, describe_single_class
from ernie_pair.runtime.device import default_device

WRITTEN = "; the evaluation is written, nothing is saved"

logger = logging.getLogger(__name__)


@with_standard_streams
def evaluate_pair(config: EvaluateConfig) -> Dict[str, Any]:
    """Measure a model of pairs, of vectors or of masked words; print the metrics, and return them.

    They are what ``output_file`` holds where it is given: of pairs accuracy, f1, auc, loss, rows and more, of
    vectors ``metrics`` and those of each length in ``dims``. On other processes than the first they are
    {}. The numbers are the same for any number of processes, to the last digit. Raises InputError.
    """
    config = with_model_folder(config)
    saves, folder = config.save_temperature or config.save_threshold, Path(config.model_path)
    for name, kind in {EXPORT_MANIFEST: "an exported model", MANIFEST: "a checkpoint"}.items():
        if saves and (folder / name).is_file():
            raise InputError(
                f"--model_path {config.model_path} is {kind}, into which nothing is saved; give OUT/best of "
                "the run, or leave --save_temperature and --save_threshold out"
            )
    parse_kinds(config.robustness)
    more = [Path(config.report) / name for name in FILES] if config.report else []
    if config.robustness_file:
        check_table_suffix("robustness_file", config.robustness_file)
        more.append(Path(config.robustness_file))
    results = None
    if config.output_file or more:
        results = results_of("evaluate", config, more, CALIBRATION if saves else "")
        done = _finished(config) if results.are_done() else {}
        if done:
            return done
    scorer = open_scorer(config)
    refuse_class_flags(config, scorer.labels, config.model_path)
    refuse_query(config.query, scorer.labels)
    evaluate = _evaluate_classes if scorer.labels.has_classes else _evaluate_scores
    evaluation, fault = evaluate(scorer, config, results)
    scorer.wait()
    if fault:  # all is written
        raise InputError(fault)
    return evaluation


def _finished(config: EvaluateConfig) -> Dict[str, Any]:
    """Return the evaluation that is there, and print it; {} without what it is to save. Raises InputError."""
    kept = Path(config.output_file or Path(config.report) / FILES[0])
    if not kept.is_file():
        return {}
    evaluation = json.loads(kept.read_text(encoding="utf-8"))
    fitted, thresholds = evaluation.get("calibration"), evaluation.get("thresholds")
    fault = _why_unsaved(fitted, thresholds, config)
    if not fault and (config.save_temperature or config.save_threshold):
        saved = read_calibration(Path(config.model_path), len(evaluation["classes"]))
        lacks = config.save_temperature and not fitted["at_end_of_range"]
        lacks = lacks and saved.temperature != fitted["temperature"]
        threshold = (thresholds or {}).get(GOALS[config.tune_for], {}).get("threshold")
        if lacks or (config.save_threshold and saved.threshold != threshold):
            message = "%s/%s does not hold what it found: evaluating again"
            logger.info(message, config.model_path, CALIBRATION)
            return {}
    _print_metrics(evaluation)
    if fault:
        raise InputError(fault)
    return evaluation


def _evaluate_classes(
    scorer: PairScorer, config: EvaluateConfig, results: Optional[Results]
) -> Tuple[Dict[str, Any], str]:
    """Return the evaluation, {} but in the first process, and why nothing of it is saved, or ''."""
    answers, kinds = _answers(scorer, config), parse_kinds(config.robustness)
    thresholds = thresholds_of(answers, config.at_precision)
    fault = _why_unsaved(answers.fitted._asdict(), thresholds, config)
    is_saved = (config.save_temperature or config.save_threshold) and not fault
    if is_saved and config.save_threshold:  # before anything is decided by it
        assert thresholds is not None  # of two classes, see `_refuse_unsavable`, that both occur
        answers = answers._replace(saved=_with_threshold(answers.saved, thresholds, config.tune_for))
    if kinds:  # every process makes the changed pairs for itself
        changed = perturb(answers.pairs, answers.num_classes, kinds, config.robustness_rows, config.seed)
        logits = scorer.logits_in(changed.left, changed.right, answers.symmetric)
        after, before = answers.classes_of(logits), answers.predictions
        answers = answers._replace(robustness=Robustness(changed, after, before, answers.labels))
    if not scorer.world.is_first:
        return {}, fault
    evaluation = {**evaluate_classes(answers, config), **scorer.how}
    baseline = describe_baseline(answers.pairs, scorer.labels, scorer.shared_characters)
    evaluation["shared_characters"] = baseline
    evaluation.update(_trained_on(answers, config, scorer.labels))
    evaluation["verdict"], _ = describe_worth(evaluation, scorer.learned_nothing)
    if config.model_name_or_path:
        device = default_device() if config.device == "auto" else config.device
        trained = getattr(scorer, "model", None)  # an exported one has none
        family = trained.spec.family if trained else ""
        before = start_logits(config.model_name_or_path, answers.pairs, scorer.labels, device, family)
        evaluation["start"] = compare_with_start(before, answers, config)
    if is_saved:
        measured: Dict[str, Any] = {}
        if answers.asked is None:  # what a model's folder keeps of it for its cards: metrics, and on what
            ranges: Any = evaluation.get("intervals", {})
            figures = {n: [evaluation[n], ranges.get(n)] for n in METRICS if evaluation[n] is not None}
            measured = {"on": evaluation["input_file"], "sha256": evaluation["input_sha256"]}
            measured.update(rows=evaluation["rows"], metrics=figures, baseline=baseline.get("accuracy"))
            measured["verdict"] = evaluation["verdict"]
        write_calibration(Path(config.model_path), replace(answers.saved, measured=measured))
    _write(results, evaluation, answers, config)
    _log_evaluation(evaluation, config, is_saved)
    _print_metrics(evaluation)
    return evaluation, fault


def _evaluate_scores(
    scorer: PairScorer, config: EvaluateConfig, results: Optional[Results]
) -> Tuple[Dict[str, Any], str]:
    pairs = read_pairs(config, "input_file", scorer.labels, is_first=scorer.world.is_first)
    symmetric = scorer.calibration.chosen_symmetry(config.symmetric, config.model_path)
    outputs = scorer.logits_in(pairs.left, pairs.right, symmetric)
    swapped = scorer.logits_in(pairs.right, pairs.left, symmetric) if config.swap else None
    answers = ScoreAnswers(pairs, scorer.labels.label_range, outputs, swapped, symmetric)
    if not scorer.world.is_first:
        return {}, ""
    is_ranking = scorer.labels.target == RANKING
    evaluation = (evaluate_ranking if is_ranking else evaluate_scores)(answers, config)
    evaluation.update(scorer.how)
    evaluation["shared_characters"] = describe_baseline(pairs, scorer.labels, {})
    evaluation.update(_trained_on(answers, config, scorer.labels))
    evaluation["verdict"], _ = describe_worth(evaluation, scorer.learned_nothing)
    _write(results, evaluation, answers, config)
    _print_metrics(evaluation)
    return evaluation, ""


def _trained_on(answers: Any, config: EvaluateConfig, labels: Labels) -> Dict[str, Any]:
    """Return {} or, of rows that the model has learned, their number and the metrics of the other rows.

    {"trained_on": {"rows": N, "without": {metric: value}}}, where the metrics are {} if no row is left.
    """
    seen = was_trained_on(config.model_path, answers.pairs)
    if not seen.any():
        return {}
    others, without = answers.pairs.rows(np.flatnonzero(~seen)), {}
    if len(others):
        given: Dict[str, Any] = {"predictions": answers.predictions[~seen]} if labels.has_classes else {}
        outputs = answers.logits if labels.has_classes else answers.outputs
        found = choose_measure(labels, others.groups)(outputs[~seen], others.known_labels, **given)
        without = {name: value if np.isfinite(value) else None for name, value in found.items()}
    logger.warning("%s", describe_trained_on(seen, config.model_path, without))
    return {"trained_on": {"rows": int(seen.sum()), "without": without}}


def _write(
    results: Optional[Results], evaluation: Dict[str, Any], answers: Any, config: EvaluateConfig
) -> None:
    if results is None:
        return
    with results.published() as published:
        drafts = list(published)
        if config.output_file:
            write_json(drafts.pop(0), evaluation)
        if config.report:
            made, given = read_origin(config), PairSource.of(config, "input_file", None).given()
            origins = {as_called(where): str(row["origin"]) for where, row in given if row.get("origin")}
            write_report(
                drafts[: len(FILES)], evaluation, answers, config.worst_rows, made=made, origins=origins
            )
        if config.robustness_file and answers.robustness is not None:
            rows = new_pairs_of(answers.robustness.changed, answers.pairs, answers.names)
            write_new_pairs(drafts[-1], Path(config.robustness_file), rows)
    if config.report:
        logger.info("report: %s", Path(config.report) / "report.html")


def _answers(scorer: PairScorer, config: EvaluateConfig) -> Answers:
    saved = scorer.calibration
    symmetric = saved.symmetric if config.symmetric == "auto" else config.symmetric
    if symmetric != saved.symmetric:  # it does not hold for the way pairs are scored here
        if saved.is_tuned:
            message = "%s/%s was tuned with --symmetric %s: it is not used for --symmetric %s"
            logger.warning(message, config.model_path, CALIBRATION, saved.symmetric, symmetric)
        saved = Calibration(symmetric=symmetric)
    _refuse_unsavable(config, saved, scorer.num_classes)
    pairs, calibrating, tuning = _read(scorer, config)
    if config.model_name_or_path:
        check_of_matches("model_name_or_path", pairs, scorer.labels)
    scored: Dict[str, Scored] = {}
    for each in (pairs, calibrating, tuning):
        if each is not None and each.sha256 not in scored:
            scored[each.sha256] = Scored(each, scorer.logits_in(each.left, each.right, symmetric))
    if calibrating is None and saved.temperature != 1.0:
        holder = EXPORT_MANIFEST if isinstance(scorer, PairPredictor) else CALIBRATION
        where = f"{config.model_path}/{holder}"
        fitted = Fitted(saved.temperature, where, saved.rows, saved.fitted_on_sha256)
    else:
        on = pairs if calibrating is None else calibrating
        temperature = fit_temperature(scored[on.sha256].logits, on.known_labels)
        fitted = Fitted(temperature, on.path, len(on), on.sha256)
    if config.save_temperature and not is_at_the_end(fitted.temperature):
        saved = replace(saved, **fitted._asdict())
    names, logits = scorer.labels.names, scored[pairs.sha256].logits
    swapped = scorer.logits_in(pairs.right, pairs.left, symmetric) if config.swap else None
    tuned = None if tuning is None else scored[tuning.sha256]._replace(pairs=tuning)
    in_use = saved.temperature
    answers = Answers(pairs, names, logits, swapped, in_use, fitted, symmetric, tuned, saved)
    return answers._replace(asked=config.threshold)


def _read(scorer: PairScorer, config: EvaluateConfig) -> Tuple[Pairs, Optional[Pairs], Optional[Pairs]]:
    """Read the pairs to judge, to fit the temperature on and to choose thresholds on; None: those judged."""

    def read(flag: str) -> Pairs:
        return read_pairs(config, flag, scorer.labels, is_first=scorer.world.is_first)

    pairs = read("input_file")
    pairs = pairs.changed(path=as_called(pairs.path))  # what is written down names no file that will be gone
    calibrating = read("calibrate_on") if config.calibrate_on else None
    if calibrating and config.save_temperature and calibrating.sha256 == pairs.sha256:
        raise InputError(
            f"--calibrate_on {config.calibrate_on} holds the pairs of --input_file itself: a temperature "
            "fitted on what is judged is not saved; give other labelled pairs"
        )
    tuning = read("tune_on") if config.tune_on else calibrating
    if tuning is not None and scorer.num_classes == 2:
        absent = sorted({0, 1} - set(tuning.known_labels.tolist()))
        if absent:
            raise InputError(
                f"--{'tune_on' if config.tune_on else 'calibrate_on'} {tuning.path} has no pair of class "
                f"{absent[0]}, so no threshold can be chosen on it; give a file that has both classes"
            )
    return pairs, calibrating, tuning


def _refuse_unsavable(config: EvaluateConfig, saved: Calibration, num_classes: int) -> None:
    """Raise InputError, before the work, when the flags ask to save what would not fit together."""
    check_threshold(config.threshold, num_classes, config.model_path)
    if config.save_threshold and num_classes != 2:
        raise InputError(
            f"--save_threshold true is for two classes, {config.model_path} has {num_classes}; leave it out"
        )
    if config.save_temperature and saved.threshold is not None and not config.save_threshold:
        raise InputError(
            f"--save_temperature true: the threshold {saved.threshold:.4f} of {config.model_path} is for "
            "probabilities of another temperature; pass --save_threshold true as well"
        )


def _why_unsaved(
    fitted: Optional[Dict[str, Any]], thresholds: Optional[Dict[str, Any]], config: EvaluateConfig
) -> str:
    """Return why nothing is saved, or ''; ``fitted`` are those of `Fitted`, the others of `thresholds_of`."""
    if config.save_temperature is True and fitted is not None and is_at_the_end(fitted["temperature"]):
        return (
            f"--save_temperature true: the temperature {fitted['temperature']:.3g} fitted on the "
            f"{fitted['rows']} rows of {fitted['fitted_on']} is at the end of its range and therefore "
            f"meaningless{WRITTEN}; give more rows, which the model has not learned, with --calibrate_on"
        )
    chosen = (thresholds or {}).get("at_precision", {"reached": True})
    if config.save_threshold and thresholds and config.tune_for == "precision" and not chosen["reached"]:
        return (
            f"--save_threshold true: no threshold reaches precision {chosen['asked']} on "
            f"{thresholds['tuned_on']} (the nearest is {chosen['precision']:.4f}){WRITTEN}; ask for less "
            "with --at_precision, or for --tune_for accuracy"
        )
    return ""


def _with_threshold(calibration: Calibration, thresholds: Dict[str, Any], goal: str) -> Calibration:
    """Return ``calibration`` with the threshold for ``goal``, one of GOALS, of what `thresholds_of` found."""
    chosen = thresholds[GOALS[goal]]
    return replace(
        calibration,
        threshold=chosen["threshold"],
        tuned_for=f"precision {chosen['asked']:g}" if goal == "precision" else f"the best {goal}",
        **{name: thresholds[name] for name in ("tuned_on", "tuned_on_sha256", "tuned_rows")},
    )


def _log_evaluation(evaluation: Dict[str, Any], config: EvaluateConfig, is_saved: bool) -> None:
    if evaluation["single_class"] is not None:
        logger.warning("%s", describe_single_class(evaluation["single_class"], evaluation["rows"]))
    counts = {name: sum(row) for name, row in zip(evaluation["classes"], evaluation["confusion"])}
    absent = ", ".join(name for name, count in counts.items() if not count)
    if absent:
        undefined = ", ".join(name for name in METRICS if evaluation[name] is None)
        message = "%s has no pair of class %s, so that %s cannot be measured; is it the right file?"
        logger.warning(message, evaluation["input_file"], absent, undefined)
    calibration = evaluation["calibration"]
    temperature = calibration["temperature"]
    if calibration["at_end_of_range"]:
        logger.warning("the temperature %.3g is at the end of its range; fit it on more rows", temperature)
    kind = ", the evaluated rows" if calibration["is_judged_file"] else ""
    logger.info("temperature %.4g, from %s%s", temperature, calibration["fitted_on"], kind)
    if "start" in evaluation:
        logger.info("%s, %s", evaluation["start"]["model"], evaluation["start"]["line"])
    for name in ("ece", "ece_top_label"):
        figures = (calibration[key] for key in (f"{name}_method", name, f"{name}_calibrated"))
        logger.info("calibration error, %s: %.4f; with the temperature %.4f", *figures)
    if "thresholds" in evaluation:
        _log_thresholds(evaluation["thresholds"], evaluation["classes"][1])
    if "swap" in evaluation:
        flipped = evaluation["swap"]["flip_rate"]
        logger.info("%.2f %% of the pairs change class when their texts are swapped", 100 * flipped)
    for line in table_lines(evaluation.get("robustness", {"kinds": []})["kinds"]):
        logger.info("%s", line)
    if config.robustness_file:
        logger.info("changed pairs: %s", config.robustness_file)
    if is_saved:
        logger.info("saved: %s", Path(config.model_path) / CALIBRATION)
    if is_saved and config.save_threshold:  # a precise one may find little
        logger.warning(
            "all later predictions of this model use the threshold %s; without it accuracy %.4f",
            _describe_at("on the evaluated rows", evaluation["thresholds"]["saved"]),
            evaluation["thresholds"]["likelier"]["accuracy"],
        )


def _describe_at(where: str, found: Dict[str, Any]) -> str:
    figures = ", ".join(f"{name} {found[name]:.4f}" for name in ("precision", "recall", "accuracy"))
    return f"{found['threshold']:.4f}: {where} {figures}"


def _log_thresholds(thresholds: Dict[str, Any], name: str) -> None:
    """Log what the thresholds reach; ``name`` is that of class 1."""
    where = f"on {thresholds['tuned_on']}"
    where += ", the evaluated rows" if thresholds["is_judged_file"] else ""
    best, precise, saved = thresholds["best_f1"], thresholds["at_precision"], thresholds.get("saved")
    logger.info("threshold %.4f has the best F1 %s: %.4f", best["threshold"], where, best["f1"])
    predictions = f"{counted(precise['rows'], 'prediction')} of class {name}"
    how = "reaches" if precise["reached"] else "comes nearest to"
    line = f"threshold {precise['threshold']:.4f} {how} precision {precise['asked']:.4f} {where}: precision "
    logger.info("%s", f"{line}{precise['precision']:.4f}, recall {precise['recall']:.4f}, {predictions}")
    if precise["reached"] and precise["rows"] * (1 - precise["asked"]) < 1:
        few = "precision %g is based on %s; one more error would miss it: use more rows"
        logger.warning(few, precise["asked"], predictions)
    if "judged" in precise:
        logger.info("that threshold, %s", _describe_at("on the evaluated rows", precise["judged"]))
    if saved is not None and saved["threshold"] != precise["threshold"]:
        line = _describe_at("on the evaluated rows", saved)
        logger.info("the threshold of the model's folder, %s", line)


def _print_metrics(evaluation: Dict[str, Any]) -> None:
    """Print the metrics as a line of JSON, and log what shared characters reach and what is left out."""
    baseline = evaluation.get("shared_characters", {})
    is_turned = "thresholds" in baseline and baseline.get("auc", 1) < TURNED
    if is_turned and evaluation["rows"] >= MIN_COMPARED:
        logger.warning(
            "pairs that are labelled as matches share fewer characters than the others (AUC %.2f): if the "
            "labels of this file are turned, so are these figures",
            baseline["auc"],
        )
    values = {n: value for n, value in baseline.items() if isinstance(value, float) and value == value}
    if values:
        whose = f" (threshold: {baseline['thresholds_of']})" if "thresholds_of" in baseline else ""
        figures = ", ".join(f"{name} {value:.4f}" for name, value in values.items())
        logger.info("counting shared characters reaches %s%s", figures, whose)
    left_out = evaluation.get("queries", 0) - evaluation.get("ranked_queries", 0)
    if left_out:
        message = "%d of %d queries are not in the metrics: their candidates are all relevant, or none is"
        logger.info(message, left_out, evaluation["queries"])
    names = OF_TARGET[evaluation.get("target", CLASSIFICATION)].names
    more = [name for name in ("queries", "ranked_queries", "threshold") if evaluation.get(name) is not None]
    say(json.dumps({name: evaluation[name] for name in (*names, "rows", *more)}))
