"""Fine-tune a pair classifier with transformers' Trainer, run by the peer's Python.

python -m side_by_side.peer.trainer OUT/spec.json

OUT/rows/{train,dev,test}.jsonl   [text, text, label] per line, written by scripts/train_peer.py
OUT/metrics.jsonl                 its learning curve and speed, as this package logs its own
OUT/versions.json                 of the libraries, and which attention the model has
OUT/logits.npy                    float32 [test rows, classes] of the best model of the dev rows

AdamW is that of torch, with the betas, epsilon and learning rate schedule of this package; gradients are not
clipped. Pairs are padded to the longest of their batch, and batches of similar length are those of
group_by_length, which transformers 5 calls train_sampling_strategy. All else is the default of Trainer.
"""

import json
import sys
import time
from pathlib import Path

from side_by_side.turns import tune_malloc


class StepClock:
    """The seconds of training steps, without those of evaluating and saving.

    ``num_rows`` in batches of ``batch_size`` make an epoch, whose last batch is smaller.
    """

    def __init__(self, num_rows, batch_size):
        self._num_rows, self._batch_size = num_rows, batch_size
        self._step = self._before = 0
        self._seconds = self._started = 0.0

    def start(self):
        """Go on, after something other than training."""
        self._started = time.perf_counter()

    def end_step(self, step):
        """Count a step, and the time since the last one."""
        now = time.perf_counter()
        self._seconds, self._started, self._step = self._seconds + now - self._started, now, step

    def lap(self):
        """Return the speed since the last lap; {} if there were no steps."""
        samples, seconds = self.consumed(self._step) - self._before, self._seconds
        self._before, self._seconds = self.consumed(self._step), 0.0
        return {"samples_per_second": samples / seconds} if samples and seconds else {}

    def consumed(self, step):
        epochs, steps = divmod(step, -(-self._num_rows // self._batch_size))
        return epochs * self._num_rows + steps * self._batch_size


def write_log(path, history, consumed):
    """Write what Trainer has logged, with the laps of the clock, as a metrics.jsonl of this package."""
    lines = []
    for entry in history:
        event = {"step": entry["step"], "consumed_samples": consumed(entry["step"])}
        if "samples_per_second" in entry:
            names = ("loss", "learning_rate", "samples_per_second")
            event.update(split="train", **{name: entry[name] for name in names if name in entry})
        elif "eval_loss" in entry:
            event.update(split="valid", loss=entry["eval_loss"], accuracy=entry["eval_accuracy"])
        lines += [json.dumps(event) + "\n"] if "split" in event else []
    path.write_text("".join(lines), encoding="utf-8")


def rate_share(step, total, warmup):
    """Return the share of the highest rate at ``step``, from 1, as `ernie_pair.training.schedule` does."""
    if step <= warmup:
        return step / warmup
    return max(0.0, (total + 1 - step) / (total + 1 - warmup))


def train(spec, output):
    import accelerate
    import numpy
    import torch
    import transformers

    torch.set_num_threads(spec["threads"])
    transformers.logging.set_verbosity_error()
    transformers.set_seed(spec["seed"])  # for the head; Trainer sets it again, for order and dropout
    tokenizer = transformers.AutoTokenizer.from_pretrained(spec["model"])
    parts = ("train", "dev", "test")
    rows = {name: _encode(tokenizer, spec, output / "rows" / f"{name}.jsonl") for name in parts}
    rates = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
    load = transformers.AutoModelForSequenceClassification.from_pretrained
    model = load(spec["model"], num_labels=2, **dict.fromkeys(rates, spec["dropout"]))
    versions = {library.__name__: library.__version__ for library in (torch, transformers, accelerate)}
    versions.update(model=type(model).__name__, attention=model.config._attn_implementation)
    (output / "versions.json").write_text(json.dumps(versions), encoding="utf-8")
    clock = StepClock(len(rows["train"]), spec["batch_size"])

    def accuracy(predicted):
        hits = predicted.predictions.argmax(axis=-1) == predicted.label_ids
        return {"accuracy": float(hits.mean())}

    arguments = transformers.TrainingArguments(
        output_dir=str(output), num_train_epochs=spec["epochs"], max_steps=spec["max_steps"] or -1,
        per_device_train_batch_size=spec["batch_size"], per_device_eval_batch_size=spec["batch_size"],
        learning_rate=spec["learning_rate"], weight_decay=spec["weight_decay"], max_grad_norm=0.0,
        adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-8, bf16=spec["precision"] == "bf16",
        seed=spec["seed"], logging_steps=spec["logging_freq"], report_to=[], disable_tqdm=True,
        eval_strategy="epoch", save_strategy="epoch", save_total_limit=2, load_best_model_at_end=True,
        metric_for_best_model="accuracy", use_cpu=True, dataloader_pin_memory=False,
        **_sampling(transformers, spec["bucket"]),
    )  # fmt: skip
    trainer = _trainer_class(transformers, spec)(
        model, arguments, compute_metrics=accuracy,
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
        train_dataset=rows["train"], eval_dataset=rows["dev"],
        callbacks=[logging_callback(transformers, clock, output / "metrics.jsonl")],
    )  # fmt: skip
    trainer.train()
    for name, value in _sampling(transformers, by_length=False).items():
        setattr(trainer.args, name, value)  # by length it would shuffle the test rows as well
    numpy.save(output / "logits.npy", numpy.asarray(trainer.predict(rows["test"]).predictions, numpy.float32))


def _encode(tokenizer, spec, path):
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    texts = [row[0] for row in rows], [row[1] for row in rows]
    columns = tokenizer(*texts, truncation=True, max_length=spec["max_seq_len"])
    encoded = [dict(zip(columns, values)) for values in zip(*columns.values())]
    return [{**each, "label": int(row[2])} for each, row in zip(encoded, rows)]


def _trainer_class(transformers, spec):
    from torch.optim.lr_scheduler import LambdaLR
    from torch.utils.data import SequentialSampler

    class SameRates(transformers.Trainer):
        def create_scheduler(self, num_training_steps, optimizer=None):
            total, warmup = num_training_steps, round(spec["warmup_rate"] * num_training_steps)
            self.lr_scheduler = LambdaLR(
                optimizer or self.optimizer, lambda done: rate_share(done + 1, total, warmup)
            )
            return self.lr_scheduler

        def _get_train_sampler(self, *arguments):
            rows = self.train_dataset
            return SequentialSampler(rows) if spec["in_order"] else super()._get_train_sampler(*arguments)

    return SameRates


def _sampling(transformers, by_length):
    """Return the argument that batches rows of similar length, or not, by its name in this version."""
    if "group_by_length" in transformers.TrainingArguments.__dataclass_fields__:
        return {"group_by_length": by_length}
    return {"train_sampling_strategy": "group_by_length" if by_length else "random"}


def logging_callback(transformers, clock, path):
    """Return the callback that times the steps and writes the log."""

    class Callback(transformers.TrainerCallback):
        def on_epoch_begin(self, args, state, control, **others):
            clock.start()

        on_evaluate = on_epoch_begin

        def on_step_end(self, args, state, control, **others):
            clock.end_step(state.global_step)

        def on_log(self, args, state, control, logs=None, **others):
            if "loss" in (logs or {}):  # what is in the history is in the checkpoints
                state.log_history[-1].update(clock.lap())

        def on_epoch_end(self, args, state, control, **others):
            lap = clock.lap()  # of the steps since the last line
            state.log_history += [{"step": state.global_step, **lap}] if lap else []

        on_save = on_epoch_begin

        def on_train_end(self, args, state, control, **others):
            write_log(path, state.log_history, clock.consumed)

    return Callback()


if __name__ == "__main__":
    tune_malloc()  # before torch is loaded
    path = Path(sys.argv[1])
    train(json.loads(path.read_text(encoding="utf-8")), path.parent)
