"""Check the environment: one line per finding, and the launch command that fits it."""

import platform
import shlex
import shutil
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Dict, List, Optional

from ernie_pair.commands import COMMANDS, config_class_of
from ernie_pair.core.cli.options import ANY, Options, checkpoints_option
from ernie_pair.core.errors import InputError, MachineError, counted, message_of
from ernie_pair.core.files.keyed_cache import user_cache
from ernie_pair.core.installation import (
    CPU_BUILD,
    GPU_BUILD,
    PADDLE_RANGE,
    PADDLENLP,
    PADDLENLP_COMMAND,
    PADDLENLP_VERSION,
    PADDLES,
    PREDICTS,
    extra_here,
    install_command,
    install_hint,
    is_met,
    is_tested_paddle,
    is_there,
    missing_of_training,
    requirements_of,
    version_of,
)
from ernie_pair.kernels.choice import KernelFlags, choose_kernels
from ernie_pair.kernels.library import open_kernels
from ernie_pair.runtime.cpu import describe_threads, math_path
from ernie_pair.runtime.device import default_device
from ernie_pair.runtime.gpu import (
    Build,
    card_at,
    count_cards,
    has_driver,
    installed_build,
    run_check,
    why_no_card,
)
from ernie_pair.runtime.paddle_patches.core_settings import has_process_group

PACKAGE = "ernie-pair"
SHOWN = ("visualdl", "numpy", "tokenizers", "onnxruntime")
WIDTH = len("paddlepaddle")  # of the names that the findings begin with
PYTHONS = ((3, 10), (3, 13))
SMALLEST_DISK_GB = 5
KERNEL_SECONDS = 300.0  # gigabytes, from a disk that may be slow


@dataclass(frozen=True)
class DoctorConfig(Options):
    """Check versions, device, compiled helper, disk and communication; exit code 2 if something is wrong."""

    EXAMPLE = "--output_dir output"

    output_dir: str = checkpoints_option(
        ".", help="where runs will be written; the disk of this folder is checked", writes="FOLDER"
    )


def doctor(config: DoctorConfig) -> None:
    """Print the findings. Raises InputError with the number of defects when there are any."""
    extra = extra_here()
    defects = [*_check_python(), *_check_packages(extra), *_check_disk(Path(config.output_dir))]
    if extra != PREDICTS:
        defects += _check_versions() or _check_paddle()
    from data_tools.samples.sample_map import _helpers

    _show("helper", "compiled" if _helpers else "Python twin (no compiled data_tools._helpers)")
    for defect in defects:
        _show("DEFECT", defect)
    if defects:
        raise InputError(f"{counted(len(defects), 'defect')} found by doctor; fix the lines marked DEFECT")
    for what, cure in what_lacks().items():
        _show("cannot run", f"{what}: {cure}")
    if extra == PREDICTS:
        _show("use", f"runs exported models; to train too: {install_command('cpu')}")
    else:
        for what, answer in what_works().items():
            _show("works", f"{what}: {answer}")
        _show("launch", _launch_line())
    print("no defects found")


def _show(name: str, what: str) -> None:
    print(f"{name:<{WIDTH}} {what}")


def _check_python() -> List[str]:
    _show(PACKAGE, version_of(PACKAGE) or "not installed; this runs from its sources")
    _show("python", f"{platform.python_version()} {sys.executable}")
    found = f"Python {platform.python_version()} is not 3.10 to 3.13; create the environment with one of them"
    return [] if PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1] else [found]


def _check_packages(extra: str) -> List[str]:
    """Compare the installed versions with the bounds of pyproject.toml: outside them, imports break."""
    defects = []
    for requirement in requirements_of("", extra):
        installed, wanted = version_of(requirement.name), f"{requirement.name}{requirement.specifier}"
        if requirement.name in (*PADDLES, PADDLENLP):  # see _check_versions
            continue
        if requirement.name in SHOWN:
            _show(requirement.name, f"{installed or 'missing'} (tested: {requirement.specifier or 'any'})")
        if not installed:
            defects.append(f"{requirement.name} is not installed; pip install '{wanted}'")
        elif not is_met(requirement):
            defects.append(f"{requirement.name} {installed} is not in the tested set; pip install '{wanted}'")
    return defects


def _check_versions() -> List[str]:
    """Check the versions of Paddle and PaddleNLP, which need not be those of an extra."""
    build = GPU_BUILD if version_of(GPU_BUILD) else CPU_BUILD  # that for GPUs runs on the CPU too
    paddle, paddlenlp = version_of(build), version_of(PADDLENLP)
    _show(build, f"{paddle or 'missing'} (tested: {PADDLE_RANGE})")
    _show(PADDLENLP, f"{paddlenlp or 'missing'} (tested: {PADDLENLP_VERSION})")
    defects = []
    if not is_tested_paddle(paddle):
        which = (
            f"{build} {paddle} is not supported, {PADDLE_RANGE} is" if paddle else "Paddle is not installed"
        )
        defects.append(f"{which}; {install_command('cpu')}")
    if paddlenlp != PADDLENLP_VERSION:
        defects.append(f"{PADDLENLP} {PADDLENLP_VERSION} is not installed; {PADDLENLP_COMMAND}")
    return defects


