"""The CUDA libraries that Paddle opens by name, and whether it would find them.

It searches LD_LIBRARY_PATH, paddle/libs (RUNPATH of its compiled core), and the system's folders.
"""

import ctypes
from pathlib import Path
from typing import Dict, List

from data_tools.base.errors import InputError
from data_tools.base.installation import install_command
from ernie_pair.device.gpu.builds import Build
from ernie_pair.device.gpu.cuda_links import is_linked, unmade_links

# What a first kernel needs, including nvrtc, without which cuDNN aborts the process; what
# some operators also open; what several processes need.
FIRST = ("libcublas.so", "libcublasLt.so", "libcudnn.so", "libnvrtc.so")
OTHERS = ("libcufft.so", "libcurand.so", "libcusolver.so", "libcusparse.so")
OF_SEVERAL = ("libnccl.so",)
LINK = "run ernie-pair link-cuda"
PARTS_OF_CUDNN = "libcudnn_*.so.*"  # which cuDNN itself opens by name, when it is first used


def refuse_missing_libraries(build: Build, processes: int) -> None:
    """Raise InputError if Paddle would not find a library that a GPU needs from the first kernel on.

    It opens none that is in paddle/libs. Of a build that finds its libraries by itself, only the links are
    checked: those for another build would take precedence.
    """
    if is_linked(build) and unmade_links(build):
        raise InputError(f"the links in {build.libraries} are not those of Paddle {build.version}; {LINK}")
    if build.brings_libraries:
        return
    names = FIRST + (OF_SEVERAL if processes > 1 else ())
    missing = [name for name in names if not (build.libraries / name).exists() and error_of(name)]
    if missing:
        raise InputError(f"Paddle cannot find {', '.join(missing)}; {cure_of_missing(build)}")


def cure_of_missing(build: Build) -> str:
    """Return the command that puts missing libraries where Paddle searches."""
    if unmade_links(build):
        return LINK
    if build.cuda.partition(".")[0] == "11":
        return f"{install_command('gpu')}, then ernie-pair link-cuda"
    return f"install CUDA {build.cuda} and cuDNN, or their nvidia-* packages and then ernie-pair link-cuda"


def load_libraries(build: Build) -> Dict[str, str]:
    """Open all that Paddle opens, in this process, and return {name: why it does not load, '' if it does}.

    They are opened like in Paddle, by the name in paddle/libs first; also the parts of cuDNN there. A library
    may end the process: see `check_process`.
    """
    parts = sorted(path.name for path in build.libraries.glob(PARTS_OF_CUDNN))
    names = [*FIRST, *OTHERS, *OF_SEVERAL, *parts]
    return {name: error_of(_as_paddle(build.libraries, name)) for name in names}


def libraries_that_fail(loaded: Dict[str, str]) -> List[str]:
    """Return the reasons of those in ``load_libraries`` that do not load; each reason names its library."""
    return [reason if name in reason else f"{name}: {reason}" for name, reason in loaded.items() if reason]


def error_of(name: str) -> str:
    """Open a library and return why it does not load; '' if it does."""
    try:
        ctypes.CDLL(name)
    except OSError as error:
        return str(error)
    return ""


def _as_paddle(folder: Path, name: str) -> str:
    path = folder / name
    return str(path) if path.exists() else name
