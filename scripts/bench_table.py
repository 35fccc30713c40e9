"""Shared by the benchmarks of training: a model of random weights, a table."""

import contextlib
import io
import time
from pathlib import Path
from typing import Callable, Iterable, NamedTuple

from ernie_pair.models.commands import NewModelConfig, new_model


class Row(NamedTuple):
    what: str
    figure: str
    goal: str = ""


def deterministic_row(unit: str, device: str, deterministic: float, free: float) -> Row:
    """Return the cost of deterministic kernels on ``device``, from the speeds with and without them."""
    compared = f"{free / deterministic:.2f} times --deterministic true"
    reason = "; a CPU has one kind of kernels" if device == "cpu" else ""
    return Row(f"--deterministic false: {unit}", f"{free:,.0f}", compared + reason)


def print_rows(rows: Iterable[Row]) -> None:
    """Print each row as soon as its figure is known."""
    for row in rows:
        print(f"{row.what:<66}{row.figure:>14}   {row.goal}", flush=True)


def write_model(
    folder: Path, vocab_file: str, model_type: str, hidden_size: int, layers: int, hidden_act: str = "auto"
) -> Path:
    """Write a model of the usual proportions: heads of 64 or 26 numbers, layers four times as wide inside."""
    new_model(
        NewModelConfig(
            vocab_file=vocab_file,
            output_dir=str(folder),
            model_type=model_type,
            hidden_size=hidden_size,
            num_hidden_layers=layers,
            num_attention_heads=hidden_size // (26 if hidden_size % 64 else 64),
            intermediate_size=4 * hidden_size,
            hidden_act=hidden_act,
        )
    )
    return folder


def seconds_of(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    with contextlib.redirect_stderr(io.StringIO()):
        action()
    return time.perf_counter() - started
