"""What a run shows: metrics.jsonl, VisualDL under vdl/, the console. The caller never asks the rank.

metrics.jsonl holds one object per logged event with floats in full precision. It is the truth:
after a resume it is cut back to the step that was saved, and the VisualDL curves are drawn again
from it, so that no step stands twice.
"""

import json
import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Dict, List

from tqdm import tqdm

from ernie_pair.loop import TrainState
from ernie_pair.world import World

EVENTS = "metrics.jsonl"
NOT_CURVES = ("split", "step", "consumed_samples")

logger = logging.getLogger("ernie_pair")


def start_console(world: World) -> None:
    """INFO lines to stderr on the first rank, warnings elsewhere."""
    handler = _AboveTheBar()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO if world.is_first else logging.WARNING)


class _AboveTheBar(logging.Handler):
    """Lets a line stand above the progress bar instead of through it."""

    def emit(self, record):
        tqdm.write(self.format(record), file=sys.stderr)


class RunLog:
    """Scalars of one run, from its resumed step on."""

    def __init__(self, output_dir: Path, resumed_at: int, max_steps: int, tokens_per_sample: int = 0):
        from visualdl import LogWriter  # only the rank that writes needs it

        output_dir.mkdir(parents=True, exist_ok=True)
        self.path, self.tokens_per_sample = output_dir / EVENTS, tokens_per_sample
        kept = _cut_back(self.path, resumed_at)
        shutil.rmtree(output_dir / "vdl", ignore_errors=True)
        self.writer = LogWriter(str(output_dir / "vdl"))
        for event in kept:
            self._draw(event)
        self.file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 - lives as long as the run
        self.bar = tqdm(
            initial=resumed_at, total=max_steps, unit="step", disable=not sys.stderr.isatty(), leave=False
        )
        self.seconds, self.samples = 0.0, 0

    def tick(self, seconds: float, samples: int) -> None:
        """One update of ``samples`` samples has been made; waiting for its data is in ``seconds``."""
        self.bar.update(1)
        self.seconds += seconds
        self.samples += samples

    def scalars(self, split: str, values: Dict[str, float], state: TrainState) -> None:
        """Log one event. Rates are of the time since the last training event."""
        event = {"split": split, "step": state.step, **values, "consumed_samples": state.consumed_samples}
        if split == "train":
            event.update(self._speeds())
        self.file.write(json.dumps(event) + "\n")
        self.file.flush()
        self._draw(event)
        shown = "  ".join(
            f"{name} {_short(value)}" for name, value in event.items() if name not in NOT_CURVES
        )
        logger.info("%-5s step %d/%s  %s", split, state.step, self.bar.total, shown)

    def close(self) -> None:
        self.bar.close()
        self.file.close()
        self.writer.close()  # VisualDL writes late: a run that is not closed may lose its tail

    def _speeds(self) -> Dict[str, float]:
        speed = self.samples / max(self.seconds, 1e-9)
        self.seconds, self.samples = 0.0, 0
        tokens = {"tokens_per_second": speed * self.tokens_per_sample} if self.tokens_per_sample else {}
        return {"samples_per_second": speed, **tokens}

    def _draw(self, event: Dict) -> None:
        for name, value in event.items():
            if name not in NOT_CURVES and isinstance(value, (int, float)):
                self.writer.add_scalar(f"{event['split']}/{name}", value, event["step"])


class NullLog:
    """The log of the ranks that say nothing."""

    def tick(self, seconds: float, samples: int) -> None:
        pass

    def scalars(self, split: str, values: Dict[str, float], state: TrainState) -> None:
        pass

    def close(self) -> None:
        pass


def open_log(output_dir: Path, world: World, **settings):
    """The log of this rank: one that writes on the first, one that is silent elsewhere."""
    return RunLog(output_dir, **settings) if world.is_first else NullLog()


def _cut_back(path: Path, step: int) -> List[Dict]:
    """Drop the events after ``step`` and a last line that a kill cut short."""
    if not path.exists():
        return []
    kept = [
        event for event in map(_event_of, path.read_bytes().split(b"\n")) if event and event["step"] <= step
    ]
    kept = [] if step == 0 else kept  # a run that starts afresh logs its step 0 again
    draft = path.with_suffix(".tmp")
    draft.write_text("".join(json.dumps(event) + "\n" for event in kept), encoding="utf-8")
    os.replace(draft, path)
    return kept


def _event_of(line: bytes):
    try:
        return json.loads(line) if line.strip() else None
    except ValueError:
        return None


def _short(value) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
