"""A new kind of training, complete: a class for each token, as in the recognition of names.

python tests/support/token_task.py --model_name_or_path ernie-1.0 --train_file train.tsv --dev_file dev.tsv \\
    --output_dir output

A line of a file is words TAB tags, both apart by blanks: `我 在 北 京<TAB>O O B I`. Everything else is the
engine's: processes, precision, resume, the best model, early stopping, logs, a dry run.
"""

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

from ernie_pair.core.cli.cli import run_command
from ernie_pair.core.cli.options import option
from ernie_pair.core.errors import InputError
from ernie_pair.inference.token_rows import open_tokenizer
from ernie_pair.models.families import FAMILIES
from ernie_pair.models.model_card import DataFile, Measured, ModelCard
from ernie_pair.models.networks.classifier import set_matching, with_prefix
from ernie_pair.models.networks.encoders import EncoderModel, hidden_states
from ernie_pair.models.source import open_start
from ernie_pair.runtime.processes.world import World, seed_of
from ernie_pair.training.run_flags import TrainingFlags
from ernie_pair.training.schedule import BatchOrder
from ernie_pair.training.task import Task, TaskData, train_task
from ernie_pair.training.training_step import LossParts

IGNORED = -100  # the label of what is no word: control tokens, padding, the rest of a word of several tokens


@dataclass(frozen=True)
class TokenConfig(TrainingFlags):
    """Train a classifier of tokens. Start it again to resume."""

    model_name_or_path: str = option(help="a built-in name or a model folder", group="model", reads="PATH")
    train_file: str = option(help="lines of words TAB tags", group="data", reads="FILE")
    dev_file: str = option(help="the same, for choosing the best model", group="data", reads="FILE")
    max_seq_len: int = option(
        128, help="tokens per line", group="data", unit="tokens", at_least=3, resume="same"
    )
    dropout: float = option(0.1, help="dropout", group="model", at_least=0, below=1, resume="same")
    best_metric: str = option(
        "accuracy",
        help="what chooses the best model",
        group="evaluation",
        choices=("accuracy",),
        resume="fixed",
    )


class TokenClassifier(EncoderModel):
    """An encoder and a linear layer over the state of each token, as PaddleNLP's XForTokenClassification."""

    def __init__(self, spec, num_classes: int, dropout: float):
        settings = {**spec.to_config(), "num_labels": num_classes, "model_type": spec.family}
        settings["architectures"] = [f"{FAMILIES[spec.family].class_start}ForTokenClassification"]
        settings.update(dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout))
        super().__init__(spec.with_config(settings))
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(spec.hidden_size, num_classes)
        self.freeze_unused()

    def unused_parts(self):
        return (*self.family_spec.unused, "pooler.")

    def forward(self, input_ids, token_type_ids):
        """Return the logits [B, S, C] of ids and token types int64 [B, S]."""
        states, _ = hidden_states(self.spec, self.encoder, input_ids, token_type_ids)
        return self.classifier(self.dropout(states))


class Lines(NamedTuple):
    """The token ids and labels of every line."""

    ids: List[np.ndarray]
    labels: List[np.ndarray]
    sha256: str


class TokenBatch(NamedTuple):
    """Ids, types and labels of some lines, int64 [B, S]; labels of what is no word are IGNORED."""

    input_ids: np.ndarray
    token_type_ids: np.ndarray
    labels: np.ndarray


def read_lines(path: str, tokenizer, tags: Dict[str, int], max_seq_len: int, grows: bool) -> Lines:
    """Read a file; ``grows``: new tags are added to ``tags``. Raises InputError naming a wrong line."""
    data, ids, labels = Path(path).read_bytes(), [], []
    for number, line in enumerate(data.decode("utf-8").splitlines(), 1):
        words, _, tagged = line.partition("\t")
        pairs = list(zip(words.split(), tagged.split()))
        if not pairs or len(words.split()) != len(tagged.split()):
            raise InputError(f"{path}:{number}: words and tags differ in number; give each word one tag")
        row, classes = [tokenizer.cls_id], [IGNORED]
        for word, tag in pairs:
            if not grows and tag not in tags:
                raise InputError(f"{path}:{number}: {tag} is no tag of the training file; correct it")
            tokens = tokenizer.encode(word) or [tokenizer.unk_id]
            row += tokens
            classes += [tags.setdefault(tag, len(tags)), *[IGNORED] * (len(tokens) - 1)]
        ids.append(np.array([*row[: max_seq_len - 1], tokenizer.sep_id]))
        labels.append(np.array([*classes[: max_seq_len - 1], IGNORED]))
    return Lines(ids, labels, hashlib.sha256(data).hexdigest())


def batch_of(lines: Lines, rows: np.ndarray, pad_id: int) -> TokenBatch:
    """Return some lines as a batch, padded to the longest."""
    length = max(len(lines.ids[row]) for row in rows)
    ids, labels = np.full((len(rows), length), pad_id), np.full((len(rows), length), IGNORED)
    for place, row in enumerate(rows):
        ids[place, : len(lines.ids[row])] = lines.ids[row]
        labels[place, : len(lines.labels[row])] = lines.labels[row]
    return TokenBatch(ids, np.zeros_like(ids), labels)


