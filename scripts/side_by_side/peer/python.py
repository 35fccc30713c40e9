"""The peer's Python: whether it has the libraries, and how it is started."""

import os
import subprocess
from pathlib import Path
from typing import Dict, NamedTuple, Sequence

from data_tools.files.errors import InputError

SCRIPTS = Path(__file__).resolve().parents[2]
LIBRARIES = ("torch", "transformers")
OF_TRAINER = (*LIBRARIES, "accelerate")
# What this package sets for Paddle, see `ernie_pair.runtime.cpu_env`: torch has its own settings.
OF_PADDLE = ("MKL_CBWR", "MKL_DEBUG_CPU_TYPE", "KMP_BLOCKTIME", "GLOG_minloglevel")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Peer(NamedTuple):
    """What a Python of the peer has: {library: its version}, and whether its torch sees a GPU."""

    versions: Dict[str, str]
    sees_gpu: bool

    def describe(self) -> str:
        """Return the libraries with their versions, in words."""
        return ", ".join(f"{name} {version}" for name, version in self.versions.items())


def path_of_peer() -> Dict[str, str]:
    """Return the PYTHONPATH of the peer's Python: of all that this one imports, only the scripts."""
    return {"PYTHONPATH": str(SCRIPTS)}


def environment_of_peer(threads: int) -> Dict[str, str]:
    """Return the environment of a process of the peer that computes with ``threads``."""
    own = {name: value for name, value in os.environ.items() if name not in OF_PADDLE}
    return {**own, **path_of_peer(), **dict.fromkeys(THREADS, str(threads))}


def open_peer(python: str, libraries: Sequence[str] = LIBRARIES) -> Peer:
    """Return what the peer's ``python`` has. Raises InputError if it does not run, or lacks a library."""
    names = ", ".join(libraries)
    program = f"import {names}\nprint(*(each.__version__ for each in ({names})), torch.cuda.is_available())"
    try:
        done = subprocess.run(
            [python, "-c", program], capture_output=True, text=True, env={**os.environ, **path_of_peer()}
        )
    except OSError as error:
        raise InputError(f"--peer_python {python}: {error.strerror}; give a Python") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1][:200]
        wanted = " and ".join([", ".join(libraries[:-1]), libraries[-1]])
        raise InputError(f"--peer_python {python}: {last}; install {wanted} in its environment")
    *versions, has_cuda = done.stdout.split()[-len(libraries) - 1 :]
    return Peer(dict(zip(libraries, versions)), has_cuda == "True")
