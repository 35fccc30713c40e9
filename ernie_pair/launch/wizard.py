"""`ernie-pair config`: a few questions, most with a default, make the file of `ernie-pair launch`."""

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, NamedTuple, Optional, Tuple, Union

import yaml

from ernie_pair.core.cli.flag_words import LAUNCH
from ernie_pair.core.cli.options import OverwriteFlag, data_option
from ernie_pair.core.cli.standard_streams import check_stdin
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.atomic_files import published
from ernie_pair.core.files.results import check_absent, followed
from ernie_pair.launch.launch import ADDRESS, read_launch, refuse_bad_gpus
from ernie_pair.models.families import FAMILIES
from ernie_pair.models.spec import family_in, find_config, read_config
from ernie_pair.pairs.data.pair_source import PairSource
from ernie_pair.runtime.device import default_device

Answers = Dict[str, object]
Understand = Callable[[str], object]


@dataclass(frozen=True)
class QuestionsConfig(OverwriteFlag):
    """Answer a few questions to write a file from which `ernie-pair launch` starts a training run."""

    EXAMPLE = "--output_file pair.yaml"

    output_file: str = data_option("pair.yaml", help="file to write the answers to", writes="FILE")


class Question(NamedTuple):
    """A question whose answer is the option ``name``; asked where it ``applies`` to the answers before it.

    ``default``: an answer, or a function of those before; None: there is none. ``others``: options that
    follow from it.
    """

    name: str
    text: str
    default: Union[str, None, Callable[[Answers], Optional[str]]]
    understand: Understand
    applies: Callable[[Answers], bool] = lambda answers: True
    others: Tuple[str, ...] = ()


def write_launch_file(config: QuestionsConfig) -> None:
    """Ask for the settings of a training run, and write the file from which `ernie-pair launch` starts it.

    The answers come from the terminal, or from a pipe, a line each. Raises InputError.
    """
    path = Path(config.output_file)
    check_absent([path], config.overwrite)
    check_stdin("the questions", "run this on a terminal, or give the answers through a pipe")
    answers: Answers = {}
    try:
        while not answers or not _is_written(path, answers):
            for question in QUESTIONS:
                if not question.applies(answers):
                    answers.pop(question.name, None)
                elif question.name not in answers:
                    answers[question.name] = _ask(question, answers)
    except KeyboardInterrupt:
        sys.stdout.write("\n")  # behind the question
        raise
    sys.stdout.write(f"{path} is written; start it: ernie-pair launch {shlex.quote(str(path))}\n")


def _is_written(path: Path, answers: Answers) -> bool:
    """Write the file; of answers that contradict each other, forget the last one that the error names."""
    try:
        _write(path, answers)
    except InputError as error:
        named = set(re.findall(r"(?:--|:\d+: )(\w+)", error.message))  # a flag, or a line of the file
        concerned = [q.name for q in QUESTIONS if q.name in answers and named & {q.name, *q.others}]
        if not (concerned and sys.stdin.isatty()):
            raise
        sys.stdout.write(f"  {error.message}\n")
        del answers[concerned[-1]]
        return False
    return True


def _write(path: Path, answers: Answers) -> None:
    """Write the file. Raises InputError, and writes nothing, for answers that contradict each other."""
    flags = {each.name: answers[each.name] for each in QUESTIONS if each.name in answers}
    block = {name: flags.pop(name) for name in ("gpus", "processes", "nnodes", "master") if name in flags}
    if flags.get("amp_dtype") == "no":
        del flags["amp_dtype"]
    elif "amp_dtype" in flags:
        flags["use_amp"] = True
    text = yaml.safe_dump({LAUNCH: block, **flags}, sort_keys=False, allow_unicode=True)
    with published(followed(path)) as (draft,):
        draft.write_text(f"# ernie-pair launch {path} [--flags that override it]\n{text}", encoding="utf-8")
        read_launch([str(draft)])  # checks the combination of the answers


def _ask(question: Question, answers: Answers) -> object:
    """Return the answer to ``question``, repeated on a terminal until it is understood, or InputError."""
    default = question.default(answers) if callable(question.default) else question.default
    while True:
        sys.stdout.write(f"{question.text}{'' if default is None else f' [{default}]'}: ")
        sys.stdout.flush()
        is_typed, line = sys.stdin.isatty(), sys.stdin.readline()
        if not (line and is_typed):
            sys.stdout.write(line or "\n")  # whatever follows begins a line of its own
        if not line and (default is None or is_typed):
            raise InputError(
                f"the answers end before {question.text!r}; it needs one, and nothing is written"
            )
        try:
            return question.understand(line.strip() or default or "")
        except InputError as error:
            if not is_typed:
                raise
            sys.stdout.write(f"  {error.message}\n")


