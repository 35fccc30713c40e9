"""Step 3: a run that is killed and started again ends bit-identical to an uninterrupted one."""

from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List

from data_tools.files.errors import LostProcessError, NumbersError
from ernie_pair.checks.gpu.run_steps import SmallData
from ernie_pair.checks.gpu.runs import Figures, Lab, Planned, losses_of
from ernie_pair.checks.quickstart import Words

CHECKPOINT = 10  # steps between checkpoints; the kill follows the first
STEPS = (20, 80, 320)  # of a run: a longer one if the kill came too late for the previous one
EQUAL, DIFFERENT = 0, 1  # exit codes of diff-checkpoints
FP16 = {"use_amp": "true", "amp_dtype": "float16"}
DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
RECOMPUTE = {"use_recompute": "true"}
PRETRAINING: Dict[str, Dict[str, Any]] = {
    "fp32": {},
    "fp16 O1": FP16,
    "fp16 O2": {**FP16, "amp_level": "O2"},
    "gradient merge": {"micro_batch_size": 8},  # of the 16 samples of a step
    "recompute": RECOMPUTE,
    "dropout": DROPOUT,
}
PAIRS: Dict[str, Dict[str, Any]] = {
    "fp32": {},
    "fp16 O1": FP16,
    "fp16 O2": {**FP16, "amp_level": "O2"},
    "recompute": RECOMPUTE,
    "R-Drop": {"rdrop_alpha": 1, "dropout": 0.1},
}
QUICK = ("gradient merge", "R-Drop")
MakeWords = Callable[..., Words]


def plan_resumes(lab: Lab, data: SmallData) -> List[Planned]:
    """Return the cases of the step: those of pretraining, then those of pairs."""
    halves = (("pretraining", data.pretrain_words, PRETRAINING), ("pairs", data.train_words, PAIRS))
    return [
        Planned(
            f"{half}, {name}",
            partial(_resume, lab, words, f"{half} {name}", flags),
            lab.lacks(1, "float16") if "use_amp" in flags else "",
        )
        for half, words, cases in halves
        for name, flags in cases.items()
        if not lab.quick or name in QUICK
    ]


def _resume(lab: Lab, words: MakeWords, name: str, flags: Dict[str, Any]) -> Figures:
    """Compare a run that was killed with an uninterrupted one. Raises NumbersError if they differ."""
    folder = lab.folder / "resume" / name.replace(" ", "_")
    for steps in STEPS:
        cut, whole = folder / f"cut{steps}", folder / f"whole{steps}"
        given = {**flags, "max_steps": steps, "checkpoint_steps": CHECKPOINT}
        if _is_killed(lab, words(cut, **given), cut):
            break
    else:
        raise LostProcessError(f"its {STEPS[-1]} steps were over before it could be killed")
    lab.run(words(cut, **given))
    lab.run(words(whole, **given))
    compared = lab.run(
        ["diff-checkpoints", str(cut / "model_last"), str(whole / "model_last")], accepted=(EQUAL, DIFFERENT)
    )
    if compared.process.returncode == DIFFERENT:
        raise NumbersError(f"after {steps} steps: {compared.said.strip().splitlines()[-1]}")
    if losses_of(cut) != losses_of(whole):
        raise NumbersError("the weights are the same, and the logged losses are not")
    return {"steps": steps}


def _is_killed(lab: Lab, words: Words, output: Path) -> bool:
    """Kill the run by SIGKILL once it has its first checkpoint; returns False if it was over before."""
    first = output / "checkpoints" / f"step_{CHECKPOINT:08d}"
    with lab.started(words) as running:
        if running.wait(first.exists):
            running.kill()
    if running.process.returncode >= 0:
        running.refuse_failure()
        return False
    return True
