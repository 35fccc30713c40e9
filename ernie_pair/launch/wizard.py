"""`ernie-pair config`: a few questions, most with a default, make the file of `ernie-pair launch`."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Optional

import yaml

from data_tools.base.errors import InputError
from data_tools.base.options import Options, option, refuse_empty
from data_tools.base.yaml_flags import LAUNCH
from data_tools.files.atomic_files import published
from data_tools.files.results import followed, refuse_existing
from data_tools.files.standard_streams import refuse_closed_input
from ernie_pair.device.device import default_device
from ernie_pair.launch.launch_config import ADDRESS, read_launch, refuse_bad_gpus
from ernie_pair.model_files.config_json import FAMILIES, find_config
from ernie_pair.model_files.spec import read_family
from ernie_pair.pair.data.pair_file import refuse_missing
from ernie_pair.pair.data.pair_source import PairSource

Understand = Callable[[str], object]


@dataclass(frozen=True)
class QuestionsConfig(Options):
    """Answer a few questions to write a file from which `ernie-pair launch` starts a training run."""

    EXAMPLE = "--output_file pair.yaml"

    output_file: str = option("pair.yaml", help="file to write the answers to", group="data")
    overwrite: bool = option(False, help="replace the file if it exists", group="data")

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output_file")


def write_launch_file(config: QuestionsConfig) -> None:
    """Ask for the settings of a training run, and write the file from which `ernie-pair launch` starts it.

    The answers come from the terminal, or from a pipe, a line each. Raises InputError.
    """
    path = Path(config.output_file)
    refuse_existing([path], config.overwrite)
    refuse_closed_input("the questions", "run this on a terminal, or give the answers through a pipe")
    ask = Asker()
    block = _processes(ask)
    answers = {LAUNCH: block, **_training(ask, block), **_places(ask)}
    text = yaml.safe_dump(answers, sort_keys=False, allow_unicode=True)
    with published(followed(path)) as (draft,):
        draft.write_text(f"# ernie-pair launch {path} [--flags that override it]\n{text}", encoding="utf-8")
        read_launch([str(draft)])  # checks the combination of the answers
    sys.stdout.write(f"{path} is written; start it: ernie-pair launch {shlex.quote(str(path))}\n")


class Asker:
    """A dialogue that repeats a question until its answer is understood.

    A wrong answer from a pipe is an error at once.
    """

    def __init__(self):
        self.is_terminal = sys.stdin.isatty()

    def __call__(self, question: str, default: Optional[str], understand: Understand):
        """Return the result of ``understand`` for the answer, or for ``default`` if the answer is empty.

        Raises InputError when the answers end, and for a wrong answer from a pipe.
        """
        while True:
            sys.stdout.write(f"{question}{'' if default is None else f' [{default}]'}: ")
            sys.stdout.flush()
            line = sys.stdin.readline()
            if not self.is_terminal:
                sys.stdout.write(line or "\n")
            if not line and default is None:
                raise InputError(f"the answers end before {question!r}; it needs one")
            try:
                return understand(line.strip() or default or "")
            except InputError as error:
                if not self.is_terminal:
                    raise
                sys.stdout.write(f"  {error.message}\n")


def _processes(ask: Asker) -> Dict[str, Any]:
    """Ask for the block `launch:`."""
    block: Dict[str, Any] = {}
    device = ask("Run on cpu or gpu?", default_device(), one_of("cpu", "gpu"))
    if device == "gpu":
        block["gpus"] = ask("Which GPUs of each machine, 0,1 for example?", "0", _gpus)
    else:
        block["processes"] = ask("How many processes on each machine?", "1", at_least(1))
    block["nnodes"] = ask("How many machines?", "1", at_least(1))
    if block["nnodes"] > 1:
        block["master"] = ask("Address of the first machine, host:port?", None, _address)
    return block


def _training(ask: Asker, block: Dict[str, Any]) -> Dict[str, object]:
    """Ask how a step is computed, and return the flags of training for it."""
    flags: Dict[str, object] = {"device": "gpu" if "gpus" in block else "cpu"}
    if "gpus" in block:
        precision = one_of("no", "float16", "bfloat16")
        dtype = ask("Mixed precision: no, float16 or bfloat16?", "no", precision)
        flags.update({} if dtype == "no" else {"use_amp": True, "amp_dtype": dtype})
    flags["batch_size"] = ask("How many pairs in one forward pass of a process?", "64", at_least(1))
    accumulation = ask("How many micro-batches in one step?", "1", at_least(1))
    flags["gradient_accumulation_steps"] = accumulation
    if "gpus" in block and ("," in block["gpus"] or block["nnodes"] > 1):
        sharding = "Split the optimizer state over the GPUs: none or stage2?"
        flags["sharding"] = ask(sharding, "none", one_of("none", "stage2"))
        # What --sharding_offload needs; see `update_config`.
        if (flags["sharding"], flags.get("amp_dtype"), accumulation) == ("stage2", "float16", 1):
            offload = "Keep it in the CPU's memory, with float16 weights (O2): yes or no?"
            if ask(offload, "no", one_of("yes", "no")) == "yes":
                flags.update(sharding_offload=True, amp_level="O2")
    return flags


def _places(ask: Asker) -> Dict[str, object]:
    """Ask what to train, on what, and where the results go."""
    model = ask("Which model: a folder, or a name such as ernie-gram-zh?", "ernie-gram-zh", _model)
    family = ask("Its family, ernie_gram, ernie, bert and so on?", _family_of(model), one_of(*FAMILIES))
    train = ask("Training pairs: a file, or a set such as lcqmc?", None, _pairs("train"))
    is_set = PairSource("train_file", train, "train", None).is_file is False
    dev = ask("Pairs that choose the best model?", train if is_set else None, _pairs("dev"))
    output_dir = ask("Folder for the results?", "output", _folder)
    return {
        "model_name_or_path": model,
        "model_type": family,
        "train_file": train,
        "dev_file": dev,
        "output_dir": output_dir,
    }


def one_of(*words: str) -> Understand:
    """Return a function that returns an answer that is one of ``words``, and raises InputError otherwise."""

    def understand(answer: str) -> str:
        if answer not in words:
            raise InputError(f"{answer!r} is not one of {', '.join(words)}; answer with one of them")
        return answer

    return understand


def at_least(least: int) -> Understand:
    """Return a function that returns an answer as an int of ``least`` or more, else raises InputError."""

    def understand(answer: str) -> int:
        if not (answer.isascii() and answer.isdecimal() and int(answer) >= least):
            raise InputError(f"{answer!r} is not a whole number of {least} or more; answer with one")
        return int(answer)

    return understand


def _gpus(answer: str) -> str:
    numbers = answer.replace(" ", "")
    refuse_bad_gpus(numbers)
    return numbers


def _address(answer: str) -> str:
    if not ADDRESS.fullmatch(answer):
        raise InputError(f"{answer!r} is not an address; answer with 10.0.0.1:8090 for example")
    return answer


def _model(answer: str) -> str:
    if ("/" in answer or Path(answer).exists()) and not Path(answer).is_dir():
        raise InputError(f"{answer} is not a folder; answer with the folder or the name of a model")
    return answer


def _family_of(model: str) -> str:
    config = find_config(Path(model)) if Path(model).is_dir() else None
    if config is not None:
        return read_family(config) or "ernie_gram"
    words = model.replace("-", "_")
    return next(
        (family for family in sorted(FAMILIES, key=len, reverse=True) if family in words), "ernie_gram"
    )


def _pairs(split: str) -> Understand:
    def understand(answer: str) -> str:
        if not answer:
            raise InputError("this question needs an answer: a file, or a set such as lcqmc")
        if PairSource(f"{split}_file", answer, split, None).is_file:
            refuse_missing(Path(answer))
        return answer

    return understand


def _folder(answer: str) -> str:
    if Path(answer).is_file():
        raise InputError(f"{answer} is a file; answer with the name of a folder")
    return answer
