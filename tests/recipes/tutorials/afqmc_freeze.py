"""AFQMC with a frozen encoder: JSON lines, a collate function, a layer or a subclass, the best model."""

import json
from pathlib import Path

import numpy as np
import paddle
from paddle import nn
from paddlenlp.transformers import BertModel, LinearDecayWithWarmup
from tqdm.auto import tqdm
from tutorial_pieces import (
    DEV,
    EPOCHS,
    MAX_SEQ_LEN,
    SETTINGS,
    TRAIN,
    LoadingTrainer,
    adamw,
    average,
    data_parallel,
    logged,
    plain_losses,
)

from ernie_pair import PairClassifier, PairConfig, PairTokenizer, PairTrainer

loss_of, HEAD_RATE = nn.CrossEntropyLoss(), 0.05


def write_lines(folder: Path) -> None:
    """Write train.json and dev.json; labels are strings, as in AFQMC."""
    for name, rows in (("train", TRAIN), ("dev", DEV)):
        lines = [json.dumps({**row, "label": str(row["label"])}, ensure_ascii=False) for row in rows]
        (folder / f"{name}.json").write_text("\n".join(lines) + "\n", encoding="utf-8")


class Lines(paddle.io.IterableDataset):
    """The rows of a file of JSON lines; with a ``share`` of 2, each second batch of them."""

    def __init__(self, path, batch_size, rank=0, share=1):
        super().__init__()
        self.path, self.batch_size, self.rank, self.share = path, batch_size, rank, share

    def __iter__(self):
        with open(self.path, encoding="utf-8") as lines:
            for number, line in enumerate(lines):
                if number // self.batch_size % self.share == self.rank:
                    yield json.loads(line)


def batches_of(path, tokenizer, batch_size, is_training=False):
    def collate(rows):
        found = tokenizer([row["sentence1"] for row in rows], [row["sentence2"] for row in rows])
        longest = max(map(len, found["input_ids"]))
        padded = {name: [ids + [0] * (longest - len(ids)) for ids in found[name]] for name in found}
        labels = [int(row["label"]) for row in rows]
        return {name: np.array(ids) for name, ids in padded.items()}, np.array(labels)

    world = paddle.distributed.get_rank(), paddle.distributed.get_world_size()
    rows = Lines(path, batch_size, *(world if is_training else (0, 1)))
    loader = paddle.io.DataLoader(rows, batch_size=batch_size, collate_fn=collate)
    return [batch for batch in loader]  # noqa: C416 - list() asks for the length, which this set has not


class FirstToken(nn.Layer):
    """An encoder, whose weights stay, and a linear layer on the state of the first token."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder, self.dropout = encoder, nn.Dropout(0.0)
        self.classifier = nn.Linear(encoder.config.hidden_size, 2)
        for parameter in encoder.parameters():
            parameter.stop_gradient = True

    def forward(self, input_ids, token_type_ids):
        states = self.encoder(input_ids, token_type_ids, return_dict=True).last_hidden_state
        return self.classifier(self.dropout(states[:, 0]))


class FirstTokenClassifier(PairClassifier):
    """The same model as a subclass, which the commands train too."""

    def forward(self, input_ids, token_type_ids):
        states = self.encoder(input_ids, token_type_ids)[0]
        return self.classifier(self.dropout(states[:, 0]))


def new_layer(folder):
    paddle.seed(5)
    return FirstToken(BertModel.from_pretrained(str(folder / "bert")))


def train_loop(loader, model, optimizer, schedule, losses):
    model.train()
    for inputs, labels in tqdm(loader):
        loss = loss_of(model(**inputs), labels)
        optimizer.clear_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(average(loss))


@paddle.no_grad()
def test_loop(loader, model):
    model.eval()
    right = [(model(**inputs).argmax(1) == labels).tolist() for inputs, labels in loader]
    return float(np.mean(sum(right, [])))


def with_paddle(folder, batch_size):
    """The tutorial's loops; the weights of the best epoch are saved."""
    tokenizer, model = PairTokenizer(folder / "bert", MAX_SEQ_LEN), new_layer(folder)
    train = batches_of(folder / "train.json", tokenizer, batch_size, is_training=True)
    dev = batches_of(folder / "dev.json", tokenizer, 8)
    schedule = LinearDecayWithWarmup(HEAD_RATE, EPOCHS * len(train), 0)
    optimizer, runner = adamw(schedule, model), data_parallel(model)
    losses, accuracies, best = [], [], folder / f"best_{batch_size}_{paddle.distributed.get_rank()}.pdparams"
    for _ in range(EPOCHS):
        train_loop(train, runner, optimizer, schedule, losses)
        accuracies.append(test_loop(dev, model))
        if accuracies[-1] > max([0.0, *accuracies[:-1]]):
            paddle.save(model.state_dict(), str(best))
    model.set_state_dict(paddle.load(str(best)))
    return {"losses": losses, "accuracy": accuracies, "best": test_loop(dev, model)}


