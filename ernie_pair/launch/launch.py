"""Start the processes that a file or flags describe; this process becomes their launcher."""

import ast
import os
import re
import shlex
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple, Type

import yaml

from ernie_pair.core.cli.cli import build_config, exit_with_help
from ernie_pair.core.cli.flag_words import (
    Entry,
    flag_names,
    launch_file,
    read_entries,
    read_flags,
    read_words,
    split_words,
    suggest_flags,
)
from ernie_pair.core.cli.options import Options, RawValue, devices_option, file_option, hints_of, parse_value
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.atomic_files import MAX_CONFIG_BYTES, FileRefusedError, read_regular
from ernie_pair.core.run_module import python_words
from ernie_pair.embeddings.embed_config import EmbedConfig
from ernie_pair.embeddings.train.embedding_config import TrainEmbeddingConfig
from ernie_pair.experiments.config import CrossValidateConfig, LearningCurveConfig, SearchParamsConfig
from ernie_pair.pairs.config.ask_config import EvaluateConfig, PredictConfig
from ernie_pair.pairs.config.distill_config import DistillConfig
from ernie_pair.pairs.config.pair_config import TrainConfig
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig, check_layout
from ernie_pair.runtime.device import default_device
from ernie_pair.runtime.gpu import why_no_gpu, without_cards
from ernie_pair.runtime.processes.child_command import ernie_pair_words
from ernie_pair.runtime.processes.console import dry_log_dir
from ernie_pair.runtime.processes.world import World

ADDRESS = re.compile(r"[^\s:/]+:\d{1,5}")
GPUS = re.compile(r"\d+(,\d+)*")
LAUNCHERS_WORD = re.compile(r"^--nproc[-_]per[-_]node(?==|$)")  # the name of --processes in other launchers
CONFIGS: Dict[str, Type[Options]] = {
    "train": TrainConfig,
    "distill": DistillConfig,
    "evaluate": EvaluateConfig,
    "predict": PredictConfig,
    "embed": EmbedConfig,
    "pretrain": PretrainConfig,
    "train-embedding": TrainEmbeddingConfig,
    "cross-validate": CrossValidateConfig,
    "learning-curve": LearningCurveConfig,
    "search-params": SearchParamsConfig,
}


@dataclass(frozen=True)
class LaunchConfig(Options):
    """Start pretraining, training, distillation, evaluation, prediction or embed in several processes.

    The flags of the command that is started stand behind it: ernie-pair train --help shows those of train.
    """

    EXAMPLE = "pretrain --gpus 0,1 --model_name_or_path ernie-1.0 --input_dir data --output_dir output"

    file: str = file_option(
        positional=True,
        help="a file with a `launch:` block and flags, as written by ernie-pair config; or the name of a "
        "command, such as train; or a Python script, which gets all words behind it, so that the flags of "
        "launch stand before it",
    )
    command: str = devices_option("train", help="what the processes run", choices=CONFIGS)
    processes: int = devices_option(
        0,
        help="processes on each machine, also --nproc_per_node; 0: one for each of --gpus, or a single one",
        unit="processes",
        at_least=0,
    )
    gpus: str = devices_option(
        "", help="GPUs of each machine, for example 0,1; empty: the CPU, or one GPU for a single process"
    )
    nnodes: int = devices_option(
        1, help="number of machines; start the same command on each", unit="machines", at_least=1
    )
    master: str = devices_option("", help="host:port of the first machine, if there are several")
    log_dir: str = devices_option(
        "", help="folder for what each process prints; empty: OUTPUT_DIR/log, or log", writes="FOLDER"
    )

    @property
    def on_each_machine(self) -> int:
        """Return the number of processes on each machine."""
        return self.processes or len(self.gpus.split(","))

    @property
    def on_all_machines(self) -> int:
        """Return the number of processes of the run."""
        return self.on_each_machine * self.nnodes

    @property
    def is_alone(self) -> bool:
        """Return whether there is only one process, which needs no launcher."""
        return self.on_each_machine == self.nnodes == 1 and not self.gpus

    def __post_init__(self):
        super().__post_init__()
        if self.gpus:
            refuse_bad_gpus(self.gpus)
        if self.gpus and self.processes not in (0, len(self.gpus.split(","))):
            raise InputError(f"--gpus {self.gpus} and --processes {self.processes} differ; give one for each")
        if self.nnodes > 1 and not ADDRESS.fullmatch(self.master):
            raise InputError(f"--master {self.master!r} is not an address; write 10.0.0.1:8090 for example")

    def refuse_device(self, device: str, is_given: bool = True) -> None:
        """Raise InputError if ``device``, an option of what is started, does not fit the GPUs.

        Where it is not given, it is the CPU if no driver is loaded.
        """
        if self.gpus and device == "cpu" and not is_given:
            processes = f"--processes {self.on_each_machine}"
            raise InputError(
                f"--gpus {self.gpus}, but {why_no_gpu()}; or use the CPU: {processes} in its place"
            )
        if self.gpus and device == "cpu":
            raise InputError(f"--gpus {self.gpus} and --device cpu exclude each other; leave one of them out")
        if device.startswith("gpu") and not self.is_alone and not (device == "gpu" and self.gpus):
            raise InputError(
                f"--device {device} with several processes: name a GPU for each, --gpus 0,1 for example"
            )


