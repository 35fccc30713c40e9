"""The steps of the check, in order."""

from typing import List

from data_tools.base.options import names_in, refuse_unknown_names
from ernie_pair.gpu_check.kernels_step import plan_kernels, plan_libraries
from ernie_pair.gpu_check.layouts_step import plan_layouts, plan_stage2
from ernie_pair.gpu_check.losses_step import plan_losses
from ernie_pair.gpu_check.models_step import plan_models
from ernie_pair.gpu_check.resume_step import plan_resumes
from ernie_pair.gpu_check.runs.run_steps import Step
from ernie_pair.gpu_check.speed_step import plan_pair_speed, plan_pretraining_speed

STEPS = (
    Step(0, "libraries", 120, plan_libraries),
    Step(1, "kernels against numpy", 180, plan_kernels),
    Step(2, "tiny pretraining, losses as on the CPU", 300, plan_losses),
    Step(3, "resume to the same bits after kill -9", 480, plan_resumes),
    Step(4, "two processes against one", 360, plan_layouts),
    Step(5, "stage 2 and offload against plain data parallelism", 180, plan_stage2),
    Step(6, "converter, export, prediction", 420, plan_models),
    Step(7, "speed of pretraining", 420, plan_pretraining_speed, is_timed=True),
    Step(8, "speed of training pairs", 240, plan_pair_speed, is_timed=True),
)


def chosen_steps(numbers: str) -> List[Step]:
    """Return the steps in ``numbers``, separated by commas; all for ''. Raises InputError for any other."""
    named = names_in(numbers)
    known = {str(step.number): step for step in STEPS}
    refuse_unknown_names("steps", named, known, f" is not a step; use some of {','.join(known)}")
    return [known[number] for number in sorted(named)] if named else list(STEPS)
