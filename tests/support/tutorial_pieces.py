"""What the tutorials' scripts share: toy pairs, a tiny published model, and the numbers of a run.

WAYS of a script are its ways of training, functions of a folder and a batch size that return their numbers,
in one process or in several; the rows of a step are the same in any number of processes.
"""

from importlib import import_module
from pathlib import Path

import paddle
from paddle.nn.functional import cross_entropy
from paddlenlp.transformers import (
    BertConfig,
    BertForSequenceClassification,
    ErnieGramConfig,
    ErnieGramForSequenceClassification,
    LinearDecayWithWarmup,
)
from tiny_pair import VOCAB, toy_rows

from ernie_pair import PairTrainer

MAX_SEQ_LEN, RATE, DECAY, EPOCHS = 32, 2e-3, 0.01, 2
TRAIN, DEV = (
    [{"sentence1": a, "sentence2": b, "label": label} for a, b, label in toy_rows(count, seed)]
    for count, seed in ((48, 0), (16, 1))
)
SETTINGS = {
    "epochs": EPOCHS, "learning_rate": RATE, "weight_decay": DECAY, "max_seq_len": MAX_SEQ_LEN,
    "logging_freq": 1, "eval_freq": 3, "device": "cpu", "warmup_rate": 0.0,
    "kernels": "plain",  # those of Paddle, so that a loop of plain Paddle has the same bits
}  # fmt: skip
CLASSIFIERS = {
    "bert": (BertConfig, BertForSequenceClassification),
    "ernie_gram": (ErnieGramConfig, ErnieGramForSequenceClassification),
}


def write_classifier(folder: Path, family: str) -> Path:
    """A classifier of PaddleNLP without dropout, as from_pretrained and PairTrainer read it."""
    config, kind = CLASSIFIERS[family]
    own = {"embedding_size": 32} if family == "ernie_gram" else {}
    paddle.seed(3)
    sizes = {"vocab_size": len(VOCAB), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes.update(intermediate_size=64, max_position_embeddings=64, type_vocab_size=2, initializer_range=0.05)
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    kind(config(**sizes, **dropout, **own)).save_pretrained(str(folder))
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCAB), encoding="utf-8")
    return folder


def is_launched() -> bool:
    """Whether several processes run this script; they then know each other."""
    if paddle.distributed.get_world_size() == 1:
        return False
    if not paddle.distributed.is_initialized():
        paddle.distributed.init_parallel_env()
    return True


def data_parallel(model):
    return paddle.DataParallel(model) if is_launched() else model


def average(value) -> float:
    tensor = paddle.to_tensor([float(value)])
    if is_launched():
        paddle.distributed.all_reduce(tensor)
    return tensor.item() / paddle.distributed.get_world_size()


def adamw(rate, model):
    """The optimizer of the tutorials: AdamW that decays neither biases nor norms."""
    decayed = {p.name for n, p in model.named_parameters() if not any(part in n for part in ("bias", "norm"))}
    return paddle.optimizer.AdamW(
        rate,
        parameters=[p for p in model.parameters() if not p.stop_gradient],
        weight_decay=DECAY,
        apply_decay_param_fun=decayed.__contains__,
    )


def plain_losses(model, batches, epochs=EPOCHS):
    """The losses of a loop of plain Paddle over the ``batches`` of an epoch, at the rates of the flags."""
    runner, steps = data_parallel(model), epochs * len(batches)
    optimizer, losses = adamw(RATE, model), []
    model.train()
    for _ in range(epochs):
        for batch in batches:
            ids, types, labels = map(paddle.to_tensor, batch.values())
            loss = cross_entropy(runner(ids, types), labels)
            loss.backward()
            optimizer.set_lr(RATE * (steps - len(losses)) / (steps + 1))
            optimizer.step()
            optimizer.clear_grad()
            losses.append(average(loss))
    return losses


class LoadingTrainer(PairTrainer):
    """A trainer on a loader of its own, at the rates of the tutorials, which fall to 0."""

    rate = RATE

    def create_scheduler(self, num_training_steps, optimizer=None):
        return LinearDecayWithWarmup(self.rate, num_training_steps, 0)


def logged(trainer, name="loss"):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def run_ways(script, folder, batch_size):
    """The numbers of each way of training of a script: {name: {losses, ...}}."""
    paddle.set_device("cpu")
    return {name: way(folder, batch_size) for name, way in import_module(script).WAYS.items()}


def run_all(folders, batch_size):
    """The numbers of several scripts, {script: its folder}, in one start of the processes."""
    return {script: run_ways(script, folder, batch_size) for script, folder in folders.items()}