def refuse_bad_gpus(gpus: str) -> None:
    """Raise InputError unless ``gpus`` is a list of different numbers, such as 0,1.

    NCCL refuses two processes on one GPU, but only once they have started.
    """
    if not GPUS.fullmatch(gpus):
        raise InputError(f"--gpus {gpus} is not a list of numbers; write 0,1 for example")
    numbers = [int(number) for number in gpus.split(",")]
    if len(set(numbers)) < len(numbers):
        raise InputError(f"--gpus {gpus} names a GPU twice; write each number once")


def read_launch(words: Sequence[str]) -> Tuple[LaunchConfig, List[str]]:
    """Parse ``FILE [flags]`` or ``COMMAND [flags]`` into how to start, and the words of what is started.

    Flags override the file. Everything is checked as by the command itself. Raises InputError, with
    file:line for the file.
    """
    before, behind = split_at_target(words)
    first = behind[0] if behind else ""
    flags = _named_as_here([*before, *behind[1:]])
    if "-h" in flags or "--help" in flags:
        exit_with_help(LaunchConfig, "ernie-pair launch", shows_all=True)
    if not first:
        raise InputError(
            f"give a file or one of {', '.join(CONFIGS)}, or a script of your own, with the flags of launch "
            "before it: ernie-pair launch FILE [flags]"
        )
    block, beside = _entries_of(first)
    of_file = {**read_entries(first, block, hints_of(LaunchConfig)), "file": RawValue(first, "FILE")}
    if first in CONFIGS:
        of_file["command"] = RawValue(first, "FILE")
    launch = build_launch(flags, of_file, *CONFIGS.values())
    if first in CONFIGS and launch.command != first:
        raise InputError(f"{first} and --command {launch.command} are two commands; leave one of them out")
    config, flag_values = _read_started(launch, beside, flags)
    # The folder of embed is published whole, with nothing else in it.
    usual = os.path.join("" if launch.command == "embed" else getattr(config, "output_dir", ""), "log")
    log_dir = launch.log_dir or (dry_log_dir() if getattr(config, "dry_run", False) else usual)
    words_of = (
        [f"--{name}={value.text}"] if isinstance(value.text, str) else [f"--{name}", *value.text]
        for name, value in flag_values.items()
    )
    return replace(launch, log_dir=log_dir), [word for words in words_of for word in words]


def split_at_target(words: Sequence[str]) -> Tuple[List[str], List[str]]:
    """Return (the flags before the file, the script or the command that is to be started; that and all else).

    Each flag stands there with its value. The second is empty where there is nothing to start. Raises
    InputError for a flag that launch does not have.
    """
    place, names = 0, flag_names(LaunchConfig)
    while place < len(words) and words[place].startswith("-"):
        flag, equals, _ = _named_as_here(words[place : place + 1])[0].partition("=")
        name = flag.lstrip("-").replace("-", "_")
        if flag not in ("-h", "--help") and name not in names:
            raise InputError(
                f"{flag} stands before the file or command to start, where only flags of launch can; "
                f"{suggest_flags([name], names)}"
            )
        place += 1 if equals or name in ("h", "help") else 2
    return list(words[:place]), list(words[place:])


def _named_as_here(words: Sequence[str]) -> List[str]:
    return [LAUNCHERS_WORD.sub("--processes", word) for word in words]


def build_launch(
    words: Sequence[str], flag_values: Dict[str, RawValue], *config_classes: Type[Options]
) -> LaunchConfig:
    """Return how to start, by flags among ``words`` over ``flag_values``.

    ``config_classes``: whose flags may be among them; which of these is started is not known yet, so that
    other words are left alone. Without any, an unknown flag raises InputError.
    """
    split = split_words(
        _named_as_here(words), LaunchConfig, *config_classes, refuse_unknown=not config_classes
    )
    flag_values = {**flag_values, **read_words(split, LaunchConfig)}
    return build_config(LaunchConfig, flag_values, "ernie-pair launch")


