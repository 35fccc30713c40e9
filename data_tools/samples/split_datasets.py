"""The datasets of a run, train, valid and test, of one corpus or a blend of several; and their batches."""

from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Union

import numpy as np

from data_tools.corpus.format import Corpus, document_ranges
from data_tools.corpus.mixture import Blend, BlendedDataset
from data_tools.ernie_dataset import ErnieDataset, Sample, masking_rule
from data_tools.samples.masking import NO_LABEL, MaskingFlags, load_masking_fn
from data_tools.samples.sample_map import build_sample_map, cached_sample_map, rows_fit
from data_tools.text.folder_tokenizer import AnyTokenizer
from data_tools.text.ngrams import NgramLexicon
from ernie_pair.core.files.keyed_cache import keyed_rng, mix_all

# Splits have different seeds: the masks of validation are independent of those of training.
SPLIT_NUMBER = {"train": 0, "valid": 1, "test": 2}

Datasets = Dict[str, Union[ErnieDataset, BlendedDataset, None]]


@dataclass(frozen=True)
class SampleSettings:
    """How documents become samples; equal settings give equal samples.

    ``split``: the parts of train, valid and test, "949,50,1"; ``sample_map``: arguments of
    `build_sample_map`; ``rule``: of `masking_rule`; ``masking_fn``: a name for `load_masking_fn`;
    ``cache_dir``: where sample maps are kept. ``ngrams``: those that are masked by one symbol, if any.
    ``decoder_masked_prob``: see `ErnieDataset`.
    """

    split: str
    seed: int
    sample_map: Mapping[str, Any]
    rule: Mapping[str, Any]
    masking_fn: str
    binary_head: bool
    cache_dir: Path
    ngrams: Optional[NgramLexicon] = None
    decoder_masked_prob: float = 0.0


def build_datasets(
    corpora: List[Corpus],
    blend: Blend,
    tokenizer: AnyTokenizer,
    num_samples: Mapping[str, int],
    settings: SampleSettings,
) -> Datasets:
    """Build the dataset of each split in ``num_samples``, of that length; None if it has no documents.

    Raises InputError when the vocabulary has no ordinary token, when there is no such masking function, or
    when documents are too few for a split.
    """
    rule = masking_rule(tokenizer, **settings.rule)
    masking: Dict[str, Any] = {"masking_fn": load_masking_fn(settings.masking_fn)}
    masking.update(binary_head=settings.binary_head, ngrams=settings.ngrams)
    masking["decoder_masked_prob"] = settings.decoder_masked_prob
    datasets: Datasets = {}
    for split in num_samples:
        number = SPLIT_NUMBER[split]
        documents = [document_ranges(settings.split, corpus.num_documents)[split] for corpus in corpora]
        parts = []
        for place, count in enumerate(blend.counts(num_samples[split]) if any(documents) else []):
            # Corpora have different seeds as well: equal texts in two of them get different masks.
            seed = mix_all(settings.seed, number, place)
            corpus, chosen = corpora[place], documents[place]
            arguments = {"num_samples": count, "seed": seed, **settings.sample_map}
            key = {"corpus": corpus.fingerprint, "documents": [chosen.start, chosen.stop], **arguments}
            sentences = range(*corpus.docs[[chosen.start, chosen.stop]].tolist())
            fits = partial(rows_fit, target_length=arguments["target_length"])
            rows = cached_sample_map(
                settings.cache_dir,
                key,
                build=partial(build_sample_map, corpus.docs, corpus.lens, chosen, **arguments),
                fits=partial(fits, num_rows=count, sentences=sentences),
            )
            parts.append(ErnieDataset(corpus, rows, rule, seed=seed, **masking))
        datasets[split] = BlendedDataset(parts, blend) if len(parts) > 1 else parts[0] if parts else None
    return datasets


def dataset_of(
    corpus: Corpus,
    documents: range,
    tokenizer: AnyTokenizer,
    flags: MaskingFlags,
    *,
    num_samples: int,
    max_seq_len: int,
    seed: int,
) -> ErnieDataset:
    """Make ``num_samples`` samples of ``documents`` by ``flags``. Raises InputError for wrong ones."""
    sizes = {"num_samples": num_samples, "seed": seed, **flags.map_settings(max_seq_len)}
    rows = build_sample_map(corpus.docs, corpus.lens, documents, **sizes)
    rule = masking_rule(tokenizer, **flags.rule_settings())
    masking_fn = load_masking_fn(flags.masking_fn)
    return ErnieDataset(corpus, rows, rule, seed=seed, binary_head=flags.has_order, masking_fn=masking_fn)


