"""Which samples this rank reads, in which order: the only place that knows ranks and positions."""

import contextlib
import ctypes
import logging
import multiprocessing
import os
import signal
import threading
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Optional, Sequence, Union

import numpy as np

from data_tools.corpus.format import Corpus, document_ranges, find_corpus, open_corpus, open_verified
from data_tools.corpus.mixture import Blend, BlendedDataset, PhasedDataset, read_blend
from data_tools.corpus.twin_vocab import check_vocab_size, vocabulary_of
from data_tools.ernie_dataset import ErnieDataset
from data_tools.samples.split_datasets import (
    BucketedDataset,
    Datasets,
    SampleSettings,
    build_datasets,
    collate,
    whole_windows,
)
from data_tools.text.folder_tokenizer import AnyTokenizer
from data_tools.text.ngrams import NgramLexicon, read_ngrams
from ernie_pair.checkpoint.run_folder import CACHE
from ernie_pair.core.errors import LostProcessError
from ernie_pair.core.files.keyed_cache import mix_all
from ernie_pair.core.process_pool import in_order
from ernie_pair.models.spec import ModelSpec
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig, check_model_fits
from ernie_pair.runtime.cpu import cpu_share
from ernie_pair.runtime.processes.world import World

BATCHES_AHEAD = 4  # per worker
START_SECONDS = 60.0

logger = logging.getLogger(__name__)

# In a worker process: what makes its batches, and the barrier where all workers meet when they start.
_make_batch: Callable
_workers_barrier: threading.Barrier


class Loader:
    """Makes the batches ``collate([dataset[i] for i in indices])``; within its context, in worker processes.

    All of them are forked when the context is entered, so that the memory-mapped corpus is shared and nothing
    has to be pickled: enter it before the first kernel runs on a GPU, whose state must not be forked.
    """

    def __init__(self, dataset, collate: Callable, num_workers: int):
        self.make = lambda indices: collate([dataset[index] for index in indices])
        self.num_workers = num_workers

    def __enter__(self) -> "Loader":
        if self.num_workers:
            context = multiprocessing.get_context("fork")
            meeting = context.Barrier(self.num_workers)
            arguments = self.make, os.getpid(), meeting
            self._pool = ProcessPoolExecutor(
                self.num_workers, context, initializer=_start_worker, initargs=arguments
            )
            try:
                # A worker is forked only when none is idle: tasks that wait for each other make it fork all.
                with _detect_dead_worker(self.num_workers):
                    for future in [self._pool.submit(_wait_for_workers) for _ in range(self.num_workers)]:
                        future.result()
            except BaseException:
                self._pool.shutdown(wait=False, cancel_futures=True)
                raise
        return self

    def __exit__(self, kind: Optional[type], *reason) -> None:
        """End the workers; a run that ends well waits for it, or Python 3.13 may close their pipe twice."""
        if self.num_workers:
            self._pool.shutdown(wait=kind is None, cancel_futures=True)

    def batches(self, batches_of_indices: Iterable[Sequence[int]]) -> Iterator:
        """Yield a batch for each of ``batches_of_indices``, in their order, prefetched."""
        if not self.num_workers:
            yield from map(self.make, batches_of_indices)
            return
        most = self.num_workers * BATCHES_AHEAD + 1  # the one in use, and those that wait
        with _detect_dead_worker(self.num_workers):
            yield from in_order(
                lambda indices: self._pool.submit(_work, indices), Future.result, batches_of_indices, most
            )


@contextlib.contextmanager
def _detect_dead_worker(num_workers: int) -> Iterator[None]:
    try:
        yield
    except threading.BrokenBarrierError:
        raise LostProcessError(
            f"not all {num_workers} loader processes have started within {START_SECONDS:.0f} s; lower "
            "--num_workers and start again"
        ) from None
    except BrokenProcessPool:
        raise LostProcessError(
            "a loader process died (out of memory?); lower --num_workers and start again"
        ) from None


