"""What `ernie-pair --version` prints; nothing of it is imported."""

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Optional

from ernie_pair.device.paddle_version import paddle_version
from ernie_pair.version import __version__


def versions() -> str:
    """Return a line for the package, Paddle, PaddleNLP and Python, each with its version."""
    facts = {
        "ernie-pair": __version__,
        "paddle": paddle_version() or None,
        "paddlenlp": _installed("paddlenlp"),
        "python": platform.python_version(),
    }
    return "\n".join(f"{name} {found or 'is not installed'}" for name, found in facts.items())


def _installed(distribution: str) -> Optional[str]:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