MULTIPLE = 8  # of lengths and of masked slots: the shapes that matrix units prefer


def collate(samples: List[Sample], *, pad_id: int, max_seq_len: int) -> Dict[str, np.ndarray]:
    """Pad a batch of B samples to its longest, S tokens, a multiple of 8 but at most ``max_seq_len``.

    Returns int64 arrays: input_ids [B, S]; token_type_ids [B, S]; masked_positions [M], positions in the
    flattened batch; masked_lm_labels [M], with -1 in the slots that pad M to a multiple of 8;
    next_sentence_labels [B], -1 where there is none; for samples with masked n-grams also ngram_labels [M],
    the numbers of n-grams, -1 where there is none; for RetroMAE's decoder also decoder_labels [B, S], -1 in
    padding, and bool decoder_mask [B, S, S], False in padding.
    """
    longest = max(len(sample.input_ids) for sample in samples)
    length = min(_rounded_up(longest), max(max_seq_len, longest))
    input_ids = np.full((len(samples), length), pad_id, np.int64)
    token_type_ids = np.zeros((len(samples), length), np.int64)
    for row, sample in enumerate(samples):
        input_ids[row, : len(sample.input_ids)] = sample.input_ids
        token_type_ids[row, : len(sample.token_type_ids)] = sample.token_type_ids
    positions = np.concatenate([s.masked_positions + row * length for row, s in enumerate(samples)])
    labels = np.concatenate([sample.masked_labels for sample in samples])
    slots = max(MULTIPLE, _rounded_up(len(labels)))  # Paddle cannot multiply 0 rows
    batch = {
        "input_ids": input_ids,
        "token_type_ids": token_type_ids,
        "masked_positions": np.pad(positions, (0, slots - len(positions))).astype(np.int64),
        "masked_lm_labels": _filled_up(labels, slots),
        "next_sentence_labels": np.array([sample.sop_label for sample in samples], np.int64),
    }
    if samples[0].decoder_mask is not None:
        batch["decoder_labels"] = np.full((len(samples), length), NO_LABEL, np.int64)
        batch["decoder_mask"] = np.zeros((len(samples), length, length), bool)
        batch["decoder_mask"][:, :, 0] = True  # padding that sees nothing has no softmax in float16
        for row, sample in enumerate(samples):
            size = len(sample.input_ids)
            batch["decoder_labels"][row, :size] = sample.decoder_labels
            batch["decoder_mask"][row, :size, :size] = sample.decoder_mask
    ngrams = [sample.ngram_labels for sample in samples if sample.ngram_labels is not None]
    return {**batch, "ngram_labels": _filled_up(np.concatenate(ngrams), slots)} if ngrams else batch


def _filled_up(labels: np.ndarray, slots: int) -> np.ndarray:
    """Return ``labels`` padded with NO_LABEL: int64 [slots]."""
    return np.pad(labels, (0, slots - len(labels)), constant_values=NO_LABEL).astype(np.int64)


def _rounded_up(count: int) -> int:
    return -(-count // MULTIPLE) * MULTIPLE


BUCKETS = 64  # in a window: with more of them, lengths within one differ less, and more is read ahead
ORDER = 0x6C656E  # makes the seed different from that of the samples' draws


def whole_windows(num_samples: int, bucket_size: int) -> int:
    """Return ``num_samples`` rounded up to whole windows; unchanged without buckets."""
    window = BUCKETS * bucket_size
    return -(-num_samples // window) * window if bucket_size else num_samples


class BucketedDataset:
    """The samples of an `ErnieDataset` or `BlendedDataset` of a whole number of windows, in another order."""

    def __init__(self, dataset, bucket_size: int, seed: int):
        self.dataset, self.bucket_size, self.seed = dataset, bucket_size, seed
        self._order_of = lru_cache(maxsize=4)(self._order)  # a step may span two windows

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Sample:
        window, place = divmod(index, BUCKETS * self.bucket_size)
        return self.dataset[int(self._order_of(window)[place])]

    def _order(self, window: int) -> np.ndarray:
        """Return the numbers in ``dataset`` of the samples of ``window``: int64 [64 x bucket_size]."""
        size = BUCKETS * self.bucket_size
        numbers = np.arange(window * size, (window + 1) * size)
        buckets = numbers[np.argsort(self.dataset.lengths(numbers), kind="stable")].reshape(BUCKETS, -1)
        return buckets[keyed_rng(self.seed, ORDER, window).permutation(BUCKETS)].ravel()
