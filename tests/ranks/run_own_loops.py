"""Launched, or called: loops of a user's own on one process or on several; rank 0 writes their losses.

run_own_loops.py FOLDER OUT.json BATCH_SIZE LOOP...
"""

import json
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import paddle
from group_sharding_on_cpu import group_sharding_on_cpu
from paddle.nn.functional import cross_entropy
from tiny_pair import toy_rows

from ernie_pair import PairConfig, PairTrainer

TRAIN, DEV = list(toy_rows(90, seed=0)), list(toy_rows(41, seed=1))
CHANGES = {"weighted": {"class_weights": "1,2.5"}, "scaled": {"use_amp": True, "amp_dtype": "float32"}}


def average(value):
    """The mean of a number over the processes."""
    tensor = paddle.to_tensor([value])
    if paddle.distributed.get_world_size() > 1:
        paddle.distributed.all_reduce(tensor)
    return float(tensor) / paddle.distributed.get_world_size()


def of_the_flags(parts):
    """The loss of the flags, micro-batch by micro-batch."""
    for _, batches in parts.steps:
        losses = []
        for batch in batches:
            losses.append(parts.loss(batch))
            parts.backward(losses[-1])
        parts.update()
        yield np.mean([float(loss) for loss in losses])


def of_its_own(parts):
    """A loss that the loop computes from logits."""
    for _, batches in parts.steps:
        losses = []
        for batch in batches:
            losses.append(cross_entropy(parts.forward(batch), paddle.to_tensor(batch.labels)))
            parts.backward(losses[-1])
        parts.update()
        yield np.mean([float(loss) for loss in losses])


def of_two_passes(parts):
    """Two forward passes of a micro-batch, whose losses are added."""
    for _, batches in parts.steps:
        losses = []
        for batch in batches:
            labels = paddle.to_tensor(batch.labels)
            both = [cross_entropy(parts.forward(batch), labels) for _ in "ab"]
            losses.append(both[0] + 0.5 * both[1])
            parts.backward(losses[-1])
        parts.update()
        yield np.mean([float(loss) for loss in losses])


def of_plain_paddle(parts):
    """Paddle's own data parallelism and optimizer, around the model and the batches."""
    model = parts.model if paddle.distributed.get_world_size() == 1 else paddle.DataParallel(parts.model)
    for step, batches in parts.steps:
        losses = []
        for number, batch in enumerate(batches):
            is_last = number == len(batches) - 1
            with nullcontext() if is_last or model is parts.model else model.no_sync():
                logits = model(paddle.to_tensor(batch.input_ids), paddle.to_tensor(batch.token_type_ids))
                losses.append(cross_entropy(logits, paddle.to_tensor(batch.labels)))
                (losses[-1] / len(batches)).backward()
        parts.optimizer.set_lr(parts.learning_rate(step))
        parts.optimizer.step()
        parts.optimizer.clear_grad()
        yield np.mean([float(loss) for loss in losses])


LOOPS = {
    "flags": of_the_flags,
    "own": of_its_own,
    "twice": of_two_passes,
    "paddle": of_plain_paddle,
    "weighted": of_the_flags,
    "scaled": of_the_flags,
    "zero2": of_the_flags,
}


def run_loop(name, folder, batch_size):
    """The mean loss of each step over all processes, and the metrics and weights at the end."""
    config = PairConfig(
        str(folder / f"out_{name}"),
        model_type="ernie",
        from_scratch=True,
        max_steps=6,
        batch_size=batch_size,
        gradient_accumulation_steps=2,
        learning_rate=5e-3,
        dropout=0.0,
        device="cpu",
    )
    config = replace(config, **CHANGES.get(name, {}))
    is_sharded = name == "zero2" and paddle.distributed.get_world_size() > 1
    with group_sharding_on_cpu() if is_sharded else nullcontext():
        trainer = PairTrainer(folder / "model", config, TRAIN, DEV)
        if is_sharded:
            trainer.config = replace(trainer.config, sharding="stage2", device="gpu")
        parts = trainer.open_parts()
        losses = [average(loss) for loss in LOOPS[name](parts)]
        metrics = trainer.evaluate()
        trainer.save_model(folder / f"saved_{name}_{batch_size}")
    return {"losses": losses, "accuracy": metrics["accuracy"], "loss": metrics["loss"]}


def main(folder, out, batch_size, *names):
    found = {name: run_loop(name, Path(folder), int(batch_size)) for name in names}
    if paddle.distributed.get_rank() == 0:
        Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