def _check_paddle() -> List[str]:
    try:
        import paddle  # noqa: F401 - the import is the check
        import visualdl  # noqa: F401

        from ernie_pair.runtime.paddle_patches.paddlenlp_import import transformers  # noqa: F401
    except Exception as error:  # a broken set of versions raises nearly anything
        return [f"paddle, paddlenlp or visualdl cannot be imported: {' '.join(str(error).split())}"]
    defects = _check_gpus(installed_build())
    _show("threads", f"{describe_threads()}; {math_path()}")
    _show("kernels", choose_kernels(KernelFlags(), "cpu").describe())
    if not open_kernels().reason:
        _show("operator", _operator())
    gloo, nccl = ("yes" if has_process_group(backend) else "no" for backend in ("Gloo", "NCCL"))
    _show("comm", f"gloo {gloo}, NCCL {nccl}")
    return defects


def _check_gpus(build: Optional[Build]) -> List[str]:
    """Check the GPUs: load CUDA, and run kernels on each."""
    if build is None or not build.cuda:
        unused = f": an NVIDIA driver is loaded, and for its GPUs: {install_command('gpu')}"
        _show("device", "cpu" + unused * has_driver())
        return []
    count = count_cards()
    _show("cuda", build.cuda)
    if not count:
        _show("device", f"cpu: this Paddle is for CUDA {build.cuda}, but {why_no_card()}")
        if default_device() == "cpu":
            return []
        return [f"{why_no_card()}; or pass --device cpu to every command"]
    cards = [card_at(number) for number in range(count)]
    for card in cards:
        _show("device", str(card))
    defects: List[str] = []
    for card in cards:  # each in a process
        kernels = run_check("kernels", card.number, KERNEL_SECONDS)
        count = len(kernels.facts.get("errors", ()))
        _show("kernels", f"{count} run on GPU {card.number}, compared with numpy")
        defects += [f"{card}: {fault}" for fault in kernels.faults]
    return defects


def _check_disk(folder: Path) -> List[str]:
    standing = next(path for path in [folder.absolute(), *folder.absolute().parents] if path.exists())
    free = shutil.disk_usage(standing).free / 1e9
    _show("disk", f"{free:.0f} GB free at {standing}")
    least = f"only {free:.1f} GB are free at {standing}; checkpoints of a base model need {SMALLEST_DISK_GB}"
    return [least] if free < SMALLEST_DISK_GB else []


def _operator() -> str:
    """Return whether static graphs have the kernels too; they are compiled for this if needed."""
    from ernie_pair.kernels.operator import OperatorError, find_operator

    try:
        find_operator(user_cache())
    except (OperatorError, MachineError) as error:
        return f"pretraining uses Paddle's own kernels: {message_of(error)}"
    return "compiled: pretraining uses the kernels too"


def _launch_line() -> str:
    processes = "--gpus 0,1 --device gpu" if default_device() == "gpu" else "--processes 2 --device cpu"
    flags = "--model_name_or_path ernie-gram-zh --train_file lcqmc --dev_file lcqmc --output_dir output/lcqmc"
    return f"{shlex.quote(sys.executable)} -m ernie_pair launch train {processes} {flags}"


def what_works() -> Dict[str, str]:
    """Return {part of the package: yes, or no and what to do}, the same parts with every supported Paddle."""
    has_onnx, kernels = all(map(is_there, ("onnx", "onnxruntime"))), open_kernels().reason
    onnx = "yes" if has_onnx else f"no: {install_command(extra_here())}"
    return {
        "pretraining, static graph": "yes",
        "pretraining, dynamic graph": "yes",
        "converter": "yes",
        "pairs and embeddings": "yes",
        "export for Paddle": "yes",
        "export to ONNX": onnx,
        "int8": onnx,
        "fused kernels": f"no: {kernels}" if kernels else "yes",
        "GPUs": "yes" if version_of(GPU_BUILD) else install_command("gpu"),
    }


def what_lacks() -> Dict[str, str]:
    """Return {command, or option and value, that cannot run here: what is missing, and its pip line}."""
    found: Dict[str, str] = {}
    for name, entry in COMMANDS.items():
        try:
            config: Any = config_class_of(entry)
        except ModuleNotFoundError as error:
            missing = missing_of_training(error)
            if missing is None:
                raise
            found[name] = missing.message
            continue
        asked = {name: config.NEEDS}
        for item in fields(config):
            for word, needs in item.metadata["needs"].items():
                asked[f"--{item.name}" + f" {word}" * (word != ANY)] = needs
        for what, needs in asked.items():
            lacks = next((module for module in needs if not is_there(module)), "")
            if lacks:
                found.setdefault(what, f"{lacks} is not installed; {install_hint(lacks, needs[lacks])}")
    return found
