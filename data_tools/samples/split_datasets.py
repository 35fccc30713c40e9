"""The datasets of a run: train, valid and test, of one corpus or a blend of several."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Union

import numpy as np

from data_tools.corpus.format import Corpus, document_ranges
from data_tools.corpus.mixture import Blend, BlendedDataset
from data_tools.ernie_dataset import ErnieDataset, masking_rule
from data_tools.files.keyed_cache import mix_all
from data_tools.samples.masking import load_masking_fn
from data_tools.samples.sample_map import build_sample_map, cached_sample_map, rows_fit
from data_tools.text.folder_tokenizer import AnyTokenizer
from data_tools.text.ngrams import NgramLexicon

# Splits have different seeds: the masks of validation are independent of those of training.
SPLIT_NUMBER = {"train": 0, "valid": 1, "test": 2}

Datasets = Dict[str, Union[ErnieDataset, BlendedDataset, None]]


@dataclass(frozen=True)
class SampleSettings:
    """How documents become samples; equal settings give equal samples.

    ``split``: the parts of train, valid and test, "949,50,1"; ``sample_map``: arguments of
    `build_sample_map`; ``rule``: of `masking_rule`; ``masking_fn``: a name for `load_masking_fn`;
    ``cache_dir``: where sample maps are kept. ``ngrams``: those that are masked by one symbol, if any.
    """

    split: str
    seed: int
    sample_map: Mapping[str, Any]
    rule: Mapping[str, Any]
    masking_fn: str
    binary_head: bool
    cache_dir: Path
    ngrams: Optional[NgramLexicon] = None


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
    masking_fn = load_masking_fn(settings.masking_fn)
    datasets: Datasets = {}
    for split in num_samples:
        number = SPLIT_NUMBER[split]
        documents = [document_ranges(settings.split, corpus.num_documents)[split] for corpus in corpora]
        parts = []
        for place, count in enumerate(blend.counts(num_samples[split]) if any(documents) else []):
            # Corpora have different seeds as well: equal texts in two of them get different masks.
            seed = mix_all(settings.seed, number, place)
            rows = _sample_map(corpora[place], documents[place], count, seed, settings)
            parts.append(
                ErnieDataset(
                    corpora[place],
                    rows,
                    rule,
                    seed=seed,
                    binary_head=settings.binary_head,
                    masking_fn=masking_fn,
                    ngrams=settings.ngrams,
                )
            )
        datasets[split] = BlendedDataset(parts, blend) if len(parts) > 1 else parts[0] if parts else None
    return datasets


def _sample_map(
    corpus: Corpus, documents: range, num_samples: int, seed: int, settings: SampleSettings
) -> np.ndarray:
    arguments = {"num_samples": num_samples, "seed": seed, **settings.sample_map}
    key = {"corpus": corpus.fingerprint, "documents": [documents.start, documents.stop], **arguments}
    return cached_sample_map(
        settings.cache_dir,
        key,
        build=lambda: build_sample_map(corpus.docs, corpus.lens, documents, **arguments),
        fits=partial(
            rows_fit,
            num_rows=num_samples,
            sentences=range(*corpus.docs[[documents.start, documents.stop]].tolist()),
            target_length=arguments["target_length"],
        ),
    )
