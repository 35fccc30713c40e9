"""A kind of training of its own, made of the package's parts: masked-LM alone, in dynamic graph."""

from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterator, List

import numpy as np
import paddle
from paddle.nn import functional as F
from paddlenlp.transformers import ErnieConfig, ErnieForMaskedLM

from data_tools.corpus.format import Corpus
from data_tools.ernie_dataset import ErnieDataset, masking_rule
from data_tools.samples.collate import NO_LABEL, collate
from data_tools.samples.sample_map import build_sample_map
from data_tools.text.wordpiece import WordPiece
from ernie_pair.models.source import ModelSource
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.runtime.processes.world import seed_of
from ernie_pair.train.hooks import Hooks, Schedule
from ernie_pair.train.loop import learning_rate
from ernie_pair.train.optimizer import optimizer_arrays, restore_optimizer
from ernie_pair.train.run import Processes, RunSettings, run_training
from ernie_pair.weights.parameter_names import match_parameters
from ernie_pair.weights.weight_files import from_safetensors

BATCH, LENGTH = 4, 32


class MaskedLMData:
    """The samples of a corpus, each of one segment, in the order of a seed."""

    def __init__(self, prefix: Path, tokenizer: WordPiece, seed: int):
        corpus, self.pad_id = Corpus(prefix), tokenizer.pad_id
        cut = {"target_length": LENGTH - 2, "short_seq_prob": 0.1, "min_sentences": 1, "num_samples": 400}
        documents = range(corpus.num_documents)
        rows = build_sample_map(corpus.docs, corpus.lens, documents, seed=seed, **cut)
        self.samples = ErnieDataset(corpus, rows, masking_rule(tokenizer), seed=seed, binary_head=False)

    def updates(self, consumed_samples: int) -> Iterator[List[Dict[str, np.ndarray]]]:
        for first in range(consumed_samples, len(self.samples) - BATCH, BATCH):
            samples = [self.samples[number] for number in range(first, first + BATCH)]
            yield [collate(samples, pad_id=self.pad_id, max_seq_len=LENGTH)]


class MaskedLMJob:
    """Satisfies ``ernie_pair.train.run.Job``."""

    def __init__(self, source: ModelSource, rates: dict, seed: int):
        paddle.seed(seed_of(seed))
        self.model = ErnieForMaskedLM(ErnieConfig.from_dict(source.spec.to_config()))
        name = paddle.utils.unique_name.generate("adamw")
        self.optimizer = paddle.optimizer.AdamW(0.0, parameters=self.model.parameters(), name=name)
        self.parameters = dict(self.model.named_parameters())
        self.rates, self.seed = rates, seed

    def load_initial_weights(self) -> str:
        return f"start from random weights, seed {self.seed}"

    def step(self, micro_batches, number, stop) -> Dict[str, float]:
        stop.set_total(stop.local())
        paddle.seed(seed_of(self.seed, number))
        self.optimizer.set_lr(learning_rate(number, **self.rates))
        loss = sum(map(self._loss, micro_batches)) / len(micro_batches)
        loss.backward()
        self.optimizer.step()
        self.optimizer.clear_grad()
        return {"loss": float(loss)}

    def _loss(self, batch):
        logits = self.model(paddle.to_tensor(batch["input_ids"])).flatten(0, 1)
        chosen = paddle.gather(logits, paddle.to_tensor(batch["masked_positions"]))
        return F.cross_entropy(chosen, paddle.to_tensor(batch["masked_lm_labels"]), ignore_index=NO_LABEL)

    def evaluate(self, split: str) -> Dict[str, float]:
        return {}

    def state_files(self):
        yield "model.safetensors", {name: p.numpy() for name, p in self.parameters.items()}
        yield "optimizer.safetensors", optimizer_arrays(self.model, self.optimizer)

    def restore(self, checkpoint) -> None:
        names = ("model.safetensors", "optimizer.safetensors")
        found, state = (from_safetensors(checkpoint.read(name), name) for name in names)
        where = str(checkpoint.folder)
        weights = match_parameters(self.parameters, found, where)
        restore_optimizer(self.model, self.optimizer, state, where)
        for parameter in self.parameters.values():
            parameter.set_value(weights[parameter.name])


@dataclass(frozen=True)
class MaskedLMConfig:
    prefix: Path
    output_dir: Path
    max_steps: int
    seed: int = 7


def pretrain_masked_lm(source: ModelSource, config: MaskedLMConfig, hooks: Hooks) -> MaskedLMJob:
    """Train in one process, or go on from the newest checkpoint of ``output_dir``."""
    rates = {"max_lr": 0.01, "min_lr": 0.0, "warmup_steps": 2, "decay_steps": 100}
    schedule = Schedule(config.max_steps, BATCH, 1, 0, checkpoint_steps=2, has_validation=False)
    fingerprint = {"model": source.spec.sha256, "seed": config.seed}
    settings = RunSettings(config, config.output_dir, schedule, rates, fingerprint)
    job = MaskedLMJob(source, rates, config.seed)
    data = MaskedLMData(config.prefix, WordPiece.from_file(source.vocab_file), config.seed)
    with StopSignals() as stop:
        run_training(job, data, settings, hooks, Processes(), stop)
    return job
