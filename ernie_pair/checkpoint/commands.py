"""Show a checkpoint, or all checkpoints of a run: their content, and whether they are intact."""

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Dict, List, Mapping, Tuple

import numpy as np

from data_tools.files.atomic_files import BAD
from data_tools.files.errors import CheckpointError, InputError
from data_tools.options.options import Options, option
from ernie_pair.checkpoint.checkpoint_folder import MANIFEST, STATE, Checkpoint
from ernie_pair.checkpoint.run_folder import CHECKPOINTS
from ernie_pair.weights.weight_files import BFLOAT16, Arrays, bfloat16_to_float32

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


EQUAL, DIFFERENT = 0, 1  # the exit codes, as those of diff


@dataclass(frozen=True)
class DiffConfig(Options):
    """Compare two checkpoints; the exit code is 0 if they are equal, 1 if they differ."""

    EXAMPLE = "output/checkpoints/step_00005000 output/checkpoints/step_00010000"

    first: str = option(help="a checkpoint, OUT/model_last for example", positional=True, group="checkpoints")
    second: str = option(help="another checkpoint", positional=True, group="checkpoints")
    most_lines: int = option(
        20,
        help="maximum number of differing arrays to show, largest difference first",
        group="checkpoints",
        at_least=1,
    )


def diff_checkpoints(config: DiffConfig) -> int:
    """Print how two checkpoints differ, and return EQUAL or DIFFERENT.

    The shards of the optimizer state are merged before they are compared. Raises InputError for a folder that
    is not a checkpoint, CheckpointError for a damaged one.
    """
    first, second = (_open(Path(path)) for path in (config.first, config.second))
    lines = [
        *_array_lines(_named_arrays(first), _named_arrays(second), config),
        *_state_lines(asdict(first.state()), asdict(second.state())),
        *_file_lines(first, second),
    ]
    print("\n".join(lines or ["equal: every array, the state and the other files"]))
    return DIFFERENT if lines else EQUAL


def _open(folder: Path) -> Checkpoint:
    if not (folder / MANIFEST).is_file():
        raise InputError(f"{folder} is not a checkpoint; give OUT/model_last or OUT/checkpoints/step_...")
    return Checkpoint(folder)


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
    lines += [f"differs by {distances[name]:.6g}: {name}" for name in moved[: config.most_lines]]
    if moved:
        lines.append(
            f"largest difference {distances[moved[0]]:.6g}; {len(moved)} of {len(distances)} arrays differ"
        )
    return lines


def distance(first: np.ndarray, second: np.ndarray) -> float:
    """Return the largest absolute difference of two arrays of one shape; infinity if one contains NaN."""
    if first.dtype == second.dtype and first.tobytes() == second.tobytes():
        return 0.0
    one, other = (
        (bfloat16_to_float32(array) if array.dtype == BFLOAT16 else array).astype(np.float64)
        for array in (first, second)
    )
    largest = float(np.abs(one - other).max(initial=0.0))
    return float("inf") if np.isnan(largest) else largest


def _state_lines(first: Dict[str, object], second: Dict[str, object]) -> List[str]:
    return [
        f"{STATE}: {key} {_short(first[key])} and {_short(second[key])}"
        for key in sorted(first)
        if first[key] != second[key]
    ]


def _short(value: object) -> str:
    """Return a number or a text as it is, and of anything larger its kind alone."""
    return (
        str(value) if isinstance(value, (int, float, str, type(None))) else f"another {type(value).__name__}"
    )


def _file_lines(first: Checkpoint, second: Checkpoint) -> List[str]:
    """Return a line for each other file that only one of them has, or whose content differs."""
    hashes: List[Dict[str, str]] = [_other_files(first), _other_files(second)]
    names: List[Tuple[str, str, str]] = [
        (name, hashes[0].get(name, ""), hashes[1].get(name, "")) for name in sorted({*hashes[0], *hashes[1]})
    ]
    return [
        f"{name}: {'its content differs' if one and other else 'only one of them has it'}"
        for name, one, other in names
        if one != other
    ]


def _other_files(checkpoint: Checkpoint) -> Dict[str, str]:
    return {
        name: entry["sha256"]
        for name, entry in checkpoint.files.items()
        if name != STATE and not name.endswith(".safetensors")
    }
