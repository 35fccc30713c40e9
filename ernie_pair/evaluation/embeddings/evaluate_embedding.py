"""Evaluate an embedding model on labelled pairs: how well their texts find each other."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from ernie_pair.core.cli.options import names_in
from ernie_pair.core.cli.standard_streams import with_standard_streams
from ernie_pair.core.errors import InputError
from ernie_pair.core.progress import CountProgress, say
from ernie_pair.embeddings.embed_config import EvaluateEmbeddingConfig
from ernie_pair.embeddings.open_embedder import open_embedder
from ernie_pair.embeddings.retrieval import RetrievalSet, build_retrieval_set, measure_retrieval
from ernie_pair.evaluation.calibration import at_precision, precision_interval, threshold_curve
from ernie_pair.evaluation.scorer import measured_once
from ernie_pair.inference.embedder import TextEmbedder, describe_cut, unit_rows
from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.models.labels import Labels, parse_label_range
from ernie_pair.models.model_folder import with_model_folder
from ernie_pair.models.temperature import CALIBRATION, Calibration, write_calibration
from ernie_pair.pairs.audit.trained_pairs import describe_trained_on, was_trained_on
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.data.pair_source import PairSource, labels_for
from ernie_pair.pairs.data.rejected import log_rejected, rejected_beside
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import World

CHUNK = 4096  # texts that are asked for at a time

logger = logging.getLogger(__name__)


@with_standard_streams
def evaluate_embedding(config: EvaluateEmbeddingConfig) -> Dict[str, Any]:
    """Print the metrics of `measure_retrieval`, keep them if asked, return them. Raises an ErniePairError."""
    start_console(World())
    if Path(config.model_path).is_dir():
        config = with_model_folder(config)
    elif config.save_threshold:
        raise InputError(f"--save_threshold true: --model_path {config.model_path} is not a folder of yours")
    found = measured_once("evaluate embedding", config, _measure, CALIBRATION)
    for dim, metrics in found["dims"].items():
        which = [f"dim {dim}"] if len(found["dims"]) > 1 else []
        say("  ".join([*which, *(f"{name} {value:.4f}" for name, value in metrics.items())]))
    if threshold := found["threshold"]:
        reached = "from a similarity of {threshold:.4f} on: precision {precision:.4f} ({interval[0]:.4f} to "
        reached += "{interval[1]:.4f}), recall {recall:.4f}, {rows} of {pairs} pairs"
        none = "no similarity reaches precision {asked:g}; the nearest is {precision:.4f}"
        say((reached if threshold["reached"] else none).format(**threshold))
    if config.save_threshold:
        _save(config, found)
    return found


def _save(config: EvaluateEmbeddingConfig, found: Dict[str, Any]) -> None:
    """Write the threshold into the folder of the model. Raises InputError without one."""
    chosen = found["threshold"]
    if not chosen or not chosen["reached"]:
        cure = "ask for less with --at_precision" if chosen else "give labels 0 and 1"
        raise InputError(
            f"--save_threshold true: no similarity reaches precision {config.at_precision:g} on "
            f"{config.input_file}, and nothing was saved; {cure}"
        )
    write_calibration(
        Path(config.model_path),
        Calibration(
            threshold=chosen["threshold"],
            tuned_on=config.input_file,
            tuned_rows=chosen["pairs"],
            tuned_for=f"precision {config.at_precision:g}",
            measured={name: chosen[name] for name in ("precision", "interval", "recall")},
            fingerprint=found["fingerprint"],
        ),
    )
    say(f"saved: {Path(config.model_path) / CALIBRATION}; mine takes nearer texts for matches")


def _measure(config: EvaluateEmbeddingConfig) -> Dict[str, Any]:
    limits = parse_label_range(config.label_range)
    source = PairSource.of(config, "input_file")
    source = replace(source, rules=replace(source.rules, of_encoders=not limits))
    labels = Labels.scores(limits) if limits else labels_for(source, config.label_map)
    pairs = replace(source, labels=labels).read()
    log_rejected(config.input_file, pairs.bad, len(pairs), rejected_beside(config.output_file))
    kernels = KernelFlags(kernels=config.kernels, precision=config.precision)
    embedder = open_embedder(config.model_path, config.device, config.options, kernels)
    lengths = _lengths(config, embedder)
    embedder.settings.check_search(config.model_path)
    found = _measure_pairs(config, embedder, pairs, lengths)
    seen = was_trained_on(config.model_path, pairs)
    if seen.any():
        others = pairs.rows(np.flatnonzero(~seen))
        has_match = len(others) and others.known_labels.any()
        without = _measure_pairs(config, embedder, others, lengths[-1:])["metrics"] if has_match else {}
        logger.warning("%s", describe_trained_on(seen, config.model_path, without))
        found["trained_on"] = {"rows": int(seen.sum()), "without": without}
    return found


def _measure_pairs(
    config: EvaluateEmbeddingConfig, embedder: TextEmbedder, pairs: Pairs, lengths: Sequence[int]
) -> Dict[str, Any]:
    asked, settings = build_retrieval_set(pairs, config.input_file), embedder.settings
    embedder.num_cut = 0
    vectors = _vectors_of(embedder, asked, "passage")
    asking = _vectors_of(embedder, asked, "query") if embedder.has_roles else None

    def cut(rows: np.ndarray, dim: int) -> np.ndarray:
        rows = rows[:, :dim]
        return unit_rows(rows, config.model_path) if settings.has_unit_products else rows

    keeps, by_length = config.same_text == "keep", {}
    for dim in lengths:
        as_queries = None if asking is None else cut(asking, dim)
        by_length[dim] = measure_retrieval(cut(vectors, dim), asked, as_queries, keeps)
    count = asked.num_left_out
    if count and not keeps:
        logger.info(
            "%d of %d queries stand in the corpus as well, where they are none of their matches, and are not "
            "compared with themselves; --same_text keep compares them, as sentence-transformers does",
            count, len(asked.queries),
        )  # fmt: skip
    if embedder.num_cut:
        count = len(asked.texts) * (2 if embedder.has_roles else 1)
        logger.info("%s", describe_cut(embedder, count))
    own, as_query = (cut(rows, embedder.dim) for rows in (vectors, vectors if asking is None else asking))
    similarities = np.einsum("nd,nd->n", as_query[asked.left], own[asked.right], dtype=np.float64)
    return {
        "metrics": by_length[embedder.dim],
        "threshold": threshold_of_pairs(similarities, asked.labels, config.at_precision),
        "queries": len(asked.queries),
        "corpus": len(asked.corpus),
        "pairs": len(asked.labels),
        "same_text": config.same_text,
        "dims": {str(dim): metrics for dim, metrics in by_length.items()},
        "fingerprint": embedder.fingerprint,
        "computed_by": embedder.backend,
    }


def threshold_of_pairs(scores: np.ndarray, labels: np.ndarray, asked: float) -> Optional[Dict[str, Any]]:
    """Return from which score on pairs match with the precision ``asked``, with its interval over the pairs.

    ``scores``, ``labels`` float64 [N]. {"asked", "reached", "threshold", "rows", "precision", "recall", "f1",
    "accuracy", "interval", "pairs"}; None where the labels are not both 0 and 1.
    """
    if {*np.unique(labels)} != {0, 1}:
        return None
    curve = threshold_curve(scores, labels.astype(np.int64))
    chosen: Dict[str, Any] = at_precision(curve, asked, is_share=False)
    rows, precision = chosen["rows"], chosen["precision"]
    return {**chosen, "interval": precision_interval(round(precision * rows), rows), "pairs": len(scores)}


def _lengths(config: EvaluateEmbeddingConfig, embedder: TextEmbedder) -> List[int]:
    """Return the lengths to measure, ascending. Raises InputError for one not trained for, or too long."""
    settings, full = embedder.settings, embedder.dim
    if config.dims == "all":
        return sorted({full, *(dim for dim in settings.dims if dim <= full)})
    chosen = {settings.chosen_dim(int(word), config.model_path) for word in names_in(config.dims)}
    if chosen and max(chosen) > full:
        raise InputError(
            f"--dims {max(chosen)} is above --dim {full}, the length of the vectors; leave one of them out"
        )
    return sorted({full, *chosen})


def _vectors_of(embedder: TextEmbedder, asked: RetrievalSet, role: str) -> np.ndarray:
    parts, prompt = [], embedder.settings.prompt_of(role)
    with CountProgress(len(asked.texts), "text") as progress:
        for begin in range(0, len(asked.texts), CHUNK):
            parts.append(embedder.embed(asked.texts[begin : begin + CHUNK], prompt))
            progress.advance(len(parts[-1]))
    return np.concatenate(parts)
