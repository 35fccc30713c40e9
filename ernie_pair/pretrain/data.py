"""Which samples this rank reads, in which order: the only place that knows ranks and positions."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Dict, Iterator, List, Union

import numpy as np

from data_tools.corpus.format import Corpus
from data_tools.corpus.integrity import open_verified
from data_tools.corpus.megatron import find_corpus
from data_tools.corpus.mixture import Blend, BlendedDataset, read_blend
from data_tools.corpus.splits import document_ranges
from data_tools.corpus.twin_vocab import vocabulary_of
from data_tools.dataset_utils import MaskingRule
from data_tools.ernie_dataset import ErnieDataset, Sample, masking_rule
from data_tools.files.hashing import mix_all
from data_tools.samples.collate import collate
from data_tools.samples.masking_plugin import load_masking_fn
from data_tools.samples.sample_map import build_sample_map, rows_fit
from data_tools.samples.sample_map_cache import cached_sample_map
from data_tools.text.wordpiece import WordPiece
from ernie_pair.model_files.spec import ModelSpec
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig
from ernie_pair.pretrain.loader import Loader
from ernie_pair.pretrain.vocab_checks import refuse_ids_beyond, refuse_unfit_model
from ernie_pair.processes.world import World

MicroBatch = Dict[str, np.ndarray]
LOOKED_AT = 100_000  # samples, to see how many sentences one holds
CACHE = "cache"  # below output_dir: the folders of the corpora are never written to
# Splits have seeds of their own: the masks of validation say nothing about those of training.
SPLIT_NUMBER = {"train": 0, "valid": 1, "test": 2}


@dataclass(frozen=True)
class PretrainData:
    """The three datasets of a run; ``valid`` and ``test`` are None when their share of --split is 0."""

    config: PretrainConfig
    world: World
    corpora: List[Corpus]
    blend: Blend
    tokenizer: WordPiece
    datasets: Dict[str, Union[ErnieDataset, BlendedDataset, None]]

    @property
    def fingerprint(self) -> str:
        """Return the hash of the corpus, or of several their weights and hashes."""
        if len(self.corpora) == 1:
            return self.corpora[0].fingerprint
        return " ".join(f"{part} {c.fingerprint}" for part, c in zip(self.blend.parts, self.corpora))

    @property
    def samples_per_epoch(self) -> float:
        """Estimate how many samples hold as many sentences as the training text of all corpora together."""
        sentences, per_sample = 0, 0.0
        train = self.datasets["train"]
        parts = train.datasets if isinstance(train, BlendedDataset) else [train]
        for corpus, part, share in zip(self.corpora, parts, self.blend.parts / self.blend.period):
            documents = document_ranges(self.config.split, corpus.num_documents)["train"]
            sentences += int(corpus.docs[documents.stop] - corpus.docs[documents.start])
            rows = np.asarray(part.sample_map[:LOOKED_AT])
            per_sample += share * (rows[:, 1] - rows[:, 0]).mean() if len(rows) else 0.0
        return sentences / per_sample

    def updates(self, consumed_samples: int) -> Iterator[List[MicroBatch]]:
        """Yield the micro-batches of this rank, one list per step, from ``consumed_samples`` on.

        Each is a dictionary of int64 arrays, see `data_tools.samples.collate`.
        """
        config = self.config
        updates = range(consumed_samples // config.samples_per_step, config.max_steps)
        with self._loader("train", (self._rows(update) for update in updates), config.num_workers) as batches:
            while group := [batch for _, batch in zip(range(config.passes), batches)]:
                yield group

    def evaluation(self, split: str) -> Iterator[MicroBatch]:
        """Yield this rank's share of the global batches of an evaluation, the same ones every time.

        Each is a dictionary of int64 arrays, see `data_tools.samples.collate`.
        """
        rows = (self._rows(update) for update in range(self.config.iters_of(split)))
        with self._loader(split, rows, num_workers=0) as batches:
            yield from batches

    def has(self, split: str) -> bool:
        """Return whether any documents belong to ``split``."""
        return self.datasets[split] is not None

    def _loader(self, split: str, rows, num_workers: int) -> Loader:
        indices = (indices for passes in rows for indices in passes)
        return Loader(self.datasets[split], indices, self._collate, num_workers)

    def _collate(self, samples: List[Sample]) -> MicroBatch:
        return collate(samples, pad_id=self.tokenizer.pad_id, max_seq_len=self.config.max_seq_len)

    def _rows(self, update: int) -> List[range]:
        """Return the sample numbers of this rank in one step, a range per micro-batch."""
        config, world = self.config, self.world
        first = update * config.samples_per_step + world.rank * config.micro_batch_size
        stride = world.size * config.micro_batch_size
        starts = [first + number * stride for number in range(config.passes)]
        return [range(start, start + config.micro_batch_size) for start in starts]


def open_pretrain_data(
    config: PretrainConfig, world: World, tokenizer: WordPiece, spec: ModelSpec
) -> PretrainData:
    """Open the corpora of ``input_dir`` and map their documents to samples.

    ``tokenizer``: the model's vocabulary; corpora may have been made with its extension by twins. Raises
    InputError when a folder does not hold exactly one corpus, when its ids do not fit the vocabulary, when
    a split is empty, or when samples are not for the model of ``spec``.
    """
    refuse_unfit_model(config, tokenizer, spec)
    sources = read_blend(config.input_dir)
    blend = Blend([source.weight for source in sources])
    cache = Path(config.output_dir) / CACHE
    corpora = [open_verified(find_corpus(source.folder, "--input_dir"), cache) for source in sources]
    tokenizer = vocabulary_of(corpora, tokenizer)
    refuse_ids_beyond(tokenizer, spec.vocab_size)
    rule = masking_rule(tokenizer, **config.rule_settings())
    datasets = {split: _dataset(config, corpora, blend, rule, split) for split in SPLIT_NUMBER}
    return PretrainData(config, world, corpora, blend, tokenizer, datasets)


def _dataset(config: PretrainConfig, corpora: List[Corpus], blend: Blend, rule: MaskingRule, split: str):
    """Make the samples of ``split``; None when its share of the documents is 0."""
    documents = [document_ranges(config.split, corpus.num_documents)[split] for corpus in corpora]
    if not any(documents):
        return None
    updates = config.max_steps if split == "train" else config.iters_of(split)
    masking_fn = load_masking_fn(config.masking_fn)
    parts = []
    for place, num_samples in enumerate(blend.counts(updates * config.samples_per_step)):
        # Corpora have seeds of their own as well: equal texts in two of them get different masks.
        seed = mix_all(config.seed, SPLIT_NUMBER[split], place)
        rows = _sample_map(config, corpora[place], documents[place], num_samples, seed)
        parts.append(
            ErnieDataset(
                corpora[place],
                rows,
                rule,
                seed=seed,
                binary_head=config.binary_head,
                masking_fn=masking_fn,
            )
        )
    return parts[0] if len(parts) == 1 else BlendedDataset(parts, blend)


def _sample_map(
    config: PretrainConfig, corpus: Corpus, documents: range, num_samples: int, seed: int
) -> np.ndarray:
    settings = {"num_samples": num_samples, "seed": seed, **config.map_settings(config.max_seq_len)}
    key = {"corpus": corpus.fingerprint, "documents": [documents.start, documents.stop], **settings}
    return cached_sample_map(
        Path(config.output_dir) / CACHE,
        key,
        build=lambda: build_sample_map(corpus.docs, corpus.lens, documents, **settings),
        fits=partial(
            rows_fit,
            num_rows=num_samples,
            sentences=range(*corpus.docs[[documents.start, documents.stop]].tolist()),
            target_length=settings["target_length"],
        ),
    )
