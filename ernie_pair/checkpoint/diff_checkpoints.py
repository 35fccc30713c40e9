"""Compare two checkpoints: their arrays, their state, their other files."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Dict, List, Tuple

import numpy as np

from data_tools.base.errors import InputError
from data_tools.base.options import Options, option
from ernie_pair.checkpoint.checkpoint_folder import MANIFEST, STATE, Checkpoint
from ernie_pair.checkpoint.show_checkpoint import OPTIMIZER, arrays_of
from ernie_pair.weights.bf16 import BFLOAT16, bfloat16_to_float32
from ernie_pair.weights.weight_files import Arrays

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
