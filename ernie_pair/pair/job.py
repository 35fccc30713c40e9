"""What an update and an evaluation of the pair classifier are; the only part that knows the optimizer."""

from typing import Dict, Iterator, List, Tuple

import numpy as np
import paddle
from paddle.nn import functional as F

from ernie_pair.checkpoint_folder import Checkpoint
from ernie_pair.model_folder import match_parameters
from ernie_pair.pair.config import TrainConfig
from ernie_pair.pair.data import Batch, Rows
from ernie_pair.pair.metrics import measure
from ernie_pair.pair.model import PairClassifier
from ernie_pair.pair.scoring import logits_of
from ernie_pair.schedule import learning_rate
from ernie_pair.weights import Arrays, from_safetensors, refuse_mismatch, to_safetensors
from ernie_pair.world import seed_of

MODEL_FILE, OPTIMIZER_FILE = "model.safetensors", "optimizer.safetensors"
SLOTS = ("moment1", "moment2", "beta1_pow_acc", "beta2_pow_acc")  # AdamW's, under Paddle's names


class PairJob:
    """``valid`` are the rows that ``evaluate("valid")`` measures; ``total_steps`` bounds the schedule."""

    def __init__(self, config: TrainConfig, model: PairClassifier, valid: Rows, total_steps: int, peers):
        self.config, self.model, self.peers = config, model, peers
        self.total_steps, self.splits = total_steps, {"valid": valid}
        self.parallel = peers.share_gradients(model)
        self.optimizer = _new_optimizer(model, config.weight_decay)
        self.skipped_updates = 0

    def learning_rate(self, step: int) -> float:
        """Linear up over ``warmup_rate`` of the updates, then down; 0 comes one update after the last."""
        return learning_rate(
            step,
            max_lr=self.config.learning_rate,
            min_lr=0.0,
            warmup_steps=round(self.config.warmup_rate * self.total_steps),
            decay_steps=self.total_steps + 1,
        )

    def update(self, batches: List[Batch], step: int, votes: int) -> Tuple[Dict[str, float], int]:
        """Move the weights once; loss and accuracy are means over the batches of all processes.

        With --on_nan skip they stay where a loss or a gradient is not finite, on all processes alike.
        """
        (batch,) = batches
        rate = self.learning_rate(step)
        self.optimizer.set_lr(rate)
        paddle.seed(seed_of(self.config.seed, self.peers.rank, step, 0))
        self.model.train()
        logits = self.parallel(paddle.to_tensor(batch.input_ids), paddle.to_tensor(batch.token_type_ids))
        loss = F.cross_entropy(logits, paddle.to_tensor(batch.labels))
        loss.backward()
        share_correct = np.mean(logits.numpy().argmax(axis=1) == batch.labels)
        places, tokens = batch.input_ids.size, np.count_nonzero(batch.input_ids != self.model.pad_id)
        told = [float(loss), share_correct, self._is_to_be_skipped(loss), votes, tokens, places]
        total_loss, total_share, skips, votes, tokens, places = self.peers.total(np.array(told))
        if skips:
            self.skipped_updates += 1
        else:
            self.optimizer.step()
        self.optimizer.clear_grad()
        loss, accuracy = float(total_loss / self.peers.size), float(total_share / self.peers.size)
        metrics = {"loss": loss, "accuracy": accuracy, "learning_rate": rate}
        metrics["padding_share"] = float(1 - tokens / places)
        if self.config.on_nan == "skip":
            metrics["skipped_updates"] = self.skipped_updates
        return metrics, int(votes)

    def _is_to_be_skipped(self, loss: paddle.Tensor) -> bool:
        if self.config.on_nan == "stop":
            return False  # the loop ends the run
        squares = [(p.grad * p.grad).sum() for p in self.model.parameters() if p.grad is not None]
        return not np.isfinite([float(loss), float(paddle.add_n(squares))]).all()

    def evaluate(self, split: str) -> Dict[str, float]:
        rows = self.splits[split]
        return measure(logits_of(self.model, rows, self.config.batch_size, self.peers), rows.labels)

    def state_files(self) -> Iterator[Tuple[str, bytes]]:
        """The weights and the optimizer under structured names: `classifier.weight.moment1`."""
        parameters = dict(self.model.named_parameters())
        yield MODEL_FILE, to_safetensors({name: p.numpy() for name, p in parameters.items()})
        state = self.optimizer.state_dict()
        yield (
            OPTIMIZER_FILE,
            to_safetensors(
                {f"{name}.{s}": state[_slot(p, s)].numpy() for name, p in parameters.items() for s in SLOTS}
            ),
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take the state that ``state_files`` wrote; everything is matched before anything is set."""
        parameters = dict(self.model.named_parameters())
        weights, moments = (_read(checkpoint, name) for name in (MODEL_FILE, OPTIMIZER_FILE))
        chosen = match_parameters(parameters, weights, f"{checkpoint.folder}/{MODEL_FILE}")
        refuse_mismatch(_slot_shapes(parameters), moments, f"{checkpoint.folder}/{OPTIMIZER_FILE}")
        self.skipped_updates = checkpoint.state().skipped_updates
        self.model.set(chosen)
        self.optimizer.set_state_dict(
            {
                _slot(p, s): paddle.to_tensor(moments[f"{name}.{s}"])
                for name, p in parameters.items()
                for s in SLOTS
            }
        )


def _new_optimizer(model: PairClassifier, weight_decay: float):
    decayed = {p.name for name, p in model.named_parameters() if not ("bias" in name or "norm" in name)}
    return paddle.optimizer.AdamW(
        learning_rate=0.0,  # set before every update
        parameters=model.parameters(),
        weight_decay=weight_decay,
        apply_decay_param_fun=decayed.__contains__,
    )


def _slot(parameter, slot: str) -> str:
    return f"{parameter.name}_{slot}_0"


def _slot_shapes(parameters: Dict) -> Dict[str, tuple]:
    shapes = {}
    for name, parameter in parameters.items():
        for slot in SLOTS:
            shapes[f"{name}.{slot}"] = tuple(parameter.shape) if slot.startswith("moment") else (1,)
    return shapes


def _read(checkpoint: Checkpoint, name: str) -> Arrays:
    return from_safetensors(checkpoint.read(name), f"{checkpoint.folder}/{name}")
