"""Evaluate a trained model on labelled pairs."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

from data_tools.files.errors import InputError, counted
from data_tools.files.json_file import write_json
from data_tools.files.results import Results
from data_tools.options.standard_streams import as_called, with_standard_streams
from ernie_pair.checkpoint.checkpoint_folder import MANIFEST
from ernie_pair.models.labels import CLASSIFICATION, RANKING
from ernie_pair.models.source import model_folder_of
from ernie_pair.models.temperature import CALIBRATION, Calibration, write_calibration
from ernie_pair.pair.audit.new_pairs import refuse_ending, write_new_pairs
from ernie_pair.pair.config.ask_config import EvaluateConfig
from ernie_pair.pair.config.target_flags import refuse_class_flags, refuse_query
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.robustness.perturb import Perturbing, parse_kinds, perturb
from ernie_pair.pair.targets.metrics import describe_single_class
from ernie_pair.pair.targets.target_metrics import OF_TARGET
from ernie_pair.score.evaluation.calibration import fit_temperature
from ernie_pair.score.evaluation.evaluation import (
    Answers,
    Fitted,
    Scored,
    evaluation_of,
    slices_of,
    thresholds_of,
)
from ernie_pair.score.evaluation.evaluation_report import FILES, made_of, write_report
from ernie_pair.score.evaluation.inference_model import InferenceModel, results_of
from ernie_pair.score.evaluation.robustness_table import Bearing, bearing_of, new_pairs_of, table_lines
from ernie_pair.score.evaluation.scores.ranking import ranking_evaluation_of, write_ranking_report
from ernie_pair.score.evaluation.scores.regression import (
    ScoreAnswers,
    score_evaluation_of,
    write_score_report,
)
from ernie_pair.score.evaluation.tuning import (
    is_kept,
    refuse_judged_file,
    refuse_one_class,
    refuse_unsavable,
    why_unsaved,
    with_temperature,
    with_threshold,
)

logger = logging.getLogger(__name__)


@with_standard_streams
def evaluate_pair(config: EvaluateConfig) -> None:
    """Write what ``evaluation_of`` measures as JSON, print the metrics, and write the report if asked for.

    The numbers are the same for any number of processes, to the last digit. Raises InputError.
    """
    if config.report and Path(config.report).is_file():
        raise InputError(f"--report {config.report} is a file; give the name of a folder")
    config = replace(config, model_path=str(model_folder_of(Path(config.model_path))))
    _refuse_checkpoint(config)
    kinds = parse_kinds(config.robustness)
    results = _results(config)
    if results.are_done() and _is_all_there(config):
        return
    trained = InferenceModel(config)
    refuse_class_flags(config, trained.labels, config.model_path)
    refuse_query(config.query, trained.labels)
    if not trained.labels.has_classes:
        _evaluate_scores(trained, config, results)
        return
    answers = _ask(trained, config)
    if kinds:
        asked = Perturbing(kinds, config.robustness_rows, config.seed)
        answers = answers._replace(bearing=_changed(trained, answers, asked))
    thresholds = thresholds_of(answers, config.at_precision)
    fault = why_unsaved(answers.fitted._asdict(), thresholds, config)
    is_saved = (config.save_temperature or config.save_threshold) and not fault
    calibration = with_threshold(answers.saved, thresholds, config) if is_saved else answers.saved
    answers = answers._replace(saved=calibration)
    if trained.world.is_first:
        kernels = trained.kernels.describe(with_notes=False)
        evaluation = {**evaluation_of(answers, config), "kernels": kernels}
        if is_saved:
            write_calibration(Path(config.model_path), calibration)
        _write(results, evaluation, answers, config)
        _tell(evaluation, config, is_saved)
    trained.process_group.barrier()
    _refuse(fault)


def _is_all_there(config: EvaluateConfig) -> bool:
    """Return whether the calibration that an evaluation was to save is there as well; print its metrics then.

    Raises InputError where something that is to be saved was not found.
    """
    evaluation = json.loads(Path(config.output_file).read_text(encoding="utf-8"))
    fault = why_unsaved(evaluation.get("calibration"), evaluation.get("thresholds"), config)
    if not (fault or is_kept(evaluation, config)):
        logger.info("%s/%s does not hold what it found: evaluating again", config.model_path, CALIBRATION)
        return False
    _print_metrics(evaluation)
    _refuse(fault)
    return True


def _refuse(fault: str) -> None:
    """Raise InputError, when all is written, where something that is to be saved was not found."""
    if fault:
        raise InputError(fault)


def _evaluate_scores(trained: InferenceModel, config: EvaluateConfig, results: Results) -> None:
    """Measure a model without classes, and write what is asked for."""
    pairs = trained.read("input_file")
    symmetric = trained.calibration.chosen_symmetry(config.symmetric, config.model_path)
    exchanged = Pairs(pairs.right, pairs.left, *pairs[2:])
    answers = ScoreAnswers(
        pairs,
        trained.labels.label_range,
        trained.logits(pairs, symmetric),
        trained.logits(exchanged, symmetric) if config.swap else None,
        symmetric,
    )
    if trained.world.is_first:
        is_ranking = trained.labels.target == RANKING
        evaluation = (
            ranking_evaluation_of(answers, config)
            if is_ranking
            else score_evaluation_of(answers, config, slices_of(pairs.left, pairs.right))
        )
        evaluation["kernels"] = trained.kernels.describe(with_notes=False)
        with results.published() as (numbers, *report):
            write_json(numbers, evaluation)
            if report:
                write = write_ranking_report if is_ranking else write_score_report
                write(report, evaluation, answers, config.worst_rows, made_of(config))
        if config.report:
            logger.info("report: %s", Path(config.report) / "report.html")
        _print_metrics(evaluation)
    trained.process_group.barrier()


def _results(config: EvaluateConfig) -> Results:
    more = [Path(config.report) / name for name in FILES] if config.report else []
    if config.robustness_file:
        refuse_ending("robustness_file", config.robustness_file)
        more.append(Path(config.robustness_file))
    but = CALIBRATION if config.save_temperature or config.save_threshold else ""
    return results_of("evaluate", config, more, but)


def _write(results: Results, evaluation: Dict[str, Any], answers: Answers, config: EvaluateConfig) -> None:
    with results.published() as (numbers, *drafts):
        write_json(numbers, evaluation)
        if config.report:
            made = made_of(config)
            write_report(drafts[: len(FILES)], evaluation, answers, config.worst_rows, made=made)
        if config.robustness_file and answers.bearing is not None:
            rows = new_pairs_of(answers.bearing.changed, answers.pairs, answers.names)
            write_new_pairs(drafts[-1], Path(config.robustness_file), rows)


def _refuse_checkpoint(config: EvaluateConfig) -> None:
    """Raise InputError if a temperature or a threshold would be written into a checkpoint of a run."""
    is_saved = config.save_temperature or config.save_threshold
    if is_saved and (Path(config.model_path) / MANIFEST).is_file():
        raise InputError(
            f"--model_path {config.model_path} is a checkpoint, into which nothing is saved; give OUT/best, "
            "or leave --save_temperature and --save_threshold out"
        )


def _ask(trained: InferenceModel, config: EvaluateConfig) -> Answers:
    saved, symmetric = _saved_for(trained.calibration, config)
    refuse_unsavable(config, saved, trained.num_classes)
    pairs, calibrating, tuning = _read(trained, config)
    scored: Dict[str, Scored] = {}
    for each in (pairs, calibrating, tuning):
        if each is not None and each.sha256 not in scored:
            scored[each.sha256] = Scored(each, trained.logits(each, symmetric))
    fitted = _fitted(scored, pairs, calibrating, saved, config)
    saved = with_temperature(saved, fitted, config)
    exchanged = Pairs(pairs.right, pairs.left, *pairs[2:])
    return Answers(
        pairs,
        trained.labels.names,
        scored[pairs.sha256].logits,
        trained.logits(exchanged, symmetric) if config.swap else None,
        saved.temperature,
        fitted,
        symmetric,
        None if tuning is None else scored[tuning.sha256]._replace(pairs=tuning),
        saved,
    )


def _changed(trained: InferenceModel, answers: Answers, asked: Perturbing) -> Bearing:
    """Ask the model about the changed pairs of the file, which every process makes for itself."""
    changed = perturb(answers.pairs, answers.num_classes, asked)
    logits = trained.logits(Pairs(changed.left, changed.right, None, ""), answers.symmetric)
    return bearing_of(changed, logits, answers.predictions, answers.labels)


def _read(trained: InferenceModel, config: EvaluateConfig) -> Tuple[Pairs, Optional[Pairs], Optional[Pairs]]:
    """Read the pairs to judge, to fit the temperature on and to choose thresholds on; None: those judged."""
    pairs = trained.read("input_file")
    pairs = pairs.changed(path=as_called(pairs.path))  # what is written down names no file that will be gone
    calibrating = tuning = None
    if config.calibrate_on:
        calibrating = tuning = trained.read("calibrate_on")
        refuse_judged_file(config, pairs, calibrating)
    if config.tune_on:
        tuning = trained.read("tune_on")
    if tuning is not None:
        refuse_one_class("tune_on" if config.tune_on else "calibrate_on", tuning, trained.num_classes)
    return pairs, calibrating, tuning


def _saved_for(calibration: Calibration, config: EvaluateConfig) -> Tuple[Calibration, str]:
    """Return what the model's folder holds for the way pairs are scored here, and that way."""
    symmetric = calibration.symmetric if config.symmetric == "auto" else config.symmetric
    if symmetric == calibration.symmetric:
        return calibration, symmetric
    if calibration.is_tuned:
        logger.warning(
            "%s/%s was tuned with --symmetric %s: it is not used for --symmetric %s",
            config.model_path,
            CALIBRATION,
            calibration.symmetric,
            symmetric,
        )
    return Calibration(symmetric=symmetric), symmetric


