"""The commands of the quickstart, from the built-in sample to predictions, as words of `ernie-pair`."""

from dataclasses import dataclass
from pathlib import Path
from typing import List

from data_tools.base.errors import CheckpointError

Words = List[str]

# A model of two narrow layers: it learns on a CPU within minutes.
SMALL_MODEL = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 512,
    "max_position_embeddings": 130,
}
PRETRAINING = {
    "model_type": "ernie",
    "from_scratch": "true",
    "split": "900,50,50",
    "max_seq_len": 48,
    "short_seq_prob": 0,
    "micro_batch_size": 16,
    "global_batch_size": 16,
    "warmup_rate": 0.1,
    "max_lr": 0.002,
    "min_lr": 0.0001,
    "adam_beta2": 0.98,
    "hidden_dropout_prob": 0,
    "attention_probs_dropout_prob": 0,
    "logging_freq": 100,
    "eval_freq": 400,
    "checkpoint_steps": 400,
    "save_steps": 1000000,
    "num_workers": 0,
}
TRAINING = {
    "model_type": "ernie",
    "max_seq_len": 48,
    "batch_size": 32,
    "learning_rate": 0.0005,
    "dropout": 0,
    "eval_freq": 10000,
    "logging_freq": 100,
    "checkpoint_steps": 200,
}


@dataclass(frozen=True)
class SmallLine:
    """The line of work below ``folder``; each method returns the words of one command of it.

    ``documents`` and ``pairs`` of the sample, ``steps`` of pretraining, ``epochs`` of training;
    ``gpus``: those of pretraining, where ``device`` is gpu.
    """

    folder: Path
    documents: int
    pairs: int
    steps: int
    epochs: int
    seed: int
    device: str
    gpus: str = "0"

    def sample(self) -> Words:
        """Return the command that writes the text and the pairs."""
        flags = {"documents": self.documents, "pairs": self.pairs}
        return words_of("make-sample", output_dir=self.folder / "sample", **flags)

    def corpus(self) -> List[Words]:
        """Return the three commands that prepare the corpus: sentences, vocabulary, token ids."""
        corpus, text = self.folder / "corpus", self.folder / "sample" / "corpus.txt"
        flags = {"chinese": "true", "split_sentences": "true", "cn_whole_word_segment": "true", "workers": 2}
        return [
            words_of("text-to-json", input_path=text, output_path=corpus / "documents"),
            words_of("build-vocab", input_path=text, output_path=corpus / "vocab.txt"),
            words_of(
                "create-corpus",
                input_path=corpus / "documents.jsonl",
                output_prefix=corpus / "text",
                vocab_file=corpus / "vocab.txt",
                **flags,
            ),
        ]

    def new_model(self) -> Words:
        """Return the command that makes the small model, with which pretraining begins."""
        vocab = self.folder / "corpus" / "vocab.txt"
        return words_of("new-model", vocab_file=vocab, output_dir=self.folder / "small", **SMALL_MODEL)

    def pretrain(self) -> Words:
        """Return the command that pretrains it in the static graph, by the launcher where it is on GPUs."""
        steps = {"max_steps": self.steps, "decay_steps": self.steps}
        on_gpu = {"gpus": self.gpus, "use_amp": "true"} if self.device == "gpu" else {}
        places = {"model_name_or_path": "small", "input_dir": "corpus", "output_dir": "pretrain"}
        paths = {flag: self.folder / name for flag, name in places.items()}
        flags = {**PRETRAINING, **steps, **on_gpu, "seed": self.seed, "device": self.device}
        return words_of("launch", "pretrain", **paths, **flags)

    def convert(self) -> Words:
        """Return the command that converts the pretrained model to a dynamic one."""
        static_vars = self.folder / "pretrain" / "model_last" / "static_vars"
        return words_of("convert", static_model_path=static_vars, output_dir=self.folder / "dynamic")

    def train(self, start: str, output: str) -> Words:
        """Return the command that trains on the pairs, from ``start``: dynamic, or small with new weights."""
        scratch = {"from_scratch": "true"} if start == "small" else {}
        pairs = self.folder / "sample" / "pairs"
        files = {"train_file": pairs / "train.tsv", "dev_file": pairs / "dev.tsv"}
        paths = {"model_name_or_path": self.folder / start, "output_dir": self.folder / output, **files}
        flags = {**TRAINING, **scratch, "epochs": self.epochs, "seed": self.seed, "device": self.device}
        return words_of("train", **paths, **flags)

    def evaluate(self, run: str) -> Words:
        """Measure the best model of ``run`` on the test pairs."""
        return self._ask("evaluate", run, self.folder / run / "test.json")

    def predict(self, run: str) -> Words:
        """Predict the classes of the test pairs by the best model of ``run``."""
        return self._ask("predict", run, self.folder / "predictions.tsv")

    def _ask(self, command: str, run: str, output: Path) -> Words:
        test = self.folder / "sample" / "pairs" / "test.tsv"
        model = _best_of(self.folder / run)
        return words_of(command, model_path=model, input_file=test, output_file=output, device=self.device)


def _best_of(run: Path) -> Path:
    found = sorted(run.glob("best-accuracy-*"))
    if not found:
        raise CheckpointError(f"{run} holds no best-accuracy-* model; remove the folder and start again")
    return found[-1]


def words_of(*command: str, **flags) -> Words:
    """Return the words of a command and its flags, as `ernie-pair` takes them."""
    return [*command, *(f"--{name}={value}" for name, value in flags.items())]
