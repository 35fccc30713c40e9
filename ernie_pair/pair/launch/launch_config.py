"""Read what `ernie-pair launch FILE` is told: a block of the file, and the flags of what it starts.

launch:
  processes: 2                  on each machine
  gpus: 0,1                     absent on CPU
  nnodes: 2                     machines
  master: 10.0.0.1:8090         an address of the first of them
model_name_or_path: ernie-gram-zh
train_file: train.tsv
"""

import os
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, List, Sequence, Tuple

from data_tools.base.cli import build_config, leave_with_help
from data_tools.base.errors import InputError
from data_tools.base.flag_words import flag_names, flags_given, given_by, split_words
from data_tools.base.options import Given, Options, hints_of, option
from data_tools.base.yaml_flags import launch_file, read_entries
from ernie_pair.pair.config.ask_config import EvaluateConfig, PredictConfig
from ernie_pair.pair.config.pair_config import TrainConfig

ADDRESS = re.compile(r"[^\s:/]+:\d{1,5}")
GPUS = re.compile(r"\d+(,\d+)*")
CONFIGS = {"train": TrainConfig, "evaluate": EvaluateConfig, "predict": PredictConfig}


@dataclass(frozen=True)
class LaunchConfig(Options):
    """Start training, evaluation or prediction in several processes, as a file says."""

    EXAMPLE = "pair.yaml --max_steps 1000"

    file: str = option(
        positional=True, help="made by ernie-pair config: a block `launch:` and the flags", group="data"
    )
    command: str = option("train", help="what the processes run", group="devices", choices=CONFIGS)
    processes: int = option(
        0,
        help="on each machine; 0: one for each of --gpus, or one alone",
        group="devices",
        unit="processes",
        at_least=0,
    )
    gpus: str = option(
        "",
        help="of each machine, 0,1 for example; empty: the CPU, or one GPU for one process",
        group="devices",
    )
    nnodes: int = option(
        1, help="how many machines; start the same on each", group="devices", unit="machines", at_least=1
    )
    master: str = option("", help="host:port of the first machine, where there are several", group="devices")
    log_dir: str = option(
        "", help="what each process prints goes here; empty: OUTPUT_DIR/log, or log", group="devices"
    )

    @property
    def on_each_machine(self) -> int:
        """Return the number of processes on each machine."""
        return self.processes or len(self.gpus.split(","))

    @property
    def is_alone(self) -> bool:
        """Return whether it is one process that needs no launcher."""
        return self.on_each_machine == self.nnodes == 1 and not self.gpus

    def __post_init__(self):
        super().__post_init__()
        if self.gpus and not GPUS.fullmatch(self.gpus):
            raise InputError(f"--gpus {self.gpus} is no list of numbers; write 0,1 for example")
        if self.gpus and self.processes not in (0, len(self.gpus.split(","))):
            raise InputError(f"--gpus {self.gpus} and --processes {self.processes} differ; give one for each")
        if self.nnodes > 1 and not ADDRESS.fullmatch(self.master):
            raise InputError(f"--master {self.master!r} is no address; write 10.0.0.1:8090 for example")

    def refuse_device(self, device: str) -> None:
        """Raise InputError where ``device``, an option of what is started, does not fit the GPUs."""
        if self.gpus and device == "cpu":
            raise InputError(f"--gpus {self.gpus} and --device cpu exclude each other; leave one of them out")
        if device == "gpu" and not (self.gpus or self.is_alone):
            raise InputError(
                "--device gpu with several processes: name a GPU for each, --gpus 0,1 for example"
            )


def read_launch(words: Sequence[str]) -> Tuple[LaunchConfig, List[str]]:
    """Read ``FILE [flags]`` into how to start, and the words of what is started. Flags win over the file.

    Everything is checked as by the command itself. Raises InputError, for the file with file:line.
    """
    if "-h" in words or "--help" in words:
        leave_with_help([LaunchConfig, TrainConfig], "ernie-pair launch")
    if not words or words[0].startswith("-"):
        raise InputError("give the file first: ernie-pair launch FILE [flags]")
    if not Path(words[0]).is_file():
        raise InputError(f"{words[0]}: no such file; ernie-pair config makes one")
    block, beside = launch_file(words[0])
    of_all = split_words(words[1:], _names_of(LaunchConfig, *CONFIGS.values()))
    of_file = {**read_entries(block, hints_of(LaunchConfig)), "file": Given(words[0], "FILE")}
    launch = build_config(LaunchConfig, {**of_file, **flags_given(of_all, LaunchConfig)})
    started = CONFIGS[launch.command]
    split = split_words(words[1:], _names_of(LaunchConfig, started))
    given = {**read_entries(beside, hints_of(started)), **given_by(split, started)}
    config: Any = build_config(started, given)
    launch.refuse_device(config.device)
    log_dir = launch.log_dir or os.path.join(getattr(config, "output_dir", ""), "log")
    return replace(launch, log_dir=log_dir), [f"--{name}={value.text}" for name, value in given.items()]


def shown(words: Sequence[str]) -> str:
    """Return the words as one line that can be copied into a shell."""
    return " ".join(map(shlex.quote, words))


def _names_of(*config_classes: type) -> List[str]:
    return [name for config_class in config_classes for name in flag_names(config_class)]
