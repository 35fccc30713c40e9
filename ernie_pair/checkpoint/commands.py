"""Show a checkpoint, or all checkpoints of a run: their content, and whether they are intact."""

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Dict, List

import numpy as np

from ernie_pair.checkpoint.checkpoint_folder import MANIFEST, STATE, Checkpoint
from ernie_pair.checkpoint.run_folder import CHECKPOINTS
from ernie_pair.core.cli.options import Options, checkpoints_option
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.core.files.atomic_files import BAD
from ernie_pair.weights.weight_files import BFLOAT16, Arrays, bfloat16_to_float32

MAX_SHOWN = 5
MAX_LINES = 20  # differing arrays, the largest difference first
OPTIMIZER = "optimizer"  # the prefix of the names of its files
EQUAL, DIFFERENT = 0, 1  # the exit codes, as those of diff


@dataclass(frozen=True)
class ShowConfig(Options):
    """Show what a checkpoint contains and whether it is intact; for a run, one line per checkpoint."""

    EXAMPLE = "output/model_last"

    checkpoint: str = checkpoints_option(
        help="a checkpoint (OUT/checkpoints/step_00005000 or OUT/model_last), or the output folder of a run",
        positional=True,
        reads="PATH",
    )


def show_checkpoint(config: ShowConfig) -> None:
    """Print a checkpoint or a run. Raises InputError for neither, CheckpointError at the end for damage."""
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
    _print("checkpoint", str(folder.resolve() if folder.is_symlink() else folder))
    _print("run", manifest["run_id"])
    _print("step", f"{checkpoint.step:,}")
    for name, values in (("topology", manifest["topology"]), ("versions", manifest["versions"])):
        _print(name, ", ".join(f"{key} {value}" for key, value in values.items()))
    for change in manifest["changes"]:
        _print("changed", f"{change['key']} from {change['old']} to {change['new']} at step {change['step']}")
    checkpoint.verify()
    state = checkpoint.state()
    _print("samples", f"{state.consumed_samples:,} consumed")
    if state.best_metric is not None:
        _print("best", f"{state.best_metric:.6g} at step {state.best_step}")
    arrays = arrays_of(checkpoint)
    parameters: Arrays = {}
    for file, of_file in arrays.items():
        parameters.update({} if file.startswith(OPTIMIZER) else of_file)
    _print("parameters", _sizes_of(parameters))
    for name in sorted(parameters, key=lambda name: (-parameters[name].size, name))[:MAX_SHOWN]:
        _print("", f"{name} {list(parameters[name].shape)}")
    for name, entry in sorted(checkpoint.files.items()):
        sizes = f", {_sizes_of(arrays[name])}" if name in arrays else ""
        _print("file", f"{name}: {entry['size']:,} bytes{sizes}")
    _print("valid", "yes: every file matches the manifest")


def _print(name: str, what: str) -> None:
    print(f"{name:<11} {what}")


def _show_run(output_dir: Path) -> None:
    folders = sorted((output_dir / CHECKPOINTS).glob("step_*"))
    for folder in folders:
        try:
            checkpoint = Checkpoint(folder)
            checkpoint.verify()
            size = sum(entry["size"] for entry in checkpoint.files.values())
            samples = checkpoint.state().consumed_samples
            line = f"valid  {samples:,} samples  {len(checkpoint.files)} files  {size:,} bytes"
        except CheckpointError as error:
            line = f"not valid: {error.message}"
        print(f"{folder.name}  {line}")
    for folder in sorted((output_dir / CHECKPOINTS).glob(f"{BAD}*")):
        print(f"{folder.name}  set aside as damaged")
    if not folders:
        raise InputError(
            f"{output_dir / CHECKPOINTS} holds no checkpoint; give the OUT of a run that saved one"
        )


def _sizes_of(arrays: Arrays) -> str:
    kinds = Counter("bfloat16" if array.dtype == BFLOAT16 else array.dtype.name for array in arrays.values())
    count = sum(array.size for array in arrays.values())
    return f"{len(arrays)} arrays, {count:,} numbers, {', '.join(sorted(kinds))}"