def count_workers(requested: int) -> int:
    """Return ``requested``, or the number of cores of this process if it is lower, which is logged."""
    cores = cpu_share().threads
    if requested > cores:
        logger.info("--num_workers %d: %d, as many as this process has cores", requested, cores)
    return min(requested, cores)


def _start_worker(make: Callable, run: int, meeting: threading.Barrier) -> None:
    """Set up a worker process; ``run``: the process id of its parent."""
    global _make_batch, _workers_barrier
    _make_batch, _workers_barrier = make, meeting
    os.setpgid(0, 0)  # the run itself handles signals to the whole group, such as Ctrl-C
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a killed run leaves no worker behind
    if os.getppid() != run:
        os._exit(1)


def _work(indices: Sequence[int]):
    return _make_batch(indices)


def _wait_for_workers() -> None:
    _workers_barrier.wait(START_SECONDS)


MicroBatch = dict[str, np.ndarray]
TrainDataset = Union[ErnieDataset, BlendedDataset, None]
PHASE_SEED_KEY = 0x7068  # mixed into the seed of the phases after the first
SAMPLES_PER_ESTIMATE = 100_000  # samples read to estimate how many sentences one holds


@dataclass(frozen=True)
class PretrainData:
    """The three datasets of a run; ``valid`` and ``test`` are None when their share of --split is 0."""

    config: PretrainConfig
    world: World
    corpora: list[Corpus]
    blend: Blend
    tokenizer: AnyTokenizer
    datasets: Datasets
    ngrams: Optional[NgramLexicon] = None
    later: tuple[TrainDataset, ...] = ()  # the training samples of the phases after the first
    loader: Optional[Loader] = None  # of the training samples, within `forked`

    @contextmanager
    def forked(self) -> Iterator["PretrainData"]:
        """Yield the data with its loader processes started; they end with the context.

        Otherwise `updates` starts them when its first batch is requested.
        """
        with self._loader("train", count_workers(self.config.num_workers)) as loader:
            yield replace(self, loader=loader)

    @property
    def fingerprint(self) -> str:
        """Return the hash of the corpus; for several, their weights and hashes."""
        if len(self.corpora) == 1:
            return self.corpora[0].fingerprint
        return " ".join(f"{part} {c.fingerprint}" for part, c in zip(self.blend.parts, self.corpora))

    @property
    def samples_per_epoch(self) -> float:
        """Estimate how many samples hold as many sentences as the training text of all corpora."""
        sentences = 0
        for corpus in self.corpora:
            documents = document_ranges(self.config.split, corpus.num_documents)["train"]
            sentences += int(corpus.docs[documents.stop] - corpus.docs[documents.start])
        phases, read = self.config.phase_list, 0.0
        for phase, train in zip(phases, self._train_datasets):
            mean = 0.0  # sentences in a sample
            parts: Sequence = train.datasets if isinstance(train, BlendedDataset) else [train]
            for part, share in zip(parts, self.blend.parts / self.blend.period):
                rows = np.asarray(part.sample_map[:SAMPLES_PER_ESTIMATE])
                mean += share * (rows[:, 1] - rows[:, 0]).mean() if len(rows) else 0.0
            read += phase.steps * mean
        return sentences / (read / sum(phase.steps for phase in phases))

    @property
    def _train_datasets(self) -> list:
        return [self.datasets["train"], *self.later]

    def updates(self, consumed_samples: int) -> Iterator[list[MicroBatch]]:
        """Yield this rank's micro-batches of each step, from ``consumed_samples`` on; see `collate`."""
        config = self.config
        if self.loader is None:
            with self.forked() as data:
                yield from data.updates(consumed_samples)
            return
        steps = range(consumed_samples // config.samples_per_step, config.max_steps)
        indices = (self._indices(step, config.micro_batch_at(step)) for step in steps)
        batches = self.loader.batches(chain.from_iterable(indices))
        for step in steps:
            yield list(islice(batches, config.count_passes(config.micro_batch_at(step))))

    def evaluation(self, split: str) -> Iterator[MicroBatch]:
        """Yield this rank's share of an evaluation, always the same batches of `collate`."""
        steps, size = range(self.config.eval_iters), self.config.full_length_micro_batch
        indices = chain.from_iterable(self._indices(step, size) for step in steps)
        yield from self._loader(split, num_workers=0).batches(indices)

    def has(self, split: str) -> bool:
        """Return whether any documents belong to ``split``."""
        return self.datasets[split] is not None

    def _loader(self, split: str, num_workers: int) -> Loader:
        config = self.config
        dataset: Any = self.datasets[split]
        if split == "train":  # in the order in which they are read, of all phases
            datasets = self._train_datasets
            if config.bucket_size:
                datasets = [BucketedDataset(each, config.bucket_size, config.seed) for each in datasets]
            counts = [phase.steps * config.samples_per_step for phase in config.phase_list]
            dataset = PhasedDataset(datasets, counts) if len(datasets) > 1 else datasets[0]
        make = partial(collate, pad_id=self.tokenizer.pad_id, max_seq_len=config.max_seq_len)
        return Loader(dataset, make, num_workers)

    def _indices(self, step: int, size: int) -> list[range]:
        """Return the sample numbers of this rank in one step, a range per micro-batch of ``size``."""
        config, world = self.config, self.world
        first = step * config.samples_per_step + world.rank * size
        starts = [first + number * world.size * size for number in range(config.count_passes(size))]
        return [range(start, start + size) for start in starts]


def open_pretrain_data(
    config: PretrainConfig, world: World, tokenizer: AnyTokenizer, spec: ModelSpec
) -> PretrainData:
    """Open the corpora of ``input_dir`` and map their documents to samples.

    ``tokenizer``: the model's vocabulary; corpora may be encoded with its extension by ## twins. Raises
    InputError when a folder does not hold exactly one corpus, when its ids or the n-grams do not fit the
    vocabulary, when a split is empty, or when the samples do not fit the model of ``spec``.
    """
    check_model_fits(config, config.max_seq_len, tokenizer, spec)
    sources = read_blend(config.input_dir)
    blend = Blend([source.weight for source in sources])
    cache = Path(config.output_dir) / CACHE  # the folders of the corpora are never written to
    prefixes = [find_corpus(source.folder, "--input_dir") for source in sources]
    for prefix in prefixes:
        document_ranges(config.split, open_corpus(prefix).num_documents)  # raises before anything is written
    corpora = [open_verified(prefix, cache) for prefix in prefixes]
    models, tokenizer = tokenizer, vocabulary_of(corpora, tokenizer)
    ngrams = None
    if config.ngram_lexicon:
        ngrams = read_ngrams(config.ngram_lexicon, "--ngram_lexicon", tokenizer, models)
    check_vocab_size(tokenizer, spec.vocab_size)
    settings = SampleSettings(
        split=config.split,
        seed=config.seed,
        sample_map={},  # set for each phase
        rule=config.rule_settings(),
        masking_fn=config.masking_fn,
        binary_head=config.has_order,
        cache_dir=cache,
        ngrams=ngrams,
        decoder_masked_prob=config.decoder_masked_prob,
    )
    judged = {split: config.eval_iters * config.samples_per_step for split in ("valid", "test")}
    build = partial(build_datasets, corpora, blend, tokenizer)
    trains = []
    for number, phase in enumerate(config.phase_list):
        count = whole_windows(phase.steps * config.samples_per_step, config.bucket_size)
        of_phase = replace(
            settings,
            seed=mix_all(config.seed, PHASE_SEED_KEY, number) if number else config.seed,
            sample_map=config.map_settings(phase.length),
        )
        trains.append(build({"train": count}, of_phase)["train"])
    at_full_length = replace(settings, sample_map=config.map_settings(config.max_seq_len))
    datasets: Datasets = {"train": trains[0], **build(judged, at_full_length)}
    return PretrainData(config, world, corpora, blend, tokenizer, datasets, ngrams, tuple(trains[1:]))