def _fitted(
    scored: Dict[str, Scored],
    pairs: Pairs,
    calibrating: Optional[Pairs],
    saved: Calibration,
    config: EvaluateConfig,
) -> Fitted:
    """Return the temperature to judge: fitted on --calibrate_on, else the model's, else on ``pairs``."""
    if calibrating is None and saved.temperature != 1.0:
        where = f"{config.model_path}/{CALIBRATION}"
        return Fitted(saved.temperature, where, saved.rows, saved.fitted_on_sha256)
    on = pairs if calibrating is None else calibrating
    temperature = fit_temperature(scored[on.sha256].logits, on.known_labels)
    return Fitted(temperature, on.path, len(on), on.sha256)


def _tell(evaluation: Dict[str, Any], config: EvaluateConfig, is_saved: bool) -> None:
    """Print the metrics on stdout, and log the rest."""
    if evaluation["single_class"] is not None:
        logger.warning("%s", describe_single_class(evaluation["single_class"], evaluation["rows"]))
    _tell_calibration(evaluation["calibration"])
    if "thresholds" in evaluation:
        _tell_thresholds(evaluation["thresholds"], evaluation["classes"][1])
    if "swap" in evaluation:
        flipped = evaluation["swap"]["flip_rate"]
        logger.info("%.2f %% of the pairs change class when their texts are swapped", 100 * flipped)
    if "robustness" in evaluation:
        for line in table_lines(evaluation["robustness"]["kinds"]):
            logger.info("%s", line)
    if config.robustness_file:
        logger.info("changed pairs: %s", config.robustness_file)
    if config.report:
        logger.info("report: %s", Path(config.report) / "report.html")
    if is_saved:
        logger.info("saved: %s", Path(config.model_path) / CALIBRATION)
        if config.save_threshold:
            _tell_saved_threshold(evaluation)
    _print_metrics(evaluation)