class TokenTask(Task):
    """The training of a `TokenClassifier`."""

    names = ("loss", "accuracy")

    def open_model(self) -> None:
        """Open the encoder, the tags of the training file, and a new head for them."""
        config = self.config
        self.source = source = open_start(config)
        self.tokenizer = open_tokenizer(source.vocab_file, source.spec, config.max_seq_len, of_pairs=False)
        self.tags: Dict[str, int] = {}
        read = partial(read_lines, tokenizer=self.tokenizer, tags=self.tags, max_seq_len=config.max_seq_len)
        self.train, self.dev = read(config.train_file, grows=True), read(config.dev_file, grows=False)
        paddle.seed(seed_of(config.seed))
        self.model = TokenClassifier(source.spec, len(self.tags), config.dropout)
        self.beginning = "start from random weights"
        if source.weights is not None:
            found = with_prefix(source.read_weights(), self.model)
            encoder = {name: array for name, array in found.items() if name.startswith(self.model.attribute)}
            set_matching(self.model, encoder, source.weights, may_miss=("classifier.",))
            self.beginning = f"start from the encoder of {source.weights}"

    def open_data(self, world: World) -> None:
        """Lay the lines of an epoch end to end; a step takes the same ones however they are divided."""
        config = self.config
        lengths = np.array([len(ids) for ids in self.train.ids])
        order = BatchOrder(lengths, config.seed, config.pairs_per_step(world.size), bucket=True)

        def updates(consumed: int) -> Iterator[List[TokenBatch]]:
            for rows in order.batches(consumed):
                parts = rows.reshape(-1, config.batch_size)[world.rank :: world.size]
                yield [batch_of(self.train, part, self.model.pad_id) for part in parts]

        hashes = {"train_file": self.train.sha256, "dev_file": self.dev.sha256}
        files = [
            DataFile(flag, getattr(config, flag), sha256, len(lines.ids))
            for (flag, sha256), lines in zip(hashes.items(), (self.train, self.dev))
        ]
        hashes["vocabulary"] = self.tokenizer.sha256
        self.data = TaskData(updates, len(lengths), hashes, files)

    def loss(self, batch: TokenBatch) -> LossParts:
        """Return the mean over the lines of the mean cross entropy over their words."""
        labels_BS = paddle.to_tensor(batch.labels)
        is_word_BS = (labels_BS != IGNORED).astype("float32")
        share_BS = is_word_BS / (is_word_BS.sum(axis=1, keepdim=True) * len(batch.labels))
        logits_BSC = self.forward(*map(paddle.to_tensor, batch[:2])).astype("float32")
        losses_BS = F.cross_entropy(logits_BSC, labels_BS, ignore_index=IGNORED, reduction="none").squeeze(-1)
        loss = (losses_BS * share_BS).sum()
        with paddle.no_grad():
            right = ((logits_BSC.argmax(axis=2) == labels_BS).astype("float32") * share_BS).sum()
            numbers = paddle.stack([loss.detach(), right])
        return LossParts(loss, numbers, len(batch.labels))

    def evaluate(self, split: str) -> Dict[str, float]:
        """Return the share of the words of the dev file whose class is right, and their loss."""
        group, sums = self.process_group, np.zeros(3)
        self.model.eval()
        parts = np.array_split(np.arange(len(self.dev.ids)), -(-len(self.dev.ids) // self.config.batch_size))
        with self.evaluating(), paddle.no_grad():
            for part in parts[group.rank :: group.size]:
                batch = batch_of(self.dev, part, self.model.pad_id)
                logits_BSC = self.model(*map(paddle.to_tensor, batch[:2])).astype("float32")
                log_BSC, is_word = F.log_softmax(logits_BSC).numpy(), batch.labels != IGNORED
                words = log_BSC[is_word]
                right = words.argmax(axis=1) == batch.labels[is_word]
                losses = -words[np.arange(len(words)), batch.labels[is_word]]
                sums += (right.sum(), losses.sum(dtype=np.float64), len(words))
        right_words, loss, count = group.all_reduce_now(sums)
        return {"accuracy": right_words / count, "loss": loss / count}

    def resume_fingerprint(self) -> Dict[str, object]:
        """Return the tags, whose order gives the classes their numbers."""
        return {"tags (--train_file)": " ".join(self.tags)}

    def save(self, draft: Path) -> None:
        """Write the model, which PaddleNLP's AutoModelForTokenClassification loads, and its tags."""
        self.model.write(draft, self.source.vocab_file, self.config.max_seq_len)
        (draft / "tags.txt").write_text("".join(f"{tag}\n" for tag in self.tags), encoding="utf-8")

    def card(self, kernels: str, step: int, metrics: Dict[str, float]) -> ModelCard:
        """Return the card of the model of ``step``."""
        name = self.model.spec.to_config()["architectures"][0]
        return ModelCard(
            title=f"A classifier of tokens of the family {self.model.family}",
            facts={"base model": self.source.name, "tags": ", ".join(self.tags), "computed by": kernels},
            data=self.data.files,
            flags=self.shown_flags(),
            metrics={metric: Measured(value) for metric, value in metrics.items()},
            measured_on=f"On the dev lines, after step {step}.",
            commands="",
            python=f'from paddlenlp.transformers import {name}\n\nmodel = {name}.from_pretrained(".")',
        )


def train_tokens(config: TokenConfig) -> None:
    """Train from the newest checkpoint of ``output_dir``, or from the model that is named."""
    train_task(TokenTask(config))


if __name__ == "__main__":
    run_command(train_tokens, TokenConfig)
