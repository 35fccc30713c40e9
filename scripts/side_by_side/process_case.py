"""Several processes of one thread against one process of as many: whole runs in turn, equal steps."""

import json
import os
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path
from statistics import median
from typing import List

from bench_table import words_of, words_of_launcher, write_model

from data_tools.base.errors import InputError
from side_by_side.flags import SideBySideFlags
from side_by_side.lanes import Lane, Measured, Turn
from side_by_side.pair_case import PairShape, write_pairs
from side_by_side.starting import SCRIPTS

STEPS_PER_LINE, LINES = 5, 4  # of a run; the first line is that of the warm-up


def measure_processes(
    flags: SideBySideFlags, shape: PairShape, processes: int, folder: Path, pair_file: str, vocab_file: str
) -> List[Measured]:
    """Return what the runs of both kinds took, turn by turn."""
    model = write_model(folder / "model", vocab_file, "ernie_gram", shape.hidden, shape.layers)
    steps = STEPS_PER_LINE * LINES
    write_pairs(folder, pair_file, shape, rows=steps * shape.batch_size)
    settings = {
        "model_name_or_path": str(model),
        "from_scratch": True,
        "train_file": str(folder / "train.tsv"),
        "dev_file": str(folder / "dev.tsv"),
        "cache_dir": str(folder / "cache"),
        "output_dir": str(folder / "run"),
        "max_seq_len": shape.max_seq_len,
        "max_steps": steps,
        "logging_freq": STEPS_PER_LINE,
        "eval_freq": 10**6,
        "checkpoint_steps": 10**6,
        "device": flags.device,
    }
    names = {1: "1 process", processes: f"{processes} processes"}
    measured = {count: Measured(Lane(name, "ours", "fp32", ())) for count, name in names.items()}
    for _ in range(flags.rounds):
        for count, each in measured.items():
            given = {**settings, "batch_size": shape.batch_size // count}
            each.turns.append(_run(given, count, processes // count, shape.batch_size))
    return list(measured.values())


def _run(flags: dict, processes: int, threads: int, batch_size: int) -> Turn:
    output = Path(flags["output_dir"])
    shutil.rmtree(output, ignore_errors=True)
    of_processes = words_of_launcher(flags["device"], processes)
    launch = ["-m", "ernie_pair.launcher", *of_processes, "--log_dir", f"{output}_log"]
    done = subprocess.run(
        [sys.executable, *launch, str(SCRIPTS / "train_pair.py"), *words_of(flags)],
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise InputError(f"a run of {processes} process(es) ended with code {done.returncode}: {last}")
    lines = (output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    events = [event for event in map(json.loads, lines) if event["split"] == "train"]
    speeds = [event["samples_per_second"] for event in islice(events, 1, None)]
    return Turn(batch_size / median(speeds), None, events[-1]["memory_gb"], {})
