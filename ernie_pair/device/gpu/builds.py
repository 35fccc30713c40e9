"""Which build of Paddle is installed, read from its files without importing it or needing CUDA."""

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import Dict, NamedTuple, Optional, Tuple

from ernie_pair.device.gpu.capability import Capability

# (version, CUDA): the compute capabilities that the build has machine code for, read from its binaries.
# Its kernels have no PTX, which the driver would compile for later cards.
CAPABILITIES: Dict[Tuple[str, str], Tuple[Capability, ...]] = {
    ("2.6.2", "11.8"): ((6, 1), (7, 0), (7, 5), (8, 0), (8, 6)),
}


class Build(NamedTuple):
    """A build of Paddle: ``cuda`` is the version that it was built for, '' for a CPU build."""

    version: str
    cuda: str
    brings_libraries: bool  # whether it finds the CUDA libraries of its own requirements by itself, like 3.x
    folder: Path  # of the package

    @property
    def capabilities(self) -> Optional[Tuple[Capability, ...]]:
        """Return the compute capabilities that it has machine code for; None: unknown."""
        return CAPABILITIES.get((self.version, self.cuda))

    def runs_on(self, capability: Capability) -> Optional[bool]:
        """Return whether it has code for a card of ``capability``; None: unknown.

        Machine code runs on cards of the same major capability and the same or a higher minor one.
        """
        if self.capabilities is None:
            return None
        major, minor = capability
        return any(major == of and minor >= least for of, least in self.capabilities)

    @property
    def libraries(self) -> Path:
        """Return the folder in which it looks for libraries first: RUNPATH of its compiled core."""
        return self.folder / "libs"


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
    return Build(
        version=facts.get("full_version", ""),
        cuda="" if cuda == "False" else cuda,
        brings_libraries=facts.get("with_pip_cuda_libraries") == "ON",
        folder=folder,
    )


def _constants(path: Path) -> Dict[str, str]:
    """Return {name: text} of the string constants in a Python file, without running it."""
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