@dataclass(frozen=True)
class DiffConfig(Options):
    """Compare two checkpoints; the exit code is 0 if they are equal, 1 if they differ."""

    EXAMPLE = "output/checkpoints/step_00005000 output/checkpoints/step_00010000"

    first: str = checkpoints_option(
        help="a checkpoint, OUT/model_last for example", positional=True, reads="PATH"
    )
    second: str = checkpoints_option(help="another checkpoint", positional=True, reads="PATH")


def diff_checkpoints(config: DiffConfig) -> int:
    """Print how two checkpoints differ, and return EQUAL or DIFFERENT.

    The shards of the optimizer state are merged before they are compared. Raises InputError for a folder that
    is not a checkpoint, CheckpointError for a damaged one.
    """
    for path in (config.first, config.second):
        if not (Path(path) / MANIFEST).is_file():
            raise InputError(f"{path} is not a checkpoint; give OUT/model_last or OUT/checkpoints/step_...")
    first, second = Checkpoint(Path(config.first)), Checkpoint(Path(config.second))
    lines = _array_lines(_named_arrays(first), _named_arrays(second), config)
    states = asdict(first.state()), asdict(second.state())
    lines += [
        f"{STATE}: {key} {_short(states[0][key])} and {_short(states[1][key])}"
        for key in sorted(states[0])
        if states[0][key] != states[1][key]
    ]
    one, other = ({name: e["sha256"] for name, e in each.files.items()} for each in (first, second))
    for name in sorted({*one, *other} - {STATE}):
        if one.get(name) != other.get(name) and not name.endswith(".safetensors"):
            is_in_both = name in one and name in other
            lines.append(f"{name}: {'its content differs' if is_in_both else 'only one of them has it'}")
    print("\n".join(lines or ["equal: every array, the state and the other files"]))
    return DIFFERENT if lines else EQUAL


def _named_arrays(checkpoint: Checkpoint) -> Arrays:
    """Return the arrays of all files; those of the optimizer as optimizer/NAME, merged from all shards."""
    return {
        f"{OPTIMIZER}/{name}" if file.startswith(OPTIMIZER) else name: array
        for file, arrays in arrays_of(checkpoint).items()
        for name, array in arrays.items()
    }


def _array_lines(first: Arrays, second: Arrays, config: DiffConfig) -> List[str]:
    lines = [
        f"only in {where}: {name} {list(mine[name].shape)}"
        for where, mine, other in ((config.first, first, second), (config.second, second, first))
        for name in sorted(mine.keys() - other.keys())
    ]
    common = sorted(first.keys() & second.keys())
    unlike = [name for name in common if first[name].shape != second[name].shape]
    lines += [f"shape: {name} {list(first[name].shape)} and {list(second[name].shape)}" for name in unlike]
    distances = {name: distance(first[name], second[name]) for name in common if name not in unlike}
    moved = sorted((name for name in distances if distances[name]), key=lambda name: -distances[name])
    lines += [f"differs by {distances[name]:.6g}: {name}" for name in moved[:MAX_LINES]]
    if moved:
        lines.append(
            f"largest difference {distances[moved[0]]:.6g}; {len(moved)} of {len(distances)} arrays differ"
        )
    return lines


def distance(first: np.ndarray, second: np.ndarray) -> float:
    """Return the largest absolute difference of two arrays of one shape; infinity if one contains NaN."""
    if first.dtype == second.dtype and first.tobytes() == second.tobytes():
        return 0.0
    wide = (bfloat16_to_float32(a) if a.dtype == BFLOAT16 else a for a in (first, second))
    one, other = (array.astype(np.float64) for array in wide)
    largest = float(np.abs(one - other).max(initial=0.0))
    return float("inf") if np.isnan(largest) else largest


def _short(value: object) -> str:
    is_short = isinstance(value, (int, float, str, type(None)))
    return str(value) if is_short else f"another {type(value).__name__}"
