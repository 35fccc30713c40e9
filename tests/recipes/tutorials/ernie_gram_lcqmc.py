"""LCQMC as ErnieGram's tutorial trains it: a layer of one's own, and a loop that evaluates and predicts."""

import time
from functools import partial

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F
from paddlenlp.data import Pad, Stack, Tuple
from paddlenlp.datasets import MapDataset
from paddlenlp.transformers import ErnieGramModel, LinearDecayWithWarmup
from tutorial_pieces import (
    DEV,
    EPOCHS,
    MAX_SEQ_LEN,
    RATE,
    SETTINGS,
    TRAIN,
    LoadingTrainer,
    adamw,
    average,
    data_parallel,
    logged,
)

from ernie_pair import PairConfig, PairTokenizer, PairTrainer

EVALUATED_EACH = SETTINGS["eval_freq"]  # steps
criterion = nn.CrossEntropyLoss()


class Matcher(nn.Layer):
    """An encoder, dropout and a linear layer; it answers with probabilities, as the tutorial's does."""

    def __init__(self, encoder, dropout=0.0):
        super().__init__()
        self.encoder, self.dropout = encoder, nn.Dropout(dropout)
        self.head = nn.Linear(encoder.config["hidden_size"], 2)

    def forward(self, input_ids, token_type_ids=None):
        return F.softmax(self.head(self.dropout(self.encoder(input_ids, token_type_ids)[1])))


def new_layer(folder):
    paddle.seed(5)
    return Matcher(ErnieGramModel.from_pretrained(str(folder / "ernie_gram")))


def convert(row, tokenizer, has_label=True):
    found = tokenizer(text=row["sentence1"], text_pair=row["sentence2"], max_seq_len=MAX_SEQ_LEN)
    converted = found["input_ids"], found["token_type_ids"]
    return (*converted, np.array([row["label"]], dtype="int64")) if has_label else converted


def loader_of(rows, tokenizer, batch_size, is_training=False, has_labels=True):
    """A loader of Paddle's; that of training gives each process its part of each step."""
    rows = MapDataset(list(rows)).map(partial(convert, tokenizer=tokenizer, has_label=has_labels))
    fills = [Pad(axis=0, pad_val=tokenizer.pad_token_id), Pad(axis=0, pad_val=tokenizer.pad_token_type_id)]
    batchify = Tuple(*fills, *([Stack(dtype="int64")] if has_labels else []))
    sampler = paddle.io.DistributedBatchSampler if is_training else paddle.io.BatchSampler
    return paddle.io.DataLoader(
        rows,
        batch_sampler=sampler(rows, batch_size=batch_size, shuffle=is_training),
        collate_fn=lambda samples: list(batchify(samples)),
        return_list=True,
    )


@paddle.no_grad()
def evaluate(model, loader):
    """The mean loss and the accuracy on the batches of ``loader``; training goes on afterwards."""
    metric, losses = paddle.metric.Accuracy(), []
    model.eval()
    for ids, types, labels in loader:
        answer = model(ids, types)
        losses.append(float(criterion(answer, labels)))
        metric.update(metric.compute(answer, labels))
    model.train()
    return [float(np.mean(losses)), float(metric.accumulate())]


@paddle.no_grad()
def predict_to_tsv(model, tokenizer, path):
    """Write the class of each pair of DEV, whose labels are not read, and return the answers."""
    model.eval()
    loader = loader_of(DEV, tokenizer, 8, has_labels=False)
    answers = np.concatenate([model(*batch).numpy() for batch in loader])
    lines = [f"{number}\t{found}\n" for number, found in enumerate(answers.argmax(axis=1))]
    path.write_text("".join(["index\tprediction\n", *lines]))
    return answers.tolist()


def with_paddle(folder, batch_size):
    """The tutorial's own loop; of this package there is the tokenizer alone."""
    tokenizer, model = PairTokenizer(folder / "ernie_gram"), new_layer(folder)
    train, dev = loader_of(TRAIN, tokenizer, batch_size, is_training=True), loader_of(DEV, tokenizer, 8)
    schedule = LinearDecayWithWarmup(RATE, EPOCHS * len(train), 0.0)
    optimizer, runner = adamw(schedule, model), data_parallel(model)
    losses, evaluations, metric, begin = [], [], paddle.metric.Accuracy(), time.monotonic()
    for epoch in range(EPOCHS):
        for ids, types, labels in train:
            answer = runner(ids, types)
            loss = criterion(answer, labels)
            metric.update(metric.compute(answer, labels))
            losses.append(average(loss))
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.clear_grad()
            if len(losses) % EVALUATED_EACH == 0:
                speed = len(losses) / (time.monotonic() - begin)
                print(f"{epoch} {len(losses)} {losses[-1]:.5f} {metric.accumulate():.3f} {speed:.1f} steps/s")
                evaluations.append(evaluate(model, dev))
    place = folder / f"paddle_{batch_size}_{paddle.distributed.get_rank()}"
    paddle.save(model.state_dict(), str(place / "model_state.pdparams"))
    tokenizer.save_pretrained(place)
    again = new_layer(folder)
    again.set_dict(paddle.load(str(place / "model_state.pdparams")))
    answers = predict_to_tsv(again, PairTokenizer(folder / "ernie_gram"), place / "lcqmc.tsv")
    return {"losses": losses, "evaluations": evaluations, "answers": answers}


class RowsTrainer(LoadingTrainer):
    def get_train_dataloader(self):
        return loader_of(TRAIN, self.tokenizer, self.config.batch_size, is_training=True)


def new_trainer(folder, out, batch_size):
    config = PairConfig(str(folder / f"{out}_{batch_size}"), batch_size=batch_size, **SETTINGS)
    vocab_file = folder / "ernie_gram" / "vocab.txt"
    return RowsTrainer(new_layer(folder), config, TRAIN, DEV, vocab_file=vocab_file)


def with_parts(folder, batch_size):
    trainer = new_trainer(folder, "parts", batch_size)
    parts, dev = trainer.open_parts(), loader_of(DEV, trainer.tokenizer, 8)
    losses, evaluations = [], []
    for step, batches in parts.steps:
        for batch in batches:
            loss = criterion(parts.forward(batch), paddle.to_tensor(batch.labels))
            parts.backward(loss)
            losses.append(average(loss))
        parts.update()
        if step % EVALUATED_EACH == 0:
            evaluations.append(evaluate(parts.model, dev))
    saved = folder / f"parts_{batch_size}" / "saved"
    trainer.save_model(saved)
    again = PairTrainer(new_layer(folder), trainer.config, weights=saved)
    answers = again.predict([(row["sentence1"], row["sentence2"]) for row in DEV]).predictions
    return {"losses": losses, "evaluations": evaluations, "answers": answers.tolist()}


def with_trainer(folder, batch_size):
    trainer = new_trainer(folder, "trainer", batch_size)
    trainer.train()
    measured = zip(logged(trainer, "eval_loss"), logged(trainer, "eval_accuracy"))
    return {"losses": logged(trainer), "evaluations": [list(pair) for pair in measured][1:]}  # but of step 0


WAYS = {"paddle": with_paddle, "parts": with_parts, "trainer": with_trainer}
