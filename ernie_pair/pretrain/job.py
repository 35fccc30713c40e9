"""What one update of static pretraining is, and what a checkpoint of it holds."""

import json
from typing import Dict, Iterator, List, Tuple

import numpy as np
import paddle

from ernie_pair.checkpoint import Checkpoint
from ernie_pair.model_folder import CONFIG, VOCAB, ModelSource, match_parameters
from ernie_pair.pretrain.config import PretrainConfig
from ernie_pair.pretrain.data import Batch, PretrainData
from ernie_pair.pretrain.program import LOSS_WEIGHTS, PretrainProgram, RankSums
from ernie_pair.schedule import linear_with_warmup
from ernie_pair.weights import Arrays, from_safetensors, refuse_mismatch, to_safetensors
from ernie_pair.world import World, seed_of

WEIGHTS, OPTIMIZER = "static_vars.safetensors", "optimizer.safetensors"
# Gradient merge's own variables are back at zero after each update: there is nothing to keep.
MERGE_MARKS = ("@GradientMerge", "gradient_merge")


class PretrainJob:
    """Satisfies ``ernie_pair.loop.Job``."""

    def __init__(
        self,
        config: PretrainConfig,
        world: World,
        program: PretrainProgram,
        data: PretrainData,
        add: RankSums,
        source: ModelSource,
    ):
        self.config, self.world, self.source = config, world, source
        self.program, self.data, self.add = program, data, add

    def update(self, batches: List[Batch], step: int) -> Dict[str, float]:
        """One update over this rank's micro batches; the losses are means over the global batch."""
        rate = self._learning_rate(step)
        self.program.rate(rate)
        labelled = self.add(sum(map(_count_labels, batches)))
        # fleet averages over ranks and passes: undo that, and divide by what is really labelled.
        weights = self.world.size * len(batches) / np.maximum(labelled, 1)
        sums = np.zeros(4)
        for number, batch in enumerate(batches):
            paddle.seed(seed_of(self.config.seed, self.world.rank, step, number))
            feed = {**batch, LOSS_WEIGHTS: weights.astype(np.float32)}
            sums += self.program.run(self.program.main, feed)
        return {**_means(self.add(sums), labelled), "learning_rate": rate}

    def evaluate(self, split: str) -> Dict[str, float]:
        """The mean losses over the fixed samples of ``split``."""
        sums, labelled = np.zeros(4), np.zeros(2)
        for batch in self.data.evaluation(split):
            sums += self.program.run(self.program.test, batch)
            labelled += _count_labels(batch)
        return _means(self.add(sums), self.add(labelled))

    def weights(self) -> Arrays:
        """The parameters under their structured names; a tied parameter stands once."""
        names = _first_names(self.program.parameters)
        return {names[key]: array for key, array in self.program.get(list(names)).items()}

    def state_files(self) -> Iterator[Tuple[str, bytes]]:
        yield CONFIG, json.dumps(self.source.config, indent=2).encode()
        yield VOCAB, self.source.vocab_file.read_bytes()
        yield WEIGHTS, to_safetensors(self.weights())
        names = self._optimizer_names()
        state = {names[key]: array for key, array in self.program.get(list(names)).items()}
        yield OPTIMIZER, to_safetensors(state)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Weights and optimizer of ``checkpoint``, all checked before the first is set."""
        found = from_safetensors(checkpoint.read(WEIGHTS), WEIGHTS)
        weights = match_parameters(self.program.parameters, found, f"{checkpoint.folder}/{WEIGHTS}")
        keys = {stored: key for key, stored in self._optimizer_names().items()}
        shapes = {
            stored: array.shape for stored, array in zip(keys, self.program.get(list(keys.values())).values())
        }
        state = from_safetensors(checkpoint.read(OPTIMIZER), OPTIMIZER)
        refuse_mismatch(shapes, state, f"{checkpoint.folder}/{OPTIMIZER}")
        self.program.set(weights)
        self.program.set({keys[stored]: array for stored, array in state.items()})

    def _learning_rate(self, step: int) -> float:
        config = self.config
        return linear_with_warmup(
            step,
            max_lr=config.max_lr,
            min_lr=config.min_lr,
            warmup_steps=config.warmup_steps,
            decay_steps=config.lr_decay_steps,
        )

    def _optimizer_names(self) -> Dict[str, str]:
        """{variable: name in the file}: the slots of a parameter stand under its structured name."""
        owners = _first_names(self.program.parameters)
        names = {}
        for variable in self.program.persistables():
            if any(mark in variable for mark in MERGE_MARKS):
                continue
            owner = max((key for key in owners if variable.startswith(f"{key}_")), key=len, default=None)
            names[variable] = f"{owners[owner]}/{variable[len(owner) + 1 :]}" if owner else variable
        return names


def _first_names(parameters: Dict[str, object]) -> Dict[str, str]:
    names: Dict[str, str] = {}
    for structured, parameter in parameters.items():
        names.setdefault(parameter.name, structured)
    return names


def _count_labels(batch: Batch) -> np.ndarray:
    """Labelled tokens and labelled samples, float64 [2]."""
    return np.array(
        [(batch[name] >= 0).sum() for name in ("masked_lm_labels", "next_sentence_labels")], np.float64
    )


def _means(sums: np.ndarray, labelled: np.ndarray) -> Dict[str, float]:
    lm_loss, lm_accuracy, sop_loss, sop_accuracy = (sums / np.maximum(labelled, 1).repeat(2)).tolist()
    return {
        "loss": lm_loss + sop_loss,
        "lm_loss": lm_loss,
        "sop_loss": sop_loss,
        "lm_accuracy": lm_accuracy,
        "sop_accuracy": sop_accuracy,
    }
