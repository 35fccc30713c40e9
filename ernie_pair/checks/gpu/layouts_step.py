"""Steps 4 and 5: two processes give the result of one, and a lost process ends the run.

They use a GPU each; with fewer than two they compute on the CPU, with gloo.
"""

import json
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any, Dict, List

from data_tools.files.errors import ErniePairError, LostProcessError, NumbersError
from ernie_pair.checks.gpu.losses_step import NEARLY, relative_difference
from ernie_pair.checks.gpu.run_steps import SmallData
from ernie_pair.checks.gpu.runs import Figures, Lab, Planned, error_in_logs, losses_of, train_events
from ernie_pair.checks.quickstart import Words

STEPS, LONG = 10, 5000  # of a compared run, and of one that is killed early
SAMPLES = 16  # per step, in every layout
CLOSE = 1e-4  # largest relative difference of a loss: the order of the sums differs
BF16 = {"use_amp": "true", "amp_dtype": "bfloat16"}
NARROW = {"use_amp": "true", "amp_dtype": "float16", "amp_level": "O2", "init_loss_scaling": 1024}
# name: (the flags of both runs, those of the two processes)
PRETRAINING: Dict[str, Any] = {
    "data parallel": ({}, {"dp_degree": 2, "micro_batch_size": 8}),
    "sharded optimizer": ({}, {"sharding_degree": 2, "micro_batch_size": 8}),
    "data parallel, gradient merge": ({}, {"dp_degree": 2, "micro_batch_size": 4}),
    "data parallel, bf16 O1": (BF16, {"dp_degree": 2, "micro_batch_size": 8}),
}
QUICK = ("sharded optimizer",)
STAGE2 = {"stage 2": ({}, {"sharding": "stage2"}), "stage 2, offload": (NARROW, {"sharding": "stage2"})}
OFFLOAD = {"sharding_offload": "true"}
LOSS_SECONDS = 120.0  # after a process was killed, until the run must have ended


def plan_layouts(lab: Lab, data: SmallData) -> List[Planned]:
    """Return the cases of step 4."""
    on_gpus = not lab.lacks(2)
    where = "" if on_gpus else ", on the CPU"
    runs = _Runs(lab, data, on_gpus)
    return [
        *(
            Planned(
                f"pretraining, {name}{'' if flags is BF16 else where}",
                partial(runs.compare_pretraining, name, flags, layout),
                lab.lacks(2, "bfloat16") if flags is BF16 else "",
            )
            for name, (flags, layout) in PRETRAINING.items()
            if not lab.quick or name in QUICK
        ),
        Planned(f"pairs, data parallel{where}", runs.compare_pairs),
        Planned(f"a lost process ends the run{where}", runs.lose_a_process),
    ]


def plan_stage2(lab: Lab, data: SmallData) -> List[Planned]:
    """Return the cases of step 5."""
    runs = _Runs(lab, data, on_gpus=True)
    return [
        Planned(name, partial(runs.compare_stage2, name, flags, layout), lab.lacks(2, "float16"))
        for name, (flags, layout) in STAGE2.items()
    ]


class _Runs:
    """The runs of both steps: of one process, and of two on GPUs or on the CPU."""

    def __init__(self, lab: Lab, data: SmallData, on_gpus: bool):
        self._lab, self._data = lab, data
        self._device = "gpu" if on_gpus else "cpu"
        self._launcher = {"gpus": "0,1"} if on_gpus else {"processes": "2"}

    def compare_pretraining(self, name: str, flags: Dict[str, Any], layout: Dict[str, Any]) -> Figures:
        """Compare the losses of a layout of pretraining with those of one process."""
        sizes = {"max_steps": STEPS, "global_batch_size": SAMPLES, "device": self._device}
        kind = "pretraining in half precision" if flags else "pretraining"
        alone = partial(self._alone, kind, self._data.pretrain_words, {**flags, **sizes})
        one = self._lab.once(f"one process, {kind}", alone)
        two = self._launched(name, self._data.pretrain_words, {**flags, **layout, **sizes})
        return _compare(losses_of(two), losses_of(one), NEARLY if flags else CLOSE)

    def compare_pairs(self) -> Figures:
        """Compare the losses of training pairs in two processes with those of one."""
        sizes = {"max_steps": STEPS, "device": self._device}
        one = self._alone("pairs", self._data.train_words, {**sizes, "batch_size": SAMPLES})
        two = self._launched("pairs", self._data.train_words, {**sizes, "batch_size": SAMPLES // 2})
        return _compare(losses_of(two), losses_of(one), CLOSE)

    def compare_stage2(self, name: str, flags: Dict[str, Any], layout: Dict[str, Any]) -> Figures:
        """Compare the losses of sharded training of pairs with those of plain data parallelism."""
        sizes = {"max_steps": STEPS, "device": "gpu", "batch_size": SAMPLES // 2, **flags}
        offload = OFFLOAD if "offload" in name else {}
        plain = self._launched(f"plain {name}", self._data.train_words, sizes)
        sharded = self._launched(name, self._data.train_words, {**sizes, **layout, **offload})
        return _compare(losses_of(sharded), losses_of(plain), NEARLY if flags else CLOSE)

    def _alone(self, name: str, words: Any, flags: Dict[str, Any]) -> Path:
        output = self._output(f"one {name}")
        self._lab.run(words(output, **flags))
        return output

    def _launched(self, name: str, words: Any, flags: Dict[str, Any]) -> Path:
        output = self._output(name)
        try:
            self._lab.run(self._words(words, output, flags))
        except ErniePairError as error:
            raise error_in_logs(output, error) from None
        return output

    def _output(self, name: str) -> Path:
        return self._lab.folder / "layouts" / name.replace(" ", "_").replace(",", "")

    def _words(self, words: Any, output: Path, flags: Dict[str, Any]) -> Words:
        return ["launch", *words(output, **flags, **self._launcher)]

    def lose_a_process(self) -> Figures:
        """Kill one of two processes; the run must end by itself, with an error."""
        output = self._output("lost")
        flags = {"dp_degree": 2, "max_steps": LONG, "micro_batch_size": 8, "device": self._device}
        note = output / "ranks" / "00001.json"
        with self._lab.started(self._words(self._data.pretrain_words, output, flags)) as running:
            if not running.wait(lambda: bool(train_events(output)) and note.exists()):
                running.refuse_failure()
                raise LostProcessError(f"the run of {LONG} steps was over before a process could be killed")
            os.kill(int(json.loads(note.read_text(encoding="utf-8"))["pid"]), signal.SIGKILL)
            killed = time.monotonic()
            if running.wait(lambda: time.monotonic() > killed + LOSS_SECONDS):
                raise LostProcessError(f"it still runs {LOSS_SECONDS:.0f} s after one of two was killed")
        if running.process.returncode == 0:
            raise LostProcessError("the run ended with exit code 0 after one of two processes was killed")
        return {"seconds until it ended": round(time.monotonic() - killed, 1)}


def _compare(found: List[float], wanted: List[float], most: float) -> Figures:
    largest = relative_difference(found, wanted)
    if not largest <= most:
        raise NumbersError(f"losses of two processes differ by {largest:.3g} (relative), above {most:g}")
    return {"largest relative difference": largest}
