"""A process of another Python that says what its transformers and sentence-transformers compute."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

import numpy as np

SCRIPTS = Path(__file__).resolve().parents[1]
ENVIRONMENT = SCRIPTS.parent / ".venv"  # of scripts/environment.sh
PYTHON, MODEL = "ERNIE_PAIR_NEWEST_PEER", "ERNIE_PAIR_MINILM"
NO_NETWORK = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}


class LibraryError(Exception):
    """What the other library raised, as `Type: message`."""


def newest_python() -> Optional[Path]:
    """Return the Python with the newest libraries that scripts/test_peer.sh made; None: there is none."""
    python = Path(os.environ.get(PYTHON) or ENVIRONMENT / "newest-peer" / "bin" / "python")
    return python if python.exists() else None


def minilm_folder() -> Optional[Path]:
    """Return the folder of all-MiniLM-L6-v2 that scripts/test_peer.sh fetched; None: there is none."""
    folder = Path(os.environ.get(MODEL) or ENVIRONMENT / "peer-models" / "minilm")
    return folder if (folder / "modules.json").is_file() else None


class Peer:
    """A started process of `other_libraries.lane`; close it, or use it as a context.

    ``python``: with the libraries; None: this one, with what scripts/test_peer.sh puts beside its packages.
    ``versions``: {library: version}.
    """

    def __init__(self, python: Optional[Path] = None):
        self.python = python or Path(sys.executable)
        self._files = tempfile.TemporaryDirectory(prefix="peer-")
        beside = [os.environ.get("PYTHONPATH", ""), str(ENVIRONMENT / "peer")] if python is None else []
        path = os.pathsep.join(filter(None, [str(SCRIPTS), *beside]))
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [str(self.python), "-m", "other_libraries.lane"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            encoding="utf-8",
            env={**os.environ, **NO_NETWORK, "PYTHONPATH": path},
        )
        self.versions: Dict[str, str] = self.ask("versions")[0]

    def ask(self, do: str, **settings: Any) -> Tuple[Any, Dict[str, np.ndarray]]:
        """Return the result and the arrays of a request of `other_libraries.lane`. Raises LibraryError."""
        out = Path(self._files.name) / "out.npz"
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(json.dumps({"do": do, "out": str(out), **settings}, default=str) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._log.seek(0)
            raise LibraryError(f"the peer has ended: {self._log.read()[-2000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise LibraryError(f"{answer['error']}\n{answer['where']}")
        with np.load(out) as arrays:
            return answer["result"], dict(arrays)

    def make(self, folder: Path, family: str, **settings: Any) -> Path:
        """Write a tiny model and return its folder; see `other_libraries.tiny_models.make_model`."""
        self.ask("make", folder=folder, family=family, **settings)
        return folder

    def make_sentence(self, folder: Path, encoder: Path, modules: Any, **settings: Any) -> Path:
        """Write a tiny folder of sentence-transformers, and return it; see `other_libraries.tiny_models`."""
        self.ask("make_sentence", folder=folder, encoder=encoder, modules=modules, **settings)
        return folder

    def rows(self, folder: Path, texts: Any, pairs: Any = None, **settings: Any) -> Any:
        """Return the ids of texts or pairs by the folder's own tokenizer: an int32 array for each."""
        _, said = self.ask("token_ids", folder=folder, texts=list(texts), pairs=pairs, **settings)
        return np.split(said["ids"], np.cumsum(said["lengths"])[:-1])

    def close(self) -> None:
        """End the process at once: leaving torch in order takes seconds."""
        self._process.kill()
        self._process.communicate()
        self._log.close()
        self._files.cleanup()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
