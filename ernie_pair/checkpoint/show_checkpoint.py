"""Show a checkpoint, or all checkpoints of a run: their content, and whether they are intact."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Mapping

from data_tools.base.errors import CheckpointError, InputError
from data_tools.base.options import Options, option
from data_tools.files.own_names import BAD
from ernie_pair.checkpoint.checkpoint_folder import MANIFEST, Checkpoint
from ernie_pair.checkpoint.used_folder import CHECKPOINTS
from ernie_pair.weights.bf16 import BFLOAT16
from ernie_pair.weights.weight_files import Arrays

LARGEST_SHOWN = 5
OPTIMIZER = "optimizer"  # the prefix of the names of its files


@dataclass(frozen=True)
class ShowConfig(Options):
    """Show what a checkpoint contains and whether it is intact; for a run, one line per checkpoint."""

    EXAMPLE = "output/model_last"

    checkpoint: str = option(
        help="a checkpoint (OUT/checkpoints/step_00005000 or OUT/model_last), or the output folder of a run",
        positional=True,
        group="checkpoints",
    )


def show_checkpoint(config: ShowConfig) -> None:
    """Print the content of a checkpoint or a run.

    Raises InputError when it is neither, and CheckpointError, after printing all else, if one is damaged.
    """
    folder = Path(config.checkpoint)
    if (folder / MANIFEST).is_file():
        _show_one(folder)
    elif (folder / CHECKPOINTS).is_dir():
        _show_run(folder)
    else:
        raise InputError(
            f"{folder} is neither a checkpoint nor a run: it holds neither {MANIFEST} nor {CHECKPOINTS}/; "
            "give the output folder of a run that has saved, or its model_last"
        )


def arrays_of(checkpoint: Checkpoint) -> Dict[str, Arrays]:
    """Return {file: its arrays} of a checkpoint. Raises CheckpointError when a file is damaged."""
    return {name: checkpoint.arrays(name) for name in checkpoint.files if name.endswith(".safetensors")}


def _show_one(folder: Path) -> None:
    checkpoint = Checkpoint(folder)
    manifest = checkpoint.manifest
    _tell("checkpoint", str(folder.resolve() if folder.is_symlink() else folder))
    _tell("run", manifest.get("run_id", "not noted"))
    _tell("step", f"{checkpoint.step:,}")
    _tell("topology", _words_of(manifest.get("topology", {})))
    _tell("versions", _words_of(manifest["versions"]))
    for change in manifest.get("changes", []):
        _tell("changed", f"{change['key']} from {change['old']} to {change['new']} at step {change['step']}")
    checkpoint.verify()
    state = checkpoint.state()
    _tell("samples", f"{state.consumed_samples:,} consumed")
    if state.best_metric is not None:
        _tell("best", f"{state.best_metric:.6g} at step {state.best_step}")
    arrays = arrays_of(checkpoint)
    parameters = {
        name: array
        for file, held in arrays.items()
        if not file.startswith(OPTIMIZER)
        for name, array in held.items()
    }
    _tell("parameters", _sizes_of(parameters))
    for name in sorted(parameters, key=lambda name: (-parameters[name].size, name))[:LARGEST_SHOWN]:
        _tell("", f"{name} {list(parameters[name].shape)}")
    for name, entry in sorted(checkpoint.files.items()):
        held = f", {_sizes_of(arrays[name])}" if name in arrays else ""
        _tell("file", f"{name}: {entry['size']:,} bytes{held}")
    _tell("valid", "yes: every file matches the manifest")


def _show_run(output_dir: Path) -> None:
    folders = sorted((output_dir / CHECKPOINTS).glob("step_*"))
    aside = sorted((output_dir / CHECKPOINTS).glob(f"{BAD}*"))
    for folder in folders:
        print(f"{folder.name}  {_line_of(folder)}")
    for folder in aside:
        print(f"{folder.name}  set aside as damaged")
    if not folders:
        raise InputError(
            f"{output_dir / CHECKPOINTS} holds no checkpoint; give the OUT of a run that saved one"
        )


def _line_of(folder: Path) -> str:
    try:
        checkpoint = Checkpoint(folder)
        checkpoint.verify()
    except CheckpointError as error:
        return f"not valid: {error.message}"
    size = sum(entry["size"] for entry in checkpoint.files.values())
    samples = checkpoint.state().consumed_samples
    return f"valid  {samples:,} samples  {len(checkpoint.files)} files  {size:,} bytes"


def _sizes_of(arrays: Arrays) -> str:
    """Return how many arrays and numbers there are, and of which types."""
    kinds = Counter("bfloat16" if array.dtype == BFLOAT16 else array.dtype.name for array in arrays.values())
    count = sum(array.size for array in arrays.values())
    return f"{len(arrays)} arrays, {count:,} numbers, {', '.join(sorted(kinds))}"


def _words_of(values: Mapping[str, object]) -> str:
    words: List[str] = [f"{name} {value}" for name, value in values.items()]
    return ", ".join(words) or "not noted"


def _tell(name: str, what: str) -> None:
    print(f"{name:<11} {what}")
