"""Links in paddle/libs to the CUDA libraries of the nvidia-* packages, so that Paddle finds them.

The GPU build of Paddle 2.6 includes no CUDA, and opens libcudnn.so and others by name: in paddle/libs first
(RUNPATH of its compiled core), which works for every process, including notebooks and `python -m
paddle.distributed.launch`. The packages have libcudnn.so.8 in folders of their own. A library finds
its neighbours next to its link, so all of them are linked, by their own name and without a version.

A file beside the links records which are ours: a link that this command has not made, or that no longer
has the recorded target, belongs to somebody else.
"""

import ctypes
import json
import os
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional

from data_tools.files.atomic_files import published
from data_tools.files.errors import InputError
from data_tools.files.installation import install_command
from data_tools.options.options import Options, devices_option
from ernie_pair.runtime.gpu.builds import Build, installed_build

NOTE = ".ernie-pair-links.json"
# Among the files of the packages; the OpenCL loader is the system's own.
LIBRARY = re.compile(r"(?P<name>lib(?!OpenCL\b)[\w.+-]+?\.so)(\.[0-9.]+)?")

Links = Dict[str, str]  # name: its target


@dataclass(frozen=True)
class LinkCudaConfig(Options):
    """Link the CUDA libraries of the nvidia-* packages into Paddle's folder, where it looks for them."""

    EXAMPLE = "--remove true"

    remove: bool = devices_option(False, help="remove the links that this command has made, and create none")


class Plan(NamedTuple):
    """The changes to a folder: links to make and to remove, and names that others occupy."""

    make: Links
    remove: List[str]
    foreign: List[str]


def link_cuda(config: LinkCudaConfig) -> None:
    """Make the links, remove earlier ones with other targets, and report what was done.

    Raises InputError without Paddle, or if its GPU build has none of the packages; OSError when the
    folder cannot be written.
    """
    build = installed_build()
    if build is None:
        raise InputError(f"Paddle is not installed; {install_command('gpu')}")
    wanted = {} if config.remove else wanted_links(build)
    if not (wanted or config.remove or build.brings_libraries) and build.cuda:
        raise InputError(
            f"none of the packages nvidia-*-cu{_major(build)} is installed, which hold CUDA for Paddle "
            f"{build.version}; {install_command('gpu')}, or install CUDA {build.cuda} and cuDNN here"
        )
    plan = _make_links(build.libraries, wanted)
    for name in plan.foreign:
        print(f"left      {build.libraries / name}, which this command did not make")
    here = len(wanted) - len(plan.foreign)
    print(f"links     {here} in {build.libraries}: {len(plan.make)} made, {len(plan.remove)} removed")
    if not wanted and not config.remove:
        of = "is the CPU build" if not build.cuda else "finds the libraries of its requirements by itself"
        print(f"nothing to link: Paddle {build.version} {of}")


def unmade_links(build: Build) -> List[str]:
    """Return the names of the links that `link_cuda` would make or remove for ``build``."""
    plan = plan_links(build.libraries, wanted_links(build))
    return [*plan.make, *plan.remove]


def wanted_links(build: Build) -> Links:
    """Return the links that ``build`` needs: those to the packages for its CUDA, none if it needs none."""
    if not build.cuda or build.brings_libraries:
        return {}
    package = re.compile(rf"nvidia-.+-cu{_major(build)}")
    links: Links = {}
    short: Links = {}
    for found in metadata.distributions():
        if not package.fullmatch((found.metadata["Name"] or "").lower().replace("_", "-")):
            continue
        for file in found.files or ():
            named = LIBRARY.fullmatch(file.name)
            if file.parts[:1] == ("nvidia",) and named:
                library, packages = Path(str(found.locate_file(file))), build.libraries.parents[1]
                target = str(library)
                if packages in library.parents:  # it stays valid if an environment is moved as a whole
                    target = os.path.relpath(library, build.libraries)
                links.setdefault(file.name, target)
                short.setdefault(named["name"], target)
    return {**short, **links}


