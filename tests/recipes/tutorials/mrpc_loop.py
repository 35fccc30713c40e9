"""MRPC in a loop of one's own, as users of accelerate write it: tokenized columns, accumulation."""

from contextlib import nullcontext

import numpy as np
import paddle
from datasets import Dataset
from paddlenlp.data import DataCollatorWithPadding
from paddlenlp.transformers import BertForSequenceClassification, BertTokenizer, LinearDecayWithWarmup
from tqdm.auto import tqdm
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
    is_launched,
)

from ernie_pair import PairConfig, set_seed

ACCUMULATED = 2  # micro-batches of a step


def tokenized(rows, tokenizer):
    def tokenize(batch):
        texts = batch["sentence1"], batch["sentence2"]
        return dict(tokenizer(*texts, max_length=MAX_SEQ_LEN, truncation=True))

    found = Dataset.from_list([{**row, "idx": number} for number, row in enumerate(rows)])
    found = found.map(tokenize, batched=True, remove_columns=["sentence1", "sentence2", "idx"])
    return found.rename_column("label", "labels")


def loader_of(rows, collate, batch_size, is_training=True):
    """A loader of Paddle's; that of training gives each process its part of each step."""
    sampler = paddle.io.DistributedBatchSampler if is_training else paddle.io.BatchSampler
    return paddle.io.DataLoader(
        rows, batch_sampler=sampler(rows, batch_size=batch_size, shuffle=is_training), collate_fn=collate
    )


@paddle.no_grad()
def accuracy_of(model, loader):
    right = []
    model.eval()
    for batch in loader:
        logits = model(batch["input_ids"], batch["token_type_ids"], return_dict=True).logits
        right += (logits.argmax(axis=-1) == batch["labels"].reshape([-1])).tolist()
    model.train()
    return float(np.mean(right))


def with_paddle(folder, batch_size):
    """The loop on PaddleNLP's own model, tokenizer and collator."""
    set_seed(34)
    model = BertForSequenceClassification.from_pretrained(str(folder / "bert"), num_labels=2)
    tokenizer = BertTokenizer.from_pretrained(str(folder / "bert"))
    train, dev = tokenized(TRAIN, tokenizer), tokenized(DEV, tokenizer)
    collate = DataCollatorWithPadding(tokenizer)
    loader, dev_loader = loader_of(train, collate, batch_size), loader_of(dev, collate, 8, False)
    steps = EPOCHS * len(loader) // ACCUMULATED
    schedule = LinearDecayWithWarmup(RATE, steps, 0)
    optimizer, runner = adamw(schedule, model), data_parallel(model)
    losses, bar = [], tqdm(total=steps)
    model.train()
    for _ in range(EPOCHS):
        for number, batch in enumerate(loader, start=1):
            is_last = number % ACCUMULATED == 0
            with runner.no_sync() if is_launched() and not is_last else nullcontext():
                outputs = runner(**batch, return_dict=True)
                (outputs.loss / ACCUMULATED).backward()
            losses.append(average(outputs.loss))
            if is_last:
                optimizer.step()
                schedule.step()
                optimizer.clear_grad()
                bar.update(1)
    return {"losses": losses, "accuracy": accuracy_of(model, dev_loader)}


class ColumnsTrainer(LoadingTrainer):
    """It trains on the loader of the loop above, with its own collator, at the rates of that loop."""

    def get_train_dataloader(self):
        return loader_of(tokenized(TRAIN, self.tokenizer), self.collate, self.config.batch_size)


def new_trainer(folder, out, batch_size, **changes):
    own = {"batch_size": batch_size, "gradient_accumulation_steps": ACCUMULATED, "dropout": 0.0, **changes}
    config = PairConfig(str(folder / f"{out}_{batch_size}"), **SETTINGS, **own)
    return ColumnsTrainer(folder / "bert", config, TRAIN, DEV)


def with_outputs(folder, batch_size):
    """The loop over the parts of a PairTrainer, with the loss that the model itself returns."""
    trainer = new_trainer(folder, "outputs", batch_size)
    parts, losses = trainer.open_parts(), []
    for _, batches in tqdm(parts.steps):
        for batch in batches:
            ids, types, labels = map(paddle.to_tensor, (batch.input_ids, batch.token_type_ids, batch.labels))
            outputs = parts.model(ids, types, labels=labels, return_dict=True)
            parts.backward(outputs.loss)
            losses.append(average(outputs.loss))
        parts.update()
    dev = loader_of(tokenized(DEV, trainer.tokenizer), trainer.collate, 8, False)
    return {"losses": losses, "accuracy": accuracy_of(parts.model, dev)}


def with_scale(folder, batch_size):
    """The loop over the parts with a scaled loss, as half precision has it; float32 changes no number."""
    trainer = new_trainer(folder, "scaled", batch_size, use_amp=True, amp_dtype="float32")
    parts, losses = trainer.open_parts(), []
    for _, batches in parts.steps:
        for batch in batches:
            loss = parts.loss(batch)
            parts.backward(loss)
            losses.append(average(loss))
        numbers = parts.update()
        assert numbers["skipped_updates"] == 0
    return {"losses": losses, "accuracy": trainer.evaluate()["accuracy"]}


WAYS = {"paddle": with_paddle, "outputs": with_outputs, "scaled": with_scale}
