"""One process of a probe: runs a few steps of a stand-in, and reports their time and memory.

python -m ernie_pair.launch.time_steps ANSWER COMMAND [flags of COMMAND]

ANSWER, written by the first rank, is a `StepTimes` as JSON. Nothing else is written.
"""

import json
import resource
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, Sequence, Union

from data_tools.files.atomic_files import published
from data_tools.options.cli import exit_code_of, parse_config
from ernie_pair.launch.auto_processes import StepTimes
from ernie_pair.models.source import NAME_FAMILY, ModelSource, open_model, refuse_no_family
from ernie_pair.models.spec import ModelSpec
from ernie_pair.pair.config.pair_config import TrainConfig
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig
from ernie_pair.runtime.cpu_env import cpu_threads
from ernie_pair.runtime.device import start_device
from ernie_pair.runtime.processes.stop_signals import stop_with_the_launcher
from ernie_pair.runtime.processes.world import launched_world

WARM_STEPS, STEPS = 2, 5
# command: (its flags, the module that runs its steps); they load Paddle, each its own half of the package
TIMED: Any = {
    "train": (TrainConfig, "ernie_pair.launch.pair_steps"),
    "pretrain": (PretrainConfig, "ernie_pair.launch.pretrain_steps"),
}


def main() -> None:
    """Time the steps that ``sys.argv`` describes, and write the answer."""
    answer, command, *flags = sys.argv[1:]
    sys.exit(exit_code_of(lambda: time_steps(Path(answer), command, flags)))


def time_steps(answer: Path, command: str, flags: Sequence[str]) -> None:
    """Write the times of the steps of ``command`` in the processes of this run. Raises an ErniePairError."""
    config_class, module = TIMED[command]
    world = launched_world()
    stop_with_the_launcher()
    start_device("cpu", world)
    config = parse_config(config_class, list(flags), command)
    rows, time_step = import_module(module).open_steps(config, world)
    for _ in range(WARM_STEPS):
        time_step()
    one, further = map(median, zip(*(time_step() for _ in range(STEPS))))
    if world.is_first:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        # Noise must not make a pass free.
        times = StepTimes(one, max(further, one / 10), rows, memory)
        with published(answer, forced=False) as (draft,):
            draft.write_text(json.dumps(times._asdict()), encoding="utf-8")


if __name__ == "__main__":
    main()


LAYERS = 2
PASS_SECONDS, THREAD_FLOPS = 0.3, 5e10  # operations of a thread per second, roughly: it need not be exact


def open_stand_in(config: Union[TrainConfig, PretrainConfig]) -> ModelSource:
    """Return the model of a run with at most LAYERS layers, and without weights. Raises InputError."""
    source = open_model(config.model_name_or_path, model_type=config.model_type or "", from_scratch=True)
    refuse_no_family(source, NAME_FAMILY)
    spec = source.spec.replace(num_hidden_layers=min(LAYERS, source.spec.num_layers))
    return replace(source, spec=spec, weights=None)


def rows_in_pass(asked: int, tokens: int, spec: ModelSpec) -> int:
    """Return how many samples of ``tokens`` tokens a forward and backward pass takes: ``asked``, or fewer."""
    parameters = 12 * spec.hidden_size**2 * spec.num_layers
    seconds = 6 * parameters * max(tokens, 1) / (THREAD_FLOPS * cpu_threads())
    return max(1, min(asked, int(PASS_SECONDS / seconds)))