def plan_links(folder: Path, wanted: Links) -> Plan:
    """Return the changes to ``folder`` after which it holds ``wanted``."""
    ours = _ours(folder)
    plan = Plan({}, [], [])
    for name, target in wanted.items():
        stands = _link_text(folder / name)
        if stands == target:
            continue
        if stands is None and not os.path.lexists(folder / name) or name in ours:
            plan.make[name] = target
        else:
            plan.foreign.append(name)
    plan.remove.extend(sorted(ours.keys() - wanted.keys()))
    return plan


def _make_links(folder: Path, wanted: Links) -> Plan:
    """Carry out ``plan_links``, in an order that leaves nothing unrecorded when it is interrupted."""
    plan, ours = plan_links(folder, wanted), _ours(folder)
    if not plan.make and not plan.remove:
        return plan
    for name in {*plan.remove, *(plan.make.keys() & ours.keys())}:
        (folder / name).unlink(missing_ok=True)
    kept = {name: target for name, target in ours.items() if wanted.get(name) == target}
    with published(folder / NOTE) as (draft,):
        draft.write_text(json.dumps({**kept, **plan.make}, indent=1), encoding="utf-8")
    for name, target in list(plan.make.items()):
        try:
            os.symlink(target, folder / name)
        except FileExistsError:  # made meanwhile, by the same command started twice or by somebody else
            if _link_text(folder / name) != target:
                plan.foreign.append(name)
                del plan.make[name]
    return plan


def _ours(folder: Path) -> Links:
    try:
        noted = json.loads((folder / NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    links = noted.items() if isinstance(noted, dict) else ()
    return {n: text for n, text in links if LIBRARY.fullmatch(n) and text == _link_text(folder / n)}


def _link_text(path: Path) -> Optional[str]:
    return os.readlink(path) if path.is_symlink() else None


def _major(build: Build) -> str:
    return build.cuda.partition(".")[0]


# What a first kernel needs, including nvrtc, without which cuDNN aborts the process; what
# some operators also open; what several processes need.
FIRST = ("libcublas.so", "libcublasLt.so", "libcudnn.so", "libnvrtc.so")
OTHERS = ("libcufft.so", "libcurand.so", "libcusolver.so", "libcusparse.so")
OF_SEVERAL = ("libnccl.so",)
LINK = "run ernie-pair doctor --link_cuda"
PARTS_OF_CUDNN = "libcudnn_*.so.*"  # which cuDNN itself opens by name, when it is first used


def refuse_missing_libraries(build: Build, processes: int) -> None:
    """Raise InputError if Paddle would not find a library that a GPU needs from the first kernel on.

    It opens none that is in paddle/libs. Of a build that finds its libraries by itself, only the links are
    checked: those for another build would take precedence.
    """
    if (build.libraries / NOTE).exists() and unmade_links(build):
        raise InputError(f"the links in {build.libraries} are not those of Paddle {build.version}; {LINK}")
    if build.brings_libraries:
        return
    names = FIRST + (OF_SEVERAL if processes > 1 else ())
    missing = [name for name in names if not (build.libraries / name).exists() and error_of(name)]
    if not missing:
        return
    packages = "their nvidia-* packages and then ernie-pair doctor --link_cuda"
    cure = f"install CUDA {build.cuda} and cuDNN, or {packages}"
    if unmade_links(build):
        cure = LINK
    elif _major(build) == "11":
        cure = f"{install_command('gpu')}, then ernie-pair doctor --link_cuda"
    raise InputError(f"Paddle cannot find {', '.join(missing)}; {cure}")


def load_libraries(build: Build) -> Dict[str, str]:
    """Open all that Paddle opens, in this process, and return {name: why it does not load, '' if it does}.

    They are opened like in Paddle, by the name in paddle/libs first; also the parts of cuDNN there. A library
    may end the process: see `check_process`.
    """
    parts = sorted(path.name for path in build.libraries.glob(PARTS_OF_CUDNN))
    names = [*FIRST, *OTHERS, *OF_SEVERAL, *parts]
    paths = {name: build.libraries / name for name in names}
    return {name: error_of(str(path) if path.exists() else name) for name, path in paths.items()}


def error_of(name: str) -> str:
    """Open a library and return why it does not load; '' if it does."""
    try:
        ctypes.CDLL(name)
    except OSError as error:
        return str(error)
    return ""
