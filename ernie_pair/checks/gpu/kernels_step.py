"""Steps 0 and 1: the environment and the libraries of the GPU, and its kernels against numpy."""

import json
from functools import partial
from typing import Any, Dict, List

from data_tools.files.errors import InputError, MachineError, NumbersError
from ernie_pair.checks.gpu.run_steps import SmallData
from ernie_pair.checks.gpu.runs import Figures, Lab, Planned

CHECK = "ernie_pair.runtime.gpu.check_process"
ON_CPU, FIRST_GPU = -1, 0  # the numbers in that module
DEFECTS = 2  # exit code of a doctor that found some
DEFECT = "DEFECT"


def plan_libraries(lab: Lab, data: SmallData) -> List[Planned]:
    """Return the cases of step 0."""
    needs = "a GPU" if lab.device == "cpu" else ""
    return [
        Planned("Paddle sees the GPUs", partial(_show_gpus, lab), needs),
        Planned("CUDA libraries load", partial(_check, lab, "libraries", FIRST_GPU), needs),
        Planned("the environment is sound", partial(_ask_doctor, lab)),
    ]


def plan_kernels(lab: Lab, data: SmallData) -> List[Planned]:
    """Return the cases of step 1."""
    if lab.device == "gpu":
        return [Planned("kernels of the GPU, fp32, fp16, bf16", partial(_check, lab, "kernels", FIRST_GPU))]
    return [
        Planned("kernels of the CPU, fp32", partial(_check, lab, "kernels", ON_CPU)),
        Planned("kernels of the GPU, fp32, fp16, bf16", dict, lab.lacks()),
    ]


def _show_gpus(lab: Lab) -> Figures:
    if lab.is_lost:
        raise MachineError(f"there is no GPU to check: {lab.machine.why_no_gpu}")
    return {"GPUs": len(lab.machine.gpus), "driver": lab.machine.driver or "unknown"}


def _check(lab: Lab, name: str, number: int) -> Figures:
    """Run a check of the GPU in its own process, and return its figures. Raises NumbersError for a fault."""
    answer = _answer_in(lab.run([name, str(number)], module=CHECK).said)
    if answer["faults"]:
        raise NumbersError("; ".join(answer["faults"]))
    facts = answer["facts"]
    if "errors" in facts:
        return {f"error, {kernel}": error for kernel, error in facts["errors"].items()}
    return {"loaded": ", ".join(facts["loaded"])}


def _answer_in(said: str) -> Dict[str, Any]:
    """Return the answer in the output of a process, after whatever its libraries printed."""
    place = said.rfind('{"faults"')
    return json.JSONDecoder().raw_decode(said[place:])[0] if place >= 0 else {"faults": ["no answer"]}


def _ask_doctor(lab: Lab) -> Figures:
    """Run `ernie-pair doctor`. Raises InputError that names its findings."""
    asked = lab.run(["doctor", f"--output_dir={lab.folder}"], accepted=(0, DEFECTS))
    found = [line[len(DEFECT) :].strip() for line in asked.said.splitlines() if line.startswith(DEFECT)]
    if asked.process.returncode == DEFECTS:
        raise InputError("; ".join(found) or "doctor reports an input error")
    return {}
