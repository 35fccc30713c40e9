"""The record kept beside converted weights: conversion.json.

    {"format": 1, "largest_difference": {"sequence_output": {"padded": 2.4e-07, ...}, ...},
     "most_allowed": 1e-05, "batches": {"padded": [4, 64], ...}, "config_sha256": ...,
     "inputs": {"static_model_path": [["static_vars.pdparams", SHA-256], ...], ...},
     "outputs": {"model_state.pdparams": SHA-256, ...}, "versions": {"paddlepaddle": "2.6.2", ...}}

A head that is missing from the static weights has no output here.
"""

import json
from pathlib import Path
from typing import Dict, Mapping

from ernie_pair.checkpoint.manifest import installed_versions
from ernie_pair.model_files.source import ModelSource
from ernie_pair.weights.weight_files import Arrays

CONVERSION, CONVERSION_FORMAT = "conversion.json", 1
LARGEST_DIFFERENCE = 1e-5  # in float32


def write_conversion(
    folder: Path,
    record: Mapping[str, object],
    source: ModelSource,
    batches: Dict[str, Arrays],
    differences: Dict[str, Dict[str, float]],
) -> None:
    """Write conversion.json into ``folder``. Raises OSError.

    ``record``: the "inputs" and "outputs" of `Results.about_folder`; ``differences``: {output: {batch: the
    largest absolute difference}}.
    """
    content = {
        "format": CONVERSION_FORMAT,
        "largest_difference": differences,
        "most_allowed": LARGEST_DIFFERENCE,
        "batches": {name: list(batch["input_ids"].shape) for name, batch in batches.items()},
        "config_sha256": source.spec.sha256,
        "inputs": record["inputs"],
        "outputs": record["outputs"],
        "versions": installed_versions(),
    }
    (folder / CONVERSION).write_text(
        json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