def _read_started(
    launch: LaunchConfig, beside: List[Entry], words: Sequence[str]
) -> Tuple[Any, Dict[str, RawValue]]:
    """Return the options of what is started, and the given values among them. Raises InputError."""
    started = CONFIGS[launch.command]
    split = split_words(words, LaunchConfig, started)
    how = launch.command if launch.file in CONFIGS else f"--command {launch.command}"
    program = f"ernie-pair launch {how}"
    of_file = read_entries(launch.file, beside, hints_of(started), program)
    flag_values = {**of_file, **read_flags(split, started, program)}
    if started is PretrainConfig:
        # Without --dp_degree: the number of groups that the processes form; a sharding group counts once.
        sharding: Any = parse_value(flag_values.get("sharding_degree", RawValue("1", "")), int)
        processes = launch.on_all_machines
        if sharding > processes:
            raise InputError(f"--sharding_degree {sharding} is above {processes} processes; lower it")
        flag_values.setdefault("dp_degree", RawValue(str(processes // max(sharding, 1)), "--dp_degree"))
    config: Any = build_config(started, flag_values, program)
    launch.refuse_device(config.device, "device" in flag_values)
    if started is PretrainConfig:
        check_layout(config, World(0, launch.on_all_machines), World(0, launch.on_each_machine))
    return config, flag_values


def _entries_of(first: str) -> Tuple[List[Entry], List[Entry]]:
    """Return the block `launch:` of a file and the flags beside it; nothing for a command."""
    if first in CONFIGS:
        return [], []
    if not Path(first).is_file():
        what = "a folder" if Path(first).is_dir() else "neither a command of launch nor a file"
        raise InputError(
            f"{first} is {what}; give one of {', '.join(CONFIGS)}, a file that ernie-pair config has "
            "written, or a Python script"
        )
    return launch_file(first)


# The flags of launch that mean nothing for a script.
OF_COMMANDS = {"--command": "chooses a command of ernie-pair", "--config": "is for a command"}
SHEBANG = re.compile(rb"#!.*\bpython[\d.]*\b")


def read_script(words: Sequence[str]) -> Optional[Tuple[LaunchConfig, List[str]]]:
    """Return (how to start, the command line of each process), or None where ``words`` start no script.

    What stands behind the script is its own, whatever it is called. Raises InputError for a file that is
    neither a script nor YAML, and for flags of launch that a script does not have.
    """
    before, behind = split_at_target(words)
    if {"-h", "--help"} & set(before) or not behind or not is_script(Path(behind[0])):
        return None
    script = behind[0]
    config = build_launch(before, {"file": RawValue(script, "FILE")})
    for flag, purpose in OF_COMMANDS.items():
        if any(word.partition("=")[0] == flag for word in before):
            raise InputError(f"{flag} {purpose}, and {script} is a script; leave it out")
    return replace(config, log_dir=config.log_dir or "log"), [sys.executable, "-u", *behind]


def is_script(path: Path) -> bool:
    """Return whether a file is a Python script, and not a YAML file of flags; InputError if neither."""
    if path.suffix in (".yaml", ".yml") or not path.is_file():  # `read_launch` says what is wrong with those
        return False
    if path.suffix in (".py", ".pyw"):
        return True
    try:
        text = read_regular(path, MAX_CONFIG_BYTES)
    except (FileRefusedError, OSError):
        return False
    if SHEBANG.match(text):
        return True
    with suppress(yaml.YAMLError, RecursionError):
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None or isinstance(node, yaml.MappingNode):
            return False
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        ast.parse(text)
        return True
    raise InputError(
        f"{path} is neither a Python script nor a YAML file of flags; name a script my_train.py, or write "
        "lines like max_steps: 1000"
    )


def wrap_in_launcher(config: LaunchConfig, run: List[str]) -> List[str]:
    """Return the command line that starts ``run`` in the processes of ``config``."""
    if config.is_alone:
        return run
    words = [*python_words(), "-m", "ernie_pair.launcher", "--log_dir", config.log_dir]
    words += ["--gpus", config.gpus] if config.gpus else ["--nproc_per_node", str(config.on_each_machine)]
    if config.nnodes > 1:
        words += ["--nnodes", str(config.nnodes), "--master", config.master]
    return words + run


def launch_environment(config: LaunchConfig) -> Dict[str, str]:
    """Return the environment variables that tell the launcher not to use GPUs that are not wanted."""
    if config.gpus or config.is_alone or default_device() == "cpu":
        return {}
    return without_cards(config.on_each_machine)


def launch(words: Sequence[str]) -> None:
    """Run ``FILE [flags]``, ``COMMAND [flags]`` or ``[flags] SCRIPT [its flags]``; the call does not return.

    This process becomes the launcher: signals reach it, and its exit code is that of the run. Raises
    InputError before anything is started.
    """
    script = read_script(words)
    if script is not None:
        config, command = script[0], wrap_in_launcher(*script)
    else:
        config, flags = read_launch(words)
        command = wrap_in_launcher(config, [*ernie_pair_words("-u"), config.command, *flags])
    print(shlex.join(command), file=sys.stderr, flush=True)
    sys.stdout.flush()
    os.execve(sys.executable, command, {**os.environ, **launch_environment(config)})
