"""The match embeddings of a classifier: which tokens of a pair stand in its other text too.

A model with ``match_embeddings`` in its config.json has LEVELS more rows per token type in its table of token
types. They begin as copies of the row of the type, so that a pretrained start computes what it computed. A
token takes the row of its type and of the longest run of tokens, up to LEVELS, that it stands in and that
both texts have; a linear head is told the shares of such tokens. All is computed from the ids inside the
graph: files of pairs, tokenizers and the inputs of exports stay as they are. B batch, S sequence, C classes.

Exact match as a feature of a token: Chen et al. 2017, arXiv:1704.00051 (DrQA); marked for an encoder:
Boualili et al. 2020 (MarkedBERT); linear parts beside deep ones: Cheng et al. 2016, arXiv:1606.07792."""

from functools import reduce
from typing import Sequence

import numpy as np
import paddle
from paddle import nn

from ernie_pair.weights.parameter_names import LEVELS

SHARE_SCALE, TOKEN_SCALE = 600.0, 100.0  # the reach of weights that begin at 0 and learn at an encoder's rate


def match_levels(input_ids, token_type_ids, unmatched_ids: Sequence[int], step: int = 1):
    """Return ``step`` times the length, up to LEVELS, of each token's longest run in the other text, 0: none.

    ``input_ids`` and ``token_type_ids`` are int64 [B, S], the latter the segments of `token_rows`, and so is
    what is returned; ``unmatched_ids``: of special tokens, which match nothing. Paddle Inference 3.3 computes
    in place, also slices that share their memory, and loses the factor of a sum of whole numbers: here are
    neither slices [B, S, S] nor products.
    """
    is_word_BS = is_word_in(input_ids, unmatched_ids)
    is_first_BS = paddle.logical_and(is_word_BS, token_type_ids == 0)
    is_second_BS = paddle.logical_and(is_word_BS, token_type_ids > 0)
    first_BS = paddle.where(is_first_BS, input_ids, paddle.full_like(input_ids, -1))
    second_BS = paddle.where(is_second_BS, input_ids, paddle.full_like(input_ids, -2))
    run_BSS, levels_BS = None, paddle.zeros_like(input_ids)
    for length in range(1, LEVELS + 1):
        # [b, i, j]: a run of this length begins at i of the first text, and at j of the second.
        left_BS, right_BS = shift(first_BS, 1 - length, -1), shift(second_BS, 1 - length, -2)
        same_BSS = left_BS.unsqueeze(2) == right_BS.unsqueeze(1)
        run_BSS = same_BSS if run_BSS is None else paddle.logical_and(run_BSS, same_BSS)
        begins_BS = paddle.logical_or(run_BSS.any(axis=2), run_BSS.any(axis=1))
        level_BS = paddle.full_like(input_ids, length * step)
        level_BS = paddle.where(begins_BS, level_BS, paddle.zeros_like(input_ids))
        levels_BS = reduce(paddle.maximum, [shift(level_BS, by, 0) for by in range(length)], levels_BS)
    return levels_BS


def shift(rows_BS, by: int, filler: int):
    """Return numbers int64 [B, S] moved ``by`` columns to the right, or to the left where it is negative."""
    if not by:
        return rows_BS
    filled = [paddle.full_like(rows_BS[:, :1], filler)] * abs(by)
    return paddle.concat([*filled, rows_BS[:, :-by]] if by > 0 else [rows_BS[:, -by:], *filled], axis=1)


def is_word_in(input_ids, unmatched_ids: Sequence[int]):
    """Return which ids int64 [B, S] are none of ``unmatched_ids``, those of special tokens; bool [B, S]."""
    return reduce(paddle.logical_and, (input_ids != unmatched_id for unmatched_id in unmatched_ids))


def at_least(numbers, least: float):
    """Return ``numbers``, or ``least`` where they are smaller."""
    return paddle.maximum(numbers, paddle.full_like(numbers, least))


class MatchHead(nn.Layer):
    """What is added to the logits: of the shares of matched tokens, and of the tokens that match or do not.

    It is linear and begins at 0, so that a pretrained start computes what it computed. A share is that of
    both texts' tokens in common runs of 1, 2, 3 or more; once counting tokens, once adding up their
    ``information``, which is not trained.
    """

    def __init__(self, vocab_size: int, num_classes: int):
        super().__init__()
        zeros, ones = nn.initializer.Constant(0.0), nn.initializer.Constant(1.0)
        self.information = nn.Embedding(vocab_size, 1, weight_attr=ones)
        self.matched = nn.Embedding(vocab_size, num_classes, weight_attr=zeros)
        self.unmatched = nn.Embedding(vocab_size, num_classes, weight_attr=zeros)
        self.shares = self.create_parameter([2 * LEVELS, num_classes], attr=zeros)

    def forward(self, input_ids, levels_BS, unmatched_ids: Sequence[int], step: int):
        """Return what is added to the logits, float32 [B, C]; see `match_levels` for what is given."""
        is_word_BS = is_word_in(input_ids, unmatched_ids).astype("float32")
        is_matched_BS = (levels_BS > 0).astype("float32")
        information_BS = self.information(input_ids).astype("float32").squeeze(-1)
        shares = []
        for weights_BS in (is_word_BS, is_word_BS * information_BS):
            total_B = at_least(weights_BS.sum(axis=1), 1e-6)
            for level in range(1, LEVELS + 1):
                in_runs_BS = (levels_BS >= level * step).astype("float32")
                shares.append((weights_BS * in_runs_BS).sum(axis=1) / total_B)
        shares_BF = paddle.stack(shares, axis=1) * SHARE_SCALE
        matched_BSC = self.matched(input_ids).astype("float32") * is_matched_BS.unsqueeze(-1)
        unmatched_BS = is_word_BS - is_matched_BS
        unmatched_BSC = self.unmatched(input_ids).astype("float32") * unmatched_BS.unsqueeze(-1)
        length_B1 = at_least(is_word_BS.sum(axis=1, keepdim=True), 1.0).sqrt()
        tokens_BC = (matched_BSC + unmatched_BSC).sum(axis=1) * TOKEN_SCALE / length_B1
        # No product of matrices, which half precision and int8 would round.
        return (shares_BF.unsqueeze(2) * self.shares.astype("float32")).sum(axis=1) + tokens_BC

    def tell_information(self, counts: np.ndarray) -> None:
        """Give each token its information, -log of its share of ``counts``, int64 [at most V]; 1 at most."""
        table = self.information.weight
        all_counts = np.zeros(table.shape[0])
        all_counts[: len(counts)] = counts
        information = np.log((counts.sum() + 1) / (all_counts + 1)) / np.log(counts.sum() + 1)
        table.set_value(information[:, None].astype(table.numpy().dtype))

    def is_told(self) -> bool:
        """Return whether `tell_information` was called, here or before the weights were saved."""
        return bool((self.information.weight.numpy() != 1).any())
