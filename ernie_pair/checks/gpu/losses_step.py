"""Step 2: a tiny pretraining run has the same losses on GPU and CPU, and nearly so in half precision."""

import json
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Sequence

from data_tools.files.errors import NumbersError
from ernie_pair.checks.gpu.run_steps import SmallData
from ernie_pair.checks.gpu.runs import Figures, Lab, Planned, losses_of, train_events
from ernie_pair.checks.quickstart import Words

STEPS, QUICK_STEPS = 60, 20
FIRST = 10  # steps whose losses are compared one by one, in float32
WINDOW = 10  # steps whose mean loss is compared, in half precision
EXACT, NEARLY = 1e-4, 0.02  # largest relative difference of a loss
AMP: Dict[str, Dict[str, Any]] = {
    f"{short} {level}": {"use_amp": "true", "amp_dtype": dtype, "amp_level": level}
    for short, dtype in (("fp16", "float16"), ("bf16", "bfloat16"))
    for level in ("O1", "O2")
}
MOVING = {"use_amp": "true", "init_loss_scaling": 1024, "incr_every_n_steps": 8}


def plan_losses(lab: Lab, data: SmallData) -> List[Planned]:
    """Return the cases of the step."""
    runs = _Runs(lab, data)
    return [
        Planned("fp32 as on the CPU", runs.compare_fp32, lab.lacks()),
        Planned("TF32", partial(runs.compare_half, "tf32", {"tf32": "true"}), lab.lacks(1, "tf32")),
        *(
            Planned(name, partial(runs.compare_half, name, flags), lab.lacks(1, flags["amp_dtype"]))
            for name, flags in AMP.items()
        ),
        Planned("kernels of the CPU as Paddle's own", runs.compare_kernels, _is_of_cpu(lab)),
        Planned("the loss scale moves", runs.watch_loss_scale),
    ]


def _is_of_cpu(lab: Lab) -> str:
    return "" if lab.device == "cpu" else "--device cpu"


class _Runs:
    """The runs of the step, from the same weights on the same samples."""

    def __init__(self, lab: Lab, data: SmallData):
        self._lab, self._data = lab, data
        self._steps = QUICK_STEPS if lab.quick else STEPS

    def _run(self, name: str, **flags) -> Path:
        output = self._lab.folder / "losses" / name.replace(" ", "_")
        words: Words = self._data.pretrain_words(output, max_steps=self._steps, **flags)
        self._lab.run(words)
        return output

    def _run_of_cpu(self) -> Path:
        return self._lab.once("losses of the CPU", partial(self._run, "cpu", device="cpu"))

    def _on_cpu(self) -> List[float]:
        return losses_of(self._run_of_cpu())

    def compare_fp32(self) -> Figures:
        """Compare the first losses of the GPU with those of the CPU, one by one."""
        return compare_losses(losses_of(self._run("fp32")), self._on_cpu())

    def compare_kernels(self) -> Figures:
        """Compare the first losses of the CPU's usual path, which is named, and of Paddle's own kernels."""
        found = compare_losses(self._on_cpu(), losses_of(self._run("plain", kernels="plain")))
        manifest = self._run_of_cpu() / "model_last" / "MANIFEST.json"
        return {"path": json.loads(manifest.read_text(encoding="utf-8"))["topology"]["kernels"], **found}

    def compare_half(self, name: str, flags: Dict[str, Any]) -> Figures:
        """Compare mean losses with those of float32 on the CPU."""
        found = losses_of(self._run(name, **flags))
        return compare_means(found, self._on_cpu())

    def watch_loss_scale(self) -> Figures:
        """Let the loss scale grow after few finite steps; on a CPU by the loss scaler without casts."""
        dtype = "float32" if self._lab.device == "cpu" else "float16"
        events = train_events(self._run("loss scale", amp_dtype=dtype, **MOVING))
        scales = [float(event["loss_scale"]) for event in events]
        figures = {"first loss scale": scales[0], "last loss scale": scales[-1]}
        if max(scales) == min(scales):
            raise NumbersError(f"the loss scale stays at {scales[0]:g} for {len(scales)} steps")
        return figures


def compare_losses(found: Sequence[float], wanted: Sequence[float]) -> Figures:
    """Return the largest relative difference of the FIRST losses. Raises NumbersError above EXACT."""
    largest = relative_difference(found[:FIRST], wanted[:FIRST])
    if not largest <= EXACT:
        raise NumbersError(
            f"the first {FIRST} losses differ by {largest:.3g} (relative), above {EXACT:g}: "
            f"{_shown(found[:FIRST])} against {_shown(wanted[:FIRST])}"
        )
    last = {"last loss": found[-1], "last loss compared with": wanted[-1]}
    return {"largest relative difference": largest, **last}


def compare_means(found: Sequence[float], wanted: Sequence[float]) -> Figures:
    """Return the largest relative difference of the means over WINDOW steps.

    Raises NumbersError above NEARLY.
    """
    means, others = _means(found), _means(wanted)
    largest = relative_difference(means, others)
    if not largest <= NEARLY:
        raise NumbersError(
            f"mean losses of {WINDOW} steps differ by {largest:.3g} (relative), above {NEARLY:g}: "
            f"{_shown(means)} against {_shown(others)}"
        )
    return {"largest relative difference of means": largest, "last loss": found[-1]}


def relative_difference(found: Sequence[float], wanted: Sequence[float]) -> float:
    """Return the largest |found - wanted| / |wanted|; infinity if they are empty, or of different lengths."""
    if not wanted or len(found) != len(wanted):
        return float("inf")
    largest = [abs(one - other) / max(abs(other), 1e-12) for one, other in zip(found, wanted)]
    return float("inf") if any(each != each for each in largest) else max(largest)


def _means(losses: Sequence[float]) -> List[float]:
    return [sum(losses[i : i + WINDOW]) / WINDOW for i in range(0, len(losses) - WINDOW + 1, WINDOW)]


def _shown(losses: Sequence[float]) -> str:
    return " ".join(f"{loss:.5f}" for loss in losses)
