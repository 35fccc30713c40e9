"""What one step of static pretraining is, and what a checkpoint of it holds."""

import json
from collections import ChainMap
from fnmatch import fnmatch
from typing import Any, Dict, Iterator, List, Mapping, Tuple

import numpy as np
import paddle

from ernie_pair.checkpoint.checkpoint_folder import Checkpoint, Content
from ernie_pair.engine.hooks import StopRequests
from ernie_pair.engine.logging_window import perplexity_of
from ernie_pair.engine.lr_schedule import learning_rate
from ernie_pair.model_files.source import CONFIG, VOCAB, ModelSource
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig
from ernie_pair.pretrain.convert.warm_start import read_start, warn_of_random_weights
from ernie_pair.pretrain.data import MicroBatch, PretrainData
from ernie_pair.pretrain.graph.dropout_seed import seed_feed
from ernie_pair.pretrain.graph.program import LOSS_WEIGHTS, PretrainProgram, RankSums
from ernie_pair.pretrain.graph.step_monitors import GRADIENT_NORM
from ernie_pair.pretrain.graph.vocab_padding import cut_vocabulary, pad_vocabulary
from ernie_pair.processes.world import World, seed_of
from ernie_pair.weights.parameter_matching import match_parameters
from ernie_pair.weights.static_names import Parameter
from ernie_pair.weights.weight_files import Arrays, from_safetensors, refuse_mismatch

STATIC_WEIGHTS = "static_vars.safetensors"
OPTIMIZER, ANY_OPTIMIZER = "optimizer-{part:05d}-of-{parts:05d}.safetensors", "optimizer-*.safetensors"
MERGE_MARKS = ("@GradientMerge", "gradient_merge")