def checked(
    is_right: Callable[[str], object], reason: str, result: Callable[[str], object] = str
) -> Understand:
    """Return a function that returns the ``result`` of an answer that ``is_right``, or InputError."""

    def understand(answer: str) -> object:
        if not is_right(answer):
            raise InputError(f"{answer!r} {reason}")
        return result(answer)

    return understand


def one_of(*words: str) -> Understand:
    """Return a function that returns an answer that is one of ``words``, and raises InputError otherwise."""
    return checked(words.__contains__, f"is not one of {', '.join(words)}; answer with one of them")


def at_least(least: int) -> Understand:
    """Return a function that returns an answer as an int of ``least`` or more, else raises InputError."""
    reason = f"is not a whole number of {least} or more; answer with one"
    return checked(lambda a: a.isascii() and a.isdecimal() and int(a) >= least, reason, int)


def _gpus(answer: str) -> str:
    numbers = answer.replace(" ", "")
    refuse_bad_gpus(numbers)
    return numbers


def _model(answer: str) -> str:
    if ("/" in answer or Path(answer).exists()) and not Path(answer).is_dir():
        raise InputError(f"{answer} is not a folder; answer with the folder or the name of a model")
    _family_of(answer)  # refuses a folder whose config.json cannot be read
    return answer


def _family_of(model: str) -> str:
    config = find_config(Path(model)) if Path(model).is_dir() else None
    if config is not None:
        return family_in(read_config(config)) or "ernie_gram"
    words = model.replace("-", "_")
    return next(
        (family for family in sorted(FAMILIES, key=len, reverse=True) if family in words), "ernie_gram"
    )


def _pairs(split: str) -> Understand:
    def understand(answer: str) -> str:
        if not answer:
            raise InputError("this question needs an answer: files, folders, or a set such as lcqmc")
        source = PairSource(f"{split}_file", answer, split, None)
        return answer if not source.is_file or source.files else ""  # they are there, or it raises

    return understand


def _folder(answer: str) -> str:
    if Path(answer).is_file():
        raise InputError(f"{answer} is a file; answer with the name of a folder")
    return answer


def _train_set(answers: Answers) -> Optional[str]:
    train = str(answers["train_file"])
    return None if PairSource("train_file", train, "train", None).is_file else train


def _on_gpus(answers: Answers) -> bool:
    return answers["device"] == "gpu"


# With these the state can lie in the memory of the CPU; see `update_config`.
QUESTIONS = (
    Question("device", "Run on cpu or gpu?", lambda answers: default_device(), one_of("cpu", "gpu")),
    Question("gpus", "Which GPUs of each machine, 0,1 for example?", "0", _gpus, _on_gpus),
    Question("processes", "How many processes on each machine?", "1", at_least(1), lambda a: not _on_gpus(a)),
    Question("nnodes", "How many machines?", "1", at_least(1)),
    Question(
        "master",
        "Address of the first machine, host:port?",
        None,
        checked(ADDRESS.fullmatch, "is not an address; answer with 10.0.0.1:8090 for example"),
        lambda answers: answers["nnodes"] != 1,
    ),
    Question(
        "amp_dtype",
        "Mixed precision: no, float16 or bfloat16?",
        "no",
        one_of("no", "float16", "bfloat16"),
        _on_gpus,
        ("use_amp",),
    ),
    Question("batch_size", "How many pairs in one forward pass of a process?", "64", at_least(1)),
    Question("gradient_accumulation_steps", "How many micro-batches in one step?", "1", at_least(1)),
    Question(
        "sharding",
        "Split the optimizer state over the GPUs: none or stage2?",
        "none",
        one_of("none", "stage2"),
        lambda a: _on_gpus(a) and ("," in str(a.get("gpus", "")) or a["nnodes"] != 1),
    ),
    Question(
        "model_name_or_path",
        "Which model: a folder, or a name such as ernie-gram-zh?",
        "ernie-gram-zh",
        _model,
    ),
    Question(
        "model_type",
        "Its family, ernie_gram, ernie, bert and so on?",
        lambda answers: _family_of(str(answers["model_name_or_path"])),
        one_of(*FAMILIES),
    ),
    Question("train_file", "Training pairs: files, folders, or a set such as lcqmc?", None, _pairs("train")),
    Question("dev_file", "Pairs that choose the best model?", _train_set, _pairs("dev")),
    Question("output_dir", "Folder for the results?", "output", _folder),
)
