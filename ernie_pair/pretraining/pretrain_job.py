"""The job of pretraining: its step, and the content of its checkpoints."""

import json
from collections import ChainMap
from dataclasses import MISSING, asdict, fields
from fnmatch import fnmatch
from typing import Any, Iterator, Mapping, NamedTuple, Sequence, Union

import numpy as np
import paddle

from data_tools.text.ngrams import holds_same_ngrams
from ernie_pair.checkpoint.checkpoint_folder import Checkpoint, Content
from ernie_pair.core.cli.options import defaults_of
from ernie_pair.models.families import FAMILIES
from ernie_pair.models.model_card import DataFile, Measured, ModelCard, changed_flags
from ernie_pair.models.source import ModelSource, choose_class
from ernie_pair.models.spec import CONFIG, VOCAB, architecture_in
from ernie_pair.models.tokenizers import tokenizer_files
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.pretraining.convert.convert import COMMANDS, PYTHON
from ernie_pair.pretraining.convert.warm_start import order_parts_not_in, read_start, warn_of_random_weights
from ernie_pair.pretraining.data import MicroBatch, PretrainData
from ernie_pair.pretraining.graph.dynamic_program import DynamicProgram, GroupSums
from ernie_pair.pretraining.graph.program import PretrainProgram
from ernie_pair.pretraining.graph.program_state import (
    GRADIENT_NORM,
    LABELLED,
    LOSS_WEIGHTS,
    NO_DROPOUT,
    SKIPPED_UPDATES,
    RankSums,
    seed_feed,
)
from ernie_pair.runtime.paddle_patches.core_settings import without_tf32
from ernie_pair.runtime.paddle_patches.static_programs import pin
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.runtime.processes.world import World, seed_of
from ernie_pair.training.schedule import learning_rate
from ernie_pair.training.step_metrics import (
    FORWARD_PASSES_OF_TRAINING,
    DeferredMetrics,
    EncoderSize,
    count_pretraining,
    perplexity_of,
)
from ernie_pair.weights.parameter_names import Parameter, cut_vocabulary, match_parameters, pad_vocabulary
from ernie_pair.weights.weight_files import Arrays, check_match, from_safetensors


def card_of_pretrained(
    config: PretrainConfig, source: ModelSource, data: PretrainData, step: int, metrics: Mapping[str, float]
) -> ModelCard:
    """Return the card of the model of ``step``; ``metrics``: of its validation, {} without one."""
    defaults = {item.name: item.default for item in fields(config) if item.default is not MISSING}
    shown_elsewhere = ("model_name_or_path", "input_dir", "output_dir", *defaults_of(config, "start"))
    hidden = {name: getattr(config, name) for name in shown_elsewhere}
    family = source.spec.family or "ernie"
    corpora, num_judged = data.corpora, config.eval_iters * config.samples_per_step
    return ModelCard(
        title=f"A pretrained {FAMILIES[family].class_start} model",
        facts={
            "base model": source.name,
            "initial weights": str(source.weights or f"random, seed {config.seed}"),
            "learned": f"{step} of {config.max_steps} steps of {config.samples_per_step} samples",
            "text": "{} documents, {} sentences, {} tokens".format(
                *(sum(sizes) for sizes in zip(*((c.num_documents, len(c), len(c.ids)) for c in corpora)))
            ),
            "tokens per sample": str(config.max_seq_len),
        },
        data=[DataFile("corpus", str(c.prefix), c.fingerprint, c.num_documents) for c in corpora],
        flags=changed_flags(asdict(config), {**defaults, **hidden}),
        metrics={name: Measured(value) for name, value in metrics.items()},
        measured_on=f"On {num_judged} samples of the validation share of the documents.",
        commands=COMMANDS.format(length=source.spec.inference_length),
        python=PYTHON.format(name=FAMILIES[family].class_start),
    )


# What losses and hits are summed over, in the order of the records, each with its labels.
LABELS = {"lm": "masked_lm_labels", "sop": "next_sentence_labels"}
LABELS.update(ngram="ngram_labels", decoder="decoder_labels")  # one of them at most


class CountedBatch(NamedTuple):
    """A micro-batch as it is fed, and its counts: float64 [L + 3], labels first, then work."""

    feed: dict[str, Any]
    counts: np.ndarray


class PendingStep(NamedTuple):
    """A step not read yet, the sum of its ``counts``, and its ``feeds``, which a GPU may yet read."""

    metrics: DeferredMetrics
    feeds: list[dict[str, Any]]
    counts: np.ndarray
    rate: float


def sum_rows(rows: np.ndarray, start: Union[np.ndarray, float] = 0.0) -> np.ndarray:
    """Return ``start`` plus the rows [N, K] one after another, float64 [K]."""
    total = np.zeros(rows.shape[1]) + start
    for row in rows:
        total += row
    return total


