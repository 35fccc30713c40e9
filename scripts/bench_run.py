"""Start a training run for a benchmark, from its flags, in separate processes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

from data_tools.files.errors import InputError, counted
from ernie_pair.checks.quickstart import words_of
from ernie_pair.runtime.gpu.cards import count_cards

SCRIPTS = Path(__file__).resolve().parent


def train_events(
    script: str, flags: Dict[str, Any], processes: int = 0, threads: int = 0
) -> List[Dict[str, Any]]:
    """Run the program ``script`` of this folder and return its training lines without that of the warm-up.

    A launcher starts ``processes``, of ``threads`` each; 0: without a launcher. What an earlier run left in
    --output_dir is deleted. Raises InputError, with its last line of stderr, if the run fails.
    """
    output = Path(flags["output_dir"])
    shutil.rmtree(output, ignore_errors=True)
    launcher = _words_of_launcher(flags["device"], processes, output) if processes else []
    done = subprocess.run(
        [sys.executable, *launcher, str(SCRIPTS / script), *words_of(**flags)],
        env={**os.environ, **({"OMP_NUM_THREADS": str(threads)} if threads else {})},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        of = f" of {counted(processes, 'process', 'processes')}" if processes else ""
        raise InputError(f"a run{of} ended with code {done.returncode}: {last}")
    lines = (output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [event for event in map(json.loads, lines) if event["split"] == "train"][1:]


def _words_of_launcher(device: str, processes: int, output: Path) -> List[str]:
    """Return the launcher and its flags: how many processes, or a GPU for each. Raises InputError."""
    launcher = ["-m", "ernie_pair.launcher", "--log_dir", f"{output}_log"]
    if device == "cpu":
        return [*launcher, "--nproc_per_node", str(processes)]
    if processes > count_cards():
        raise InputError(f"{processes} processes need {processes} GPUs, and {count_cards()} are visible")
    return [*launcher, "--gpus", ",".join(map(str, range(processes)))]
