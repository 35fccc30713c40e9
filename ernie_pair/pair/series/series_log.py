"""What a series shows in TensorBoard, W&B or MLflow beside its runs: a run of its own, a point for each."""

import math
from pathlib import Path
from typing import Any, Dict, Iterable, Sequence, Tuple

from ernie_pair.checkpoint.run_note import run_id_of
from ernie_pair.engine.reporters import open_reporters

Point = Tuple[int, Dict[str, float]]


def report_series(
    names: Sequence[str], output_dir: Path, flags: Dict[str, Any], points: Iterable[Point]
) -> None:
    """Show ``flags`` and ``points``, (step, values by their names), by the reporters ``names``.

    Called once all runs of this start have ended: W&B has one run open at a time. Values that are not finite
    are left out.
    """
    if not names:
        return
    reporters = open_reporters(names, output_dir, run_id_of(output_dir))
    for reporter in reporters:
        reporter.configuration(flags)
    for step, values in points:
        shown = {name: value for name, value in values.items() if math.isfinite(value)}
        for reporter in reporters:
            reporter.scalars(shown, step)
    for reporter in reporters:
        reporter.close()
