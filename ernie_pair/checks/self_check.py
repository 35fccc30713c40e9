"""Check the installation: the findings of doctor, and a tiny run of the main steps in a temporary folder."""

import re
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Literal, Optional, Tuple

from data_tools.files.errors import ErniePairError, message_of
from data_tools.options.options import Options, option
from ernie_pair.checks.quickstart import SmallLine, Words
from ernie_pair.runtime.device import default_device
from ernie_pair.runtime.processes.child_command import ChildCommand
from ernie_pair.runtime.processes.stop_signals import StopSignals

TINY: Dict[str, Any] = {"documents": 60, "pairs": 90, "steps": 4, "epochs": 1, "seed": 1}
_PLACE = re.compile(r" \([^()]*; see [^()]*\)$")  # of the log, which is gone when this ends

MakeWords = Callable[[], Words]


@dataclass(frozen=True)
class CheckConfig(Options):
    """Check the installation: doctor, then text, corpus, pretraining, conversion, pairs and predictions."""

    EXAMPLE = "--device cpu"

    device: Literal["cpu", "gpu"] = option(default_device(), help="where to run", group="devices")


def check(config: CheckConfig) -> None:
    """Print a line for each part: OK or its error. Raises the first of these errors at the end.

    What follows a part that failed needs it, and is not run; doctor's findings hold nothing up.
    """
    with tempfile.TemporaryDirectory(prefix="ernie-pair-check-") as folder, StopSignals():
        log = Path(folder) / "log"
        failed = _try("doctor", lambda: ["doctor", f"--output_dir={folder}"], log)
        for number, (name, words) in enumerate(parts := _parts(Path(folder), config.device)):
            error = _try(name, words, log)
            failed = failed or error
            if error is not None:
                left = ", ".join(name for name, _ in parts[number + 1 :])
                _say("not run", left or "nothing else")
                break
    if failed is not None:
        raise failed
    _say("PASSED", f"all {len(parts) + 1} steps")


def _parts(folder: Path, device: str) -> List[Tuple[str, MakeWords]]:
    """Return the parts in their order, each with what makes the words of its command."""
    line = SmallLine(folder, **TINY, device=device)
    text, vocabulary, ids = line.corpus()
    return [
        ("make-sample", line.sample),
        ("text-to-json", lambda: text),
        ("build-vocab", lambda: vocabulary),
        ("create-corpus", lambda: ids),
        ("new-model", line.new_model),
        ("pretrain", line.pretrain),
        ("convert", line.convert),
        ("train", lambda: line.train("dynamic", "pair")),
        ("predict", lambda: line.predict("pair")),
    ]


def _try(name: str, words: MakeWords, log: Path) -> Optional[ErniePairError]:
    """Run a command and print its line. Returns its error; what it was told of is doctor's to show."""
    started, before = time.monotonic(), log.stat().st_size if log.is_file() else 0
    try:
        with ChildCommand(words(), name, log) as child:
            child.finish()
    except ErniePairError as error:
        message = _PLACE.sub("", message_of(error))
        _say("FAILED", f"{name}: {message}")
        for defect in _defects(log, before):
            _say("", defect)
        return type(error)(f"{name}: {message}")
    _say("OK", f"{name} ({time.monotonic() - started:.1f} s)")
    return None


def _defects(log: Path, first_byte: int) -> Iterator[str]:
    """Yield what a command said of defects, or the last lines of a traceback."""
    said = log.read_bytes()[first_byte:].decode("utf-8", errors="replace").splitlines()
    yield from (line for line in said if line.startswith("DEFECT"))
    if "Traceback (most recent call last):" in said:
        yield from said[-3:]


def _say(verdict: str, what: str) -> None:
    sys.stdout.write(f"{verdict:<8} {what}\n")
    sys.stdout.flush()