class LinesTrainer(LoadingTrainer):
    rate = HEAD_RATE

    def get_train_dataloader(self):
        path = Path(str(self.train_dataset))
        return batches_of(path, self.tokenizer, self.config.batch_size, is_training=True)


def new_trainer(folder, out, batch_size):
    flags = {**SETTINGS, "batch_size": batch_size}
    if out != "parts":  # a loop of its own evaluates when it wants
        flags["evaluation_strategy"] = "epoch"
    config = PairConfig(str(folder / f"{out}_{batch_size}"), **flags)
    data = folder / "train.json", folder / "dev.json"
    return LinesTrainer(new_layer(folder), config, *data, vocab_file=folder / "bert" / "vocab.txt")


def with_parts(folder, batch_size):
    """The loops over the parts of a trainer, which keep the best epoch too."""
    trainer = new_trainer(folder, "parts", batch_size)
    parts, losses, accuracies = trainer.open_parts(), [], []
    best = folder / f"parts_{batch_size}" / "best"
    dev = batches_of(folder / "dev.json", trainer.tokenizer, 8)
    for step, (batch,) in tqdm(parts.steps):
        loss = loss_of(parts.forward(batch), paddle.to_tensor(batch.labels))
        parts.backward(loss)
        parts.update()
        losses.append(average(loss))
        if step % (parts.total_steps // EPOCHS) == 0:
            accuracies.append(test_loop(dev, parts.model))
            if accuracies[-1] > max([0.0, *accuracies[:-1]]):
                trainer.save_model(best)
    again = PairTrainer(new_layer(folder), trainer.config, weights=best)
    return {"losses": losses, "accuracy": accuracies, "best": again.evaluate(folder / "dev.json")["accuracy"]}


def with_trainer(folder, batch_size):
    trainer = new_trainer(folder, "trainer", batch_size)
    trainer.train()
    return {
        "losses": logged(trainer),
        "accuracy": logged(trainer, "eval_accuracy")[1:],  # but of step 0
        "frozen": all(p.stop_gradient for p in trainer.model.encoder.parameters()),
    }


def new_subclass(folder, out, batch_size):
    flags = {**SETTINGS, "batch_size": batch_size, "dropout": 0.0, "freeze": "encoder"}
    flags["model_class"] = "afqmc_freeze:FirstTokenClassifier"
    config = PairConfig(str(folder / f"{out}_{batch_size}"), **flags)
    return PairTrainer(folder / "bert", config, folder / "train.json", folder / "dev.json")


def with_subclass(folder, batch_size):
    """The subclass, in the trainer's own order of the rows, and a loop of plain Paddle beside it."""
    trainer = new_subclass(folder, "subclass", batch_size)
    plain = new_subclass(folder, "plain", batch_size)
    layer = FirstToken(plain.model.encoder)
    layer.classifier = plain.model.classifier
    losses = plain_losses(layer, plain.get_train_dataloader())
    trainer.train()
    return {"losses": logged(trainer), "plain_losses": losses}


WAYS = {"paddle": with_paddle, "parts": with_parts, "trainer": with_trainer, "subclass": with_subclass}
