"""Steps 7 and 8: the speed of pretraining and of training pairs, of a model of ERNIE's size on a GPU.

A run is stopped once it has logged a few lines, which are the measurement; no checkpoint is written.
"""

import shutil
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Dict, List, NamedTuple

from data_tools.files.errors import LostProcessError
from ernie_pair.checks.gpu.run_steps import SmallData
from ernie_pair.checks.gpu.runs import Figures, Lab, Planned, train_events
from ernie_pair.checks.quickstart import Words

STEPS_PER_LINE, LINES = 4, 3  # of a run; the first line includes the start
ROOMY_GB = 40.0  # GPU memory in which the whole batch fits in float32; with less it is halved
SHAPES = {128: 256, 512: 32}  # tokens per sample: samples per batch
SMALL_SHAPE = 48, 16  # on a CPU, for the narrow model
PAIR_TOKENS, PAIR_BATCH = 64, 64  # LCQMC's longest pairs, and the recipe's batch
# The figures of a training line, and their names here.
MEASURED = {
    "tokens_per_second": "tokens/s",
    "samples_per_second": "samples/s",
    "tera_flops_per_second": "TFLOP/s",
    "product_share": "share of the rate of products",
    "data_wait_share": "share of waiting for data",
    "gpu_memory_gb": "GPU memory, GB",
    "memory_gb": "memory, GB",
}


class Way(NamedTuple):
    """A way to compute: its flags, and its type."""

    flags: Dict[str, Any]
    dtype: str


def ways_on_gpu() -> Dict[str, Way]:
    """Return the precisions of pretraining on a GPU."""
    fp16 = {"use_amp": "true", "amp_dtype": "float16"}
    bf16 = {"use_amp": "true", "amp_dtype": "bfloat16"}
    return {
        "fp32": Way({}, "float32"),
        "TF32": Way({"tf32": "true"}, "tf32"),
        "fp16 O1": Way(fp16, "float16"),
        "bf16 O1": Way(bf16, "bfloat16"),
        "bf16 O2": Way({**bf16, "amp_level": "O2"}, "bfloat16"),
    }


def plan_pretraining_speed(lab: Lab, data: SmallData) -> List[Planned]:
    """Return the cases of step 7: on a CPU the narrow model, on its two paths."""
    if lab.device == "cpu":
        tokens, batch = SMALL_SHAPE
        paths = {"fused kernels": "auto", "Paddle's kernels": "plain"}
        shown = f"{tokens} tokens x {batch}, narrow model"
        return [
            *(
                Planned(f"{shown}, {name}", partial(_narrow_speed, lab, data, name, {"kernels": kernels}))
                for name, kernels in paths.items()
            ),
            Planned("ERNIE base, fp32 to bf16 O2", dict, lab.lacks()),
        ]
    return [
        Planned(
            f"ERNIE base, {tokens} tokens x {_fitting(lab, batch)}, {name}",
            partial(_base_speed, lab, data, tokens, _fitting(lab, batch), name, way),
            lab.lacks(1, way.dtype),
        )
        for tokens, batch in SHAPES.items()
        for name, way in ways_on_gpu().items()
        if not lab.quick or name in ("fp32", "bf16 O1")
    ]


def plan_pair_speed(lab: Lab, data: SmallData) -> List[Planned]:
    """Return the cases of step 8."""
    if lab.device == "cpu":
        return [
            Planned("narrow model, pairs", partial(_pair_speed, lab, data, "narrow", Way({}, "float32"))),
            Planned("ERNIE base, fp32 to bf16 O1", dict, lab.lacks()),
        ]
    return [
        Planned(f"ERNIE base, {name}", partial(_pair_speed, lab, data, name, way), lab.lacks(1, way.dtype))
        for name, way in ways_on_gpu().items()
        if name != "bf16 O2"
    ]


def _fitting(lab: Lab, batch: int) -> int:
    """Return ``batch``, or the half, quarter and so on of it for a GPU with less memory than ROOMY_GB."""
    memory = lab.machine.gpus[0].memory_gb if lab.machine.gpus else ROOMY_GB
    while memory < 0.9 * ROOMY_GB and batch > 1:
        memory, batch = 2 * memory, batch // 2
    return batch


def _sizes(tokens: int, batch: int) -> Dict[str, Any]:
    return {"max_seq_len": tokens, "micro_batch_size": batch, "global_batch_size": batch, **_LONG}


def _narrow_speed(lab: Lab, data: SmallData, name: str, flags: Dict[str, Any]) -> Figures:
    tokens, batch = SMALL_SHAPE
    sizes = _sizes(tokens, batch)
    return _measure(lab, f"narrow {name}", partial(data.pretrain_words, **sizes, **flags))


def _base_speed(lab: Lab, data: SmallData, tokens: int, batch: int, name: str, way: Way) -> Figures:
    sizes = _sizes(tokens, batch)
    sizes.update(model_name_or_path=data.base_model(), input_dir=data.base_corpus(), from_scratch="true")
    words = partial(data.pretrain_words, **{**sizes, "num_workers": 2, **way.flags})
    return _measure(lab, f"base {tokens} {name}", words)


def _pair_speed(lab: Lab, data: SmallData, name: str, way: Way) -> Figures:
    sizes: Dict[str, Any] = {"max_seq_len": PAIR_TOKENS, "batch_size": PAIR_BATCH, **_LONG}
    if lab.device == "gpu":
        sizes.update(model_name_or_path=data.base_model(), from_scratch="true")
    words = partial(data.train_words, **{**sizes, **way.flags})
    return _measure(lab, f"pairs {name}", words)


# Far more steps than are measured; not too many, because the samples of all are drawn at the start.
_LONG = {"max_steps": 400, "logging_freq": STEPS_PER_LINE}


def _measure(lab: Lab, name: str, words: "partial[Words]") -> Figures:
    """Return the medians of the lines after the first, and the peak memory. Raises LostProcessError."""
    output: Path = lab.folder / "speed" / "".join(c if c.isalnum() else "_" for c in name)
    with lab.started(words(output), alone=True) as running:
        if not running.wait(lambda: len(train_events(output)) >= LINES):
            running.refuse_failure()
            raise LostProcessError(f"the run ended before it had logged {LINES} lines")
    events = train_events(output)[1:]
    shutil.rmtree(output, ignore_errors=True)  # the best model of pairs is that of their start: 0.4 GB
    found = {shown: [event[key] for event in events if key in event] for key, shown in MEASURED.items()}
    return {shown: _rounded(median(values)) for shown, values in found.items() if values}


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
