"""The data that the check makes itself: the built-in sample, corpora and models, each made when needed."""

import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from data_tools.files.errors import ErniePairError, message_of
from ernie_pair.checks.gpu.runs import (
    FAILED,
    NEEDS,
    NOT_RUN,
    PASSED,
    Case,
    Lab,
    Planned,
    StepOutcome,
    hide_private,
)
from ernie_pair.checks.quickstart import PRETRAINING, TRAINING, SmallLine, words_of
from ernie_pair.runtime.processes.child_command import BrokenRunError

NEVER = 10**6  # of a frequency in steps
BASE_VOCABULARY = 18_000  # tokens, as in ERNIE 1.0: they determine the cost of the masked-token head
FIRST_STEPS = 2  # on the CPU, whose weights all runs start from: devices draw different random numbers
# Every step is a line of metrics.jsonl, and only steps take time.
EVERY_STEP: Dict[str, Any] = {"logging_freq": 1, "eval_freq": NEVER, "checkpoint_steps": NEVER}
TINY_PRETRAINING: Dict[str, Any] = {**PRETRAINING, **EVERY_STEP, "split": "1,0,0", "from_scratch": "false"}
TINY_TRAINING: Dict[str, Any] = {**TRAINING, **EVERY_STEP, "epochs": 1000}


class SmallData:
    """The data of a check; each method makes its result once, and raises the error of a command."""

    def __init__(self, lab: Lab):
        self._lab = lab
        documents, pairs = (80, 180) if lab.quick else (300, 3600)
        self._line = SmallLine(lab.folder / "data", documents, pairs, steps=0, epochs=0, seed=1, device="cpu")

    @property
    def pairs(self) -> Path:
        """Return the folder of train.tsv, dev.tsv and test.tsv."""
        self._sample()
        return self._line.folder / "sample" / "pairs"

    def corpus(self) -> Path:
        """Return the folder of the token ids of the sample."""

        def make() -> Path:
            self._sample()
            for words in self._line.corpus():
                self._lab.run(words)
            return self._line.folder / "corpus"

        return self._lab.once("corpus", make)

    def small_model(self) -> Path:
        """Return the folder of a model of two narrow layers, without weights."""

        def make() -> Path:
            self.corpus()
            self._lab.run(self._line.new_model())
            return self._line.folder / "small"

        return self._lab.once("small model", make)

    def start(self) -> Path:
        """Return the folder of that model with the weights that all runs start from."""

        def make() -> Path:
            steps = {"max_steps": FIRST_STEPS, "save_steps": FIRST_STEPS, "from_scratch": "true"}
            output = self._lab.folder / "start"
            model, corpus = self.small_model(), self.corpus()
            paths = {"model_name_or_path": model, "input_dir": corpus, "output_dir": output}
            self._lab.run(words_of("pretrain", **{**TINY_PRETRAINING, **paths, **steps, "device": "cpu"}))
            return output / f"model_{FIRST_STEPS}"

        return self._lab.once("start", make)

    def base_model(self) -> Path:
        """Return the folder of a model of ERNIE's size, without weights."""

        def make() -> Path:
            folder = self._lab.folder / "base"
            self._lab.run(words_of("new-model", vocab_file=self._base_vocabulary(), output_dir=folder))
            return folder

        return self._lab.once("base model", make)

    def base_corpus(self) -> Path:
        """Return a corpus for that model whose documents fill samples of 512 tokens."""

        def make() -> Path:
            folder = self._lab.folder / "base_corpus"
            flags = {"chinese": "true", "cn_whole_word_segment": "true", "join_documents": "short"}
            source = self.corpus() / "documents.jsonl"
            self._lab.run(
                words_of(
                    "create-corpus",
                    input_path=source,
                    output_prefix=folder / "text",
                    vocab_file=self._base_vocabulary(),
                    **flags,
                )
            )
            return folder

        return self._lab.once("base corpus", make)

    def _sample(self) -> None:
        self._lab.once("sample", lambda: self._lab.run(self._line.sample()))

    def _base_vocabulary(self) -> Path:
        def make() -> Path:
            tokens = (self.corpus() / "vocab.txt").read_text(encoding="utf-8").splitlines()
            more = [f"[unused{number}]" for number in range(BASE_VOCABULARY - len(tokens))]
            path = self._lab.folder / "base_vocab.txt"
            path.write_text("".join(f"{token}\n" for token in [*tokens, *more]), encoding="utf-8")
            return path

        return self._lab.once("base vocabulary", make)

    def pretrain_words(self, output: Path, **flags) -> List[str]:
        """Return the words of a pretraining run from the common start, with a log line for each step."""
        paths = {"model_name_or_path": self.start(), "input_dir": self.corpus(), "output_dir": output}
        return words_of("pretrain", **{**TINY_PRETRAINING, **paths, "device": self._lab.device, **flags})

    def train_words(self, output: Path, **flags) -> List[str]:
        """Return the words of a pair training run from the common start, with a log line for each step."""
        files = {"train_file": self.pairs / "train.tsv", "dev_file": self.pairs / "dev.tsv"}
        paths = {"model_name_or_path": self.start(), "output_dir": output, **files}
        return words_of("train", **{**TINY_TRAINING, **paths, "device": self._lab.device, **flags})