def _tell_saved_threshold(evaluation: Dict[str, Any]) -> None:
    """Say what later predictions lose or gain by the threshold; a precise one may find little."""
    found = evaluation["thresholds"]["saved"]
    named = (found[key] for key in ("threshold", "precision", "recall", "accuracy"))
    logger.warning(
        "all later predictions of this model use the threshold %.4f: on the evaluated rows precision %.4f, "
        "recall %.4f, accuracy %.4f; without it accuracy %.4f",
        *named,
        evaluation["accuracy"],
    )


def _print_metrics(evaluation: Dict[str, Any]) -> None:
    names = OF_TARGET[evaluation.get("target", CLASSIFICATION)].names
    print(json.dumps({name: evaluation[name] for name in (*names, "rows")}))


def _tell_calibration(calibration: Dict[str, object]) -> None:
    if calibration["at_end_of_range"]:
        logger.warning(
            "the temperature %.3g is at the end of its range; fit it on more rows", calibration["temperature"]
        )
    kind = ", the evaluated rows" if calibration["is_judged_file"] else ""
    logger.info("temperature %.4g, from %s%s", calibration["temperature"], calibration["fitted_on"], kind)
    for name in ("ece", "ece_top_label"):
        named = (calibration[key] for key in (f"{name}_method", name, f"{name}_calibrated"))
        logger.info("calibration error, %s: %.4f; with the temperature %.4f", *named)


def _tell_thresholds(thresholds: Dict[str, Any], name: str) -> None:
    """Log what the thresholds reach; ``name`` is that of class 1."""
    where = f"on {thresholds['tuned_on']}"
    where += ", the evaluated rows" if thresholds["is_judged_file"] else ""
    best, asked = (thresholds[key] for key in ("best_f1", "at_precision"))
    logger.info("threshold %.4f has the best F1 %s: %.4f", best["threshold"], where, best["f1"])
    reached = "reaches" if asked["reached"] else "comes nearest to"
    at = "threshold %.4f %s precision %.4f %s: precision %.4f, recall %.4f, %s of class %s"
    share = asked["precision"], asked["recall"]
    answers = counted(asked["rows"], "prediction")
    logger.info(at, asked["threshold"], reached, asked["asked"], where, *share, answers, name)
    if asked["reached"] and asked["rows"] * (1 - asked["asked"]) < 1:
        few = "precision %g is based on %s of class %s; one more error would miss it: use more rows"
        logger.warning(few, asked["asked"], answers, name)
    judged = {"that threshold": asked.get("judged")}
    saved = thresholds.get("saved")
    if saved is not None and saved["threshold"] != asked["threshold"]:
        judged["the threshold in calibration.json"] = saved
    for what, found in judged.items():
        if found is not None:
            named = (found[key] for key in ("threshold", "precision", "recall", "accuracy"))
            told = "%s, on the evaluated rows: %.4f gives precision %.4f, recall %.4f, accuracy %.4f"
            logger.info(told, what, *named)