def count_labels(batch: MicroBatch) -> np.ndarray:
    """Count labelled tokens and samples, and n-grams or tokens of a decoder: float64 [2 or 3]."""
    return np.array([(batch[name] >= 0).sum() for name in LABELS.values() if name in batch], np.float64)


def count_loss_labels(labelled: np.ndarray, third: str) -> np.ndarray:
    """Return the labels of the two losses: of masked tokens and n-grams, of samples or of a decoder.

    ``labelled``: of `count_labels`; ``third``: what its last ones are if there are three, ngram or decoder.
    """
    more = labelled[2:].sum()
    return labelled[:2] + ([0, more] if third == "decoder" else [more, 0])


def means_of(sums: np.ndarray, labelled: np.ndarray, third: str) -> dict[str, float]:
    """Return the losses and accuracies of ``sums`` [4 or 6] over the label counts ``labelled`` [2 or 3].

    The loss is the mean over all masked tokens and n-grams, plus that of the sentence order or the decoder,
    if there is one. ``third``: see `count_loss_labels`.
    """
    lm_loss, lm_accuracy, sop_loss, sop_accuracy, *of_third = (
        sums / np.maximum(labelled, 1).repeat(2)
    ).tolist()
    masked_loss = lm_loss
    if third == "decoder":
        masked_loss += of_third[0]
    elif of_third:
        masked_loss = float((sums[0] + sums[4]) / max(count_loss_labels(labelled, third)[0], 1))
    metrics = {
        "loss": masked_loss + sop_loss,
        "lm_loss": lm_loss,
        "perplexity": perplexity_of(lm_loss),
        "sop_loss": sop_loss,
        "lm_accuracy": lm_accuracy,
        "sop_accuracy": sop_accuracy,
        **dict(zip((f"{third}_loss", f"{third}_accuracy"), of_third)),
    }
    if not labelled[1]:
        del metrics["sop_loss"], metrics["sop_accuracy"]
    return metrics


STATIC_WEIGHTS, NGRAMS = "static_vars.safetensors", "ngrams.txt"
OPTIMIZER, ANY_OPTIMIZER = "optimizer-{part:05d}-of-{parts:05d}.safetensors", "optimizer-*.safetensors"


