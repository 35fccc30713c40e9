"""What `ernie-pair launch FILE` is told: a block of the file, and the flags of what it starts.

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
from dataclasses import dataclass, fields, make_dataclass
from pathlib import Path
from typing import Dict, List, Literal, Sequence, Tuple, get_type_hints

from data_tools.base.cli import option, parse_config
from data_tools.base.errors import InputError
from data_tools.base.yaml_flags import Entry, launch_file, refuse_entry
from ernie_pair.pair.config.pair_config import EvaluateConfig, PredictConfig, TrainConfig

ADDRESS = re.compile(r"[^\s:/]+:\d{1,5}")
GPUS = re.compile(r"\d+(,\d+)*")
CONFIGS = {"train": TrainConfig, "evaluate": EvaluateConfig, "predict": PredictConfig}


@dataclass(frozen=True)
class LaunchConfig:
    """Start training, evaluation or prediction in several processes, as a file says."""

    file: str = option(positional=True, help="made by ernie-pair config: a block `launch:` and the flags")
    command: Literal[tuple(CONFIGS)] = option("train", help="what the processes run")
    processes: int = option(0, help="on each machine; 0: one for each of --gpus, or one alone")
    gpus: str = option(
        "", help="of each machine, 0,1 for example; empty: the CPU, or one GPU for one process"
    )
    nnodes: int = option(1, help="how many machines; start the same on each")
    master: str = option("", help="host:port of the first machine, where there are several")
    log_dir: str = option("", help="what each process prints goes here; empty: OUTPUT_DIR/log, or log")

    @property
    def on_each_machine(self) -> int:
        return self.processes or len(self.gpus.split(","))

    @property
    def logs(self) -> str:
        output_dir = getattr(self, "output_dir", "")
        return self.log_dir or os.path.join(output_dir, "log")

    @property
    def is_alone(self) -> bool:
        """One process that needs no launcher."""
        return self.on_each_machine == self.nnodes == 1 and not self.gpus

    def refuse_launch(self) -> None:
        """Raises InputError. ``self.device`` is the flag of what is started."""
        if self.processes < 0 or self.nnodes < 1:
            wrong = "processes" if self.processes < 0 else "nnodes"
            raise InputError(f"--{wrong} {getattr(self, wrong)} is below 1; use 1 or more")
        if self.gpus and not GPUS.fullmatch(self.gpus):
            raise InputError(f"--gpus {self.gpus} is no list of numbers; write 0,1 for example")
        if self.gpus and self.device == "cpu":
            raise InputError(f"--gpus {self.gpus} and --device cpu exclude each other; leave one of them out")
        if self.gpus and self.processes not in (0, len(self.gpus.split(","))):
            raise InputError(f"--gpus {self.gpus} and --processes {self.processes} differ; give one for each")
        if self.device == "gpu" and not (self.gpus or self.is_alone):
            raise InputError(
                "--device gpu with several processes: name a GPU for each, --gpus 0,1 for example"
            )
        if self.nnodes > 1 and not ADDRESS.fullmatch(self.master):
            raise InputError(f"--master {self.master!r} is no address; write 10.0.0.1:8090 for example")


def read_launch(words: Sequence[str]) -> Tuple[LaunchConfig, List[str]]:
    """``FILE [flags]`` -> how to start, and the words of what is started. Flags win over the file.

    Everything is checked as by the command itself. Raises InputError, of the file with file:line.
    """
    if "-h" in words or "--help" in words:
        parse_config(_with_flags_of("train"), ["--help"])
    if not words or words[0].startswith("-"):
        raise InputError("give the file first: ernie-pair launch FILE [flags]")
    if not Path(words[0]).is_file():
        raise InputError(f"{words[0]}: no such file; ernie-pair config makes one")
    named = _given(words[1:])
    block, flags = launch_file(words[0])
    command = named.get("command", next((e.value.value for e in block if e.name == "command"), "train"))
    whole = _with_flags_of(command if command in CONFIGS else "train")
    _refuse_strange(block, get_type_hints(LaunchConfig))
    _refuse_strange(flags, get_type_hints(CONFIGS.get(command, TrainConfig)))
    of_file = [f"--{e.name}={e.value.value}" for e in (*block, *flags) if e.name not in named]
    config = parse_config(whole, [words[0], *of_file, *words[1:]])
    config.refuse_launch()
    of_launch = {item.name for item in fields(LaunchConfig)}
    given = {**{e.name: e.value.value for e in flags}, **named}
    return config, [f"--{name}={value}" for name, value in given.items() if name not in of_launch]


def shown(words: Sequence[str]) -> str:
    """To be copied into a shell."""
    return " ".join(map(shlex.quote, words))


def _with_flags_of(command: str) -> type:
    """A class of the flags of both."""
    named = {"__doc__": LaunchConfig.__doc__, "__module__": __name__}
    return make_dataclass("Launch", [], bases=(LaunchConfig, CONFIGS[command]), frozen=True, namespace=named)


def _refuse_strange(entries: List[Entry], hints: Dict[str, object]) -> None:
    for entry in entries:
        refuse_entry(*entry, hints)


def _given(words: Sequence[str]) -> Dict[str, str]:
    """{flag: its value}; 'true' for a bare one."""
    given = {}
    for word, following in zip(words, [*words[1:], "--"]):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            bare = "true" if following.startswith("--") else following
            given[name.replace("-", "_")] = value if equals else bare
    return given
