"""Fine-tune a pair classifier with transformers' Trainer, run by the peer's Python.

python -m side_by_side.peer.trainer OUT/spec.json

OUT/rows/{train,dev,test}.jsonl   [text, text, label] per line, written by scripts/train_peer.py
OUT/checkpoint-STEP               of Trainer, one per epoch; a killed run resumes from the newest complete one
OUT/metrics.jsonl                 its learning curve and speed, as this package logs its own
OUT/versions.json                 of the libraries, and which attention the model has
OUT/logits.npy                    float32 [test rows, classes] of the best model of the dev rows

AdamW is that of torch, with the betas, epsilon and learning rate schedule of this package; gradients are not
clipped. Pairs are padded to the longest of their batch, and batches of similar length are those of
group_by_length, which transformers 5 calls train_sampling_strategy. All else is the default of Trainer.
"""

import json
import os
import sys
import time
from pathlib import Path

from side_by_side.turns import tune_malloc

BETAS, EPSILON = (0.9, 0.999), 1e-8
STATE = "trainer_state.json"  # the last file of a checkpoint that Trainer writes


class TrainingLog:
    """A metrics.jsonl of training and evaluation; the time of evaluating and saving is not counted.

    ``num_rows`` in batches of ``batch_size`` make an epoch, the last batch is smaller. Lines of later steps
    than ``done``, from which the training resumes, are dropped.
    """

    def __init__(self, path, num_rows, batch_size, done=0):
        self._path, self._num_rows, self._batch_size = Path(path), num_rows, batch_size
        self._step, self._before = done, self._consumed(done)
        self._seconds = self._clock = 0.0
        kept = [line for line in self._lines() if json.loads(line)["step"] <= done]
        draft = self._path.with_suffix(".draft")
        draft.write_text("".join(kept), encoding="utf-8")
        os.replace(draft, self._path)

    def _lines(self):
        if not self._path.is_file():
            return []
        lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [line for line in lines if line.endswith("\n")]  # a killed run may have written half of one

    def start_clock(self):
        """Start the clock, after something other than training."""
        self._clock = time.perf_counter()

    def end_step(self, step):
        """Count a step, and the time since the last one."""
        now = time.perf_counter()
        self._seconds, self._clock, self._step = self._seconds + now - self._clock, now, step

    def tell_training(self, **values):
        """Write a line on the steps since the last such line, if there were any."""
        consumed = self._consumed(self._step)
        samples = consumed - self._before
        if samples and self._seconds:
            self._write("train", samples_per_second=samples / self._seconds, **values)
            self._before, self._seconds = consumed, 0.0

    def tell_evaluation(self, **values):
        """Write a line on an evaluation of the dev rows."""
        self._write("valid", **values)

    def _write(self, split, **values):
        event = {"split": split, "step": self._step, "consumed_samples": self._consumed(self._step), **values}
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")

    def _consumed(self, step):
        per_epoch = -(-self._num_rows // self._batch_size)
        epochs, steps = divmod(step, per_epoch)
        return epochs * self._num_rows + steps * self._batch_size


def newest_checkpoint(folder):
    """Return (path, step) of the newest complete checkpoint; ("", 0) if there is none."""
    complete = []
    for path in Path(folder).glob("checkpoint-*"):
        try:
            json.loads((path / STATE).read_text(encoding="utf-8"))
            complete.append((int(path.name.rpartition("-")[2]), str(path)))
        except (OSError, ValueError):
            continue
    step, path = max(complete, default=(0, ""))
    return path, step


def read_rows(path):
    """Return the rows of a file: [[text, text, label]]."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def rate_share(step, total, warmup):
    """Return the share of the highest rate at ``step``, from 1, as `ernie_pair.train.loop` does.

    Trainer's own linear schedule begins with a step at rate 0.
    """
    if step <= warmup:
        return step / warmup
    return max(0.0, (total + 1 - step) / (total + 1 - warmup))


def train(spec, output):
    """Train, and write the logits of the test rows into ``output``."""
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
    checkpoint, done = newest_checkpoint(output)
    log = TrainingLog(output / "metrics.jsonl", len(rows["train"]), spec["batch_size"], done)

    def accuracy(predicted):
        hits = predicted.predictions.argmax(axis=-1) == predicted.label_ids
        return {"accuracy": float(hits.mean())}

    trainer = _trainer_class(transformers, spec)(
        model,
        _arguments(transformers, spec, output),
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
        train_dataset=rows["train"],
        eval_dataset=rows["dev"],
        compute_metrics=accuracy,
        callbacks=[_logging_callback(transformers, log)],
    )
    trainer.train(resume_from_checkpoint=checkpoint or None)
    for name, value in _sampling(transformers, by_length=False).items():
        setattr(trainer.args, name, value)  # by length it would shuffle the test rows as well
    draft = output / "logits.draft.npy"
    numpy.save(draft, numpy.asarray(trainer.predict(rows["test"]).predictions, numpy.float32))
    os.replace(draft, output / "logits.npy")


def _encode(tokenizer, spec, path):
    """Return the rows of a file in Trainer's format: input_ids, token_type_ids and label of each."""
    rows = read_rows(path)
    texts = [row[0] for row in rows], [row[1] for row in rows]
    encoded = tokenizer(*texts, truncation=True, max_length=spec["max_seq_len"])
    return [
        {**{name: encoded[name][place] for name in encoded}, "label": int(row[2])}
        for place, row in enumerate(rows)
    ]


def _trainer_class(transformers, spec):
    """Return Trainer with the learning rates of this package, and with ``in_order`` the rows of the file."""
    from torch.optim.lr_scheduler import LambdaLR
    from torch.utils.data import SequentialSampler

    class SameRates(transformers.Trainer):
        def create_scheduler(self, num_training_steps, optimizer=None):
            total, warmup = num_training_steps, round(spec["warmup_rate"] * num_training_steps)
            self.lr_scheduler = LambdaLR(
                optimizer or self.optimizer, lambda done: rate_share(done + 1, total, warmup)
            )
            return self.lr_scheduler

        def _get_train_sampler(self, *given):
            rows = self.train_dataset
            return SequentialSampler(rows) if spec["in_order"] else super()._get_train_sampler(*given)

    return SameRates


def _sampling(transformers, by_length):
    """Return the argument that batches rows of similar length, or not, by its name in this version."""
    if "group_by_length" in transformers.TrainingArguments.__dataclass_fields__:
        return {"group_by_length": by_length}
    return {"train_sampling_strategy": "group_by_length" if by_length else "random"}


def _arguments(transformers, spec, output):
    return transformers.TrainingArguments(
        output_dir=str(output),
        num_train_epochs=spec["epochs"],
        max_steps=spec["max_steps"] or -1,
        per_device_train_batch_size=spec["batch_size"],
        per_device_eval_batch_size=spec["batch_size"],
        learning_rate=spec["learning_rate"],
        weight_decay=spec["weight_decay"],
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        adam_epsilon=EPSILON,
        max_grad_norm=0.0,
        bf16=spec["precision"] == "bf16",
        seed=spec["seed"],
        logging_steps=spec["logging_freq"],
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        use_cpu=True,
        dataloader_pin_memory=False,
        report_to=[],
        disable_tqdm=True,
        **_sampling(transformers, spec["bucket"]),
    )


def _logging_callback(transformers, log):
    """Return the callback that writes what Trainer reports into ``log``, and finds the best model again."""

    class Callback(transformers.TrainerCallback):
        def on_train_begin(self, args, state, control, **others):
            if state.best_model_checkpoint:  # an absolute path: the folder may have been moved since
                best = os.path.basename(state.best_model_checkpoint)
                state.best_model_checkpoint = os.path.join(args.output_dir, best)

        def on_epoch_begin(self, args, state, control, **others):
            log.start_clock()

        def on_step_end(self, args, state, control, **others):
            log.end_step(state.global_step)

        def on_evaluate(self, args, state, control, **others):
            log.start_clock()

        def on_save(self, args, state, control, **others):
            log.start_clock()

        def on_log(self, args, state, control, logs=None, **others):
            told = logs or {}
            if "loss" in told:
                log.tell_training(loss=told["loss"], learning_rate=told["learning_rate"])
            elif "eval_loss" in told:
                log.tell_evaluation(loss=told["eval_loss"], accuracy=told["eval_accuracy"])

        def on_train_end(self, args, state, control, **others):
            log.tell_training()

    return Callback()


if __name__ == "__main__":
    tune_malloc()  # before torch is loaded
    path = Path(sys.argv[1])
    train(json.loads(path.read_text(encoding="utf-8")), path.parent)