Plan = Callable[[Lab, SmallData], List[Planned]]
Tell = Callable[[Case], None]


class Step(NamedTuple):
    """A step: its number and title, its time limit in seconds, and the function that makes its cases.

    ``is_timed``: its cases run one by one, with all cores.
    """

    number: int
    title: str
    limit: float
    plan: Plan
    is_timed: bool = False


def run_step(step: Step, lab: Lab, data: SmallData, tell: Tell) -> StepOutcome:
    """Run the cases of a step, and ``tell`` each as it ends. A failed case does not stop the others."""
    began = time.monotonic()
    planned = step.plan(lab, data)
    lab.deadline = began + step.limit
    cases: Dict[str, Optional[Case]] = {one.name: _left_out(one, step, lab) for one in planned}
    for case in cases.values():
        if case is not None:
            tell(case)
    due = [one for one in planned if cases[one.name] is None]
    executor = ThreadPoolExecutor(1 if step.is_timed else lab.lanes)
    try:
        for future in as_completed([executor.submit(_run, one) for one in due]):
            ended = future.result()
            cases[ended.name] = ended
            tell(ended)
    except BaseException:
        lab.stop()  # a thread waits for a command, which would have to end first
        raise
    finally:
        executor.shutdown(cancel_futures=True)
    found = [case for case in cases.values() if case is not None]
    return StepOutcome(step.number, step.title, found, time.monotonic() - began)


def _left_out(planned: Planned, step: Step, lab: Lab) -> Optional[Case]:
    """Return the case if it cannot be run here, else None."""
    if lab.is_lost and step.number > 0:
        reason = f"there is no GPU to check: {lab.machine.why_no_gpu}"
        return Case(planned.name, NOT_RUN, hide_private(reason), 0.0, {})
    return Case(planned.name, NEEDS, f"needs {planned.needs}", 0.0, {}) if planned.needs else None


def _run(planned: Planned) -> Case:
    began = time.monotonic()
    try:
        figures = planned.run()
    except Exception as error:
        # An error that is not ours is a bug of the check itself, or of what a run left: the case fails.
        ours = isinstance(error, ErniePairError)
        said = message_of(error) if ours else f"{type(error).__name__}: {error}"
        said, kind = hide_private(" ".join(said.split())), type(error) if ours else BrokenRunError
        return Case(planned.name, FAILED, said, time.monotonic() - began, {}, kind(said))
    return Case(planned.name, PASSED, "", time.monotonic() - began, figures)
