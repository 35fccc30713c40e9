"""The head of --pooling cosine: each text is read alone, and the logits follow from the cosine of both.

The vectors are the means of the hidden states, as those of an embedding model (Reimers and Gurevych 2019,
arXiv:1908.10084). All is computed from the ids of the pair inside the graph: files of pairs, tokenizers and
the inputs of exports stay as they are. B batch, S sequence, C classes.
"""

from typing import Any

import numpy as np
import paddle
from paddle import nn

from ernie_pair.models.labels import REGRESSION, UNLABELLED, Labels, match_class
from ernie_pair.models.networks.encoders import is_token_in

SLOPE = 20.0  # of a logit by the cosine, where labels do not say it
LEAST = 0.1  # times the deviation of the cosines: of a flatter line an encoder would learn nothing


def texts_apart(input_ids, token_type_ids, pad_id: int):
    """Return ids int64 [2B, S] of pairs [B, S]: the first texts as they are read alone, then the second ones.

    ``token_type_ids`` are the segments of `token_rows`. A second text begins with the first token of its
    pair, [CLS], too. Paddle Inference 3.3 loses factors of whole numbers: there are no products of them.
    """
    is_token_BS, padding_BS = is_token_in(input_ids, pad_id), paddle.full_like(input_ids, pad_id)
    zeros_BS, ones_BS = paddle.zeros_like(input_ids), paddle.ones_like(input_ids)
    first_BS = paddle.where(paddle.logical_and(is_token_BS, token_type_ids == 0), input_ids, padding_BS)
    is_second_BS = paddle.logical_and(is_token_BS, token_type_ids == 1)
    before_BS = paddle.logical_and(is_token_BS, token_type_ids != 1)
    before_B1 = paddle.where(before_BS, ones_BS, zeros_BS).sum(axis=1, keepdim=True)
    place_BS = paddle.cumsum(ones_BS, axis=1) - 1
    # [b, i, j]: the token at j of the pair comes to i of its second text, behind [CLS].
    comes_BSS = (place_BS - before_B1 + 1).unsqueeze(1) == place_BS.unsqueeze(2)
    comes_BSS = paddle.logical_and(comes_BSS, is_second_BS.unsqueeze(1))
    moved_BS = paddle.where(comes_BSS, input_ids.unsqueeze(1), zeros_BS.unsqueeze(1)).sum(axis=2)
    second_BS = paddle.where(comes_BSS.any(axis=2), moved_BS, padding_BS)
    second_BS = paddle.where(place_BS == 0, input_ids, second_BS)
    return paddle.concat([first_BS, second_BS], axis=0)


class CosineHead(nn.Layer):
    """Logits [B, C] of the vectors of both texts: weight [1, C] times their cosine, and bias [C].

    Both are 0 until `fit`, and computed in float32: no product of matrices, which int8 would round.
    """

    def __init__(self, num_classes: int):
        super().__init__()
        zeros = nn.initializer.Constant(0.0)
        self.weight = self.create_parameter([1, num_classes], attr=zeros)
        self.bias = self.create_parameter([num_classes], attr=zeros)

    def forward(self, vectors_2BD):
        """Return the logits, float32 [B, C], of vectors [2B, D]: of the first texts, then the second ones."""
        unit_2BD = nn.functional.normalize(vectors_2BD.astype("float32"), axis=1)
        sum_BD = unit_2BD.reshape([2, -1, unit_2BD.shape[1]]).sum(axis=0)
        cosine_B1 = (sum_BD * sum_BD).sum(axis=1, keepdim=True) / 2 - 1  # |u + v|^2 = 2 + 2 uv
        return cosine_B1 * self.weight.astype("float32") + self.bias.astype("float32")

    def is_fitted(self) -> bool:
        """Return whether `fit` was called, here or before the weights were saved."""
        return bool((self.weight.numpy() != 0).any())

    def begin(self, slope: float, offset: float) -> None:
        """Let the score, or the log odds of class 1, be ``slope`` times the cosine, and ``offset``."""
        signs = np.array([1.0]) if len(self.bias) == 1 else np.array([-0.5, 0.5])
        for tensor, value in ((self.weight, slope * signs[None]), (self.bias, offset * signs)):
            tensor.set_value(value.astype(tensor.numpy().dtype))

    def fit(self, cosines: np.ndarray, known: np.ndarray, labels: Labels) -> None:
        """Begin with what the cosines of pairs, float64 [N], say of their labels, int64 or float64 [N].

        Of two classes by logistic regression, of scores by least squares. Candidates that are ranked, and
        pairs of one class, tell nothing of a slope.
        """
        from sklearn.linear_model import LogisticRegression, Ridge

        is_known = known != UNLABELLED if labels.has_classes else np.isfinite(known)
        cosines, known = cosines[is_known, None].astype(np.float64), known[is_known]
        is_learned = labels.has_classes or labels.target == REGRESSION
        sign = -1 if labels.has_classes and match_class(labels) == 0 else 1
        if not is_learned or len(np.unique(known)) < 2 or np.ptp(cosines) == 0:
            self.begin(sign * SLOPE, -sign * SLOPE * float(cosines.mean()) if len(cosines) else 0.0)
            return
        middle, spread = float(cosines.mean()), float(cosines.std())
        regression: Any = LogisticRegression() if labels.has_classes else Ridge(alpha=1e-6)
        found = regression.fit((cosines - middle) / spread, known)
        rise = float(np.ravel(found.coef_)[0])
        slope = (sign * LEAST if labels.has_classes and abs(rise) < LEAST else rise) / spread
        self.begin(slope, float(np.ravel(found.intercept_)[0]) - slope * middle)
