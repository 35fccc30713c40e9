"""How to install an optional extra of this package, from its source folder, a wheel or an index.

No index is known to have the package, so its name alone installs nothing. PyPI has no GPU build of Paddle
3.3: which of Paddle's own indexes has the one for this machine is found by the standard library alone,
because scripts ask it before anything is installed.
"""

import json
import os
import shlex
import signal
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Dict, Iterator, List, Mapping, Optional, Set, Tuple
from urllib.parse import urlsplit

from ernie_pair.core.errors import InputError

# Every command imports this module. `packaging` and `urllib.request`, a sixth of the time of --help, are
# imported where they are used.
if TYPE_CHECKING:
    from packaging.requirements import Requirement

NAME = "ernie-pair"
CPU_BUILD, GPU_BUILD = "paddlepaddle", "paddlepaddle-gpu"
PADDLES = (CPU_BUILD, GPU_BUILD)
PADDLE_RANGE = "3.3"  # the releases of Paddle that this package is tested with
# PaddleNLP's own requirements hold back what it works with, so it is installed without them; what it imports
# is in [train].
PADDLENLP, PADDLENLP_VERSION = "paddlenlp", "2.8.1"
PADDLENLP_COMMAND = f"pip install --no-deps {PADDLENLP}=={PADDLENLP_VERSION}"
WITHOUT_PADDLENLP = ("cpu", "gpu", "train")  # the extras that do not install it
PREDICTS = "predict"  # the extra that only runs exported models
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MAX_COMMAND = 300  # characters: an error line would cut a longer one
_HERE = Path(__file__).resolve().parents[2]


def install_command(extra: str) -> str:
    """Return the command that installs ``extra`` for this installation of the package.

    It names the source folder if the package runs from one, or the wheel or folder that it was installed from
    if that still exists, otherwise the missing requirements. PaddleNLP is a step of its own where it lacks.
    """
    lacks = extra in WITHOUT_PADDLENLP and not version_of(PADDLENLP)
    then = f" && {PADDLENLP_COMMAND}" if lacks else ""
    pip = _pip_for(extra)
    is_source = (_HERE / "pyproject.toml").is_file()
    origin = _folder(_HERE, extra, "-e ") if is_source else _recorded_origin(extra)
    if origin:
        return f"{pip} {origin}{then}"
    missing = " ".join(shlex.quote(requirement) for requirement in missing_requirements(extra))
    if 0 < len(missing) <= MAX_COMMAND:
        return f"{pip} {missing}{then}"
    return f"{pip} 'PATH/ernie_pair-*.whl[{extra}]', the wheel that this was installed from{then}"


def _pip_for(extra: str) -> str:
    """Return how the command begins: both builds of Paddle share a folder, and the GPU's has an index."""
    if extra != "gpu" or version_of(GPU_BUILD):
        return "pip install"
    without = f"pip uninstall -y {CPU_BUILD} && " if version_of(CPU_BUILD) else ""
    return f"{without}pip install --extra-index-url {paddle_index()}"


def missing_requirements(extra: str) -> List[str]:
    """Return the requirements of ``extra`` that are not met, as pip takes them; none without metadata."""
    return [
        f"{requirement.name}{requirement.specifier}"
        for requirement in requirements_of(extra)
        if not is_met(requirement)
    ]


def requirements_of(*extras: str) -> List["Requirement"]:
    """Return what ``extras`` and those that they name require; '' is the base. None without metadata.

    Each library is there once, with the bounds of all.
    """
    found: Dict[str, Requirement] = {}
    for extra in extras:
        for requirement in _requirements(extra, set()):
            found.setdefault(requirement.name, requirement).specifier &= requirement.specifier
    return list(found.values())


def missing_of_stack(extra: str) -> List[str]:
    """Return what `missing_requirements` does, and PaddleNLP where ``extra`` does not require it."""
    lacks = extra in WITHOUT_PADDLENLP and version_of(PADDLENLP) != PADDLENLP_VERSION
    return missing_requirements(extra) + [f"{PADDLENLP}=={PADDLENLP_VERSION}"] * lacks


def training_extra() -> str:
    """Return the extra that training needs with the installed Paddle; [cpu] when there is none."""
    return "gpu" if version_of(GPU_BUILD) else "cpu"


def _requirements(extra: str, seen: Set[str]) -> Iterator["Requirement"]:
    from packaging.requirements import Requirement

    seen.add(extra)
    try:
        lines = metadata.requires(NAME) or []
    except metadata.PackageNotFoundError:
        return
    for requirement in map(Requirement, lines):
        marker = requirement.marker
        if not (extra == "" if marker is None else marker.evaluate({"extra": extra})):
            continue
        if requirement.name != NAME:
            yield requirement
        for inner in requirement.extras - seen if requirement.name == NAME else ():
            yield from _requirements(inner, seen)


def is_tested_paddle(version: str) -> bool:
    """Return whether this package is tested with this version of Paddle; '' means that there is none."""
    return version.startswith(f"{PADDLE_RANGE}.")


