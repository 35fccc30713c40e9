"""Processes of another Python, with its transformers and sentence-transformers, beside this package."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterable, Mapping, Optional, Sequence, Tuple

import numpy as np

from ernie_pair.core.errors import InputError

SCRIPTS = Path(__file__).resolve().parents[1]
ENVIRONMENT = SCRIPTS.parent / ".venv"  # of scripts/environment.sh
PYTHON, MODEL = "ERNIE_PAIR_NEWEST_PEER", "ERNIE_PAIR_MINILM"
CLIENTS = "ERNIE_PAIR_CLIENTS"
NO_NETWORK = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}
LIBRARIES = ("torch", "transformers")
OF_TRAINER = (*LIBRARIES, "accelerate")
# What this package sets for Paddle, see `ernie_pair.runtime.cpu`: torch has its own settings.
OF_PADDLE = ("MKL_CBWR", "MKL_DEBUG_CPU_TYPE", "KMP_BLOCKTIME", "GLOG_minloglevel")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS", "OPENBLAS_NUM_THREADS")
PATH_OF_PEER = {"PYTHONPATH": str(SCRIPTS)}  # of all that this Python imports, only the scripts


class LibraryError(Exception):
    """What the other library raised, as `Type: message`."""


def newest_python(variable: str = PYTHON, name: str = "newest-peer") -> Optional[Path]:
    """Return the Python with the newest libraries that scripts/test_peer.sh made; None: there is none."""
    python = Path(os.environ.get(variable) or ENVIRONMENT / name / "bin" / "python")
    return python if python.exists() else None


def clients_python() -> Optional[Path]:
    """Return that with this package's libraries and the clients of databases and services; None: none."""
    return newest_python(CLIENTS, "clients")


def minilm_folder() -> Optional[Path]:
    """Return the folder of all-MiniLM-L6-v2 that scripts/test_peer.sh fetched; None: there is none."""
    folder = Path(os.environ.get(MODEL) or ENVIRONMENT / "peer-models" / "minilm")
    return folder if (folder / "modules.json").is_file() else None


def environment_of_peer(threads: int) -> Dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name not in OF_PADDLE}
    return {**own, **PATH_OF_PEER, **dict.fromkeys(THREADS, str(threads))}


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1][-300:]


def open_peer(python: str, libraries: Sequence[str] = LIBRARIES) -> Tuple[str, bool]:
    """Return the versions of the ``libraries`` there, and whether torch sees a GPU. Raises InputError."""
    names = ", ".join(libraries)
    program = f"import {names}\nprint(*(each.__version__ for each in ({names})), torch.cuda.is_available())"
    environment = {**os.environ, **PATH_OF_PEER}
    try:
        done = subprocess.run([python, "-c", program], capture_output=True, text=True, env=environment)
    except OSError as error:
        raise InputError(f"--peer_python {python}: {error.strerror}; give a Python") from None
    if done.returncode:
        wanted = " and ".join([", ".join(libraries[:-1]), libraries[-1]])
        reason = last_line(done.stderr)
        raise InputError(f"--peer_python {python}: {reason}; install {wanted} in its environment")
    *versions, has_cuda = done.stdout.split()[-len(libraries) - 1 :]
    return ", ".join(map(" ".join, zip(libraries, versions))), has_cuda == "True"


class LineProcess(contextlib.AbstractContextManager):
    """A process that answers on stdout, a JSON object a line; ``name`` is what an error calls it.

    ``cores``: those that it may run on; empty: all. ``patience``: the seconds that it has to end by itself.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        cores: Iterable[int] = (),
        patience: float = 0,
    ):
        self.name, self._patience, allowed = name, patience, set(cores) or os.sched_getaffinity(0)
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            encoding="utf-8", env={**os.environ, **environment},
            preexec_fn=lambda: os.sched_setaffinity(0, allowed),
        )  # fmt: skip

    def send(self, line: str) -> None:
        """Send a line; to one that has ended, nothing: `read` says so."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def read(self) -> Dict[str, Any]:
        """Return its next answer. Raises InputError, with its last words, if it has ended."""
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._log.seek(0)
            raise InputError(f"{self.name} ended with code {code}: {last_line(self._log.read())}")
        return json.loads(line)

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=self._patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def __exit__(self, *_: Any) -> None:
        self.close()


class Peer(LineProcess):
    """A started process of `other_libraries.lane`; close it, or use it as a context.

    ``python``: with the libraries; None: this one, with what scripts/test_peer.sh puts beside its packages.
    ``versions``: {library: version}.
    """

    def __init__(self, python: Optional[Path] = None):
        self.python = python or Path(sys.executable)
        beside = [os.environ.get("PYTHONPATH", ""), str(ENVIRONMENT / "peer")] if python is None else []
        path = os.pathsep.join(filter(None, [str(SCRIPTS), *beside]))
        command = [str(self.python), "-m", "other_libraries.lane"]
        super().__init__("the peer", command, {**NO_NETWORK, "PYTHONPATH": path})
        self._files = tempfile.TemporaryDirectory(prefix="peer-")
        self.versions: Dict[str, str] = self.ask("versions")[0]

    def ask(self, do: str, **settings: Any) -> Tuple[Any, Dict[str, np.ndarray]]:
        """Return the result and the arrays of a request of `other_libraries.lane`. Raises LibraryError."""
        out = Path(self._files.name) / "out.npz"
        self.send(json.dumps({"do": do, "out": str(out), **settings}, default=str))
        answer = self.read()
        if "error" in answer:
            raise LibraryError(f"{answer['error']}\n{answer['where']}")
        with np.load(out) as arrays:
            return answer["result"], dict(arrays)

    def make(self, folder: Path, family: str, **settings: Any) -> Path:
        self.ask("make", folder=folder, family=family, **settings)
        return folder

    def make_sentence(self, folder: Path, encoder: Path, modules: Any, **settings: Any) -> Path:
        self.ask("make_sentence", folder=folder, encoder=encoder, modules=modules, **settings)
        return folder

    def rows(self, folder: Path, texts: Any, pairs: Any = None, **settings: Any) -> Any:
        _, arrays = self.ask("token_ids", folder=folder, texts=list(texts), pairs=pairs, **settings)
        return np.split(arrays["ids"], np.cumsum(arrays["lengths"])[:-1])

    def close(self) -> None:
        super().close()
        self._files.cleanup()
