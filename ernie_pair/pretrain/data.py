"""Which samples this rank reads, in which order: the only place that knows ranks and positions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence

import numpy as np

from data_tools.collate import collate
from data_tools.corpus import Corpus
from data_tools.ernie_dataset import SPECIALS_PER_SAMPLE, ErnieDataset, masking_rule
from data_tools.errors import InputError
from data_tools.sample_map import build_sample_map, cached_sample_map
from data_tools.splits import document_ranges
from data_tools.wordpiece import WordPiece
from ernie_pair.pretrain.config import PretrainConfig
from ernie_pair.pretrain.loader import Loader
from ernie_pair.world import World

Batch = Dict[str, np.ndarray]
MIN_SENTENCES = 2
INDEX_SUFFIX = "_idx.npz"
# Splits have seeds of their own: the masks of validation say nothing about those of training.
SPLIT_NUMBER = {"train": 0, "valid": 1, "test": 2}


@dataclass(frozen=True)
class PretrainData:
    """The three datasets; ``valid`` and ``test`` are None when their share of --split is 0."""

    config: PretrainConfig
    world: World
    corpus: Corpus
    pieces: WordPiece
    datasets: Dict[str, Optional[ErnieDataset]]

    def updates(self, consumed_samples: int) -> Iterator[List[Batch]]:
        """The micro batches of this rank, one list per update, from ``consumed_samples`` on."""
        config = self.config
        updates = range(consumed_samples // config.samples_per_update, config.max_steps)
        with self._loader("train", (self._rows(update) for update in updates), config.num_workers) as batches:
            while group := [batch for _, batch in zip(range(config.passes), batches)]:
                yield group

    def evaluation(self, split: str) -> Iterator[Batch]:
        """This rank's share of ``eval_iters`` global batches, the same ones every time."""
        rows = (self._rows(update) for update in range(self.config.eval_iters))
        with self._loader(split, rows, num_workers=0) as batches:
            yield from batches

    def has(self, split: str) -> bool:
        return self.datasets[split] is not None

    def _loader(self, split: str, rows, num_workers: int) -> Loader:
        indices = (indices for passes in rows for indices in passes)
        return Loader(self.datasets[split], indices, self._collate, num_workers)

    def _collate(self, samples: Sequence) -> Batch:
        return collate(samples, pad_id=self.pieces.pad_id, max_seq_len=self.config.max_seq_len)

    def _rows(self, update: int) -> List[range]:
        """The sample numbers of this rank in one update, a range per pass."""
        config, world = self.config, self.world
        first = update * config.samples_per_update + world.rank * config.micro_batch_size
        stride = world.size * config.micro_batch_size
        starts = [first + number * stride for number in range(config.passes)]
        return [range(start, start + config.micro_batch_size) for start in starts]


def open_data(config: PretrainConfig, world: World, pieces: WordPiece, model_positions: int) -> PretrainData:
    """Open the corpus of ``input_dir`` and map its documents to samples.

    Raises InputError when there is not exactly one corpus, when its ids do not fit the vocabulary,
    when a split is empty, or when a sample is longer than the model's ``model_positions``.
    """
    if config.max_seq_len > model_positions:
        raise InputError(
            f"--max_seq_len {config.max_seq_len} is above the model's {model_positions} positions; lower it"
        )
    prefix = find_corpus(Path(config.input_dir))
    corpus = Corpus(prefix)
    refuse_foreign_ids(corpus, pieces)
    documents = document_ranges(config.split, corpus.num_documents)
    rule = masking_rule(
        pieces,
        masked_lm_prob=config.masked_lm_prob,
        max_ngrams=config.max_ngrams,
        favor_longer_ngram=config.favor_longer_ngram,
    )
    datasets = {
        split: ErnieDataset(
            corpus, _sample_map(config, corpus, split, chosen), rule, seed=_seed(config, split)
        )
        if chosen
        else None
        for split, chosen in documents.items()
    }
    return PretrainData(config, world, corpus, pieces, datasets)


def find_corpus(folder: Path) -> Path:
    """The prefix of the one corpus in ``folder``. Raises InputError when there is none, or more."""
    if not folder.is_dir():
        raise InputError(
            f"--input_dir {folder} is not a folder; give the one that holds PREFIX{INDEX_SUFFIX}"
        )
    found = sorted(folder.glob(f"*{INDEX_SUFFIX}"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise InputError(
            f"--input_dir {folder} must hold one corpus PREFIX{INDEX_SUFFIX}, found {names}; "
            "make one with data_tools/create_pretraining_data.py --output_prefix, or move the others away"
        )
    return found[0].with_name(found[0].name[: -len(INDEX_SUFFIX)])


def refuse_foreign_ids(corpus: Corpus, pieces: WordPiece) -> None:
    """Raises InputError when the corpus was made with another vocabulary."""
    if corpus.vocab_sha256 and corpus.vocab_sha256 != pieces.sha256:
        raise InputError(
            f"{corpus.prefix} was made with another vocab.txt than the model's; make it again with "
            "create_pretraining_data.py and the model's vocabulary"
        )
    corpus.check_ids(pieces.vocab_size)


def _sample_map(config: PretrainConfig, corpus: Corpus, split: str, documents: range) -> np.ndarray:
    updates = config.max_steps if split == "train" else config.eval_iters
    settings = {
        "num_samples": updates * config.samples_per_update,
        "target_length": config.max_seq_len - SPECIALS_PER_SAMPLE,
        "short_seq_prob": config.short_seq_prob,
        "seed": _seed(config, split),
        "min_sentences": MIN_SENTENCES,
    }
    key = {"corpus": corpus.fingerprint, "documents": [documents.start, documents.stop], **settings}
    return cached_sample_map(
        Path(config.output_dir) / "cache",
        key,
        lambda: build_sample_map(corpus.docs, corpus.lens, documents, **settings),
    )


def _seed(config: PretrainConfig, split: str) -> int:
    return config.seed * len(SPLIT_NUMBER) + SPLIT_NUMBER[split]
