"""Several processes of one thread against one process of as many threads: whole runs in turn, equal steps."""

from pathlib import Path
from statistics import median
from typing import Any, Dict, List

from bench_run import train_events
from bench_table import write_model

from side_by_side.flags import SideBySideFlags
from side_by_side.lanes import Lane, Measured, Turn
from side_by_side.pair_case import PairShape, pair_settings, write_pairs

STEPS_PER_LINE, LINES = 5, 4  # of a run; the first line is that of the warm-up


def measure_processes(
    flags: SideBySideFlags, shape: PairShape, processes: int, folder: Path, pair_file: str, vocab_file: str
) -> List[Measured]:
    """Return the times of the runs of both kinds, turn by turn."""
    write_model(folder / "model", vocab_file, "ernie_gram", shape.hidden, shape.layers)
    steps = STEPS_PER_LINE * LINES
    write_pairs(folder, pair_file, shape, rows=steps * shape.batch_size)
    settings = pair_settings(folder, shape, flags.device, steps, STEPS_PER_LINE)
    settings["output_dir"] = str(folder / "run")
    names = {1: "1 process", processes: f"{processes} processes"}
    measured = {count: Measured(Lane(name, "ours", "fp32", ())) for count, name in names.items()}
    for _ in range(flags.rounds):
        for count, each in measured.items():
            given = {**settings, "batch_size": shape.batch_size // count}
            each.turns.append(_run(given, count, processes // count, shape.batch_size))
    return list(measured.values())


def _run(flags: Dict[str, Any], processes: int, threads: int, batch_size: int) -> Turn:
    events = train_events("train_pair.py", flags, processes, threads)
    speed = median(event["samples_per_second"] for event in events)
    return Turn(batch_size / speed, None, events[-1]["memory_gb"], {})
