"""The machine of a check, and texts without what is private on it.

python -m ernie_pair.checks.gpu.machine gpu: what Paddle knows of it, as JSON.
"""

import contextlib
import getpass
import json
import os
import platform
import re
import socket
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict, List, Tuple

from ernie_pair.core.installation import version_of
from ernie_pair.runtime.cpu_env import cpu_threads
from ernie_pair.runtime.gpu.builds import Capability, words_of
from ernie_pair.version import __version__

FOLDER, SHORTEST_NAME = "<folder>", 3  # characters: a shorter one is part of ordinary words
# A path whose last part, a file name, may stay: below a known folder that was replaced, or
# absolute and of two or more parts.
_PART = r"[^\s/:;,'\"()\[\]]"
_BELOW = re.compile(rf"{FOLDER}(?:/{_PART}+)*/({_PART}*)")
_PATH = re.compile(rf"(?<![\w.>/])~?(?:/{_PART}+)+/({_PART}*)")
# Of a network or an email; ==11.11.3.6 is a version.
_ADDRESS = re.compile(r"(?<!==)\b\d{1,3}(?:\.\d{1,3}){3}\b(?::\d+)?|\b[\w.+-]+@[\w-]+\.[\w.]+")


def hide_private(text: str) -> str:
    """Return ``text`` without names of folders, of the user and of the host, and without addresses."""
    places = {str(Path.home()), os.getcwd(), sys.prefix, tempfile.gettempdir()}
    places.add(str(Path(__file__).resolve().parents[3]))
    host = socket.gethostname()
    names = {host: "<host>", host.partition(".")[0]: "<host>"}
    with contextlib.suppress(KeyError, OSError):  # a container may have no user
        names[getpass.getuser()] = "<user>"
    private = {place: FOLDER for place in places if len(place) > 1}
    private.update({name: shown for name, shown in names.items() if len(name) >= SHORTEST_NAME})
    for words in sorted(private, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(words)}(?!\w)", private[words], text)
    for path in (_BELOW, _PATH):
        text = path.sub(r".../\1", text)
    return _ADDRESS.sub("<address>", text)


DRIVER = Path("/proc/driver/nvidia/version")
CPU_INFO, MEMORY = Path("/proc/cpuinfo"), Path("/proc/meminfo")
SHOWN = ("paddlepaddle", "paddlepaddle-gpu", "paddlenlp", "numpy", "onnxruntime", "onnxruntime-gpu")


@dataclass(frozen=True)
class Gpu:
    """A GPU that Paddle sees: its name, compute capability, and memory in GB."""

    name: str
    capability: Capability
    memory_gb: float


@dataclass(frozen=True)
class Machine:
    """The facts of a machine; ``gpus`` are those that Paddle sees, none if the check is for the CPU."""

    gpus: Tuple[Gpu, ...]
    driver: str
    cuda: str  # that Paddle was built with, or ''
    cudnn: str
    processor: str
    cores: int
    memory_gb: float
    system: str
    python: str
    versions: Dict[str, str]
    why_no_gpu: str = ""  # Paddle's reason if it sees none

    @property
    def words(self) -> str:
        """Return the machine in one line."""
        gpus = [f"{gpu.name} ({words_of(gpu.capability)}, {gpu.memory_gb:.0f} GB)" for gpu in self.gpus]
        driver = f", driver {self.driver}" if self.driver else ""
        cuda = f"Paddle for CUDA {self.cuda}" if self.cuda else "Paddle for CPUs"
        shown = f"{', '.join(gpus)}{driver}" if gpus else "no GPU"
        return f"{shown}; {self.cores} cores of {self.processor}, {self.memory_gb:.0f} GB; {cuda}"

    def facts(self) -> Dict[str, Any]:
        """Return the part of the report about it."""
        return {**asdict(self), "words": self.words}


def machine_of(facts: Dict[str, Any]) -> Machine:
    """Return the machine of the ``facts`` that Paddle's process printed."""
    gpus = tuple(Gpu(gpu["name"], tuple(gpu["capability"]), gpu["memory_gb"]) for gpu in facts["gpus"])
    versions = {"ernie-pair": __version__, **{name: version_of(name) for name in SHOWN if version_of(name)}}
    bare = {
        "driver": _search(DRIVER, r"Kernel Module(?: for \S+)?\s+(\d[\d.]*)"),
        "processor": _search(CPU_INFO, r"model name\s*:\s*(.+)") or platform.machine(),
        "cores": cpu_threads(),
        "memory_gb": round(int(_search(MEMORY, r"MemTotal:\s*(\d+) kB") or 0) / 1e6, 1),
        "system": " ".join([platform.system(), platform.machine(), *platform.libc_ver()]),
        "python": platform.python_version(),
        "versions": versions,
    }
    return Machine(**{**bare, **facts, "gpus": gpus})


def machine_without_paddle(reason: str) -> Machine:
    """Return the machine as far as it is known without Paddle, which cannot be queried for ``reason``."""
    return machine_of({"gpus": [], "cuda": "", "cudnn": "", "why_no_gpu": reason})


def ask_paddle(device: str) -> Dict[str, Any]:
    """Return what Paddle knows, as JSON content: the GPUs, and what it was built for."""
    import paddle

    is_cuda = paddle.is_compiled_with_cuda()
    gpus: List[Dict[str, Any]] = []
    reason = "" if device == "cpu" else "Paddle sees no GPU" if is_cuda else "this Paddle is the CPU build"
    try:
        for number in range(paddle.device.cuda.device_count() if device == "gpu" and is_cuda else 0):
            of = paddle.device.cuda.get_device_properties(number)
            memory = round(of.total_memory / 1e9, 1)
            gpus.append({"name": of.name, "capability": [of.major, of.minor], "memory_gb": memory})
    except (RuntimeError, OSError, ValueError) as error:  # an unsuitable driver, a lost GPU
        gpus, reason = [], (str(error).strip().splitlines() or ["no reason was given"])[-1][:200]
    return {
        "gpus": gpus,
        "cuda": str(paddle.version.cuda()) if is_cuda else "",
        "cudnn": str(paddle.version.cudnn()) if is_cuda else "",
        "why_no_gpu": "" if gpus else reason,
    }


def _search(path: Path, pattern: str) -> str:
    try:
        match = re.search(pattern, path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""
    return match[1].strip() if match else ""


if __name__ == "__main__":
    os.environ.setdefault("GLOG_minloglevel", "2")
    print("\n" + json.dumps(ask_paddle(sys.argv[1])))
