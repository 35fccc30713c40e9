"""A wheel of this package for the image: built from the running sources, and checked for its extras."""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from email import message_from_bytes
from importlib.util import find_spec
from pathlib import Path
from typing import List, Set

from data_tools.base.errors import InputError

SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "data_tools", "ernie_pair")
NOT_SOURCES = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
BUILT_WITH = ("setuptools", "wheel", "pybind11")
SECONDS = 900


def build_wheel(folder: Path) -> Path:
    """Build a wheel of the sources of this package into ``folder``, and return its path.

    They are copied first, for a build leaves files among them. Raises InputError when this package was
    installed without its sources, or when the build fails or takes longer than SECONDS.
    """
    root = Path(__file__).parents[3]
    if not (root / "pyproject.toml").is_file():
        raise InputError("this package was installed without its sources; give its wheel with --wheel FILE")
    with tempfile.TemporaryDirectory() as held:
        sources, made = Path(held, "sources"), Path(held, "made")
        sources.mkdir()
        for name in SOURCES:
            if (root / name).is_dir():
                shutil.copytree(root / name, sources / name, ignore=NOT_SOURCES)
            elif (root / name).is_file():
                shutil.copyfile(root / name, sources / name)
        words = [*_pip_wheel(), "--wheel-dir", str(made), str(sources)]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise InputError(
                f"the wheel is not built after {SECONDS} s; give one with --wheel FILE"
            ) from None
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason"])[-1][:200]
            raise InputError(f"the wheel cannot be built ({reason}); give one with --wheel FILE")
        (wheel,) = made.glob("*.whl")
        return Path(shutil.copyfile(wheel, folder / wheel.name))


def _pip_wheel() -> List[str]:
    """Return the command; what a build needs is taken from here where it is, as there may be no network."""
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    return [*words, "--no-build-isolation"] if all(map(find_spec, BUILT_WITH)) else words


def extras_of(wheel: Path) -> Set[str]:
    """Return the extras that a wheel offers. Raises InputError when it is none."""
    try:
        with zipfile.ZipFile(wheel) as packed:
            (name,) = (name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
            metadata = message_from_bytes(packed.read(name))
    except (zipfile.BadZipFile, ValueError):
        raise InputError(f"--wheel {wheel} is not a wheel; build one with pip wheel --no-deps .") from None
    return set(metadata.get_all("Provides-Extra") or [])
