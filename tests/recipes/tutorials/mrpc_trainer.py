"""MRPC with the trainer, as people who come from transformers write it: a collator, metrics, a subclass."""

import numpy as np
from mrpc_loop import tokenized
from paddle.nn.functional import cross_entropy
from paddlenlp.data import DataCollatorWithPadding
from paddlenlp.transformers import BertForSequenceClassification, BertTokenizer
from tutorial_pieces import DEV, SETTINGS, TRAIN, average, logged, plain_losses

from ernie_pair import PairCallback, PairConfig, PairTrainer


class OwnLossTrainer(PairTrainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        labels = inputs.pop("labels")
        logits = model(**inputs)
        loss = cross_entropy(logits, labels)
        return (loss, logits) if return_outputs else loss


class Noting(PairCallback):
    def __init__(self):
        self.told = []

    def on_step_end(self, args, state, control, **kwargs):
        self.told.append(f"step {state.global_step}")

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        self.told.append("evaluation")


def measure(prediction):
    """The share of right answers and the F1 score, of logits and labels."""
    logits, labels = prediction
    classes = np.argmax(logits, axis=-1)
    both = int((classes & labels).sum())
    return {"right": float((classes == labels).mean()), "f_one": 2 * both / max(1, (classes + labels).sum())}


def new_trainer(folder, out, batch_size, kind=PairTrainer, **own):
    """A trainer on tokenized sets; PaddleNLP's collator pads them."""
    tokenizer = BertTokenizer.from_pretrained(str(folder / "bert"))
    train, dev = tokenized(TRAIN, tokenizer), tokenized(DEV, tokenizer)
    flags = {**SETTINGS, "batch_size": batch_size, "dropout": 0.0}
    if out != "parts":  # a loop of its own evaluates when it wants
        flags["evaluation_strategy"] = "epoch"
    config = PairConfig(str(folder / f"{out}_{batch_size}"), **flags)
    return kind(folder / "bert", config, train, dev, data_collator=DataCollatorWithPadding(tokenizer), **own)


def with_paddle(folder, batch_size):
    """A loop of plain Paddle on PaddleNLP's model, over the batches of a trainer."""
    batches = new_trainer(folder, "paddle", batch_size).get_train_dataloader()
    model = BertForSequenceClassification.from_pretrained(str(folder / "bert"))
    return {"losses": plain_losses(model, batches)}


def with_parts(folder, batch_size):
    trainer = new_trainer(folder, "parts", batch_size)
    parts, losses = trainer.open_parts(), []
    for _, (batch,) in parts.steps:
        loss = parts.loss(batch)
        parts.backward(loss)
        parts.update()
        losses.append(average(loss))
    return {"losses": losses, "dev_loss": trainer.evaluate()["loss"]}


def with_trainer(folder, batch_size):
    """The whole run, and a prediction, which has the logits, the labels and the metrics."""
    noting = Noting()
    trainer = new_trainer(
        folder, "trainer", batch_size, OwnLossTrainer, compute_metrics=measure, callbacks=[noting]
    )
    trainer.train()
    found = trainer.predict(trainer.eval_dataset)
    return {
        "losses": logged(trainer),
        "dev_loss": logged(trainer, "eval_loss")[-1],
        "right": logged(trainer, "eval_right"),
        "accuracy": logged(trainer, "eval_accuracy"),
        "told": noting.told,
        "shapes": [list(found.predictions.shape), list(found.label_ids.shape)],
        "metrics": sorted(found.metrics),
    }


WAYS = {"paddle": with_paddle, "parts": with_parts, "trainer": with_trainer}
