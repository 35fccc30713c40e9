"""The data that the check makes itself: the built-in sample, corpora and models, each made when needed."""

from pathlib import Path
from typing import Any, Dict, List

from ernie_pair.gpu_check.runs.lab import Lab
from ernie_pair.quickstart.commands import PRETRAINING, TRAINING, SmallLine, words_of

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
