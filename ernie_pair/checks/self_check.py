"""Check the installation: the findings of doctor, and a tiny run of the main steps in a temporary folder."""

import re
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Literal, Optional

from ernie_pair.checks.line import NEEDS
from ernie_pair.checks.quickstart import SmallLine
from ernie_pair.core.cli.options import Options, devices_option
from ernie_pair.core.errors import ErniePairError, message_of
from ernie_pair.runtime.device import default_device
from ernie_pair.runtime.processes.child_command import ChildCommand, Words
from ernie_pair.runtime.processes.stop_signals import StopSignals

TINY: Dict[str, Any] = {"documents": 60, "pairs": 90, "steps": 4, "epochs": 1, "seed": 1}
_PLACE = re.compile(r" \([^()]*; see [^()]*\)$")  # of the log, which is gone when this ends


@dataclass(frozen=True)
class CheckConfig(Options):
    """Check the installation: doctor, then text, corpus, pretraining, conversion, pairs and predictions."""

    EXAMPLE = "--device cpu"
    NEEDS = NEEDS

    device: Literal["cpu", "gpu"] = devices_option(default_device(), help="where to run", affects="speed")


def check(config: CheckConfig) -> None:
    """Print a line for each part: OK or its error. Raises the first of these errors at the end.

    What follows a part that failed needs it, and is not run; doctor's findings hold nothing up.
    """
    with tempfile.TemporaryDirectory(prefix="ernie-pair-check-") as folder, StopSignals():
        line = SmallLine(Path(folder), config.device, **TINY)
        doctor = ["doctor", f"--output_dir={folder}"]
        commands = [line.sample(), *line.corpus(), line.small(), line.pretrained(), line.convert()]
        commands.append(line.trained("dynamic", "pair"))
        parts: List[Callable[[], Words]] = [partial(list, words) for words in (doctor, *commands)]
        parts.append(lambda: line.predict("pair"))  # which best model there is, training decides
        names = [*(words[words[0] == "launch"] for words in (doctor, *commands)), "predict"]
        failed = None
        for number, (name, words) in enumerate(zip(names, parts), start=1):
            error = _try(name, words, Path(folder) / "log")
            failed = failed or error
            if error is not None and number > 1:
                _say("not run", ", ".join(names[number:]) or "nothing else")
                break
    if failed is not None:
        raise failed
    _say("PASSED", f"all {len(parts)} steps")


def _try(name: str, words: Callable[[], Words], log: Path) -> Optional[ErniePairError]:
    """Run a command, print its line, and return its error; the lines on defects are doctor's to show."""
    started, before = time.monotonic(), log.stat().st_size if log.is_file() else 0
    try:
        with ChildCommand(words(), name, log) as child:
            child.finish()
    except ErniePairError as error:
        message = _PLACE.sub("", message_of(error))
        _say("FAILED", f"{name}: {message}")
        lines = log.read_bytes()[before:].decode("utf-8", errors="replace").splitlines()
        shown = [line for line in lines if line.startswith("DEFECT")]
        if "Traceback (most recent call last):" in lines:
            shown += lines[-3:]
        for line in shown:
            _say("", line)
        return type(error)(f"{name}: {message}")
    _say("OK", f"{name} ({time.monotonic() - started:.1f} s)")
    return None


def _say(verdict: str, what: str) -> None:
    print(f"{verdict:<8} {what}", flush=True)
