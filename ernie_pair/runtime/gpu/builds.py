"""Which build of Paddle is installed, and what a GPU can compute, both without importing Paddle."""

import ast
import ctypes
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Dict, NamedTuple, Optional, Tuple

from ernie_pair.core.errors import InputError
from ernie_pair.core.installation import PADDLE_RANGE, install_command, is_tested_paddle, training_extra

LIBRARY = "libcuda.so.1"
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR

Capability = Tuple[int, int]

# The lowest whose units compute in the type.
LEAST_CAPABILITY: Dict[str, Capability] = {
    "float32": (0, 0),
    "float16": (7, 0),
    "bfloat16": (8, 0),
    "tf32": (8, 0),
}


def words_of(capability: Capability) -> str:
    """Return a compute capability as NVIDIA writes it: 8.6."""
    return "{}.{}".format(*capability)


@lru_cache(maxsize=1)
def gpu_capability() -> Optional[Capability]:
    """Return the compute capability of the first visible GPU, as (8, 0); None if there is none.

    It asks NVIDIA's driver directly: flags are read before Paddle is loaded.
    """
    try:
        driver = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    device, values = ctypes.c_int(), []
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return None
    for attribute in (MAJOR, MINOR):
        value = ctypes.c_int()
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device):
            return None
        values.append(value.value)
    return values[0], values[1]


def paddle_capability(number: Optional[int] = None) -> Capability:
    """Return the compute capability of a visible GPU as reported by Paddle; None: of its current one."""
    import paddle

    major, minor = paddle.device.cuda.get_device_capability(number)
    return major, minor


def refuse_old_gpu(found: Capability, dtype: str, flag: str, cure: str) -> None:
    """Raise InputError if a GPU of the capability ``found`` is too old for ``dtype``.

    Paddle would warn and compute in float32. ``flag``: what requires the type; ``cure``: what to do instead.
    """
    least = LEAST_CAPABILITY[dtype]
    if found < least:
        raise InputError(
            f"{flag} needs a GPU of compute capability {words_of(least)}, this one has {words_of(found)}; "
            f"{cure}"
        )


class Build(NamedTuple):
    """A build of Paddle: ``cuda`` is the version that it was built for, '' for a CPU build."""

    version: str
    cuda: str
    folder: Path  # of the package


def installed_build() -> Optional[Build]:
    """Return the build of Paddle that would be imported; None: there is none."""
    try:
        spec = find_spec("paddle")
    except (ValueError, ModuleNotFoundError):  # a module without a spec replaces it, or a finder hides it
        spec = None
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    facts = _constants(folder / "version" / "__init__.py")
    cuda = facts.get("cuda_version", "False")
    return Build(facts.get("full_version", ""), "" if cuda == "False" else cuda, folder)


def paddle_version() -> str:
    """Return the version of the Paddle that would be imported, '' if there is none or it is unknown."""
    build = installed_build()
    return build.version if build is not None else ""


def refuse_other_paddles() -> None:
    """Raise InputError if a Paddle is installed that this package does not support; none is imported."""
    version = paddle_version()
    if version and not is_tested_paddle(version):
        cure = install_command(training_extra())
        raise InputError(f"Paddle {version} is not supported, {PADDLE_RANGE} is; {cure}")


def _constants(path: Path) -> Dict[str, str]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return {}
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            found.update(
                {name.id: str(node.value.value) for name in node.targets if isinstance(name, ast.Name)}
            )
    return found
