"""Check the GPU in a separate process with a time limit, because CUDA may kill or hang the process.

python -m ernie_pair.runtime.gpu.check_process NAME NUMBER
"""

import json
import os
import signal
import subprocess
import sys
from typing import Any, Callable, Dict, List, NamedTuple

from ernie_pair.core.run_module import python_words
from ernie_pair.runtime.gpu.builds import paddle_capability
from ernie_pair.runtime.gpu.cards import count_cards, why_no_gpu

LONGEST = 300  # characters of the last output of a process


class Finding(NamedTuple):
    """The result of a check: ``faults``, empty when all is well, and ``facts`` to report."""

    faults: List[str]
    facts: Dict[str, Any]


def check_kernels(number: int) -> Finding:
    """Run the kernels of a training step on the GPU ``number``, -1: on the CPU, and compare with numpy."""
    import paddle

    from ernie_pair.runtime.gpu.kernels import compare_kernels
    from ernie_pair.runtime.paddle_patches.core_settings import set_tf32

    capability = None if number < 0 else paddle_capability(number)
    paddle.set_device("cpu" if number < 0 else f"gpu:{number}")
    set_tf32(False)
    results = compare_kernels(capability)
    wrong = [str(result) for result in results if not result.is_right]
    return Finding(wrong, {"errors": {f"{r.kernel} {r.dtype}": r.error for r in results}})


def list_cards(number: int) -> Finding:
    """Return all GPUs that Paddle sees; that there is none is a fault. ``number`` has no effect."""
    from paddle.device import cuda

    cards: List[Dict[str, Any]] = []
    for place in range(count_cards()):
        about = cuda.get_device_properties(place)
        capability, memory = [about.major, about.minor], round(about.total_memory / 1e9, 1)
        cards.append({"name": about.name, "capability": capability, "memory_gb": memory})
    return Finding([] if cards else [why_no_gpu()], {"cards": cards})


CHECKS: Dict[str, Callable[[int], Finding]] = {"kernels": check_kernels, "cards": list_cards}


def run_check(name: str, number: int = 0, seconds: float = 120) -> Finding:
    """Return the finding of CHECKS[name] on the GPU ``number``, from a separate process.

    If it ends without an answer, or takes more than ``seconds``, that is a fault of one line.
    """
    words = [*python_words(), "-m", "ernie_pair.runtime.gpu.check_process", name, str(number)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=seconds)
    except subprocess.TimeoutExpired:
        return Finding([f"{name}: no answer within {seconds:.0f} s"], {})
    try:
        answer = json.loads(done.stdout)
        return Finding(answer["faults"], answer["facts"])
    except (ValueError, KeyError, TypeError):
        code = done.returncode
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    # A library that is not found is the cause; Paddle's own last lines are about the signal.
    of_library = [line for line in said if "cannot open" in line or "ould not load" in line]
    errors = [line for line in said if "rror" in line]
    last = (of_library or errors or said or ["no output"])[-1][:LONGEST]
    return Finding([f"{name}: the process {how}: {last}"], {})


def main() -> None:
    """Run one check, and write its finding to standard output, which nothing else can write to."""
    answer = os.dup(1)
    os.dup2(2, 1)
    finding = CHECKS[sys.argv[1]](int(sys.argv[2]))
    with os.fdopen(answer, "w", encoding="utf-8") as file:
        json.dump(finding._asdict(), file)


if __name__ == "__main__":
    main()
