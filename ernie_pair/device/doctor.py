"""Is this environment sound? One line per finding, and the launch line that fits it."""

import os
import platform
import shlex
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import List

from packaging.requirements import Requirement

from data_tools.base.errors import InputError
from data_tools.base.installation import install_command
from data_tools.base.options import Options, option
from ernie_pair.device.cpu_env import cpu_threads, math_path
from ernie_pair.device.device import default_device
from ernie_pair.device.paddle_patches.core_settings import has_process_group

PACKAGE = "ernie-pair"
PREDICTS = "predict"  # the extra that only asks exported models
SHOWN = ("paddlepaddle", "paddlepaddle-gpu", "paddlenlp", "visualdl", "numpy", "tokenizers", "onnxruntime")
PYTHONS = ((3, 9), (3, 12))
SMALLEST_DISK_GB = 5


@dataclass(frozen=True)
class DoctorConfig(Options):
    """Check versions, device, compiled helper, disk and communication; exit 2 when something is wrong."""

    EXAMPLE = "--output_dir output"

    output_dir: str = option(".", help="where runs will be written: its disk is checked", group="checkpoints")


def doctor(config: DoctorConfig) -> None:
    """Print the findings. Raises InputError with the number of defects when there are any."""
    extra = _extra_here()
    defects = [*_check_python(), *_check_packages(extra), *_check_disk(Path(config.output_dir))]
    if extra != PREDICTS:
        defects += _check_paddle()
    _show("helper", _helper())
    for defect in defects:
        print(f"DEFECT    {defect}")
    if defects:
        raise InputError(f"{len(defects)} defect(s) found by doctor; fix the lines marked DEFECT")
    asks = f"asks exported models; to train too: {install_command('cpu')}"
    _show("launch", asks if extra == PREDICTS else _launch_line())
    print("sound")


def _show(name: str, what: str) -> None:
    print(f"{name:<9} {what}")


def _check_python() -> List[str]:
    _show("python", f"{platform.python_version()} {sys.executable}")
    if PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        return []
    return [f"Python {platform.python_version()} is not 3.9 to 3.12; make the environment with one of them"]


def _extra_here() -> str:
    """Return the extra that this environment is for: gpu, cpu, or predict where nothing of Paddle is."""
    if _version_of("paddlepaddle-gpu"):
        return "gpu"  # it runs on the CPU too: where it is installed, nothing asks for the other build
    return default_device() if _version_of("paddlepaddle") or _version_of("paddlenlp") else PREDICTS


def _requirements(extra: str) -> List[Requirement]:
    """Return what the package asks for with ``extra``, and with the extras of its own that this one names."""
    listed = [Requirement(text) for text in metadata.requires(PACKAGE) or []]
    extras, found = [extra], {}
    for name in extras:
        for requirement in listed:
            if requirement.marker and not requirement.marker.evaluate({"extra": name}):
                continue
            if requirement.name == PACKAGE:
                extras.extend(requirement.extras)
            else:
                found[requirement.name] = requirement
    return list(found.values())


def _check_packages(extra: str) -> List[str]:
    """Compare what is installed with the bounds of pyproject.toml: outside them, imports break."""
    defects = []
    for requirement in _requirements(extra):
        installed, wanted = _version_of(requirement.name), f"{requirement.name}{requirement.specifier}"
        if requirement.name in SHOWN:
            _show(requirement.name, f"{installed or 'missing'} (tested: {requirement.specifier or 'any'})")
        if installed is None:
            defects.append(f"{requirement.name} is not installed; pip install '{wanted}'")
        elif not requirement.specifier.contains(installed, prereleases=True):
            defects.append(f"{requirement.name} {installed} is not in the tested set; pip install '{wanted}'")
    return defects


def _version_of(package: str):
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _check_paddle() -> List[str]:
    try:
        import paddle
        import paddlenlp  # noqa: F401 - the import is the check
        import visualdl  # noqa: F401
    except Exception as error:  # a broken set of versions raises nearly anything
        return [f"paddle, paddlenlp or visualdl cannot be imported: {' '.join(str(error).split())}"]
    cuda = paddle.is_compiled_with_cuda()
    gpus = paddle.device.cuda.device_count() if cuda else 0
    _show("device", f"{gpus} GPU(s)" if gpus else "cpu")
    _show("threads", f"{cpu_threads()} of {os.cpu_count()}; {math_path()}")
    gloo, nccl = ("yes" if has_process_group(backend) else "no" for backend in ("Gloo", "NCCL"))
    _show("comm", f"gloo {gloo}, NCCL {nccl}")
    if default_device() == "gpu" and not gpus:
        cure = f"{install_command('gpu')}, or pass --device cpu to every command"
        return [f"an NVIDIA driver is loaded but Paddle sees no GPU; {cure}"]
    return []


def _check_disk(folder: Path) -> List[str]:
    standing = next(path for path in [folder.absolute(), *folder.absolute().parents] if path.exists())
    free = shutil.disk_usage(standing).free / 1e9
    _show("disk", f"{free:.0f} GB free at {standing}")
    if free < SMALLEST_DISK_GB:
        return [
            f"only {free:.1f} GB are free at {standing}; checkpoints of a base model need {SMALLEST_DISK_GB}"
        ]
    return []


def _helper() -> str:
    from data_tools.samples import sample_map

    return "compiled" if sample_map._helpers else "Python twin (no compiled data_tools._helpers)"


def _launch_line() -> str:
    """Return a line that trains: with a set that is fetched, and this environment's Python and device."""
    on_gpu = default_device() == "gpu"
    processes = "--gpus 0,1 --device gpu" if on_gpu else "--processes 2 --device cpu"
    flags = "--model_name_or_path ernie-gram-zh --train_file lcqmc --dev_file lcqmc --output_dir output/lcqmc"
    return f"{shlex.quote(sys.executable)} -m ernie_pair launch train {processes} {flags}"
