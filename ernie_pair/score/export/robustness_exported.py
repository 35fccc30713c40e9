"""ernie-pair robustness: measure an exported model on perturbed pairs, without Paddle.

ernie-pair robustness --model exported --input_file test.tsv --output_file robustness.json
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Sequence

import numpy as np

from data_tools.files.json_file import write_json
from data_tools.files.progress import CountProgress
from data_tools.options.options import option
from data_tools.options.standard_streams import as_asked, with_standard_streams
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.models.labels import Labels
from ernie_pair.pair.audit.new_pairs import refuse_ending, write_new_pairs
from ernie_pair.pair.config.named_models import RobustnessFlags
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.data.pair_records import Columns, RowRules
from ernie_pair.pair.data.pair_source import FileSource
from ernie_pair.pair.data.rejected import rejected_beside, tell_rejected
from ernie_pair.pair.robustness.perturb import ALL, Perturbed, Perturbing, parse_kinds, perturb
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import World
from ernie_pair.score.evaluation.inference_model import results_of
from ernie_pair.score.evaluation.robustness_table import (
    bearing_of,
    new_pairs_of,
    refuse_one_output,
    robustness_table,
    table_lines,
)
from ernie_pair.score.export.exported_flags import ExportedFlags

CHUNK = 4096  # pairs asked at a time

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RobustnessConfig(RobustnessFlags, ExportedFlags):
    """Measure an exported model on typos, homophones, negation, other entities, order and fillers."""

    EXAMPLE = "--model exported --input_file test.tsv --output_file robustness.json"

    input_file: str = option(
        help="labelled pairs: .tsv, .csv, .json or .jsonl", group="data", stdin=(".tsv", ".jsonl")
    )
    output_file: str = option(
        help="JSON file to write: a table with one row per kind", group="data", stdout=True
    )
    robustness: str = option(
        ALL,
        help="the kinds: all, or some of typo, homophone (needs pypinyin), negation, entity, order, filler",
        group="evaluation",
    )
    label: str = option("", help="the column of the label", group="data")


@with_standard_streams
def measure_exported(config: RobustnessConfig) -> None:
    """Write the table as JSON, and the changed pairs where they are asked for; log a line per kind.

    Raises an ErniePairError.
    """
    start_console(World())
    kinds = parse_kinds(config.robustness or ALL)
    if config.robustness_file:
        refuse_ending("robustness_file", config.robustness_file)
    more = [Path(config.robustness_file)] if config.robustness_file else []
    results = results_of("robustness", config, more)
    if results.are_done():
        return
    predictor = PairPredictor(
        config.model,
        config.backend,
        config.threads,
        symmetric=config.symmetric,
        precision=config.precision,
        device=config.device,
    )
    refuse_one_output(predictor.class_names)
    pairs = _read(config, predictor.class_names)
    changed = perturb(
        pairs, len(predictor.class_names), Perturbing(kinds, config.robustness_rows, config.seed)
    )
    found = _measured(predictor, pairs, changed, config)
    with results.published() as (numbers, *rows):
        write_json(numbers, found)
        for draft in rows:
            names = predictor.class_names
            write_new_pairs(draft, Path(config.robustness_file), new_pairs_of(changed, pairs, names))
    for line in table_lines(found["robustness"]["kinds"]):
        logger.info("%s", line)


def _read(config: RobustnessConfig, names: Sequence[str]) -> Pairs:
    labels = Labels.named({name: number for number, name in enumerate(names)})
    columns = Columns(config.text_a, config.text_b, config.label)
    source = FileSource("input_file", config.input_file, "dev", labels, columns, RowRules.of(config))
    pairs = source.read()
    tell_rejected(config.input_file, pairs.bad, len(pairs), rejected_beside(config.output_file))
    return pairs


def _measured(
    predictor: PairPredictor, pairs: Pairs, changed: Perturbed, config: RobustnessConfig
) -> Dict[str, Any]:
    with CountProgress(len(pairs) + len(changed), "pair") as progress:
        before = _logits(predictor, pairs.left, pairs.right, progress).argmax(axis=1)
        logits = _logits(predictor, changed.left, changed.right, progress)
    bearing = bearing_of(changed, logits, before, pairs.known_labels)
    return {
        "rows": len(pairs),
        "model": config.model,
        "computed_by": predictor.describe(),
        "input_file": as_asked(config.input_file),
        "input_sha256": pairs.sha256,
        "classes": list(predictor.class_names),
        "symmetric": predictor.symmetric,
        "accuracy": float(np.mean(before == pairs.known_labels)),
        "robustness": {
            "seed": config.seed,
            "kinds": robustness_table(bearing, config.bootstrap, config.seed),
        },
    }


def _logits(
    predictor: PairPredictor, left: Sequence[str], right: Sequence[str], progress: CountProgress
) -> np.ndarray:
    found = []
    for first in range(0, len(left), CHUNK):
        part = slice(first, first + CHUNK)
        found.append(predictor.logits(list(zip(left[part], right[part]))))
        progress.advance(len(found[-1]))
    return np.concatenate(found)