class PretrainJob:
    """The step, evaluation and checkpoint of pretraining; satisfies ``ernie_pair.training.trainer.Job``."""

    def __init__(
        self,
        config: PretrainConfig,
        world: World,
        local: World,
        program: Union[PretrainProgram, DynamicProgram],
        data: PretrainData,
        all_reduce: Union[RankSums, GroupSums],
        source: ModelSource,
    ):
        self.config, self.world, self.local, self.source = config, world, local, source
        self.program, self.data, self.all_reduce = program, data, all_reduce
        spec = source.spec
        self._third = "decoder" if config.decoder_masked_prob else "ngram"  # kind of labels, if there is one
        layers = spec.num_layers + (self._third == "decoder")
        self.size = EncoderSize(layers, spec.hidden_size, spec.intermediate_size)
        self._skipped = 0
        self._num_ngrams = 0 if data.ngrams is None else len(data.ngrams)
        self._num_labels = 3 if self._num_ngrams or self._third == "decoder" else 2  # kinds of them
        self._pending: list[PendingStep] = []
        self._stop = StopSignals()  # of the last step
        # Steps are skipped on the device, and the rate of the next step depends on whether this one was.
        self._reads_each_step = config.sync_freq_on(config.device) == 1 or bool(program.skips)
        # What names begin with that neither the start had nor this run trains: it is in no file of the run.
        self._lacks: tuple[str, ...] = ()
        self._unproven = False  # weights were given, and no validation has shown yet that they fit

    def load_initial_weights(self) -> str:
        """Load the weights of ``source``, if any, and return the start. Raises CheckpointError if unfit."""
        if self.source.weights is None:
            return f"start from random weights, seed {self.config.seed}"
        beside, ours = self.source.vocab_file.parent / NGRAMS, self.data.ngrams
        has_same_ngrams = ours is not None and beside.is_file() and holds_same_ngrams(beside, ours)
        start = read_start(self.program.parameters, self.source, has_same_ngrams)
        self.program.set(start.arrays)
        self._unproven = start.has_lm_head
        self._lacks = () if self.config.has_order else start.lacks
        return f"start from the weights {self.source.weights}"

    def pin_batches(self, micro_batches: list[MicroBatch]) -> list[CountedBatch]:
        """Return micro-batches with their counts, for a GPU in pinned memory; a thread may call it."""
        feeds = map(self._on_device, micro_batches)
        return [CountedBatch(feed, self._count(batch)) for feed, batch in zip(feeds, micro_batches)]

    def step(
        self, micro_batches: Sequence[Union[MicroBatch, CountedBatch]], number: int, stop: StopSignals
    ) -> Mapping[str, float]:
        """Make one step over this rank's micro-batches, pinned or not, and return its metrics.

        The losses, in nats, are means over the global batch, which ranks exchange when metrics are read.
        """
        rates: dict[str, Any] = self.config.rates
        rate = learning_rate(number - self._skipped, **rates)  # a skipped step does not count
        self.program.rate(rate)
        placed = [b if isinstance(b, CountedBatch) else self.pin_batches([b])[0] for b in micro_batches]
        counted = np.sum([batch.counts for batch in placed], axis=0)
        if len(placed) + sum(len(step.feeds) for step in self._pending) > self.program.recorded_passes:
            self._read()
        self.program.merge(len(placed))
        # The loss is a mean over the global batch: the program averages over ranks, and over as many
        # micro-batches as it was built for, and sums the number of labels over several ranks.
        labelled = count_loss_labels(counted[: self._num_labels], self._third)
        whole = np.full(2, float(self.world.size * self.config.accumulation_steps))
        weights = {LOSS_WEIGHTS: (whole / np.maximum(labelled, 1)).astype(np.float32)}
        if self.world.size > 1:
            weights = {LOSS_WEIGHTS: whole.astype(np.float32), LABELLED: labelled}
        feeds: list[dict[str, Any]] = []
        if self.world.size > 1:
            self.all_reduce.meet()  # the loader of another rank may be slow
        for place, batch in enumerate(placed):
            seed = seed_of(self.config.seed, self.world.rank, number, place)
            feeds.append({**batch.feed, **self._on_device({**weights, **seed_feed(seed)})})
            self.program.run(self.program.main, feeds[-1])
        metrics, self._stop = DeferredMetrics(self._read), stop
        self._pending.append(PendingStep(metrics, feeds, counted, rate))
        if self.world.size == 1:
            stop.set_total(stop.local())
        if self._reads_each_step:
            self._read()
        return metrics

    def _on_device(self, feed: dict[str, np.ndarray]) -> dict[str, Any]:
        return {name: pin(array) for name, array in feed.items()} if self.config.device == "gpu" else feed

    def _read(self) -> None:
        """Set the metrics of all steps not yet read, with one copy from the device and one all-reduce."""
        steps, self._pending = self._pending, []
        if not steps:
            return
        ends, num_sums = np.cumsum([len(step.feeds) for step in steps]), 2 * self._num_labels
        rows, monitored = self.program.records(int(ends[-1])), self._monitored()
        parts = np.split(rows, ends[:-1])  # of each step a row per pass
        own = [np.append(sum_rows(part[:, :num_sums]), step.counts) for step, part in zip(steps, parts)]
        added = self.all_reduce(np.append(np.concatenate(own), self._stop.local()))
        self._stop.set_total(added[-1])
        for step, part, values in zip(steps, parts, added[:-1].reshape(len(steps), -1)):
            places = [num_sums, num_sums + self._num_labels]
            sums, labelled, (tokens, padded_tokens, flops) = np.split(values, places)
            norm = {GRADIENT_NORM: float(part[-1, num_sums])} if GRADIENT_NORM in monitored else {}
            work = {"tokens": tokens, "padded_tokens": padded_tokens, "flops": flops}
            means = means_of(sums, labelled, self._third)
            metrics = {**means, "learning_rate": step.rate, **monitored, **norm, **work}
            step.metrics.set({**metrics, "padding_share": 1 - tokens / padded_tokens})

    def evaluate(self, split: str) -> dict[str, float]:
        """Return the mean losses and accuracies over the fixed samples of ``split``, equal on every rank."""
        self._read()  # evaluation writes to the same records as training
        num_sums = 2 * self._num_labels
        sums, labelled = np.zeros(num_sums), np.zeros(self._num_labels)
        feeds: list[dict[str, Any]] = []
        with without_tf32():
            for batch in self.data.evaluation(split):
                if len(feeds) == self.program.recorded_passes:
                    sums, feeds = sum_rows(self.program.records(len(feeds))[:, :num_sums], sums), []
                feeds.append(self._on_device({**batch, **NO_DROPOUT}))
                self.program.run(self.program.test, feeds[-1])
                labelled += count_labels(batch)
        sums = sum_rows(self.program.records(len(feeds))[:, :num_sums], sums)
        means = means_of(self.all_reduce(sums), self.all_reduce(labelled), self._third)
        if self._unproven:
            self._unproven = False
            warn_of_random_weights(means["lm_loss"], self.source)
        return means

    def _count(self, batch: MicroBatch) -> np.ndarray:
        ids, masked = batch["input_ids"], len(batch["masked_positions"])
        batch_size, length = ids.shape
        labelled = count_labels(batch)
        masked += int(labelled[2]) if self._third == "decoder" else 0
        forward = count_pretraining(self.size, batch_size, length, masked, self.vocab_size + self._num_ngrams)
        flops = FORWARD_PASSES_OF_TRAINING * forward
        tokens = np.count_nonzero(ids != self.data.tokenizer.pad_id)
        return np.append(labelled, [tokens, ids.size, flops])

    @property
    def vocab_size(self) -> int:
        """Return the rows of the vocabulary in files; the program may have more."""
        return self.source.spec.vocab_size

    def weights(self) -> Arrays:
        """Return the parameters under their structured names, float32; a tied parameter appears once."""
        names = _first_names(self.program.parameters)
        named = {names[key]: array for key, array in self.program.weights().items()}
        kept = {name: array for name, array in named.items() if not name.startswith(self._lacks)}
        return cut_vocabulary(kept, self.vocab_size)

    def state_files(self) -> Iterator[tuple[str, Content]]:
        """Yield (name, content) of what this rank writes to a checkpoint.

        The first rank also writes the model, each owner its optimizer state. If every machine has a folder of
        its own, this holds for the ranks of each machine.
        """
        if self.local.is_first:
            spec, weights = self.source.spec, self.weights()
            settings = spec.to_config()
            if architecture_in(settings) or self._lacks:
                settings["architectures"] = [choose_class(spec, weights)]
            yield CONFIG, json.dumps(settings, indent=2).encode()
            if spec.tokenizer.uses_hf_tokenizer:
                yield from tokenizer_files(self.source.vocab_file, spec, spec.trained_length).items()
            else:
                yield VOCAB, self.source.vocab_file.read_bytes()
            yield STATIC_WEIGHTS, weights
            if self.data.ngrams is not None:
                yield NGRAMS, self.data.ngrams.content
        part, parts = self.local.rank, self.config.sharding_degree
        if part < parts:
            names = self._slot_names()
            names.update((name, name) for name in self.program.update.shared if part == 0)
            state = self.program.view_variables(self.program.owned_variables(names))
            named = {names[key]: array for key, array in state.items()}
            yield OPTIMIZER.format(part=part, parts=parts), cut_vocabulary(named, self.vocab_size)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Load weights and optimizer state from ``checkpoint``, checking all of them before setting any.

        The parts of a sharded optimizer are joined and split again, for any number of processes. Raises
        CheckpointError when they do not belong to this model.
        """
        found = pad_vocabulary(
            from_safetensors(checkpoint.read(STATIC_WEIGHTS), STATIC_WEIGHTS), self.vocab_size
        )
        lacks = () if self.config.has_order else order_parts_not_in(found, self.program.parameters)
        where = f"{checkpoint.folder}/{STATIC_WEIGHTS}"
        weights = match_parameters(self.program.parameters, found, where, may_miss=lacks)
        state: Arrays = {}
        for name in sorted(name for name in checkpoint.files if fnmatch(name, ANY_OPTIMIZER)):
            state.update(from_safetensors(checkpoint.read(name), name))
        shared = {name: state.pop(name) for name in list(state) if "/" not in name}
        state, names = pad_vocabulary(state, self.vocab_size), self._slot_names()
        shapes = ChainMap(*self.program.update.slots.values())
        wanted = {stored: shapes[key] for key, stored in names.items()}
        check_match(wanted, state, f"{checkpoint.folder}/{ANY_OPTIMIZER}")
        self._lacks = lacks
        self.program.set(weights)
        self.program.set({key: state[names[key]] for key in self.program.owned_variables(names)})
        # Skipping steps in float32 may be switched on and off (--on_nan): then its state starts fresh. The
        # steps skipped so far count all the same: the learning rate goes on from there.
        self.program.set({name: shared[name] for name in self.program.update.shared if name in shared})
        self._skipped = checkpoint.state().skipped_updates
        if self.program.skips:
            self.program.set({SKIPPED_UPDATES: np.array([self._skipped], np.float32)})
        self._monitored()

    def _monitored(self) -> dict[str, float]:
        values = self.program.monitored()
        self._skipped = int(values.get("skipped_updates", self._skipped))
        if self.config.device == "gpu":
            values["gpu_memory_gb"] = paddle.device.cuda.max_memory_allocated() / 1e9
        return values

    def _slot_names(self) -> dict[str, str]:
        """Return {variable: name in the file}: the slots of a parameter are under its structured name."""
        owners = _first_names(self.program.parameters)
        return {
            variable: f"{owners[parameter]}/{variable[len(parameter) + 1 :]}"
            for parameter, variables in self.program.update.slots.items()
            for variable in variables
        }


def _first_names(parameters: Mapping[str, Parameter]) -> dict[str, str]:
    names: dict[str, str] = {}
    for structured, parameter in parameters.items():
        names.setdefault(parameter.name, structured)
    return names