class PretrainJob:
    """The step, evaluation and checkpoint of pretraining; satisfies ``ernie_pair.engine.run.Job``."""

    def __init__(
        self,
        config: PretrainConfig,
        world: World,
        local: World,
        program: PretrainProgram,
        data: PretrainData,
        all_reduce: RankSums,
        source: ModelSource,
    ):
        self.config, self.world, self.local, self.source = config, world, local, source
        self.program, self.data, self.all_reduce = program, data, all_reduce
        self._skipped = 0
        self._unproven = False  # weights were given, and no validation has yet said whether they fit

    def load_initial_weights(self) -> str:
        """Take the weights of ``source``, if it has any, and return what the run starts from.

        Raises CheckpointError, with nothing set, when they do not fit.
        """
        if self.source.weights is None:
            return f"start from random weights, seed {self.config.seed}"
        start = read_start(self.program.parameters, self.source)
        self.program.set_weights(start.arrays)
        self._unproven = start.has_lm_head
        return f"start from the weights {self.source.weights}"

    def step(self, micro_batches: List[MicroBatch], number: int, stop: StopRequests) -> Dict[str, float]:
        """Make one step over this rank's micro-batches and return its metrics.

        The losses, in nats, are means over the global batch.
        """
        rate = self._learning_rate(number)
        self.program.rate(rate)
        counted = np.sum([self._count(batch) for batch in micro_batches], axis=0)
        labelled, filled = np.split(self.all_reduce(counted), 2)
        # fleet averages over ranks and micro-batches: undo that, and divide by what is really labelled.
        weights = self.world.size * len(micro_batches) / np.maximum(labelled, 1)
        sums = np.zeros(4)
        for place, batch in enumerate(micro_batches):
            seed = seed_of(self.config.seed, self.world.rank, number, place)
            feed = {**batch, LOSS_WEIGHTS: weights.astype(np.float32), **seed_feed(seed)}
            sums += self.program.run(self.program.main, feed)
        added = self.all_reduce(np.append(sums, stop.local()))
        stop.set_total(added[-1])
        metrics = {**_means(added[:-1], labelled), "learning_rate": rate, **self._monitored()}
        return {**metrics, "padding_share": 1 - filled[0] / filled[1]}

    def evaluate(self, split: str) -> Dict[str, float]:
        """Return the mean losses and accuracies over the fixed samples of ``split``, equal on every rank."""
        sums, labelled = np.zeros(4), np.zeros(2)
        for batch in self.data.evaluation(split):
            sums += self.program.run(self.program.test, batch)
            labelled += _count_labels(batch)
        means = _means(self.all_reduce(sums), self.all_reduce(labelled))
        if self._unproven:
            self._unproven = False
            warn_of_random_weights(means["lm_loss"], self.source)
        return means

    def _count(self, batch: MicroBatch) -> np.ndarray:
        """Count labelled tokens, labelled samples, tokens and places for tokens: float64 [4]."""
        ids = batch["input_ids"]
        return np.append(_count_labels(batch), [(ids != self.data.tokenizer.pad_id).sum(), ids.size])

    @property
    def vocab_size(self) -> int:
        """Return the rows of the vocabulary that files hold; the program may have more."""
        return self.source.spec.vocab_size

    def weights(self) -> Arrays:
        """Return the parameters under their structured names, float32; a tied parameter stands once."""
        names = _first_names(self.program.parameters)
        named = {names[key]: array for key, array in self.program.weights().items()}
        return cut_vocabulary(named, self.vocab_size)

    def state_files(self) -> Iterator[Tuple[str, Content]]:
        """Yield (name, content) of what this rank puts into a checkpoint.

        The first rank puts in the model too, each owner its optimizer state. Where every machine has a
        folder of its own, those that write are the first of each.
        """
        if self.local.is_first:
            yield CONFIG, json.dumps(self.source.spec.to_config(), indent=2).encode()
            yield VOCAB, self.source.vocab_file.read_bytes()
            yield STATIC_WEIGHTS, self.weights()
        part, parts = self.local.rank, self.config.sharding_degree
        if part < parts:
            names = self._slot_names()
            names.update((name, name) for name in self._shared_names() if part == 0)
            state = self.program.view_variables(self.program.owned_variables(names))
            named = {names[key]: array for key, array in state.items()}
            yield OPTIMIZER.format(part=part, parts=parts), cut_vocabulary(named, self.vocab_size)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take weights and optimizer state from ``checkpoint``, all checked before the first is set.

        The parts of a sharded optimizer are put together and cut anew, for any number of processes. Raises
        CheckpointError when they are not those of this model.
        """
        found = pad_vocabulary(
            from_safetensors(checkpoint.read(STATIC_WEIGHTS), STATIC_WEIGHTS), self.vocab_size
        )
        weights = match_parameters(self.program.parameters, found, f"{checkpoint.folder}/{STATIC_WEIGHTS}")
        state: Arrays = {}
        for name in sorted(name for name in checkpoint.files if fnmatch(name, ANY_OPTIMIZER)):
            state.update(from_safetensors(checkpoint.read(name), name))
        shared = {name: state.pop(name) for name in list(state) if "/" not in name}
        state, names = pad_vocabulary(state, self.vocab_size), self._slot_names()
        shapes = ChainMap(*self.program.slots.values())
        wanted = {stored: shapes[key] for key, stored in names.items()}
        refuse_mismatch(wanted, state, f"{checkpoint.folder}/{ANY_OPTIMIZER}")
        self.program.set_weights(weights)
        self.program.set({key: state[names[key]] for key in self.program.owned_variables(names)})
        # What skips updates in float32 may be switched on and off (--on_nan): then it starts afresh.
        self.program.set({name: shared[name] for name in self._shared_names() if name in shared})
        self._monitored()

    def _monitored(self) -> Dict[str, float]:
        values = self.program.monitored()
        self._skipped = int(values.get("skipped_updates", 0))
        if self.config.device == "gpu":
            values["gpu_memory_gb"] = paddle.device.cuda.max_memory_allocated() / 1e9
        return values

    def _learning_rate(self, step: int) -> float:
        """Return the learning rate of a step; the schedule counts only the steps that were not skipped."""
        rates: Dict[str, Any] = self.config.rates
        return learning_rate(step - self._skipped, **rates)

    def _slot_names(self) -> Dict[str, str]:
        """Return {variable: name in the file}: the slots of a parameter stand under its structured name."""
        owners = _first_names(self.program.parameters)
        return {
            variable: f"{owners[parameter]}/{variable[len(parameter) + 1 :]}"
            for parameter, variables in self.program.slots.items()
            for variable in variables
        }

    def _shared_names(self) -> List[str]:
        """Return the optimizer state of no parameter that a checkpoint keeps.

        Gradient merge's own variables are back at zero after each step: there is nothing to keep.
        """
        passing = (*MERGE_MARKS, GRADIENT_NORM)
        return [name for name in self.program.shared_state() if not any(mark in name for mark in passing)]


def _first_names(parameters: Mapping[str, Parameter]) -> Dict[str, str]:
    names: Dict[str, str] = {}
    for structured, parameter in parameters.items():
        names.setdefault(parameter.name, structured)
    return names


def _count_labels(batch: MicroBatch) -> np.ndarray:
    """Count labelled tokens and labelled samples: float64 [2]."""
    return np.array(
        [(batch[name] >= 0).sum() for name in ("masked_lm_labels", "next_sentence_labels")], np.float64
    )


def _means(sums: np.ndarray, labelled: np.ndarray) -> Dict[str, float]:
    lm_loss, lm_accuracy, sop_loss, sop_accuracy = (sums / np.maximum(labelled, 1).repeat(2)).tolist()
    return {
        "loss": lm_loss + sop_loss,
        "lm_loss": lm_loss,
        "perplexity": perplexity_of(lm_loss),
        "sop_loss": sop_loss,
        "lm_accuracy": lm_accuracy,
        "sop_accuracy": sop_accuracy,
    }