def version_of(package: str) -> str:
    """Return the version of an installed package, '' if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def is_met(requirement: "Requirement") -> bool:
    """Return whether the installed version satisfies a requirement."""
    version = version_of(requirement.name)
    return bool(version) and requirement.specifier.contains(version, prereleases=True)


def _recorded_origin(extra: str) -> str:
    """Return where pip installed the package from, as recorded in direct_url.json, if that still exists."""
    from urllib.request import url2pathname

    try:
        record = json.loads(metadata.distribution(NAME).read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        record = {}
    url, vcs = str(record.get("url", "")), record.get("vcs_info")
    url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else url
    parts = urlsplit(url)
    path = Path(url2pathname(parts.path))
    if parts.scheme not in ("", "file") or (parts.scheme and path.is_file()):
        return shlex.quote(f"{NAME}[{extra}] @ {url}")
    return _folder(path, extra) if parts.scheme and (path / "pyproject.toml").is_file() else ""


def _folder(path: Path, extra: str, how: str = "") -> str:
    shown = "." if path == Path.cwd() else str(path)
    return f"{how}{shlex.quote(f'{shown}[{extra}]')}"


# What training takes, by the names under which the code imports it: an installation that only runs
# exported models has none of it.
OF_TRAINING = frozenset(
    "cloudpickle datasketch matplotlib onnx paddle paddlenlp pandas pyarrow safetensors"
    " scipy sklearn visualdl werkzeug zstandard".split()
)


def import_optional(name: str, extra: str = "") -> ModuleType:
    """Return the module ``name``, of an ``extra`` of its own or of the whole stack. Raises InputError."""
    # A signal would end the import in an error of the library's own, of what is missing: it comes after.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        return import_module(name)
    except ImportError:
        raise _not_installed(name, extra) from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def raise_interrupt(error: ImportError) -> None:
    """Raise the KeyboardInterrupt, or Stopped, that ended an import: an extension makes it a mere cause."""
    cause: Optional[BaseException] = error
    while cause is not None:
        if not isinstance(cause, Exception):
            raise cause from None
        cause = cause.__cause__ or cause.__context__


def check_installed(needs: Mapping[str, str]) -> None:
    """Raise InputError for the first of {module: the extra of its own, or ''} that is not installed.

    None of them is imported.
    """
    for name, extra in needs.items():
        if not is_there(name):
            raise _not_installed(name, extra)


def is_there(name: str) -> bool:
    """Return whether a top-level module is installed; it is not imported."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
    except ValueError:  # a module without a spec stands for it
        return True


# What every command that trains needs, as `Options.NEEDS` says it.
TRAINING = dict.fromkeys(("paddle", *sorted(OF_TRAINING)), "")


def missing_of_training(error: ModuleNotFoundError) -> Optional[InputError]:
    """Return the error for a missing library of training; None for any other module."""
    library = (error.name or "").partition(".")[0]
    return _not_installed(library) if library in OF_TRAINING else None


def extra_here() -> str:
    """Return the extra that this environment is for, [predict] without Paddle and PaddleNLP."""
    return training_extra() if any(map(version_of, (*PADDLES, PADDLENLP))) else PREDICTS


def install_hint(name: str, extra: str = "") -> str:
    """Return the pip line that installs the missing module ``name``, of an ``extra`` of its own or none."""
    package = name.partition(".")[0]
    if package == PADDLENLP and any(map(version_of, PADDLES)):
        return PADDLENLP_COMMAND
    return install_command(extra or (training_extra() if package in OF_TRAINING else extra_here()))


def _not_installed(name: str, extra: str = "") -> InputError:
    return InputError(f"{name.partition('.')[0]} is not installed; {install_hint(name, extra)}")


PADDLE_INDEX = "PADDLE_INDEX"  # names a mirror, or another CUDA
INDEX = "https://www.paddlepaddle.org.cn/packages/stable"
SECONDS = 60.0  # a machine with many cards takes some
# What Paddle's installation page asks of the driver: 450.80 for CUDA 11.8, 550.54 for CUDA 12.6. NVIDIA's
# release notes ask 580 for CUDA 13.0. Cards of 10.0 and above have code from CUDA 12.8 on.
DRIVER_OF_12, DRIVER_OF_13, BLACKWELL = 550, 580, (10, 0)


def paddle_index() -> str:
    """Return the address in PADDLE_INDEX, or that of Paddle for the driver and the first card here."""
    return os.environ.get(PADDLE_INDEX) or f"{INDEX}/{choose_cuda(*ask_driver())}/"


def choose_cuda(driver: int, capability: Tuple[int, int]) -> str:
    """Return the CUDA of the build for the first number of a driver's version; 0 where it is unknown."""
    if 0 < driver < DRIVER_OF_12:
        return "cu118"
    if capability < BLACKWELL:
        return "cu126"
    return "cu130" if driver >= DRIVER_OF_13 else "cu129"


def ask_driver() -> Tuple[int, Tuple[int, int]]:
    """Return the first number of the driver's version and the compute capability of the first card, or 0."""
    try:
        version, capability = ask_smi("driver_version,compute_cap")[0]
        major, minor = capability.split(".")
        return int(version.partition(".")[0]), (int(major), int(minor))
    except (IndexError, ValueError):
        return 0, (0, 0)


def ask_smi(fields: str, seconds: float = SECONDS) -> List[List[str]]:
    """Return these ``fields`` of nvidia-smi --query-gpu for each GPU; [] where it gives no answer."""
    import subprocess

    query = ("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    try:
        done = subprocess.run(query, capture_output=True, text=True, errors="replace", timeout=seconds)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.split(",") for line in done.stdout.splitlines()]
