"""Samples -> the arrays of a batch, under the names that the program feeds."""

from typing import Dict, List

import numpy as np

from data_tools.ernie_dataset import Sample

NO_LABEL = -1
MULTIPLE = 8  # of lengths and of masked slots: the shapes that matrix units prefer


def collate(
    samples: List[Sample], *, pad_id: int, max_seq_len: int, least_length: int = 1
) -> Dict[str, np.ndarray]:
    """Pad a batch of B samples to its longest, S tokens, a multiple of 8 but at most ``max_seq_len``.

    Within that limit, S is at least ``least_length``.

    Returns int64 arrays: input_ids [B, S]; token_type_ids [B, S]; masked_positions [M], positions in the
    flattened batch; masked_lm_labels [M], with -1 in the slots that pad M to a multiple of 8;
    next_sentence_labels [B], -1 where there is none; for samples with masked n-grams also ngram_labels [M],
    the numbers of n-grams, -1 where there is none.
    """
    longest = max(len(sample.input_ids) for sample in samples)
    length = min(_rounded_up(max(longest, least_length)), max(max_seq_len, longest))
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
    ngrams = [sample.ngram_labels for sample in samples if sample.ngram_labels is not None]
    return {**batch, "ngram_labels": _filled_up(np.concatenate(ngrams), slots)} if ngrams else batch


def _filled_up(labels: np.ndarray, slots: int) -> np.ndarray:
    """Return ``labels`` padded with NO_LABEL: int64 [slots]."""
    return np.pad(labels, (0, slots - len(labels)), constant_values=NO_LABEL).astype(np.int64)


def _rounded_up(count: int) -> int:
    return -(-count // MULTIPLE) * MULTIPLE
