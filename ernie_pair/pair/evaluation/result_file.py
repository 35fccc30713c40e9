"""The result file of a command that runs a model, and when it may be written."""

from pathlib import Path
from typing import Dict, Sequence

from data_tools.base.errors import InputError
from data_tools.files.atomic_folder import content_of
from data_tools.files.results import Results, settings_of

INPUTS = ("model_path", "model", "input_file", "calibrate_on", "tune_on", "dev_file", "test_file")
OUTPUTS = ("output_file", "report", "robustness_file")


def refuse_unusable(path: Path) -> None:
    """Raise InputError, before the work, when no file can be written at ``path``."""
    if path.is_dir():
        raise InputError(f"--output_file {path} is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise InputError(f"--output_file {path}: its folder {path.parent} does not exist; make it first")


def results_of(command: str, config, more: Sequence[Path] = (), but: str = "") -> Results:
    """Return the output_file of ``config``, and ``more``, as results of its model and its files of pairs.

    ``but``: a file in the model's folder that is no input; what only tells of the model is none either.
    Raises InputError when no file can be written there.
    """
    refuse_unusable(Path(config.output_file))
    inputs: Dict[str, Sequence[Path]] = {
        name: [path for path in content_of(getattr(config, name)) if path.name != but]
        for name in INPUTS
        if hasattr(config, name)
    }
    named = {name: getattr(config, name) for name, files in inputs.items() if not files}  # sets, models
    settings = {**settings_of(config, *INPUTS, *OUTPUTS, "batch_size"), **named}
    outputs = [Path(config.output_file), *more]
    return Results(command, outputs, inputs, settings, config.overwrite, asked=more)
