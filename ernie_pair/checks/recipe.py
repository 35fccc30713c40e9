"""The commands from text and pairs to a model in one folder, and the runner of their steps, one by one."""

import os
import shlex
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from ernie_pair.checkpoint.run_config import keep_config
from ernie_pair.core.cli.options import Options
from ernie_pair.core.errors import OUTER
from ernie_pair.core.files.atomic_files import make_folder
from ernie_pair.core.files.atomic_folder import only_writer
from ernie_pair.core.installation import TRAINING
from ernie_pair.core.progress import is_silent, last_line_shown, say
from ernie_pair.runtime.processes.child_command import ChildCommand, Words, run_child, words_of
from ernie_pair.runtime.processes.stop_signals import StopSignals

# What its commands need between them, known before the first one writes.
NEEDS = {**TRAINING, "rjieba": ""}


@dataclass(frozen=True)
class RecipeCommands:
    """The commands of the recipe below ``folder``; ``gpus``: those of pretraining, on device gpu."""

    folder: Path
    device: str
    gpus: str = "0"

    @property
    def vocabulary(self) -> Path:
        """Return the path of the vocabulary that is built."""
        return self.folder / "corpus" / "vocab.txt"

    def build_vocabulary(self, text: object, **flags: object) -> Words:
        """Return the command that builds a vocabulary from text."""
        return words_of("build", "vocab", input_path=text, output_file=self.vocabulary, **flags)

    def prepare(self, text: object, name: str, **flags: object) -> Words:
        """Return the command that makes the corpus ``name`` from text."""
        return words_of("prepare", input_path=text, output_prefix=self.folder / "corpus" / name, **flags)

    def new_model(self, **sizes: object) -> Words:
        """Return the command that makes the model with which pretraining begins from scratch."""
        return words_of("new-model", vocab_file=self.vocabulary, output_dir=self.folder / "small", **sizes)

    def pretrain(self, start: object, corpora: object, **flags: object) -> Words:
        """Return the command that pretrains ``start`` in the static graph, by the launcher on GPUs."""
        on_gpu = {"gpus": self.gpus, "use_amp": "true"} if self.device == "gpu" else {}
        paths = {"input_dir": corpora, "output_dir": self.folder / "pretrain"}
        flags = {**flags, **on_gpu, "device": self.device}
        return words_of("launch", "pretrain", model_name_or_path=start, **paths, **flags)

    def convert(self) -> Words:
        """Return the command that converts the pretrained model to a dynamic one."""
        static_vars = self.folder / "pretrain" / "model_last" / "static_vars"
        return words_of("convert", static_model_path=static_vars, output_dir=self.folder / "dynamic")

    def train(self, start: object, output: str, **flags: object) -> Words:
        """Return the command that trains ``start`` on pairs, in the folder ``output``."""
        paths = {"model_name_or_path": start, "output_dir": self.folder / output}
        return words_of("train", **paths, **flags, device=self.device)

    def train_embedding(self, start: object, output: str, **flags: object) -> Words:
        """Return the command that trains ``start`` to an encoder, in the folder ``output``."""
        paths = {"model_name_or_path": start, "output_dir": self.folder / output}
        return words_of("train-embedding", **paths, **flags, device=self.device)


class Step(NamedTuple):
    """Commands that follow each other; ``beside``: one that runs beside a single one, into a log.

    ``threads``: of each of them; None: as many as there are cores. ``decided``: asked once they have ended
    for what is shown, behind the commands themselves; None: neither.
    """

    title: str
    commands: List[Words]
    beside: Optional[Words] = None
    threads: Optional[int] = None
    decided: Optional[Callable[[], str]] = None


EPOCHS, MOST_EPOCHS = 3, 20


def choose_epochs(rows: float, batch: int, steps: int) -> int:
    """Return how often ``rows`` are read: of few of them a model learns nothing in EPOCHS."""
    return min(MOST_EPOCHS, max(EPOCHS, round(steps * batch / max(1, rows))))


def describe_outer(command: str, config: Options) -> str:
    """Return what children of ``command`` are told of it, see `for_outer`."""
    return " ".join([command, *(item.name for item in fields(config))])


def run_steps(
    command: str, config: Any, steps: Iterable[Step], count: int, log: Path, is_shown: bool = True
) -> Iterator[Tuple[Step, float, str]]:
    """Run the ``count`` steps of ``command`` in its output_dir; yield each, its seconds and what was decided.

    A step is asked for once those before it have ended. ``log``: of what runs beside, and of all commands
    and what they say, unless that ``is_shown``. Raises the error that a command ends with, what runs beside
    it being stopped, and MachineError if another process writes the folder.
    """
    folder = Path(config.output_dir)
    make_folder(folder)
    with only_writer(Path(os.path.realpath(folder))), StopSignals():
        for number, step in enumerate(steps, start=1):
            if number == 1:
                keep_config(folder, command, config)
            began = time.monotonic()
            say(f"\n[{number}/{count}] {step.title}", sys.stderr)
            environment = {**os.environ, OUTER: describe_outer(command, config)}
            environment.update({"OMP_NUM_THREADS": str(step.threads)} if step.threads else {})
            with ExitStack() as stack:
                if step.beside:
                    name = f"step {number}, {step.beside[0]} from scratch"
                    beside = stack.enter_context(ChildCommand(step.beside, name, log, environment))
                shown_in = None if is_shown and not is_silent() else log
                if shown_in:
                    stack.enter_context(last_line_shown(log))
                for words in step.commands:
                    if shown_in:
                        with open(log, "a", encoding="utf-8") as lines:
                            lines.write(f"\n$ {shlex.join(['ernie-pair', *words])}\n")
                    run_child(words, f"step {number}, {words[0]}", shown_in, environment)
                if step.beside:
                    beside.finish()
            decided = step.decided() if step.decided else ""
            if decided:
                say(f"  {decided}", sys.stderr)
            yield step, time.monotonic() - began, decided
